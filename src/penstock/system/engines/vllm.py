"""Schedulers of real engines, by name: how they really compose batches, which no policy of a few
numbers can say.

Each is a rule of the kernel (`penstock.kernel.rules`) and an entry here, which states all that sets
it apart: settings, limits, KV memory, how it is started. Facts about the engines: vLLM 0.33, SGLang
0.5.23, TensorRT-LLM.
"""

import itertools
import operator
from typing import TYPE_CHECKING, NamedTuple

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel import records
from penstock.system.engine import Engine, Option
from penstock.system.engines.sglang import Sglang
from penstock.system.scheduler import GpuRule, LimitRule, Options, Program, words_where

if TYPE_CHECKING:
    from penstock.system.server import Server

# ---------------------------------------------------------------- vLLM

_GRAPHS = 0.02  # of the memory of a GPU: CUDA graphs count in the share since 0.21


def _limits_of_vllm(gib: float, a100: bool, offline: bool) -> tuple[int, int]:
    """Return token budget and max batch size; without a server, its ``LLM`` class has more."""
    if gib >= 160:
        return 16384, 1024
    if gib >= 70 and not a100:
        return 16384 if offline else 8192, 1024
    return 8192 if offline else 2048, 256


_AT_ONCE = "--no-async-scheduling"


def _flags_of_vllm(options: Options) -> list[str]:
    threshold, interval = options["long_prefill_threshold"], options["prefill_interval"]
    longest = options["max_model_len"]
    return words_where(
        (not options["chunked_prefill"], "--no-enable-chunked-prefill"),
        (threshold, "--long-prefill-token-threshold", str(threshold)),
        (options["long_prefill_adaptive"], "--long-prefill-token-threshold-adaptive"),
        (interval > 1, "--prefill-schedule-interval", str(interval)),
        (not options["reserve_prompt"], "--no-scheduler-reserve-full-isl"),
        (longest, "--max-model-len", str(longest)),
        (not options["async_scheduling"], _AT_ONCE),
    )


def _named(method: str) -> str:
    return f" ({method})" if method else ""


def _notes_of_vllm(options: Options) -> list[str]:
    return words_where(
        (
            not options["chunked_prefill"],
            "without chunked prefill vLLM wants max-num-batched-tokens to reach the longest "
            "context",
        ),
        (
            options["drafts"],
            f"speculation by {options['drafts']:,} drafts wants --speculative-config with the "
            f"method that drafts{_named(options['method'])}, and its model, which the plan does "
            "not know",
        ),
    )


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
    "ngram": _Drafting(),
    "draft_model": _Drafting(True, slots=1),
    "eagle": _OF_HIDDEN_STATES,
    "eagle3": _OF_HIDDEN_STATES,
    "mtp": _OF_HIDDEN_STATES,
}


def _shares_accepted(options: Options) -> tuple[float, ...]:
    """Return for each draft the share of decodes of which it is accepted."""
    drafts, chances = options["drafts"], options["acceptance"]
    if len(chances) == 1:
        chances = chances * drafts
    if len(chances) != drafts:
        raise InputError(
            f"vllm: acceptance has {len(chances)} chances for {drafts} drafts; give one for all, "
            "or one for each"
        )
    return tuple(itertools.accumulate(chances, operator.mul))


class Vllm(Engine):
    """vLLM 0.33: those that run, in order, then new ones."""

    name = "vllm"
    rule = records.VLLM
    known = {  # noqa: RUF012
        "chunked_prefill": Option(True, alias="enable_chunked_prefill"),
        "async_scheduling": Option(True),
        "long_prefill_threshold": Option(0, alias="long_prefill_token_threshold"),
        "long_prefill_adaptive": Option(False, alias="long_prefill_token_threshold_adaptive"),
        "prefill_interval": Option(1, low=1, alias="prefill_schedule_interval"),
        "reserve_prompt": Option(True, alias="scheduler_reserve_full_isl"),
        "max_model_len": Option(0),
        "drafts": Option(0, high=64, alias="num_speculative_tokens"),
        "acceptance": Option((), needs="drafts"),
        "draft_lookahead": Option(0, high=1024, needs="drafts"),
        "method": Option("", ("", *_DRAFTING), needs="drafts"),
        "parallel_drafting": Option(False, needs="drafts"),
        "mtp_modules": Option(1, low=1, high=64, alias="num_nextn_predict_layers", needs="drafts"),
    }
    orders = ("fcfs", "priority")
    own_blocks = 1
    has_watermark = True
    watermark_alone = False
    caches_prefixes = caches_by_default = True
    cut_by = "chunked_prefill"
    limit_rule = LimitRule(_limits_of_vllm, "256, or 1,024 on GPUs from 70 GiB that are no A100")
    gpu_rule = GpuRule(
        "gpu_memory_utilization",
        0.92,
        lambda gpu, share: (share - _GRAPHS) * gpu.memory - gpu.weights - gpu.overhead,
    )
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
        flags=_flags_of_vllm,
        notes=_notes_of_vllm,
        other="the plan runs the scheduler {name!r}, which vLLM does not have: plan again with "
        "vllm",
        capped=True,
        at_once=(_AT_ONCE,),
        no_cache=("--no-enable-prefix-caching",),
        plugin="--scheduler-cls",
    )

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        threshold = self.options["long_prefill_threshold"]
        if self.options["long_prefill_adaptive"] and threshold == 0:
            raise InputError(
                f"{self.name}: long_prefill_adaptive raises a threshold, but "
                "long_prefill_threshold is 0, none; give one"
            )
        self._settle_drafting()
        at_once = self.options["prefill_interval"] == 1
        fills = self.cuts_prompts and threshold == 0 and at_once
        self.work_conserving = fills and self.options["drafts"] == 0
        self.ahead = self.options["async_scheduling"]
        self.longest_context = self.options["max_model_len"]
        self.kernel_options = {
            "ahead": self.ahead,
            "long_prefill": threshold,
            "adapts": self.options["long_prefill_adaptive"],
            "prefill_interval": self.options["prefill_interval"],
            "reserve_prompt": self.options["reserve_prompt"],
            "drafts": self.options["drafts"],
            "lookahead": self.lookahead,
            "draft_slots": self.draft_slots,
            "reads_ahead": self.reads_ahead,
            "longest": self.longest_context,
        }
        # A step ahead, those in flight are not known to be wrong yet.
        batches = 2 if self.ahead else 1
        self.drafted_tokens = self.options["drafts"] * batches + self.lookahead
        self.receives = self.options["drafts"] == 0
        if self.options["drafts"]:
            self.kernel_numbers = _shares_accepted(self.options)
            self.outputs_per_decode = 1 + sum(self.kernel_numbers)

    def most_tokens(self, token_budget: int, most_requests: int | None) -> int:
        """Return the most tokens that a batch can have: those beside the slots of one request."""
        return super().most_tokens(token_budget, most_requests) - self.draft_slots

    def _settle_drafting(self) -> None:
        """Set what follows from who drafts."""
        options, drafts, method = self.options, self.options["drafts"], self.options["method"]
        drafting = _DRAFTING.get(method, _Drafting()) if drafts else _Drafting()
        self.lookahead = options["draft_lookahead"] if drafts else 0
        if drafting.looks_ahead:
            if self.lookahead not in (0, drafts):
                raise InputError(
                    f"{self.name}: draft_lookahead is {self.lookahead:,}, but {method} looks ahead "
                    f"as far as it drafts, {drafts:,}; leave it out"
                )
            self.lookahead = drafts
        if options["mtp_modules"] > 1 and drafts and method != "mtp":
            raise InputError(
                f"{self.name}: mtp_modules is {options['mtp_modules']:,}, but method is "
                f"{method!r}; take mtp, or leave it out"
            )
        several = min(options["mtp_modules"], drafts) > 1
        self.reads_ahead = (drafts if several else 1) if drafting.reads_ahead else 0
        self.draft_slots = drafting.slots
        if options["parallel_drafting"] and drafts:
            if not drafting.looks_ahead:
                raise InputError(
                    f"{self.name}: parallel_drafting is on, but method is {method!r}, which drafts "
                    "nothing in parallel; take draft_model or eagle3, or leave it out"
                )
            self.draft_slots = drafts + drafting.beside_parallel
        self.beside_prompt = self.draft_slots
        if method == "ngram" and drafts and options["async_scheduling"]:
            raise InputError(
                f"{self.name}: method is 'ngram' beside async_scheduling, but vLLM drafts no "
                "n-grams a step ahead; set async_scheduling to false"
            )

    def check(self, server: "Server") -> None:
        """Refuse what an engine cannot be told, and drafts that no batch has room for."""
        super().check(server)
        drafts, slots = self.options["drafts"], self.draft_slots
        if drafts and drafts + slots >= server.token_budget:
            taken = f", and {slots:,} slots to draft in" if slots else ""
            raise InputError(
                f"drafts is {drafts:,}, but a batch has {server.token_budget:,} tokens "
                f"(token_budget), and a decode needs one beside its drafts{taken}; lower the one "
                "or raise the other"
            )
        threshold = self.options["long_prefill_threshold"]
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


# ---------------------------------------------------------------- TensorRT-LLM


_ADMISSIONS = {
    "guaranteed_no_evict": records.COMPLETION,
    "max_utilization": records.INPUT,
    "static_batch": records.STATIC,
}


class TensorRtLlm(Engine):
    """TensorRT-LLM: all decodes, then prompts, by one of three rules for what must be free.

    As its sources read: no recorded run of it was at hand.
    """

    name = "tensorrt-llm"
    rule = records.TENSORRT
    known = {  # noqa: RUF012
        "capacity": Option(
            "guaranteed_no_evict", tuple(_ADMISSIONS), alias="capacity_scheduler_policy"
        ),
        "chunked_context": Option(False, alias="enable_chunked_context"),
    }
    decodes_at_once = True
    block_size = 32
    cut_by = "chunked_context"
    gpu_rule = GpuRule(
        "free_gpu_memory_fraction",
        0.9,
        lambda gpu, share: share * (gpu.memory - gpu.weights - gpu.overhead),
    )

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        capacity = self.options["capacity"]
        self.work_conserving = self.cuts_prompts and capacity != "static_batch"
        self.whole_blocks = self.cuts_prompts
        self.held = "prefill" if capacity == "max_utilization" else "completion"
        self.reserves_last_token = self.held == "completion"
        self.kernel_options = {"admission": _ADMISSIONS[capacity]}


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Vllm(), Sglang(), TensorRtLlm())}
"""The schedulers of engines that have a name."""


class Defaults(NamedTuple):
    """An engine's own limits: most tokens and most requests (None: it sets none) of a batch."""

    token_budget: int
    max_batch_size: int | None


def engine_defaults(
    name: str, gpu_memory_gib: float, *, a100: bool = False, offline: bool = False
) -> Defaults:
    """Return the limits that an engine chooses for a GPU.

    Parameters
    ----------
    name
        ``vllm`` or ``sglang``: the others want to be told.
    gpu_memory_gib
        Memory of one GPU, GiB.
    a100
        Whether it is an A100, which vLLM treats as a smaller one.
    offline
        Whether the engine is a library without a server (vLLM's ``LLM`` class), which batches more.
    """
    gib = checks.number(
        "gpu_memory_gib", gpu_memory_gib, 1, 4096, "GiB", "it is the memory of one GPU"
    )
    engine = ENGINES.get(name)
    if engine is None or engine.limit_rule is None:
        raise InputError(
            "no default limits are known for "
            f"{checks.shown(name)}{nearest(str(name), choosing())}; "
            "give token_budget and max_batch_size"
        )
    return Defaults(*engine.limit_rule.limits(gib, a100, offline))


def choosing() -> list[str]:
    """Return the engines that choose limits by themselves."""
    return [name for name, engine in ENGINES.items() if engine.limit_rule is not None]
