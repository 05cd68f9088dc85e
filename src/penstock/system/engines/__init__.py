"""Schedulers of real engines, by name: how they really compose batches, which no policy of a few
numbers can say.

Each is a module here, whose dataclass states all that sets it apart: settings, limits, KV memory,
how it is started; and a rule in `penstock.kernel.engines`.
"""

import importlib
import pkgutil
import re
from typing import NamedTuple

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.system.engine import Engine, kinds

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

ENGINES: dict[str, Engine] = {kind.name: kind() for kind in kinds()}
"""The schedulers of engines that have a name."""


def without_version(name: str) -> tuple[str, str | None]:
    """Return an engine and its version, of a name such as ``vllm-0.16``; None: it has none."""
    versioned = re.fullmatch(r"(.+?)(?:-v?|==)(\d+\.\d+)([.+-]\w+)*", str(name))
    return (versioned[1], versioned[2]) if versioned else (name, None)


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
    rule = ENGINES[name].batching.limit_rule if name in ENGINES else None
    if rule is None:
        raise InputError(
            "no default limits are known for "
            f"{checks.shown(name)}{nearest(str(name), choosing())}; "
            "give token_budget and max_batch_size"
        )
    return Defaults(*rule.limits(gib, a100, offline))


def choosing() -> list[str]:
    """Return the engines that choose limits by themselves."""
    return [name for name, engine in ENGINES.items() if engine.batching.limit_rule is not None]
