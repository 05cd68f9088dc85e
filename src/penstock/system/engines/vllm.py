"""vLLM's scheduler: its settings, limits, KV memory and how it is started."""

import dataclasses
import itertools
import operator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from penstock.errors import InputError
from penstock.fields import Range
from penstock.system.engine import Engine, Setting, count
from penstock.system.scheduler import (
    Batching,
    GpuRule,
    KVUse,
    LimitRule,
    Program,
    Waiting,
    words_where,
)

if TYPE_CHECKING:
    from penstock.system.server import Server

_GRAPHS = 0.02  # of the memory of a GPU: CUDA graphs count in the share since 0.21
_GPU_RULE = GpuRule(
    "gpu_memory_utilization",
    0.92,
    lambda gpu, share: (share - _GRAPHS) * gpu.memory - gpu.weights - gpu.overhead,
)


def _limits(gib: float, a100: bool, offline: bool) -> tuple[int, int]:
    """Return token budget and max batch size; without a server, its ``LLM`` class has more."""
    if gib >= 160:
        return 16384, 1024
    if gib >= 70 and not a100:
        return 16384 if offline else 8192, 1024
    return 8192 if offline else 2048, 256


_LIMIT_RULE = LimitRule(_limits, "256, or 1,024 on GPUs from 70 GiB that are no A100")
_AT_ONCE = "--no-async-scheduling"


class _Drafting(NamedTuple):
    """What vLLM does by who drafts."""

    looks_ahead: bool = False  # drafts have KV memory of their own
    # The drafter reads tokens after those that are computed, so that the name of a block in the
    # prefix cache stands for them, too.
    reads_ahead: bool = False
    # Tokens of the budget that each request served takes besides: where one draft is made after
    # another, and, where all are made at once, beside as many as are drafted.
    slots: int = 0
    beside_parallel: int = 0


_OF_HIDDEN_STATES = _Drafting(True, True, 0, -1)
_DRAFTING = {
    "draft_model": _Drafting(True, slots=1),
    **dict.fromkeys(("eagle", "eagle3", "mtp"), _OF_HIDDEN_STATES),
}
_BESIDE = Setting(needs="drafts")


@dataclasses.dataclass(frozen=True, repr=False)
class Vllm(Engine):
    """vLLM 0.33: those that run, in order, then new ones."""

    chunked_prefill: Annotated[bool, Setting("enable_chunked_prefill")] = True
    async_scheduling: bool = True
    long_prefill_threshold: Annotated[int, count(), Setting("long_prefill_token_threshold")] = 0
    long_prefill_adaptive: Annotated[bool, Setting("long_prefill_token_threshold_adaptive")] = False
    prefill_interval: Annotated[int, count(low=1), Setting("prefill_schedule_interval")] = 1
    reserve_prompt: Annotated[bool, Setting("scheduler_reserve_full_isl")] = True
    max_model_len: Annotated[int, count()] = 0
    drafts: Annotated[int, count(high=64), Setting("num_speculative_tokens")] = 0
    acceptance: Annotated[tuple[float, ...], Range(0, 1, "", "it is a chance"), _BESIDE] = ()
    draft_lookahead: Annotated[int, count(high=1024), _BESIDE] = 0
    method: Annotated[
        Literal["", "ngram", "draft_model", "eagle", "eagle3", "mtp"], _BESIDE
    ] = ""  # fmt: skip
    parallel_drafting: Annotated[bool, _BESIDE] = False
    mtp_modules: Annotated[
        int, count(low=1, high=64), Setting("num_nextn_predict_layers", "drafts")
    ] = 1  # fmt: skip

    name = "vllm"
    place = 1
    rule = "vllm"
    program = Program(
        title="vLLM",
        image="vllm/vllm-openai:v0.33.0",
        port=8000,
        command=("vllm", "serve"),
        tensor_parallel="--tensor-parallel-size",
        token_budget="--max-num-batched-tokens",
        max_batch_size="--max-num-seqs",
        block_size="--block-size",
        expert_parallel=("--enable-expert-parallel",),
        by_priority=("--scheduling-policy", "priority"),
        front_ends="--api-server-count",
        other="the plan runs the scheduler {name!r}, which vLLM does not have: plan again with "
        "vllm",
        capped=True,
        at_once=(_AT_ONCE,),
        no_cache=("--no-enable-prefix-caching",),
        plugin="--scheduler-cls",
    )
    queue = Waiting(("fcfs", "priority"), limits=("requests", "prompt_tokens"))

    def settle(self) -> None:
        """Refuse settings that contradict each other, and state what follows from them."""
        self._refuse_drafting()
        if self.long_prefill_adaptive and self.long_prefill_threshold == 0:
            raise InputError(
                f"{self.name}: long_prefill_adaptive raises a threshold, but "
                "long_prefill_threshold is 0, none; give one"
            )
        in_order = self.long_prefill_threshold == 0 and self.prefill_interval == 1
        # A step ahead, those in flight are not known to be wrong yet.
        batches = 2 if self.async_scheduling else 1
        self.state(
            Batching(
                work_conserving=self.chunked_prefill and in_order and not self.drafts,
                cuts_prompts=self.chunked_prefill,
                cut_by="chunked_prefill",
                beside_prompt=self.draft_slots,
                drafts=self.drafts,
                outputs_per_decode=1 + sum(self.kernel_numbers),
                ahead=self.async_scheduling,
                foreseen=True,
                limit_rule=_LIMIT_RULE,
            ),
            KVUse(
                own_blocks=1,
                has_watermark=True,
                watermark_alone=False,
                longest_context=self.max_model_len,
                drafted_tokens=self.drafts * batches + self.lookahead,
                names_ahead=self.reads_ahead,
                receives=not self.drafts,
                caches_prefixes=True,
                caches_by_default=True,
                gpu_rule=_GPU_RULE,
            ),
            dataclasses.replace(Vllm.queue, lets_leave=not self.drafts),
        )

    def _refuse_drafting(self) -> None:
        """Refuse drafts that nobody can make so."""
        drafts, method, lookahead = self.drafts, self.method, self.draft_lookahead
        if not drafts:
            return
        if self._drafting.looks_ahead and lookahead not in (0, drafts):
            raise InputError(
                f"{self.name}: draft_lookahead is {lookahead:,}, but {method} looks ahead as far "
                f"as it drafts, {drafts:,}; leave it out"
            )
        if self.mtp_modules > 1 and method != "mtp":
            raise InputError(
                f"{self.name}: mtp_modules is {self.mtp_modules:,}, but method is {method!r}; take "
                "mtp, or leave it out"
            )
        if self.parallel_drafting and not self._drafting.looks_ahead:
            raise InputError(
                f"{self.name}: parallel_drafting is on, but method is {method!r}, which drafts "
                "nothing in parallel; take draft_model or eagle3, or leave it out"
            )
        if method == "ngram" and self.async_scheduling:
            raise InputError(
                f"{self.name}: method is 'ngram' beside async_scheduling, but vLLM drafts no "
                "n-grams a step ahead; set async_scheduling to false"
            )
        if len(self.acceptance) not in (1, drafts):
            raise InputError(
                f"{self.name}: acceptance has {len(self.acceptance)} chances for {drafts} drafts; "
                "give one for all, or one for each"
            )

    @property
    def _drafting(self) -> _Drafting:
        """What is done by who drafts."""
        return _DRAFTING.get(self.method, _Drafting()) if self.drafts else _Drafting()

    @property
    def lookahead(self) -> int:
        """Tokens ahead for which drafts need KV memory of their own."""
        if self._drafting.looks_ahead:
            return self.drafts
        return self.draft_lookahead if self.drafts else 0

    @property
    def reads_ahead(self) -> int:
        """Tokens behind a chunk of a prompt that the drafter reads."""
        several = min(self.mtp_modules, self.drafts) > 1
        return (self.drafts if several else 1) if self._drafting.reads_ahead else 0

    @property
    def draft_slots(self) -> int:
        """Tokens of the budget that each request served takes for drafting."""
        drafting = self._drafting
        parallel = self.parallel_drafting and self.drafts
        return self.drafts + drafting.beside_parallel if parallel else drafting.slots

    @property
    def kernel_numbers(self) -> tuple[float, ...]:
        """For each draft the share of decodes of which it is accepted."""
        chances = self.acceptance * (self.drafts if len(self.acceptance) == 1 else 1)
        return tuple(itertools.accumulate(chances, operator.mul)) if self.drafts else (0.0,)

    def most_tokens(self, token_budget: int, most_requests: int | None) -> int:
        """Return the most tokens that a batch can have: those beside the slots of one request."""
        return super().most_tokens(token_budget, most_requests) - self.draft_slots

    def check(self, server: "Server") -> None:
        """Refuse what an engine cannot be told, and drafts that no batch has room for."""
        super().check(server)
        drafts, slots, threshold = self.drafts, self.draft_slots, self.long_prefill_threshold
        if drafts and drafts + slots >= server.token_budget:
            taken = f", and {slots:,} slots to draft in" if slots else ""
            raise InputError(
                f"drafts is {drafts:,}, but a batch has {server.token_budget:,} tokens "
                f"(token_budget), and a decode needs one beside its drafts{taken}; lower the one "
                "or raise the other"
            )
        if 0 < threshold < self.reads_ahead:
            raise InputError(
                f"long_prefill_threshold is {threshold:,}, but several MTP modules read "
                f"{self.reads_ahead:,} tokens behind each chunk of a prompt, so that its end would "
                "never be served; raise it"
            )

    def why_no_cache(self, server: "Server") -> str | None:
        """Return why it cannot cache prefixes at a server: blocks below what MTP modules read."""
        size = server.memory.block_size if server.memory else self.reads_ahead
        if size >= self.reads_ahead:
            return None
        return (
            f"block_size is {size:,}, but with {self.reads_ahead:,} drafts of several MTP modules "
            "vLLM caches prefixes in blocks of at least as many tokens; raise it"
        )

    def flags(self) -> list[str]:
        """Return the options by which vLLM has these settings."""
        threshold, interval = self.long_prefill_threshold, self.prefill_interval
        return words_where(
            (not self.chunked_prefill, "--no-enable-chunked-prefill"),
            (threshold, "--long-prefill-token-threshold", str(threshold)),
            (self.long_prefill_adaptive, "--long-prefill-token-threshold-adaptive"),
            (interval > 1, "--prefill-schedule-interval", str(interval)),
            (not self.reserve_prompt, "--no-scheduler-reserve-full-isl"),
            (self.max_model_len, "--max-model-len", str(self.max_model_len)),
            (not self.async_scheduling, _AT_ONCE),
        )

    def notes(self) -> list[str]:
        """Say what to know before vLLM is started."""
        method = f" ({self.method})" if self.method else ""
        return words_where(
            (
                not self.chunked_prefill,
                "without chunked prefill vLLM wants max-num-batched-tokens to reach the longest "
                "context",
            ),
            (
                self.drafts,
                f"speculation by {self.drafts:,} drafts wants --speculative-config with the method "
                f"that drafts{method}, and its model, which the plan does not know",
            ),
        )
