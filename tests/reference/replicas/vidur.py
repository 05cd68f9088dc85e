"""The schedulers of the Vidur simulator (commit 7d47513), which differ from the systems that they
are named after.
"""

from typing import ClassVar

from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica, by_arrival
from tests.reference.replicas.replica import NO_LIMIT, Allocation, Request, token_load


class VidurOrca(EngineReplica):
    """Running decodes first, then whole new prompts, in one batch.

    Blocks for ``max_tokens`` are taken at admission; there is no token budget.
    """

    options = ("max_tokens",)
    static: ClassVar[bool] = False  # whether nobody is admitted until all have left

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.b_max = NO_LIMIT
        self.max_tokens = self.option("max_tokens", 4096)
        self.reservation = self.blocks(self.max_tokens)

    def refusal(self, request: Request) -> str | None:
        """Say that a request is longer than ``max_tokens``, or that not one reservation fits."""
        if request.prompt + request.output > self.max_tokens:
            return f"has {request.prompt + request.output} tokens, but max_tokens is {self.max_tokens}"
        if self.reservation > self.usable:
            return f"needs {self.reservation} KV blocks, but {self.usable:g} can be used"
        return super().refusal(request)

    def step(self) -> Allocation:
        """Form the next batch."""
        batch: Allocation = dict.fromkeys(self.running, 1)
        closed = self.static and self.running != []
        while self.waiting and len(self.running) < self.k_max and not closed:
            if self.reservation > self.free:
                break
            request = self.waiting[0]
            self.admit(request, self.reservation)
            batch[request] = request.target
        return batch


class VidurFasterTransformer(VidurOrca):
    """A static batch: all prompts in one iteration, then decodes in lockstep; nobody is admitted
    until all have left.

    So it makes no difference whether memory comes back with each member or with the last, as Vidur
    means to do it.
    """

    static = True


class VidurVllm(EngineReplica):
    """Whole prompts alone, padded to the longest of them; else decodes in order of arrival."""

    default_watermark = 0.01
    budgeted = False
    cuts_prompts = False

    def step(self) -> Allocation:
        """Admit whole prompts while budget, max batch size and memory let the next one in."""
        batch: Allocation = {}
        while self.waiting and len(self.running) < self.k_max:
            request = self.waiting[0]
            padded = (len(batch) + 1) * max([request.target, *batch.values()])
            blocks = self.blocks(request.target)
            if padded > self.b_max or self.free - blocks < self.watermark:
                break
            self.admit(request, blocks)
            batch[request] = request.target
        return batch or self.decode()

    def decode(self) -> Allocation:
        """Serve all, oldest first; the youngest are preempted for want of a free block."""
        self.running.sort(key=by_arrival)
        batch: Allocation = {}
        for request in list(self.running):
            # A free block is asked for even where none is needed.
            while request in self.running and self.free < 1:
                self.preempt(self.victim())
            if request in self.running:
                self.grow(request)
                batch[request] = 1
        return batch


class VidurSarathi(EngineReplica):
    """Decodes in list order, then chunks of partial prefills, then of new prompts.

    A prompt's blocks are all taken with its first chunk. Decodes are not bounded by the token
    budget.
    """

    default_watermark = 0.01
    budgeted = False  # decodes may exceed it

    def step(self) -> Allocation:
        """Form the next batch, and put those left out, in order of arrival, before those in it."""
        batch: Allocation = {}
        self.serve_decodes(batch)
        for request in self.running:  # prompts begun before, cut to what the budget leaves
            tokens = min(request.P, self.b_max - token_load(batch))
            if tokens > 0:
                batch[request] = tokens
        while self.waiting and len(self.running) < self.k_max:  # new ones, with all their blocks
            request, blocks = self.waiting[0], self.blocks(self.waiting[0].target)
            tokens = min(request.target, self.b_max - token_load(batch))
            if self.free - blocks < self.watermark or tokens <= 0:
                break
            self.admit(request, blocks)
            batch[request] = tokens
        left_out = sorted((r for r in self.running if r not in batch), key=by_arrival)
        self.running = left_out + list(batch)
        return batch

    def serve_decodes(self, batch: Allocation) -> None:
        """Serve all in list order; the last that are not gone through are preempted for want of a
        free block.
        """
        ahead = list(self.running)
        while ahead:
            request = ahead.pop(0)
            if not request.decoding:
                continue  # set aside: no victim any more
            while self.free < 1:
                victim = ahead.pop() if ahead else request
                self.preempt(victim)
                if victim is request:
                    break
            if request in self.running:
                self.grow(request)
                batch[request] = 1

    def preempt(self, request: Request) -> None:
        """Put it back; Vidur takes a prompt that was cut short for its processed part, and decodes
        the rest.
        """
        if not request.decoding:
            unprocessed = request.P
            request.prompt -= unprocessed
            request.output += unprocessed
        super().preempt(request)
