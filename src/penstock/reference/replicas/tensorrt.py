"""TensorRT-LLM: a capacity scheduler says who may run, a micro-batch scheduler who is served."""

from penstock.reference.markov_chain import known
from penstock.reference.network import EnginePool
from penstock.reference.replicas.replica import Allocation, Request, token_load
from penstock.reference.replicas.server import Server

CAPACITIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


class TensorRtLlm(Server):
    """The batch manager of TensorRT-LLM.

    Options: ``capacity``, one of `CAPACITIES`: memory is reserved to completion
    (``guaranteed_no_evict``), or for the prompt, and the last one started is paused when it lacks
    (``max_utilization``), or a batch is formed when the server is empty, and nobody joins it
    (``static_batch``); ``chunked_context``: whether prompts may be cut.
    """

    options = ("capacity", "chunked_context")

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        capacity = str(pool.options.get("capacity", CAPACITIES[0]))
        self.capacity = known("capacity", capacity, CAPACITIES)
        self.cuts_prompts = self.option("chunked_context", False)
        self.preempts = self.capacity == "max_utilization"

    def step(self) -> Allocation:
        """Form a micro batch: decodes, then prompts begun before, then new ones."""
        if self.preempts:
            self.make_room_for_decodes()
        if self.capacity == "static_batch" and not self.running:
            while self.may_start():
                self.admit(self.waiting[0], self.blocks_to_start(self.waiting[0]))
        batch: Allocation = {}
        for request in self.decoding:
            if token_load(batch) < self.b_max:
                self.grow(request)
                batch[request] = 1
        for request in self.running:
            if not request.decoding and not self.serve_prompt(request, batch):
                return batch
        while self.capacity != "static_batch" and not self.preempted and self.may_start():
            request = self.waiting[0]
            if self.tokens_for(request, batch) == 0:
                break
            self.admit(request, self.blocks_to_start(request))
            if not self.serve_prompt(request, batch):
                break
        return batch

    def may_start(self) -> bool:
        """Whether the first that waits has a place and memory."""
        return (
            len(self.waiting) > 0
            and len(self.running) < self.k_max
            and self.blocks_to_start(self.waiting[0]) <= self.spare
        )

    def blocks_to_start(self, request: Request) -> int:
        """KV blocks taken at the start: to completion, or for its prefill."""
        return self.blocks(request.target if self.preempts else request.total)

    def tokens_for(self, request: Request, batch: Allocation) -> int:
        """Tokens of its prompt that go into this batch: all that are left, or, in chunks, what the
        budget leaves.
        """
        tokens = min(request.P, self.b_max - token_load(batch))
        return tokens if tokens == request.P or self.cuts_prompts else 0

    def serve_prompt(self, request: Request, batch: Allocation) -> bool:
        """Put a prompt into the batch, if it fits; whether all of it that was left went in."""
        tokens = self.tokens_for(request, batch)
        if tokens:
            batch[request] = tokens
        return request.computed + tokens == request.target
