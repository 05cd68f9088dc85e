"""vLLM: the scheduler of V1 (0.33)."""

from typing import Any

from penstock.errors import InputError
from tests.reference.markov_chain import known
from tests.reference.network import EnginePool
from tests.reference.replicas.drafts import accepted
from tests.reference.replicas.engine import EngineReplica, by_priority
from tests.reference.replicas.replica import Allocation, Request, token_load

SLOTS = {  # of the budget, for each request served: drafts one by one, and in parallel beside them
    "ngram": (0, 0),
    "draft_model": (1, 0),
    "eagle": (0, -1),
    "eagle3": (0, -1),
    "mtp": (0, -1),
}
READ_AHEAD = ("eagle", "eagle3", "mtp")
DRAFTERS = ("draft_model", *READ_AHEAD)


class VllmV1(EngineReplica):
    """``Scheduler.schedule`` of vLLM V1: running requests in list order, then waiting ones.

    One KV block is the engine's own. The watermark binds only while somebody runs.

    Options: ``chunked_prefill``; ``async_scheduling``: a batch is composed when the one before it
    starts; ``long_prefill_threshold``, the most tokens of one prefill in a batch while there is
    more than one request (0: no such limit), and ``long_prefill_adaptive``: a fair share of the
    budget if that is more; ``prefill_interval``: while somebody decodes only every so manieth batch
    may have prompts, unless those that wait were more than the last such batch could take;
    ``reserve_prompt``: whether a prompt is admitted only if all of it fits into memory;
    ``max_model_len``: the most tokens of prompt and output (0: no such limit); ``drafts``: tokens
    drafted for each decode, which its batch verifies, ``acceptance``: the chance that each is
    accepted if those before it are, one for all or one for each, and ``draft_lookahead``: tokens
    beyond those for which it takes memory. A prompt of which one token is left gets drafts too,
    beside decodes or behind what the cache has of it, if no other prompt is served.

    ``method``: who drafts. Those with KV memory of their own (`DRAFTERS`) look ahead as far as they
    draft. EAGLE and MTP read tokens after the computed ones, one, or with several ``mtp_modules``
    as many as are drafted: blocks are named by them too, and no chunk ends so near to the end of a
    prompt. A ``draft_model`` takes a slot of the budget for each request served, as many as it
    drafts with ``parallel_drafting``; an EAGLE with that one less. N-grams are not drafted a step
    ahead.
    """

    options = (
        "chunked_prefill",
        "async_scheduling",
        "long_prefill_threshold",
        "long_prefill_adaptive",
        "prefill_interval",
        "reserve_prompt",
        "max_model_len",
        "drafts",
        "acceptance",
        "draft_lookahead",
        "method",
        "parallel_drafting",
        "mtp_modules",
    )
    settings = EngineReplica.settings | {"order": ("fcfs", "priority")}
    reserved = 1
    default_watermark = 0.0
    watermark_alone = False

    def __init__(self, pool: EnginePool, index: int = 0) -> None:
        super().__init__(pool, index)
        self.cuts_prompts = self.option("chunked_prefill", True)
        self.composes_ahead = self.option("async_scheduling", False)
        self.threshold: int = self.option("long_prefill_threshold", 0, least=0)
        self.adaptive = self.option("long_prefill_adaptive", False)
        self.interval: int = self.option("prefill_interval", 1)
        self.reserve_prompt = self.option("reserve_prompt", True)
        self.longest: int = self.option("max_model_len", 0, least=0)
        self.drafts: int = self.option("drafts", 0, least=0)
        chances: Any = pool.options.get("acceptance", 0.0)
        if isinstance(chances, float):
            chances = [chances] * self.drafts
        self.chances: list[float] = list(chances)
        self.lookahead: int = self.option("draft_lookahead", 0, least=0)
        self.slots = self.reads_ahead = 0
        method = pool.options.get("method", "")
        if self.drafts:
            self.draft_by(known("method", str(method), ["", *SLOTS]))
        # A step ahead, those in flight are not known to be wrong yet.
        self.drafted_tokens = self.drafts * (1 + self.composes_ahead) + self.lookahead
        self.since_prompts = self.interval + 1  # which batch after the last with prompts is next
        self.has_prompts = False  # whether this one has
        self.runs_prompts = False  # whether it has of those who ran before
        self.runs_decodes = False  # whether it has anything of them
        self.overfull = False  # whether that one left requests waiting
        self.passed: set[Request] = set()  # of those that wait, whom others have passed

    def draft_by(self, method: str) -> None:
        """Set what follows from who drafts."""
        if method == "ngram" and self.composes_ahead:
            raise InputError("n-grams are not drafted a step ahead; set async_scheduling to False")
        if method in DRAFTERS:
            self.lookahead = self.drafts
        if method in READ_AHEAD:
            several = min(self.option("mtp_modules", 1), self.drafts) > 1
            self.reads_ahead = self.drafts if several else 1
        if self.pool.prefix_caching:
            self.names_ahead = self.reads_ahead
        self.slots, parallel = SLOTS.get(method, (0, 0))
        if self.option("parallel_drafting", False):
            self.slots = self.drafts + parallel

    def outputs_of(self, prompt: int, output: int) -> int:
        """Return the output tokens that the longest context leaves room for."""
        if self.longest == 0:
            return output
        return min(output, max(self.longest - prompt, 1))

    def refusal(self, request: Request) -> str | None:
        """Say that a prompt leaves no room for an output, or why it could never finish."""
        if self.longest and request.prompt >= self.longest:
            return f"has no room for an output, for max_model_len is {self.longest}"
        room = self.b_max - self.slots
        if not self.cuts_prompts and room < request.prompt <= self.b_max:
            return f"has no room beside the {self.slots} slots of its drafter"
        return super().refusal(request)

    def useful(self, request: Request, tokens: int) -> int:
        """Return the tokens of a prompt, or those of a decode that are accepted and wanted."""
        if tokens <= request.missing and not request.decoding:
            return tokens
        right = accepted(self.chances, request.index, request.outputs)
        return min(1 + min(right, tokens - 1), request.total - request.computed)

    def growth(self, request: Request, tokens: int = 1) -> int:
        """KV blocks that it lacks to compute so many tokens more, and to look ahead."""
        tokens += self.lookahead
        if self.longest:
            tokens = min(tokens, self.longest - request.computed - request.rejected)
        return super().growth(request, tokens)

    def left_of(self, batch: Allocation) -> int:
        """Return how many tokens the next request may have of a batch."""
        return self.b_max - token_load(batch) - self.slots * (len(batch) + 1)

    def cut(self, request: Request, before: int, tokens: int) -> int:
        """Return how many tokens of a prefill are served at once, behind so many before.

        All that are left, or so few that the next chunk has what the drafter reads behind them.
        """
        rest = request.target - before - tokens
        return max(tokens - self.reads_ahead + rest, 0) if 0 < rest < self.reads_ahead else tokens

    def victim(self) -> Request:
        """Return the last, or, by priority, the least urgent and youngest; of equal ones the first
        in the list.
        """
        if self.pool.order == "priority":
            return max(self.running, key=lambda request: by_priority(request)[:2])
        return self.running[-1]

    def step(self) -> Allocation:
        """Form the next batch; nobody is admitted in a step that preempts."""
        batch: Allocation = {}
        self.has_prompts = self.runs_prompts = False
        threshold = self.most_of_a_prompt()
        deferred = (
            self.since_prompts < self.interval
            and not self.overfull
            and any(request.decoding for request in self.running)
        )
        self.serve_running(batch, threshold, deferred)
        self.has_prompts = self.runs_prompts
        self.runs_decodes = len(batch) > 0
        if not self.preempted:
            self.serve_waiting(batch, threshold, deferred)
            if not deferred:
                self.overfull = len(self.waiting) > len(self.passed)
        if self.has_prompts:
            self.since_prompts = 1
        elif batch:
            self.since_prompts += 1
        return batch

    def most_of_a_prompt(self) -> int:
        """Tokens that one prompt may have of the next batch."""
        requests = len(self.running) + len(self.waiting)
        if self.threshold == 0 or requests <= 1:
            return self.b_max
        if self.adaptive:
            return max(self.threshold, self.b_max // requests)
        return self.threshold

    def serve_running(self, batch: Allocation, threshold: int, deferred: bool) -> None:
        """Serve running requests in list order, decodes and prefills alike, each with memory for
        its tokens.
        """
        position = 0
        while position < len(self.running) and self.left_of(batch) > 0:
            request = self.running[position]
            wanted = request.P or 1 + self.drafts
            if self.longest:
                wanted = min(wanted, self.longest - request.computed - request.rejected - 1)
            foreseen = request.is_done and not request.ends_unforeseen
            tokens = min(wanted, threshold, self.left_of(batch))
            if not request.decoding:
                tokens = self.cut(request, request.computed, tokens)
            if foreseen or tokens <= 0 or (deferred and not request.decoding):
                position += 1
                continue
            while self.growth(request, tokens) > self.free:
                victim = self.victim()
                if self.running.index(victim) < position:
                    position -= 1
                # One served before gives its tokens back; who was cut meanwhile stays cut.
                batch.pop(victim, None)
                self.preempt(victim)
                if victim is request:
                    break
            if request in self.running:
                self.grow(request, tokens)
                batch[request] = tokens
                self.runs_prompts |= not request.decoding
                position += 1
            elif self.pool.order == "fcfs":
                break  # by priority those behind it may fit now

    def serve_waiting(self, batch: Allocation, threshold: int, deferred: bool) -> None:
        """Admit waiting requests in order; the first that does not fit blocks those behind it, but
        one that would be cut too near to its end only lets them pass.
        """
        position = 0
        while position < len(self.waiting) and self.left_of(batch) > 0:
            if len(self.running) >= self.k_max:
                break
            request = self.waiting[position]
            cached, unused = self.cached_blocks(request)
            lacking = request.target - cached * self.block_size
            if deferred and lacking > 1:
                break
            budget = self.left_of(batch)
            wanted = lacking
            padded = lacking == 1 and not self.runs_prompts and (cached or self.runs_decodes)
            if self.longest and request.target + self.drafts >= self.longest:
                padded = False
            if padded:
                wanted = 1 + self.drafts
                if wanted > budget:
                    break
            tokens = min(wanted, threshold)
            if tokens > budget and not self.cuts_prompts:
                break
            before = request.target - lacking
            tokens = self.cut(request, before, min(tokens, budget))
            if tokens == 0:
                self.passed.add(request)
                position += 1
                continue
            kept = self.watermark if self.running else 0
            held = before + tokens + self.lookahead
            if self.longest:
                held = min(held, self.longest)
            if self.reserve_prompt:  # all of it must fit, and a part is taken
                held = max(held, request.target)
            if self.blocks(held) - cached + unused + kept > self.free:
                break
            self.admit(request, cached)
            self.passed.discard(request)
            self.grow(request, tokens)
            batch[request] = tokens
            self.has_prompts |= lacking > 1
