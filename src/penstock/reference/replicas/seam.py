"""Seam policies with KV memory: a function of a few numbers chooses the batch, memory decides who
may be in it.
"""

from penstock.reference.markov_chain import CONVENTIONS, SCOPES
from penstock.reference.network import EnginePool
from penstock.reference.replicas.replica import Allocation, Request, queue_of
from penstock.reference.replicas.server import Server
from penstock.reference.seam_policies import DECODE_FIRST, POLICIES, Limits


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
    settings = {  # noqa: RUF012
        "order": ("fcfs", "priority"),
        "scope": SCOPES,
        "convention": CONVENTIONS,
        "admission": (None, "input", "completion", "optimistic"),
        "preemption": ("recompute", "swap"),
    }
    has_watermark = True

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.policy = POLICIES[pool.engine] if isinstance(pool.engine, str) else pool.engine
        self.params = pool.options.get("params", ())
        self.admission = pool.admission or "input"

    def step(self) -> Allocation:
        """Form the next batch."""
        self.make_room_for_decodes()
        if not self.preempted:
            self.swap_in()
        visible = self.visible_prompts()
        while not visible and not self.decoding and self.running:
            self.preempt(self.victim())  # all are in mid-prefill and hold what the others lack
            visible = self.visible_prompts()
        prompts = [r for r in self.running if not r.decoding] + self.waiting
        queue = queue_of(visible, prompts, self.decoding, self.arrived)
        x, y, first = self.policy(queue, Limits(self.b_max, self.k_max), self.params)
        return self.compose(visible, x, y, first)

    # ------------------------------------------------------------ 1. memory for decodes:
    # `make_room_for_decodes`

    def forget(self, request: Request) -> None:
        """Let its tokens be computed again; in mode ``swap`` they stay, and its blocks move to host
        memory.
        """
        if self.pool.preemption == "recompute":
            super().forget(request)
            return
        request.swapped = request.blocks
        self.moving += request.blocks * self.pool.swap_ticks

    # ------------------------------------------------------------ 2. back from host memory

    def swap_in(self) -> None:
        """Let swapped-out requests return in order; one that does not fit blocks those behind
        it.
        """
        while self.waiting and self.waiting[0].swapped:
            request = self.waiting[0]
            needed = self.blocks(request.computed + 1) if request.decoding else request.swapped
            full = self.pool.scope == "running" and len(self.running) >= self.k_max
            if full or needed + self.watermark > self.spare:
                break
            self.admit(request, request.swapped)
            self.moving += request.swapped * self.pool.swap_ticks
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
                left = request.P
                if self.admission == "optimistic":  # as far as its blocks and spare ones go
                    left = int(
                        min(left, (request.blocks + spare) * self.block_size - request.computed)
                    )
                    spare -= self.growth(request, max(left, 0))
                if left > 0:
                    visible[request] = left
        if self.pool.scope == "batch":
            visible = dict(list(visible.items())[: self.k_max])
        for request in self.waiting:
            listed = (
                len(visible)
                if self.pool.scope == "batch"
                else len({*self.running, *visible})
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

    def blocks_at_admission(self, request: Request) -> int:
        """KV blocks that it holds from admission on: for its prefill, or to completion."""
        return self.blocks(request.target if self.admission == "input" else request.total)

    # ------------------------------------------------------------ 4. the policy, and who is served

    def compose(self, visible: dict[Request, int], x: int, y: int, first: int) -> Allocation:
        """Serve the phase named first, and the other with the tokens and slots really left."""
        budget, slots = self.b_max, self.k_max
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
        return len(prefills) if self.pool.scope == "batch" else 0

    def decodes(self, tokens: int) -> Allocation:
        """Serve the first decoding requests of the running list."""
        return dict.fromkeys(self.decoding[: max(tokens, 0)], 1)

    def prefills(self, visible: dict[Request, int], tokens: int, slots: int) -> Allocation:
        """Fill the visible prompts in order."""
        if self.pool.scope == "running":
            slots = len(visible)
        chosen: Allocation = {}
        for request, most in list(visible.items())[: max(slots, 0)]:
            if tokens <= 0:
                break
            chosen[request] = min(most, tokens)
            tokens -= chosen[request]
        return chosen

