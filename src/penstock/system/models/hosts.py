"""What engines add to the kernels of a model, and how far off their predictions were."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from penstock.system.models.gpus import version_number
from penstock.system.uncertain import Seen

_FILE = Path(__file__).parent / "hosts.yaml"


@dataclasses.dataclass(frozen=True)
class Host:
    """What an engine adds to the kernels of a model's layers."""

    batch_s: float = 0.0  # seconds between two batches in which the GPU waits
    request_s: float = 0.0  # seconds for each request in a batch: sampling, detokenising
    # Seconds of small kernels in each layer: norms, positions, activations, copies.
    layer_s: float = 8e-6
    reduce_s: float = 0.0  # seconds that GPUs wait for each other before each all-reduce
    # Seconds in which the host starts the kernels of a layer, without and with experts, where no
    # CUDA graph does: a batch with more than `graph_tokens` takes no less.
    launch_s: float = 0.0
    launch_experts_s: float = 0.0
    expert_token_bytes: float = 0.0  # that each token moves in a layer with experts, beside kernels
    graph_tokens: int = 512  # largest batch that runs from a CUDA graph
    # Seconds of a request before and after the engine: HTTP, tokenizer, first answer.
    front_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class EngineFit:
    """An engine: what it adds, from which runs that is known, and how far off predictions are."""

    title: str
    host: Host  # fitted on the runs of `source`
    older: Mapping[str, Host]  # of versions up to this one
    source: str  # which runs
    # By measure (`tpot`, `ttft`, and `throughput` at the largest concurrency of each length): a
    # factor that nine of ten predictions were within; and `half` of the throughputs.
    within: Mapping[str, float]
    # Rows of these runs, and those of a model that was left out, Qwen3-32B;
    # and how many of them have a throughput.
    points: int
    throughputs: int
    # Of the throughputs: on which GPUs, and what else the rows have seen.
    gpus: Sequence[str]
    seen: Seen

    def host_of(self, version: str | None) -> Host:
        """Return what a version of it adds; None: the newest."""
        last = None if version is None else self.last_of(version)
        return self.host if last is None else self.older[last]

    def last_of(self, version: str) -> str | None:
        """Return the last version that has the host of an older one; None: the newest has it."""
        later = [last for last in self.older if version_number(version) <= version_number(last)]
        return min(later, key=version_number, default=None)


@functools.cache
def engine_fits() -> Mapping[str, EngineFit]:
    """Return what is known of engines, by name; the first stands for those that are not known."""
    entries = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: _read(entry) for name, entry in entries.items()}


def _read(entry: dict[str, Any]) -> EngineFit:
    host = Host(**entry["host"])
    older = {
        last: dataclasses.replace(host, **more) for last, more in entry.get("older", {}).items()
    }
    return EngineFit(**entry | {"host": host, "older": older, "seen": Seen(**entry["seen"])})


def engine_fit(engine: str) -> EngineFit:
    """Return what is known of an engine, or of the first in its place."""
    fits = engine_fits()
    return fits.get(engine) or next(iter(fits.values()))
