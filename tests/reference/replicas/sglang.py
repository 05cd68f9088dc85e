"""SGLang (0.5.23): prefill batches before decode batches, and one request in mid-prefill at most.

`Sglang` is ``Scheduler.get_next_batch_to_run`` with its ``PrefillAdder`` and ``retract_decode``,
rule by rule; `tests.reference.replicas.sglang_memory` foresees the memory that it takes,
`tests.reference.replicas.sglang_queue` orders those that wait,
`tests.reference.replicas.radix_cache` adds the cache of prefixes.
"""

import math

from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.engine import EngineReplica
from tests.reference.replicas.replica import Allocation, Request, token_load
from tests.reference.replicas.sglang_memory import GO_ON, NO_MEMORY, STOP, Budget, Verdict
from tests.reference.replicas.sglang_queue import SglangQueue

RETRACTION_POLICIES = ("length", "priority")


class Sglang(SglangQueue):
    """``get_next_batch_to_run`` of SGLang: admission estimates how many output tokens are still to
    come.

    The estimate is a share, the new token ratio, of the outputs that those who run may still make;
    it falls with every decode batch and rises when a request is retracted (preempted). What a
    request may make is what it has declared, `Jobs.declared`.

    Options
    -------
    overlap_schedule
        Whether a batch is composed when the one before it starts.
    mixed_chunk
        Whether decodes ride along with prefill; all of them do, or none for want of memory.
    chunked_prefill
        Whether prompts are cut to the token budget; if not, ``max_prefill_tokens`` alone limits a
        batch of prompts, and the first of them may be longer.
    max_prefill_tokens
        No further prompt joins a batch once it has so many tokens.
    schedule_conservativeness, new_token_ratio, min_new_token_ratio, decay_steps
        The ratio starts at .7 times the first (or at the second), and falls to .14 of that (or to
        the third) in so many decode batches.
    clip_new_tokens
        Most outputs of a request that are foreseen.
    retract_steps
        Tokens for each request that the ratio after a retraction adds to those that are out.
    schedule_policy
        The order of the waiting queue: ``fcfs``, ``lof`` (the longest declared output first), or,
        with a cache of prefixes, ``lpm``, ``dfs-weight``, ``hrrn`` and ``shortest-prefill-first``.
        Without it the last is refused, and the others are ``fcfs``.
    ignore_eos
        Whether requests are known to make all the outputs that they declare.
    priority_preemption, priority_scheduling_preemption_threshold
        In the order ``priority``: whether a request that finds no place takes those of requests
        whose priority is lower by more than the threshold.
    retraction_policy
        Who is retracted first: those with the fewest outputs (``length``), or in the order
        ``priority`` those of the lowest priority, then those.
    schedule_low_priority_values_first
        Whether the smaller priority comes first, as in all of Penstock; SGLang's own default is
        false.
    """

    options = (
        "overlap_schedule",
        "mixed_chunk",
        "chunked_prefill",
        "max_prefill_tokens",
        "schedule_conservativeness",
        "new_token_ratio",
        "min_new_token_ratio",
        "decay_steps",
        "clip_new_tokens",
        "retract_steps",
        "schedule_policy",
        "ignore_eos",
        "priority_preemption",
        "priority_scheduling_preemption_threshold",
        "schedule_low_priority_values_first",
        "retraction_policy",
    )
    settings = EngineReplica.settings | {"order": ("fcfs", "priority")}
    default_block_size = 1
    budgeted = False  # decode batches have no token budget

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.composes_ahead = self.option("overlap_schedule", False)
        self.chunking = self.option("chunked_prefill", True)
        self.cuts_prompts = self.chunking
        self.mixed_chunk = self.chunking and self.option("mixed_chunk", False)
        self.max_prefill_tokens: int = self.option("max_prefill_tokens", 16384)
        self.takes_places = self.by_priority and self.option("priority_preemption", True)
        self.threshold: int = self.option("priority_scheduling_preemption_threshold", 10, 0)
        self.retraction_policy = str(pool.options.get("retraction_policy", "length"))
        known("sglang retraction_policy", self.retraction_policy, RETRACTION_POLICIES)
        self.decodes: list[Request] = []  # the running batch, in its order
        self.prefilled: list[Request] = []  # of the last batch, if it had prompts
        self.chunked: Request | None = None  # the request in mid-prefill
        self.is_full = False  # nobody is admitted until somebody leaves
        self.left_empty = True  # the running batch, by the last step
        self.last_prefill = 0  # tokens of the last batch with prompts
        self.began_with = 0  # tokens of the one that the running batch was at first

    def step(self) -> Allocation:
        """Form a prefill batch if there is one, else a decode batch."""
        self.gather()
        batch = self.prefill()
        if batch:
            self.last_prefill = token_load(batch)
            self.processed += self.last_prefill
        else:
            batch = self.decode()
            self.processed += self.began_with * bool(batch)
        self.left_empty = not self.decodes
        return batch

    def gather(self) -> None:
        """Let those whose prefill is complete join the ones that decode.

        ``is_full`` belongs to the running batch: it is lost with it when nobody decodes and the
        last batch takes its place, in a mixed batch every time.
        """
        if self.chunked is not None:
            self.keep(self.chunked)
        if self.chunked in self.prefilled:
            self.is_full = False
        joining = [request for request in self.prefilled if request is not self.chunked]
        self.prefilled = []
        if joining and self.left_empty:
            self.began_with = self.last_prefill
        if joining and not self.decodes:
            self.is_full = False
        self.decodes += joining

    # ------------------------------------------------------------ prefill

    def prefill(self) -> Allocation:
        """Go on with the request in mid-prefill, then admit waiting ones while the budgets last."""
        if self.takes_places or not self.decodes:
            self.is_full = False
        if (self.is_full or not self.waiting) and self.chunked is None:
            return {}
        if len(self.running) >= self.k_max and self.chunked is None and not self.takes_places:
            self.is_full = True
            return {}
        self.sort_queue()
        budget = self.new_budget()
        batch: Allocation = {}
        if self.chunked is not None:
            self.serve_chunked(batch, budget)
            if not batch:
                return batch
        self.admit_waiting(batch, budget)
        self.allocate(batch)
        self.prefilled = list(batch)
        if batch and self.mixed_chunk:
            self.drop_finishing()
            if self.decodes and self.may_decode(self.decodes):
                batch |= self.all_decode()
                self.prefilled += self.decodes
                lengths = {request: request.prompt + self.made(request) for request in self.decodes}
                self.filled |= lengths
                self.decodes = []
        return batch

    def new_budget(self) -> Budget:
        """Budgets of a prefill batch, less what those who decode take or may still take."""
        riding = len(self.decodes) if self.mixed_chunk else 0
        foreseen: float = 0
        for request in self.decodes:  # one by one: the order of a sum decides its last digit
            foreseen += self.foreseen(request)
        chunk = self.b_max if self.chunking else math.inf
        return Budget(chunk - riding, self.max_prefill_tokens - riding, riding + foreseen, riding)

    def serve_chunked(self, batch: Allocation, budget: Budget) -> None:
        """Put the next chunk of the request in mid-prefill into the batch.

        SGLang takes a whole chunk where its estimate leaves nothing, and stops for good if it then
        runs out of memory; here such a chunk is cut to the memory there is.
        """
        request = self.chunked
        assert request is not None
        available = min(budget.chunk, self.room - budget.foreseen)
        if available < 1:
            available = budget.chunk
        available = min(available, self.chunk_beside_shorter(request, budget))
        held = request.blocks * self.block_size - request.computed
        tokens = int(min(request.P, available, held + self.room))
        if tokens <= 0:
            return
        batch[request] = tokens
        whole = tokens == request.P
        outputs = self.clipped(request.declared) if whole else 0
        budget.charge(self.paged(tokens), self.block_size, outputs)
        if whole:
            self.chunked = None

    def admit_waiting(self, batch: Allocation, budget: Budget) -> None:
        """Admit in the order of the queue, until one finds no place, no memory or no budget."""
        for request in list(self.waiting):
            if self.verdict(budget) == STOP:
                break
            if len(self.running) >= self.k_max:
                self.is_full = True
            if self.is_full and not (self.takes_places and self.take_places(request, budget)):
                break
            self.look_up(request)
            if self.ignore_eos and not self.caches:
                verdict = self.ask_with_known_outputs(request, batch, budget)
            else:
                verdict = self.ask(request, batch, budget)
            if verdict == NO_MEMORY:
                self.is_full = bool(batch or self.decodes)
            if verdict != GO_ON:
                break

    def ask(self, request: Request, batch: Allocation, budget: Budget) -> Verdict:
        """``add_one_req``: admit a request if its prompt and the outputs that may follow fit.

        It is charged for all outputs that it has declared, those included that were out before it
        was retracted.
        """
        tokens = self.missing(request)
        outputs = self.clipped(request.declared - self.made(request))
        if tokens + outputs + self.block_size >= self.room_beside(request) - budget.foreseen:
            return NO_MEMORY
        if not self.chunking and batch and self.paged(tokens) >= budget.prompts:
            return STOP
        charged = self.clipped(request.declared)
        if self.paged(tokens) > budget.chunk:  # the part that comes first fills its pages
            tokens = int(budget.chunk) // self.block_size * self.block_size
            if tokens <= 0 or (self.chunked and self.schedule_policy == "shortest-prefill-first"):
                return STOP
            self.chunked = request
            charged = 0
        self.enter(request, tokens, batch)
        budget.charge(self.paged(tokens), self.block_size, charged)
        return self.verdict(budget)

    def ask_with_known_outputs(self, request: Request, batch: Allocation, budget: Budget) -> Verdict:
        """``add_one_req_ignore_eos``: admit a request if memory lasts until each of them ends.

        Requests end in the order of the outputs left; up to then all who are left grow alike, and
        each end frees what that request holds.
        """
        tokens = request.target
        paged = self.paged(tokens) + self.block_size
        now = self.room - budget.pending
        if paged > min(now, self.room - budget.foreseen):
            return NO_MEMORY
        lives = self.foresee_ends(request, [*self.decodes, *batch], budget)
        freed = 0
        for index, (left, held) in enumerate(lives):
            together = len(lives) - index
            if now - paged + freed - left * together <= together:
                return NO_MEMORY
            freed += held
        charged = self.clipped(request.declared)
        if tokens > budget.chunk:
            if budget.chunk <= 0:
                return STOP
            tokens = int(budget.chunk)
            self.chunked = request
            charged = 0
        self.enter(request, tokens, batch)
        budget.charge(self.paged(tokens), self.block_size, charged)
        return self.verdict(budget)

    def enter(self, request: Request, tokens: int, batch: Allocation) -> None:
        """Admit a request with so many tokens of its prompt."""
        self.admit(request, 0)
        batch[request] = tokens

    def allocate(self, batch: Allocation) -> None:
        """Give a batch of prompts its pages."""
        self.make_free(self.blocks_before_prefill(batch))
        for request, tokens in batch.items():
            self.grow(request, tokens)

    def blocks_before_prefill(self, batch: Allocation) -> int:
        """Pages that are made free before a batch of prompts gets what it needs: one more for each,
        if pages are longer than a token.
        """
        rounding = 0 if self.block_size == 1 else len(batch)
        return self.blocks(sum(batch.values())) + rounding

    @property
    def most_prefill(self) -> float:
        """Most tokens of a batch with prompts: the longest of those that are not cut may come
        beside others where their ends are known.
        """
        if self.chunking:
            return self.b_max
        beside = self.max_prefill_tokens
        return self.b_max + beside - 1 if self.ignore_eos else max(self.b_max, beside)

    # ------------------------------------------------------------ decode

    def decode(self) -> Allocation:
        """Serve all decodes; if memory lacks, retract those with the fewest outputs first."""
        finishing = self.drop_finishing()
        if not self.decodes:
            return {}
        if self.may_decode(self.decodes):
            self.lower_ratio()
        elif finishing:
            return {}  # their memory is free when this step is over: nobody is retracted
        else:
            self.retract()
        return self.all_decode()

    def drop_finishing(self) -> list[Request]:
        """Strike those from the running batch whose last output is in flight, and return them."""
        finishing = self.finishing()
        if finishing:
            self.is_full = False
            self.decodes = [request for request in self.decodes if request not in finishing]
        return finishing

    def finishing(self) -> list[Request]:
        """Running requests to whom the batch in progress brings the last output that they
        declare.
        """
        return [r for r in self.decodes if r.in_flight and self.made(r) + 1 >= r.declared]

    def may_decode(self, requests: list[Request]) -> bool:
        """Whether memory suffices for a token of each, once a cache has given up what it can."""
        needed = self.lack(requests)
        self.make_free(needed)
        return needed <= self.free

    def all_decode(self) -> Allocation:
        """Give each that decodes the page for its next token, if it lacks it."""
        self.make_free(len(self.decodes))
        for request in self.decodes:
            self.grow(request)
        return dict.fromkeys(self.decodes, 1)

    def retract(self) -> None:
        """Retract at least one, until the others can decode once, or one is left.

        The others go on in the order of outputs made. SGLang aborts a last one that finds no
        memory; here only a request in mid-prefill can hold it, which is retracted.
        """
        left = sorted(self.decodes, key=self.to_be_kept, reverse=True)
        first = True
        while len(left) > 1 and (first or not self.may_decode(left)):
            first = False
            request = left.pop()
            self.preempt(request)
            self.make_free(self.blocks(len(left) * self.retract_steps))
        self.decodes = left
        self.is_full = False
        if not self.may_decode(left):
            assert self.chunked is not None
            self.preempt(self.chunked)
        self.raise_ratio(left)

    def to_be_kept(self, request: Request) -> tuple[int, int, int]:
        """Return its place among those that are retracted: the least is the first."""
        rank = self.rank(request) if self.retraction_policy == "priority" else 0
        return -rank, self.made(request), -request.prompt

    # ------------------------------------------------------------ what a cache of prefixes adds

    def chunk_beside_shorter(self, request: Request, budget: Budget) -> float:
        """Most tokens of the request in mid-prefill, where shorter prompts go before it."""
        return math.inf

    def keep(self, request: Request) -> None:
        """Let a cache keep what is computed of it."""

    def make_free(self, blocks: int) -> None:
        """Let a cache give up pages until so many are free, or none is left to give up."""

    # ------------------------------------------------------------ places of others

    def take_places(self, request: Request, budget: Budget) -> bool:
        """Preempt running requests of much lower priority, the lowest and latest first, if that
        makes room for the outputs of this one (``preempt_to_schedule``).

        Its prompt counts only if it has been looked at before.
        """
        lowest_first = sorted(self.decodes, key=lambda r: (self.rank(r), self.queued[r]))[::-1]
        prompt = self.filled.get(request, 0) - self.cached_tokens(request)
        wanted: float = prompt + self.clipped(request.declared)
        wanted -= self.room - budget.foreseen
        victims: list[Request] = []
        for other in lowest_first:
            if self.rank(other) - self.rank(request) <= self.threshold:
                break
            victims.append(other)
            wanted -= self.foreseen(other)
            if wanted <= 0:
                break
        if not victims or wanted > 0:
            return False
        others = len(self.decodes)
        for victim in [one for one in self.decodes if one in victims]:
            budget.foreseen -= self.foreseen(victim)
            others -= 1
            self.preempt(victim)
            self.make_free(self.blocks(others * self.retract_steps))
        return True

    def preempt(self, request: Request) -> None:
        """Take all its memory and put it at the end of the waiting queue; a token in flight is
        lost.
        """
        if request.in_flight:
            request.token_times.pop()
            request.in_flight = 0
            if request in self.leaving:
                self.leaving.remove(request)
                request.computed = 0
        super().preempt(request)
        self.waiting.append(self.waiting.pop(0))
        self.enqueue(request)

    def evict(self, request: Request) -> None:
        """Take all its memory and strike it from all lists of those that run."""
        super().evict(request)
        self.decodes = [other for other in self.decodes if other is not request]
        self.prefilled = [other for other in self.prefilled if other is not request]
        if self.chunked is request:
            self.chunked = None

    def leave(self, request: Request) -> None:
        """Strike a finished request; others may be admitted again."""
        super().leave(request)
        self.is_full = False

    # ------------------------------------------------------------ what could never finish

    def refusal(self, request: Request) -> str | None:
        """Say that memory is too small, that a chunk is smaller than a page, or that the declared
        outputs contradict the output.
        """
        if self.b_max < self.block_size and request.total > self.b_max and self.chunking:
            return f"must be cut, but a chunk of {self.b_max} tokens is less than a page of {self.block_size}"
        if request.declared < request.output or (self.ignore_eos and request.declared != request.output):
            return f"declares {request.declared} output tokens, which it does not make"
        most = self.most_outputs(request)
        if self.ignore_eos:  # a page of a retracted one may be less full, and one more stays free
            most -= self.block_size
        if request.output > most:
            return f"would be cut to {max(most, 0):g} output tokens for want of memory"
        return super().refusal(request)

    def assert_feasible(self, batch: Allocation) -> None:
        """Assert that one request at most is in mid-prefill, and that the lists agree."""
        super().assert_feasible(batch)
        cut = [r for r in self.running if r.computed + batch.get(r, 0) < r.target]
        assert len(cut) <= 1, f"requests {[r.index for r in cut]} are in mid-prefill at once"
        assert cut == ([] if self.chunked is None else [self.chunked]), "another is in mid-prefill"
        listed = {*self.decodes, *self.prefilled} | {*cut}
        listed |= {request for request in self.running if request.is_done}
        assert listed == {*self.running}, "running requests are lost"
