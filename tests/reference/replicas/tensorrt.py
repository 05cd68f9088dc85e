"""TensorRT-LLM: a capacity scheduler says who may run, a micro-batch scheduler who is served.

As its sources read (``capacityScheduler.cpp``, ``microBatchScheduler.cpp``); no recorded run of it
was at hand.
"""

import math

from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Allocation, Request, token_load

CAPACITIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


class TensorRtLlm(EngineReplica):
    """The batch manager of TensorRT-LLM.

    Options: ``capacity``, one of `CAPACITIES`: memory is reserved to completion
    (``guaranteed_no_evict``), or for the prompt, and the last one started is paused when it lacks
    (``max_utilization``), or to completion, and nobody's prompt is served beside decodes
    (``static_batch``); ``chunked_context``: whether prompts may be cut.

    The list ``running`` has those who got a token; who may run, but got none, holds no memory.
    """

    options = ("capacity", "chunked_context")
    default_block_size = 32

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        capacity = str(pool.options.get("capacity", CAPACITIES[0]))
        self.capacity = known("capacity", capacity, CAPACITIES)
        self.cuts_prompts = self.option("chunked_context", False)
        self.preempts = self.capacity == "max_utilization"
        self.reserves_last_token = not self.preempts
        # Without a limit there are no blocks.
        self.chunk_unit = 1 if math.isinf(self.usable) else self.block_size

    def refusal(self, request: Request) -> str | None:
        """Say why a request could never finish here, or return None if it could."""
        if self.cuts_prompts and self.chunk_unit > self.b_max:
            return f"would get chunks of whole blocks of {self.chunk_unit} tokens, but the token budget is {self.b_max}"
        return super().refusal(request)

    def step(self) -> Allocation:
        """Form a micro batch of those who may run: decodes, then prompts."""
        fitting = self.within_one_step() if self.preempts else self.within_completion()
        batch: Allocation = {}
        for request in fitting:
            if request.decoding and token_load(batch) < self.b_max:
                self.grow(request)
                batch[request] = 1
        for request in fitting:
            if request.decoding:
                continue
            tokens = self.tokens_for(request, batch)
            if tokens == 0 and not self.cuts_prompts:
                break
            if tokens > 0:
                if request not in self.running:
                    self.admit(request, self.blocks_to_start(request))
                batch[request] = tokens
        return batch

    def within_completion(self) -> list[Request]:
        """Return who may run because there is memory for all that they will ever need: those who
        decode, then the others in order of arrival, up to the first that does not fit.
        """
        fitting = self.decoding
        if fitting and self.capacity == "static_batch":
            return fitting
        free = self.free
        for request in self.requests:
            if request.decoding:
                continue
            needed = 0 if request in self.running else self.blocks_to_start(request)
            if len(fitting) == self.k_max or needed > free:
                break
            fitting.append(request)
            free -= needed
        return fitting

    def within_one_step(self) -> list[Request]:
        """Return who may run because there is memory for its next step, in order of arrival.

        For one that lacks it, the last that has started, itself or one behind it, is paused, and
        nobody behind that one may run.
        """
        fitting: list[Request] = []
        order = list(self.requests)
        free = self.free
        while len(fitting) < len(order):
            request = order[len(fitting)]
            needed = self.blocks_for_step(request)
            if len(fitting) < self.k_max and needed <= free:
                fitting.append(request)
                free -= needed
                continue
            started = [other for other in order[len(fitting) :] if other in self.running]
            if not started:
                break
            free += started[-1].blocks
            del order[order.index(started[-1]) :]
            self.preempt(started[-1])
        return fitting

    def blocks_for_step(self, request: Request) -> int:
        """KV blocks that it lacks for its next step: whoever starts takes those of its prompt."""
        if request not in self.running:
            return self.blocks_to_start(request)
        return self.growth(request) if request.decoding else 0

    def blocks_to_start(self, request: Request) -> int:
        """KV blocks taken at the start: to completion, for the last output too, which is never
        computed; or for its prefill.
        """
        return self.blocks(request.target if self.preempts else request.total + 1)

    def tokens_for(self, request: Request, batch: Allocation) -> int:
        """Tokens of its prompt that go into this batch: all that are left, or, in chunks, the
        whole blocks that fit.
        """
        room = self.b_max - token_load(batch)
        if room >= request.P:
            return request.P
        return room // self.chunk_unit * self.chunk_unit if self.cuts_prompts else 0
