"""What parameters are likely to be before any row is read, so that one which no row identifies is
not taken for nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.laplace import Normal
from penstock.system.models.adjusted import KNOTS

_FILE = Path(__file__).parent / "shape_priors.yaml"


class Prior(NamedTuple):
    """A log-normal prior."""

    centre: float  # its median, in seconds, tokens, or as a factor
    # One standard deviation: two thirds of its mass lie within this factor of the median.
    factor: float
    reason: str  # where it comes from

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.factor)


@dataclasses.dataclass(frozen=True)
class Priors:
    """What is fitted, and how far off it usually is."""

    of: Mapping[str, Prior]  # of each parameter
    # By metric (`ttft`, `itl`): what no parameter explains, as a logarithm.
    noise: Mapping[str, float]
    # By metric: times that noise, of rows of a length that none of the fitted has.
    unseen: Mapping[str, float]
    # Correlations of the factors of small and medium, of medium and large, and of small and large
    # batches, where there are such: a kernel that is slow at one load is slow near it.
    together: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @functools.cached_property
    def normal(self) -> Normal:
        """The priors as one distribution of logarithms."""
        centres = np.log([prior.centre for prior in self.of.values()])
        deviations = np.array([prior.deviation for prior in self.of.values()])
        correlation = np.eye(len(self.of))
        if set(KNOTS) <= set(self.of):
            small, medium, large = (list(self.of).index(name) for name in KNOTS)
            pairs = ((small, medium), (medium, large), (small, large))
            for (one, other), share in zip(pairs, self.together, strict=True):
                correlation[one, other] = correlation[other, one] = share
        return Normal(centres, correlation * np.outer(deviations, deviations))

    @property
    def whole(self) -> list[int]:
        """Which parameters are whole numbers."""
        return [index for index, name in enumerate(self.of) if name == "max_batch_size"]

    def values(self, theta: Floats) -> dict[str, float]:
        """Return the parameters of their logarithms."""
        return dict(zip(self.of, np.exp(theta).tolist(), strict=True))

    def with_priors(self, more: Mapping[str, Prior]) -> "Priors":
        """Return the priors with those of further parameters."""
        return dataclasses.replace(self, of={**self.of, **more})

    def only(self, names: Collection[str]) -> "Priors":
        """Return the priors of some parameters."""
        some = {name: prior for name, prior in self.of.items() if name in names}
        return dataclasses.replace(self, of=some)

    def near(self, values: Mapping[str, float], factor: float, reason: str) -> "Priors":
        """Return independent priors around some values."""
        of = {name: Prior(value, factor, reason) for name, value in values.items()}
        return dataclasses.replace(self, of=of, together=(0.0, 0.0, 0.0))


@functools.cache
def shape_priors(engine: str) -> Priors:
    """Return how far off shapes usually are under an engine, or under the first in its place."""
    entries: Mapping[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return priors_in(entries.get(engine) or next(iter(entries.values())))


def priors_in(entry: Mapping[str, Any]) -> Priors:
    """Return what a section of the file of priors says."""
    priors = {
        name: Prior(float(centre), float(factor), entry["source"])
        for name, (centre, factor) in entry["priors"].items()
    }
    noise = entry["noise"]
    unseen = entry.get("unseen", dict.fromkeys(noise, 1.0))
    return Priors(priors, noise, unseen, tuple(entry["together"]))


def cost_priors(shortest_s: float) -> Priors:
    """Return each cost's prior, given the shortest inter-token latency of the rows, seconds."""
    # All follow from that one time, about what it takes to read the weights once.
    of = {
        "step": Prior(shortest_s, 2, "the shortest inter-token latency measured"),
        "per_token": Prior(
            shortest_s / 250, 2, "accelerators compute 80 to 500 tokens while they read the weights"
        ),
        "per_token_below": Prior(
            shortest_s / 1000, 3, "below the knee reading the weights covers the computing"
        ),
        "knee": Prior(200, 2, "tokens that accelerators compute while they read the weights"),
        "per_request": Prior(
            shortest_s / 400, 4, "sampling and scheduling take tens of us, steps 5 to 10 ms"
        ),
        "decode_attention": Prior(
            shortest_s * 8e-6, 4, "keys and values are 2 to 40 millionths of the weights"
        ),
        "self_attention": Prior(
            shortest_s * 1.2e-7, 3, "beside linear layers 1 / (12 hidden size) of a token"
        ),
        "with_prefill": Prior(
            shortest_s / 10, 3, "launches of kernels that CUDA graphs save decodes"
        ),
        "overhead": Prior(
            5e-3, 5, "HTTP, tokenizer and queues between processes take milliseconds"
        ),
        "overhead_per_stream": Prior(
            5e-5, 10, "a front end handles a token of a stream in tens of us"
        ),
        "idle": Prior(1e-3, 4, "loops and processes that sleep wake up in about a millisecond"),
    }
    # About what rows of one real server are off by after all (docs/calibrate.md).
    return Priors(of, {"ttft": 0.05, "itl": 0.02}, {"ttft": 1.0, "itl": 1.0})
