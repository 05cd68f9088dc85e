"""Schedulers of real engines, by name: how they really compose batches, which no policy of a few
numbers can say.

Each is a rule of the kernel (`penstock.kernel.rules`) and an entry here, which states all that sets
it apart: settings, limits, KV memory, how it is started. Facts about the engines: vLLM 0.33, vLLM
up to 0.9 (V0), SGLang 0.5.23, TensorRT-LLM, and the Vidur simulator's own variants.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel import records
from penstock.system.engine import Engine, Option
from penstock.system.scheduler import GpuBytes, GpuRule, LimitRule, Options, Program

if TYPE_CHECKING:
    from penstock.system.server import Server

MB = 2**20


# ---------------------------------------------------------------- vLLM

_GRAPHS = 0.02  # of the memory of a GPU: CUDA graphs count in the share since 0.21


def _limits_of_vllm(gib: float, a100: bool, offline: bool) -> tuple[int, int]:
    """Return its token budget and max batch size; its ``LLM`` class, without a server, batches
    more.
    """
    if gib >= 160:
        return 16384, 1024
    if gib >= 70 and not a100:
        return 16384 if offline else 8192, 1024
    return 8192 if offline else 2048, 256


def _flags_of_vllm(options: Options) -> list[str]:
    flags = []
    if not options["chunked_prefill"]:
        flags.append("--no-enable-chunked-prefill")
    if options["long_prefill_threshold"]:
        flags += ["--long-prefill-token-threshold", str(options["long_prefill_threshold"])]
    return flags


def _notes_of_vllm(options: Options) -> list[str]:
    if options["chunked_prefill"]:
        return []
    return [
        "without chunked prefill vLLM wants max-num-batched-tokens to reach the longest context"
    ]


class Vllm(Engine):
    """vLLM 0.33 (V1): those that run, in order, then new ones."""

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
    }
    orders = ("fcfs", "priority")
    own_blocks = 1
    has_watermark = True
    watermark_alone = False
    caches_prefixes = True
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
        by_priority=("--scheduling-policy", "priority"),
        flags=_flags_of_vllm,
        notes=_notes_of_vllm,
        other="the plan runs the scheduler {name!r}, which vLLM does not have: plan again with "
        "vllm",
        capped=True,
        plugin="--scheduler-cls",
    )

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        threshold = self.options["long_prefill_threshold"]
        if self.options["long_prefill_adaptive"] and threshold == 0:
            raise InputError(
                f"{self.name}: long_prefill_adaptive raises a threshold, but long_prefill_threshold "
                "is 0, none; give one"
            )
        at_once = self.options["prefill_interval"] == 1
        self.work_conserving = self.cuts_prompts and threshold == 0 and at_once
        self.has_mean_field = self.work_conserving  # that of sarathi, where it is the same
        self.ahead = self.options["async_scheduling"]
        self.longest_context = self.options["max_model_len"]
        self.kernel_options = {
            "ahead": self.ahead,
            "long_prefill": threshold,
            "adapts": self.options["long_prefill_adaptive"],
            "prefill_interval": self.options["prefill_interval"],
            "reserve_prompt": self.options["reserve_prompt"],
        }


class VllmV0(Engine):
    """vLLM up to 0.9 (V0): whole prompts alone while any can be admitted, else all decodes."""

    name = "vllm-v0"
    rule = records.VLLM_V0
    decodes_at_once = True
    has_watermark = True
    watermark = 0.01
    gpu_rule = GpuRule(
        "gpu_memory_utilization",
        0.9,
        lambda gpu, share: share * gpu.memory - gpu.weights - gpu.overhead,
    )


# ---------------------------------------------------------------- SGLang

_BUDGET_BELOW_GIB = {20: 2048, 60: 4096, 160: 8192}
"""SGLang's token budget on a GPU with less than so much memory."""


def _limits_of_sglang(gib: float, a100: bool, offline: bool) -> tuple[int, None]:
    return next(
        (budget for limit, budget in _BUDGET_BELOW_GIB.items() if gib < limit), 16_384
    ), None


def _left_by_sglang(gpu: GpuBytes, share: float | None) -> float:
    """Return what is left of a share of the memory, else of all but what it keeps for everything
    else.
    """
    if share is not None:
        return share * gpu.memory - gpu.weights
    large = gpu.memory > 60 * 2**30
    graphs = 32
    if large:
        graphs = 256 if gpu.tensor_parallel < 4 else 512
    reserved = 512 + 1.5 * max(gpu.token_budget, 2048) + 2 * graphs + 128 * gpu.tensor_parallel
    if large:
        reserved = max(reserved, 10 * 1024)
    return gpu.memory - MB * reserved - gpu.weights


_SGLANG_VARIABLES = {
    "new_token_ratio": "SGLANG_INIT_NEW_TOKEN_RATIO",
    "decay_steps": "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS",
    "clip_new_tokens": "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
    "retract_steps": "SGLANG_RETRACT_DECODE_STEPS",
}

FIRST_RATIO = 0.7
LEAST_SHARE_OF_IT = 0.14  # to which the new token ratio decays

_QUEUE_ORDERS = ("fcfs", "lof", "lpm", "dfs-weight", "shortest-prefill-first")
"""Those after the second look at a cache of prefixes, and are the first without one."""


def _environment_of_sglang(options: Options) -> dict[str, str]:
    usual = {key: option.default for key, option in Sglang.known.items()}
    environment = {
        variable: f"{options[key]:g}" if isinstance(options[key], float) else str(options[key])
        for key, variable in _SGLANG_VARIABLES.items()
        if options[key] != usual[key]
    }
    least = options["min_new_token_ratio"]
    start = _first_ratio(options)
    if least is not None and start:
        environment["SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR"] = f"{least / start:.6g}"
    return environment


def _first_ratio(options: Options) -> float:
    """Return the share of future outputs that SGLang's admission counts at first."""
    if options["new_token_ratio"] is not None:
        return float(options["new_token_ratio"])
    return min(FIRST_RATIO * options["schedule_conservativeness"], 1.0)


def _flags_of_sglang(options: Options) -> list[str]:
    flags = ["--max-prefill-tokens", str(options["max_prefill_tokens"])]
    if options["mixed_chunk"]:
        flags.append("--enable-mixed-chunk")
    if not options["overlap_schedule"]:
        flags.append("--disable-overlap-schedule")
    if options["schedule_conservativeness"] != 1:
        flags += ["--schedule-conservativeness", f"{options['schedule_conservativeness']:g}"]
    return flags


class Sglang(Engine):
    """SGLang 0.5.23: new prompts in chunks, alone or beside the decodes, as far as an estimate of
    memory allows.

    Its mixed chunks fill the budget, except beside a prompt of about ``max_prefill_tokens``.
    """

    name = "sglang"
    rule = records.SGLANG
    known = {  # noqa: RUF012
        "overlap_schedule": Option(True),
        "mixed_chunk": Option(False, alias="enable_mixed_chunk"),
        "chunked_prefill": Option(True),
        "max_prefill_tokens": Option(16384, low=1),
        "schedule_conservativeness": Option(1.0, high=1e6),
        "new_token_ratio": Option(None, high=1.0, alias="init_new_token_ratio"),
        "min_new_token_ratio": Option(None, high=1.0),
        "decay_steps": Option(600, low=1, alias="new_token_ratio_decay_steps"),
        "clip_new_tokens": Option(4096, low=1, alias="clip_max_new_tokens_estimation"),
        "retract_steps": Option(20, low=1, alias="retract_decode_steps"),
        "schedule_policy": Option("fcfs", _QUEUE_ORDERS),
        "ignore_eos": Option(False),
    }
    cut_by = "chunked_prefill"
    reads_declared = True
    caches_prefixes = False  # its radix cache is not built
    decodes_beyond = True
    block_size = 1  # it counts single tokens
    limit_rule = LimitRule(_limits_of_sglang)
    gpu_rule = GpuRule("mem_fraction_static", None, _left_by_sglang)
    program = Program(
        title="SGLang",
        image="lmsysorg/sglang:v0.5.23",
        port=30000,
        command=("python3", "-m", "sglang.launch_server", "--model-path"),
        tensor_parallel="--tp-size",
        token_budget="--chunked-prefill-size",
        max_batch_size="--max-running-requests",
        block_size="--page-size",
        by_arrival=("--schedule-policy", "fcfs"),
        flags=_flags_of_sglang,
        environment=_environment_of_sglang,
        other="the plan runs {name!r}, which SGLang does not have: its own scheduler, with "
        "decodes in prefill "
        "batches, is another; plan again with the policy sglang",
        beside_other=("--enable-mixed-chunk",),
    )

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        options = self.options
        if options["new_token_ratio"] is not None and options["schedule_conservativeness"] != 1:
            raise InputError(
                f"{self.name}: schedule_conservativeness sets new_token_ratio, which is given too; "
                "give one of them"
            )
        high, low = _first_ratio(options), options["min_new_token_ratio"]
        if low is None:
            low = min(high * LEAST_SHARE_OF_IT, 1.0)
        if low > high:
            raise InputError(
                f"{self.name}: min_new_token_ratio is {low:g}, above new_token_ratio, {high:g}, "
                "which falls to it; lower it"
            )
        self.ahead = options["overlap_schedule"]
        self.whole_blocks = self.cuts_prompts
        self.sorts_queue = options["schedule_policy"] == "lof"
        self.knows_outputs = options["ignore_eos"]
        if self.knows_outputs and not self.cuts_prompts:
            self.beside_prompt = options["max_prefill_tokens"] - 1
        self.kernel_options = {
            "ahead": self.ahead,
            "mixed": self.cuts_prompts and options["mixed_chunk"],
            "most_prefill": options["max_prefill_tokens"],
            "clip_new_tokens": options["clip_new_tokens"],
            "retract_steps": options["retract_steps"],
            "ignores_eos": options["ignore_eos"],
        }
        self.kernel_numbers = (high, low, (high - low) / options["decay_steps"])

    def check(self, server: "Server") -> None:
        """Refuse what SGLang cannot be told, and batches of prompts beyond the token budget."""
        super().check(server)
        most = self.options["max_prefill_tokens"]
        if not self.cuts_prompts and most > server.token_budget:
            raise InputError(
                f"token_budget is {server.token_budget:,}, but without chunked_prefill a batch of "
                f"prompts may have {most:,} tokens (max_prefill_tokens); raise the one or lower "
                "the other"
            )

    def most_outputs(self, prompt: Any, usable: int, block_size: int) -> Any:
        """Return to how many outputs memory cuts what requests may make: the pages of the prompt,
        one more and one token stay free.
        """
        paged = -(-np.asarray(prompt, np.int64) // block_size) * block_size
        return (usable - 1) * block_size - paged - 1

    def ranks_of(self, priority: Any, declared: Any, order: str) -> Any:
        """Return by what the queue goes before the coming to it: the longest declared first."""
        if self.sorts_queue:
            return -np.asarray(declared, np.int64)
        return priority


# ---------------------------------------------------------------- TensorRT-LLM


_ADMISSIONS = {
    "guaranteed_no_evict": records.COMPLETION,
    "max_utilization": records.INPUT,
    "static_batch": records.STATIC,
}


class TensorRtLlm(Engine):
    """TensorRT-LLM: all decodes, then new requests, by one of three rules for what must be free."""

    name = "tensorrt-llm"
    rule = records.TENSORRT
    known = {  # noqa: RUF012
        "capacity": Option(
            "guaranteed_no_evict",
            tuple(_ADMISSIONS),
            alias="capacity_scheduler_policy",
        ),
        "chunked_context": Option(False, alias="enable_chunked_context"),
    }
    decodes_at_once = True
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
        self.held = "prefill" if capacity == "max_utilization" else "completion"
        self.kernel_options = {"admission": _ADMISSIONS[capacity]}


# ---------------------------------------------------------------- Vidur


class _WithoutBudget(Engine):
    """One of Vidur's that knows no token budget: every request has memory for ``max_tokens``, and
    may not exceed it.
    """

    known = {"max_tokens": Option(4096, low=2)}  # noqa: RUF012
    has_token_budget = False
    usual_slots = 128
    held = "completion"

    def settle(self) -> None:
        """Set the facts that follow from the settings."""
        self.reserved_tokens = self.options["max_tokens"]


class VidurFasterTransformer(_WithoutBudget):
    """Vidur's FasterTransformer: the next batch begins when the last of this one is done."""

    name = "vidur-fastertransformer"
    rule = records.VIDUR_FASTERTRANSFORMER


class VidurOrca(_WithoutBudget):
    """Vidur's Orca: whole prompts beside all decodes."""

    name = "vidur-orca"
    rule = records.VIDUR_ORCA


class VidurVllm(Engine):
    """Vidur's vLLM: whole prompts, padded to the longest, alone while any can be admitted, else all
    decodes.
    """

    name = "vidur-vllm"
    rule = records.VIDUR_VLLM
    decodes_beyond = True
    has_watermark = True
    watermark = 0.01


class VidurSarathi(Engine):
    """Vidur's Sarathi: decodes, then prompts, cut to fit; what is left of a prompt broken off
    becomes output.
    """

    name = "vidur-sarathi"
    rule = records.VIDUR_SARATHI
    work_conserving = True
    cuts_prompts = True
    has_watermark = True
    watermark = 0.01
    blocks_for_decodes = 1  # even for decodes that need none
    loses_rest_of_prompt = True
    held = "prefill"


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Vllm(),
        VllmV0(),
        Sglang(),
        TensorRtLlm(),
        VidurFasterTransformer(),
        VidurOrca(),
        VidurVllm(),
        VidurSarathi(),
    )
}
"""The schedulers of engines that have a name."""


class Defaults(NamedTuple):
    """The limits that an engine sets by itself: most tokens and most requests (None: it sets none)
    of a batch.
    """

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
