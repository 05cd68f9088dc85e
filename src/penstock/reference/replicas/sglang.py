"""SGLang (0.5): prefill batches before decode batches, and one request in mid-prefill at most."""

from penstock.reference.network import EnginePool
from penstock.reference.replicas.replica import Allocation, Request
from penstock.reference.replicas.server import Server


class Sglang(Server):
    """``get_next_batch_to_run`` of SGLang: admission estimates how many output tokens are still to
    come.

    The estimate is a share, the new token ratio, of the outputs left of those that decode; it falls
    with every decode batch and rises when a request is retracted (preempted).

    Options: ``mixed_chunk`` (decodes ride along with prefill), ``max_prefill_tokens``,
    ``new_token_ratio``, ``min_new_token_ratio``, ``decay_steps``, ``clip_new_tokens``,
    ``retract_steps``.
    """

    options = (
        "mixed_chunk",
        "max_prefill_tokens",
        "new_token_ratio",
        "min_new_token_ratio",
        "decay_steps",
        "clip_new_tokens",
        "retract_steps",
    )
    default_block_size = 1
    budgeted = False  # decode batches have no token budget

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.mixed_chunk = self.option("mixed_chunk", False)
        self.max_prefill_tokens = self.option("max_prefill_tokens", 16384)
        self.new_token_ratio: float = self.option("new_token_ratio", 0.7)
        self.min_new_token_ratio = self.option("min_new_token_ratio", 0.098)
        self.decay_steps = self.option("decay_steps", 600)
        self.clip: int = self.option("clip_new_tokens", 4096)
        self.retract_steps = self.option("retract_steps", 20)
        self.is_full = False
        self.idle()

    def idle(self) -> None:
        """Forget the estimate: nobody is there."""
        self.base, self.steps = self.new_token_ratio, 0

    @property
    def chunked(self) -> Request | None:
        """The request in mid-prefill."""
        return next((request for request in self.running if not request.decoding), None)

    def future(self, request: Request) -> int:
        """Output tokens for which admission makes room."""
        return min(request.output - request.outputs, self.clip)

    def step(self) -> Allocation:
        """Form a prefill batch if there is one, else a decode batch."""
        batch = self.prefill()
        if not batch:
            return self.decode()
        if self.mixed_chunk:
            for request in self.decoding:
                if self.growth(request) <= self.free:
                    self.grow(request)
                    batch[request] = 1
        return batch

    # ------------------------------------------------------------ prefill

    def prefill(self) -> Allocation:
        """Go on with the request in mid-prefill, then admit waiting ones while the budgets last."""
        batch: Allocation = {}
        if (self.is_full or not self.waiting) and self.chunked is None:
            return batch
        mixed = len(self.decoding) if self.mixed_chunk else 0
        self.left_chunk = self.b_max - mixed
        self.left_input = self.max_prefill_tokens - mixed
        decay = (self.new_token_ratio - self.min_new_token_ratio) / self.decay_steps
        ratio = max(self.base - self.steps * decay, self.min_new_token_ratio)
        reserved = ratio * sum(self.future(request) for request in self.decoding)
        self.left_total = self.free * self.block_size - reserved
        chunked = self.chunked
        if chunked is not None:
            room = (chunked.blocks + self.free) * self.block_size - chunked.computed
            tokens = int(min(chunked.P, self.left_chunk, room))
            if tokens > 0:
                self.serve(batch, chunked, tokens)
            if tokens < chunked.P:
                return batch
        self.admit_waiting(batch)
        return batch

    def admit_waiting(self, batch: Allocation) -> None:
        """Admit in order; what sets ``is_full`` keeps everybody out until somebody leaves."""
        while self.waiting:
            request = self.waiting[0]
            tokens = request.target
            # Who is alone would wait for memory that nobody holds.
            lacks = self.running and self.paged(tokens) + self.future(request) >= self.left_total
            if lacks or len(self.running) >= self.k_max:
                self.is_full = True
                break
            if tokens >= self.left_input and batch:
                break
            if tokens > self.left_chunk:
                tokens = self.left_chunk // self.block_size * self.block_size
            if tokens <= 0:
                break
            self.admit(request, 0)
            self.serve(batch, request, tokens)
            self.is_full |= self.left_total <= 0
            if min(self.left_total, self.left_input, self.left_chunk) <= 0:
                break

    def paged(self, tokens: int) -> int:
        """Tokens of the pages that so many tokens take."""
        return self.blocks(tokens) * self.block_size

    def serve(self, batch: Allocation, request: Request, tokens: int) -> None:
        """Put a prompt into the batch, and charge it to the three budgets: memory in whole pages,
        with the outputs to come if this is all of it.
        """
        self.grow(request, tokens)
        batch[request] = tokens
        self.left_total -= self.paged(tokens)
        if tokens == request.P:
            self.left_total -= self.future(request)
        self.left_input -= tokens
        self.left_chunk -= tokens

    # ------------------------------------------------------------ decode

    def decode(self) -> Allocation:
        """Serve all decodes; if memory lacks, retract those with the fewest outputs first."""
        if self.lack(self.decoding) > self.free:
            self.retract()
        else:
            self.steps += 1
        for request in self.decoding:
            self.grow(request)
        return dict.fromkeys(self.decoding, 1)

    def retract(self) -> None:
        """Retract at least one, until the others have memory for some steps, or one is left."""
        remaining = sorted(self.decoding, key=lambda r: (r.outputs, -r.prompt), reverse=True)
        while len(remaining) > 1:
            self.preempt(remaining.pop())
            room = self.free * self.block_size
            if self.lack(remaining) <= self.free and len(remaining) * self.retract_steps <= room:
                break
        if self.lack(remaining) > self.free:
            assert self.chunked is not None
            self.preempt(self.chunked)  # it alone can hold what the last decode needs
        done = sum(request.outputs for request in remaining) + self.retract_steps * len(remaining)
        self.base = min(1.0, done / sum(request.output for request in remaining))
        self.steps = 0
        self.is_full = False

    def preempt(self, request: Request) -> None:
        """Take all its memory and put it at the end of the waiting queue."""
        super().preempt(request)
        self.waiting.append(self.waiting.pop(0))

    def leave(self, request: Request) -> None:
        """Strike a finished request from the running list; others may be admitted again."""
        super().leave(request)
        self.is_full = False

    def refusal(self, request: Request) -> str | None:
        """Say that memory is too small, or that a chunk is smaller than a page."""
        if self.b_max < self.block_size and request.total > self.b_max:
            return (
                f"must be cut, but a chunk of {self.b_max} tokens is less than a page of "
                f"{self.block_size}"
            )
        return super().refusal(request)

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that one request at most is in mid-prefill."""
        super().assert_feasible(batch)
        cut = [r for r in self.running if r.computed + batch.get(r, 0) < r.target]
        assert len(cut) <= 1, f"requests {[r.index for r in cut]} are in mid-prefill at once"
