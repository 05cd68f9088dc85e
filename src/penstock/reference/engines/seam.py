"""Seam policies with KV memory: a function of a few numbers chooses the batch, memory decides who
may be in it.
"""

from collections.abc import Mapping

from penstock.errors import InputError, nearest
from penstock.reference.engines.server import Allocation, Limits, Request, Server
from penstock.reference.seam_policies import DECODE_FIRST, Policy, Queue
from penstock.reference.seam_policies import Limits as PolicyLimits

NO_LIMIT = 2**62  # what a policy sees where there is no limit

ADMISSIONS = ("input", "completion", "optimistic")


class SeamServer(Server):
    """A server under a seam policy: memory first, then the policy, then who is served.

    1. Every decoding request, in running order, must have the block for its next token; else
       victims are preempted.
    2. Swapped-out requests at the head of the queue come back.
    3. The prompts that may be served are counted: those in mid-prefill, then waiting ones while
       they fit.
    4. The policy chooses; decodes are the first of the running list, prompts are filled in order.
    """

    options = ("params",)
    orders = ("fcfs", "priority")
    has_watermark = True

    def __init__(
        self, name: str, limits: Limits, options: Mapping[str, object], policy: Policy
    ) -> None:
        super().__init__(name, limits, options)
        self.policy = policy
        self.params = options.get("params", ())
        self.admission = limits.admission or "input"
        self.finished: list[Request] = []

    def refuse_foreign_settings(self) -> None:
        """Raise if a setting is unknown."""
        for setting, value, possible in (
            ("order", self.limits.order, self.orders),
            ("scope", self.limits.scope, ("running", "batch")),
            ("convention", self.limits.convention, ("engine", "paper")),
            ("preemption", self.limits.preemption, ("recompute", "swap")),
            ("admission", self.limits.admission or "input", ADMISSIONS),
        ):
            if value not in possible:
                raise InputError(f"there is no {setting} {value!r}{nearest(value, possible)}")

    @property
    def swaps(self) -> bool:
        """Whether a preempted request is moved to host memory."""
        return self.limits.preemption == "swap"

    def step(self) -> Allocation:
        """Form the next batch."""
        self.make_room_for_decodes()
        if not self.preempted:
            self.swap_in()
        visible = self.visible_prompts()
        while not visible and not self.decoding and self.running:
            self.preempt(self.victim())  # all are in mid-prefill and hold what the others lack
            visible = self.visible_prompts()
        x, y, first = self.policy(self.queue(visible), self.policy_limits(), self.params)
        return self.compose(visible, x, y, first)

    # ------------------------------------------------------------ 1. memory for decodes:
    # `make_room_for_decodes`

    def preempt(self, request: Request) -> None:
        """Put it back; in mode ``swap`` its blocks move to host memory, and what was computed
        stays.
        """
        if not self.swaps:
            super().preempt(request)
            return
        request.swapped = request.blocks
        self.moved += request.blocks
        self.evict(request)
        self.waiting.insert(0, request)
        self.sort_waiting()

    # ------------------------------------------------------------ 2. back from host memory

    def swap_in(self) -> None:
        """Let swapped-out requests return in order; one that does not fit blocks those behind
        it.
        """
        while self.waiting and self.waiting[0].swapped:
            request = self.waiting[0]
            needed = self.blocks(request.computed + 1) if request.decoding else request.swapped
            full = self.limits.scope == "running" and len(self.running) >= self.k_max
            if full or needed + self.watermark > self.spare:
                break
            self.admit(request, request.swapped)
            self.moved += request.swapped
            request.swapped = 0

    # ------------------------------------------------------------ 3. the prompts that may be served

    def visible_prompts(self) -> dict[Request, int]:
        """Prompts that may be in this batch, in the order in which they are filled, and how much
        each may be given.
        """
        spare = self.spare
        visible: dict[Request, int] = {}
        for request in self.running:
            if not request.decoding:
                left = request.target - request.computed
                if self.admission == "optimistic":  # as far as its blocks and spare ones go
                    left = int(
                        min(left, (request.blocks + spare) * self.block_size - request.computed)
                    )
                    spare -= self.growth(request, max(left, 0))
                if left > 0:
                    visible[request] = left
        if self.limits.scope == "batch":
            visible = dict(list(visible.items())[: self.slots])
        for request in self.waiting:
            listed = (
                len(visible)
                if self.limits.scope == "batch"
                else len(self.running) + self.new(visible)
            )
            spare_for_it = spare - self.watermark
            if self.preempted or request.swapped or listed >= self.k_max:
                break
            if self.admission == "optimistic":
                left = int(min(request.target, spare_for_it * self.block_size))
                if left <= 0:
                    break
                visible[request] = left
                spare -= self.blocks(left)  # all of it, if this one is cut
            else:
                if self.blocks_at_admission(request) > spare_for_it:
                    break
                visible[request] = request.target
                spare -= self.blocks_at_admission(request)
        return visible

    def new(self, visible: dict[Request, int]) -> int:
        """How many of the visible prompts still wait."""
        return sum(request in self.waiting for request in visible)

    @property
    def slots(self) -> int:
        """The max batch size as a whole number."""
        return int(min(self.k_max, NO_LIMIT))

    def blocks_at_admission(self, request: Request) -> int:
        """KV blocks that it holds from admission on: for its prefill, or to completion."""
        return self.blocks(request.target if self.admission == "input" else self.peak(request))

    # ------------------------------------------------------------ 4. the policy, and who is served

    def queue(self, visible: dict[Request, int]) -> Queue:
        """Count what the policy sees."""
        in_prefill = [request for request in self.running if not request.decoding] + self.waiting
        unprocessed = [max(request.target - request.computed, 0) for request in in_prefill]
        arrived = self.running + self.waiting + self.finished
        return Queue(
            prompts=len(visible),
            prompt_tokens=sum(visible.values()),
            decoding=len(self.decoding),
            waiting=len(in_prefill),
            waiting_tokens=sum(unprocessed),
            head_tokens=unprocessed[0] if unprocessed else 0,
            decode_tokens=sum(self.peak(request) - request.computed for request in self.decoding),
            arrived=len(arrived),
            arrived_tokens=sum(request.prompt for request in arrived),
            finished=len(self.finished),
            finished_decodes=sum(request.output - self.extra for request in self.finished),
        )

    def policy_limits(self) -> PolicyLimits:
        """Return the limits that the policy sees."""
        return PolicyLimits(int(min(self.b_max, NO_LIMIT)), self.slots)

    def compose(self, visible: dict[Request, int], x: int, y: int, first: int) -> Allocation:
        """Serve the phase named first, and the other with the tokens and slots really left."""
        budget, slots = self.policy_limits()
        y = min(y, slots, budget)
        if first == DECODE_FIRST:
            decodes = self.decodes(y)
            prefills = self.prefills(visible, min(x, budget - len(decodes)), slots - len(decodes))
            chosen = decodes | prefills
        else:
            prefills = self.prefills(visible, min(x, budget), slots)
            decodes = self.decodes(
                min(y, budget - sum(prefills.values()), slots - self.counted(prefills))
            )
            chosen = prefills | decodes
        for request, tokens in chosen.items():
            if request in self.running:
                self.grow(request, tokens)
            elif self.admission == "optimistic":
                self.admit(request, self.blocks(tokens))
            else:
                self.admit(request, self.blocks_at_admission(request))
        return chosen

    def counted(self, prefills: Allocation) -> int:
        """Slots of the batch that prompts take from decodes; in scope ``running`` all who run have
        theirs.
        """
        return len(prefills) if self.limits.scope == "batch" else 0

    def decodes(self, tokens: int) -> Allocation:
        """Serve the first decoding requests of the running list."""
        return dict.fromkeys(self.decoding[: max(tokens, 0)], 1)

    def prefills(self, visible: dict[Request, int], tokens: int, slots: int) -> Allocation:
        """Fill the visible prompts in order."""
        if self.limits.scope == "running":
            slots = len(visible)
        chosen: Allocation = {}
        for request, most in list(visible.items())[: max(slots, 0)]:
            if tokens <= 0:
                break
            chosen[request] = min(most, tokens)
            tokens -= chosen[request]
        return chosen

    def leave(self, request: Request) -> None:
        """Strike a finished request from the running list, and keep it for the totals."""
        super().leave(request)
        self.finished.append(request)
