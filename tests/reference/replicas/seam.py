"""Seam policies with KV memory: a function of a few numbers chooses the batch, memory decides who
may be in it.
"""

from tests.reference.markov_chain import CONVENTIONS, SCOPES
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Allocation, Request, queue_of, token_load
from tests.reference.seam_policies import DECODE_FIRST, POLICIES, Limits


class SeamEngine(EngineReplica):
    """An engine under a seam policy: memory first, then the policy, then who is served.

    1. Every decoding request, in running order, must have the block for its next token; else
       victims are preempted.
    2. The prompts that may be served are counted: those in mid-prefill, then waiting ones while
       they fit.
    3. The policy chooses; decodes are the first of the running list, prompts are filled in order.
    """

    options = ("params",)
    settings = {  # noqa: RUF012
        "order": ("fcfs", "priority"),
        "scope": SCOPES,
        "convention": CONVENTIONS,
        "admission": ("None", "input", "completion", "optimistic"),
    }
    default_watermark = 0.0

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.policy = POLICIES[pool.engine] if isinstance(pool.engine, str) else pool.engine
        self.admission = pool.admission or "input"

    def step(self) -> Allocation:
        """Form the next batch."""
        self.make_room_for_decodes()
        visible = self.visible_prompts()
        if not visible and not self.decoding and self.running:
            self.preempt(self.victim())  # the only one: what it lacks is kept for a transfer
        prompts = [r for r in self.running if not r.decoding] + self.waiting
        queue = queue_of(visible, prompts, self.decoding, self.arrived)
        params = self.pool.options.get("params", ())
        x, y, first = self.policy(queue, Limits(self.b_max, self.k_max), params)
        return self.compose(visible, x, y, first)

    # ------------------------------------------------------------ 1. memory for decodes:
    # `make_room_for_decodes`

    def blocks_to_receive(self, request: Request) -> int:
        """KV blocks that a request takes when its transfer begins."""
        if self.admission == "completion":
            return self.blocks(request.total)
        return super().blocks_to_receive(request)

    # ------------------------------------------------------------ 2. the prompts that may be served

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
                    held = (request.blocks + spare) * self.block_size - request.computed
                    left = max(int(min(left, held)), 0)
                    spare -= self.growth(request, left)
                if left > 0:
                    visible[request] = left
        if self.pool.scope == "batch":
            visible = dict(list(visible.items())[: self.k_max])
        for request in self.waiting:
            listed = {*visible} if self.pool.scope == "batch" else {*self.running, *visible}
            if self.preempted or len(listed) >= self.k_max:
                break
            cached, _ = self.cached_blocks(request)
            left = request.target - cached * self.block_size
            needed = self.blocks_needed(request)
            if self.admission == "optimistic":
                left = int(min(left, (spare - self.watermark) * self.block_size))
                needed = self.blocks(left)  # all of what is spare, if this one is cut
            if left <= 0 or needed > spare - self.watermark:
                break
            visible[request] = left
            spare -= needed
        return visible

    def blocks_at_admission(self, request: Request) -> int:
        """KV blocks that it holds from admission on: for its prefill, or to completion, or none."""
        tokens = {"input": request.target, "completion": request.total, "optimistic": 0}
        return self.blocks(tokens[self.admission])

    def blocks_needed(self, request: Request) -> int:
        """KV blocks that its admission takes from those that nobody uses."""
        cached, unused = self.cached_blocks(request)
        return self.blocks_at_admission(request) - cached + unused

    # ------------------------------------------------------------ 3. the policy, and who is served

    def compose(self, visible: dict[Request, int], x: int, y: int, first: int) -> Allocation:
        """Serve the phase named first, and the other with the tokens and slots really left.

        Prompts are filled in order, and take their blocks before decodes do.
        """
        y = min(y, self.k_max, self.b_max, len(self.decoding))
        x = min(x, sum(visible.values()), self.b_max)
        slots = self.k_max
        if first == DECODE_FIRST:
            x = min(x, self.b_max - y)
            slots -= y
        if self.pool.scope == "running":
            slots = len(visible)
        prompts: Allocation = {}
        for request in list(visible)[: max(slots, 0)]:
            if token_load(prompts) >= x:
                break
            if request in self.waiting:
                if self.blocks_needed(request) > self.spare - self.watermark:
                    break
                self.admit(request, self.blocks_at_admission(request))
            most = visible[request] if self.admission == "optimistic" else request.P
            prompts[request] = min(most, x - token_load(prompts))
            self.grow(request, prompts[request])
        if first != DECODE_FIRST:
            y = min(y, self.b_max - token_load(prompts))
            if self.pool.scope == "batch":  # in scope ``running`` all who run have their slots
                y = min(y, self.k_max - len(prompts))
        decodes = dict.fromkeys(self.decoding[: max(y, 0)], 1)
        for request in decodes:
            self.grow(request)
        return decodes | prompts if first == DECODE_FIRST else prompts | decodes
