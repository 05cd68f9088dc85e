"""Schedulers of real engines, by name: how they really compose batches, which no policy of a few numbers can say.

Each is a rule of the kernel (`penstock.kernel.rules`) with the options that its engine has. Facts about the engines:
vLLM 0.33, vLLM up to 0.9 (V0), SGLang 0.5.23, TensorRT-LLM, and the Vidur simulator's own variants.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel import running
from penstock.kernel.signatures import SEES_DECODES, Queue
from penstock.system.memory import Memory

Options = Mapping[str, Any]

MOST_TOKENS = 2**22


class Option(NamedTuple):
    """A setting of an engine: its default, what it may be, and what the engine itself calls it."""

    default: Any
    known: tuple[str, ...] | None = None  # words to choose from
    low: float = 0
    high: float = MOST_TOKENS
    alias: str = ""


class Engine:
    """The scheduler of an engine.

    Attributes
    ----------
    name
        How tables and messages call it.
    rule
        The kernel's number for it.
    options
        Its settings, all of them.
    """

    def __init__(self, name: str, rule: int, known: Mapping[str, Option], given: Options | None = None) -> None:
        self.name, self.rule, self.known = name, rule, known
        defaults = {key: option.default for key, option in known.items()}
        self.options = defaults if given is None else defaults | _checked(name, known, given)

    def __repr__(self) -> str:
        changed = {k: v for k, v in self.options.items() if v != self.known[k].default}
        return f"Engine({self.name!r}{''.join(f', {k}={v!r}' for k, v in changed.items())})"

    def with_options(self, options: Options) -> "Engine":
        """Return the same scheduler with other settings."""
        return Engine(self.name, self.rule, self.known, options)

    # What a policy of the seam has too.
    reads = frozenset(Queue._fields)
    sees = SEES_DECODES
    parameters: Callable[..., tuple[float, ...]] | None = None

    @property
    def work_conserving(self) -> bool | None:
        """Whether batches carry what waits up to the token budget and no more, with ample memory and slots.

        SGLang's mixed chunks do, except beside a prompt of about ``max_prefill_tokens``. Vidur's Orca knows no budget.
        """
        match self.name:
            case "vidur-sarathi":
                return True
            case "vllm":
                return bool(self.options["chunked_prefill"]) and self.options["long_prefill_threshold"] == 0
            case "tensorrt-llm":
                return bool(self.options["chunked_context"]) and self.options["capacity"] != "static_batch"
            case _:
                return False

    @property
    def has_token_budget(self) -> bool:
        """Whether its batches are cut to the token budget."""
        return self.rule not in (running.VIDUR_ORCA, running.VIDUR_FASTERTRANSFORMER)

    @property
    def cuts_prompts(self) -> bool:
        """Whether a prompt may be spread over batches."""
        match self.name:
            case "vllm":
                return bool(self.options["chunked_prefill"])
            case "tensorrt-llm":
                return bool(self.options["chunked_context"])
            case _:
                return self.name in ("sglang", "vidur-sarathi")

    def most_tokens(self, token_budget: int, max_batch_size: int) -> int:
        """Return the most tokens that a batch may come to."""
        if not self.has_token_budget:
            return max_batch_size * int(self.options["max_tokens"])
        decodes_beyond = self.rule in (running.SGLANG, running.VIDUR_VLLM)
        return max(token_budget, max_batch_size) if decodes_beyond else token_budget

    @property
    def block_size(self) -> int:
        """Tokens in a block, unless told otherwise: SGLang counts single tokens."""
        return 1 if self.name == "sglang" else 16

    @property
    def has_watermark(self) -> bool:
        """Whether its admissions leave blocks free."""
        return self.rule in (running.VLLM, running.VLLM_V0, running.VIDUR_VLLM, running.VIDUR_SARATHI)

    @property
    def watermark(self) -> float:
        """Share of the blocks that its admissions leave free, unless told otherwise."""
        return 0.01 if self.rule in (running.VLLM_V0, running.VIDUR_VLLM, running.VIDUR_SARATHI) else 0.0

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders of the queue that it knows."""
        return ("fcfs", "priority") if self.name == "vllm" else ("fcfs",)

    def usable(self, memory: Memory) -> int:
        """Return the blocks that requests can hold: vLLM keeps one for itself."""
        return memory.blocks - 1 if self.name == "vllm" else memory.blocks


def _checked(name: str, known: Mapping[str, Option], given: Options) -> dict[str, Any]:
    """Return the settings given, by their own names, once their values are sound."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"the policy_params of {name!r} are {checks.shown(given)}, but it has settings with names "
            f"({', '.join(known) or 'none'}); give a mapping"
        )
    aliases = {option.alias: key for key, option in known.items() if option.alias}
    found: dict[str, Any] = {}
    for word, value in given.items():
        text = str(word).replace("-", "_")
        key = aliases.get(text, text)
        if key not in known:
            raise InputError(f"{name} has no setting {checks.shown(word)}{nearest(text, [*known, *aliases])}")
        if key in found:
            raise InputError(f"{name}: {key} is given twice; give it once")
        option = known[key]
        if option.known is not None:
            word = value.lower() if isinstance(value, str) else ""  # TensorRT-LLM writes them in capitals
            if word not in option.known:
                raise InputError(f"{name}: {key} is {checks.shown(value)}{nearest(str(value), option.known)}")
            found[key] = word
        elif isinstance(option.default, bool):
            if not isinstance(value, bool):
                raise InputError(f"{name}: {key} is {checks.shown(value)}, but must be true or false")
            found[key] = value
        elif isinstance(option.default, float):
            found[key] = checks.number(f"{name}: {key}", value, option.low, option.high, "", "it is a share")
        else:
            low, high = int(option.low), int(option.high)
            found[key] = checks.whole(
                f"{name}: {key}", value, low, high, "", "it is a number of tokens, requests or steps"
            )
    start, least = (
        found.get(key, known[key].default) if key in known else 0.0
        for key in ("new_token_ratio", "min_new_token_ratio")
    )
    if least > start:
        raise InputError(
            f"{name}: min_new_token_ratio is {least:g}, above new_token_ratio, {start:g}, which falls to it; lower it"
        )
    return found


_MAX_TOKENS = {"max_tokens": Option(4096, low=2)}

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "vllm",
            running.VLLM,
            {
                "chunked_prefill": Option(True, alias="enable_chunked_prefill"),
                "long_prefill_threshold": Option(0, alias="long_prefill_token_threshold"),
            },
        ),
        Engine("vllm-v0", running.VLLM_V0, {}),
        Engine(
            "sglang",
            running.SGLANG,
            {
                "mixed_chunk": Option(False, alias="enable_mixed_chunk"),
                "max_prefill_tokens": Option(16384, low=1),
                "new_token_ratio": Option(0.7, high=1.0),
                "min_new_token_ratio": Option(0.098, high=1.0),
                "decay_steps": Option(600, low=1),
                "clip_new_tokens": Option(4096, low=1),
                "retract_steps": Option(20, low=1),
            },
        ),
        Engine(
            "tensorrt-llm",
            running.TENSORRT,
            {
                "capacity": Option(
                    "guaranteed_no_evict",
                    ("guaranteed_no_evict", "max_utilization", "static_batch"),
                    alias="capacity_scheduler_policy",
                ),
                "chunked_context": Option(False, alias="enable_chunked_context"),
            },
        ),
        Engine("vidur-fastertransformer", running.VIDUR_FASTERTRANSFORMER, _MAX_TOKENS),
        Engine("vidur-orca", running.VIDUR_ORCA, _MAX_TOKENS),
        Engine("vidur-vllm", running.VIDUR_VLLM, {}),
        Engine("vidur-sarathi", running.VIDUR_SARATHI, {}),
    )
}
"""The schedulers of engines that have a name."""


@dataclasses.dataclass(frozen=True)
class Defaults:
    """The limits that an engine sets by itself: most tokens and most requests (None: it sets none) of a batch."""

    token_budget: int
    max_batch_size: int | None


_BUDGET_BELOW_GIB = {20: 2048, 60: 4096, 160: 8192}
"""SGLang's token budget on a GPU with less than so much memory."""


def engine_defaults(name: str, gpu_memory_gib: float, *, a100: bool = False, offline: bool = False) -> Defaults:
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
    gib = checks.number("gpu_memory_gib", gpu_memory_gib, 1, 4096, "GiB", "it is the memory of one GPU")
    if name == "vllm":
        if gib >= 160:
            return Defaults(16384, 1024)
        if gib >= 70 and not a100:
            return Defaults(16384 if offline else 8192, 1024)
        return Defaults(8192 if offline else 2048, 256)
    if name == "sglang":
        return Defaults(next((budget for limit, budget in _BUDGET_BELOW_GIB.items() if gib < limit), 16_384), None)
    raise InputError(
        f"no default limits are known for {checks.shown(name)}{nearest(str(name), ['vllm', 'sglang'])}; "
        "give token_budget and max_batch_size"
    )
