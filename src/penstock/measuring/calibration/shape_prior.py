"""A model's shape as the prior of a calibration: few factors, and how far off each usually is."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from penstock import checks
from penstock.checks import shown
from penstock.document import parsed
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.laplace import Normal
from penstock.measuring.calibration.predict import Overhead
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.servers import USUAL, Build
from penstock.measuring.shaped import limits_of
from penstock.scenario.server import HardwareSection
from penstock.system.batch_time import Composition
from penstock.system.engines import ENGINES
from penstock.system.memory import Memory
from penstock.system.models.adjusted import KNOTS, Adjustment
from penstock.system.models.served import ServedModel
from penstock.system.server import Server

_FILE = Path(__file__).parent / "shape_priors.yaml"

ADJUSTED = tuple(field.name for field in dataclasses.fields(Adjustment))
"""Parameters that batch times have; `overhead` and `kv_memory` come beside."""

NAMES = (*ADJUSTED, "overhead", "kv_memory")
"""What is fitted to a shape. Factors are 1 for what the shape says; the others are seconds."""


@dataclasses.dataclass(frozen=True)
class ShapePriors:
    """How far off shapes usually are under an engine.

    Attributes
    ----------
    priors
        Of each of `NAMES`.
    together
        Correlations of the factors of small and medium, of medium and large, and of small and
        large batches: a kernel that is slow at one load is slow near it.
    noise
        By metric (``ttft``, ``itl``): the scale of what no parameter explains, as a logarithm.
    source
        Which runs say so.
    """

    priors: Mapping[str, Prior]
    together: tuple[float, float, float]
    noise: Mapping[str, float]
    source: str

    @property
    def normal(self) -> Normal:
        """The priors as one distribution of logarithms."""
        centres = np.log([self.priors[name].centre for name in NAMES])
        deviations = np.array([self.priors[name].deviation for name in NAMES])
        correlation = np.eye(len(NAMES))
        small, medium, large = (NAMES.index(name) for name in KNOTS)
        pairs = ((small, medium), (medium, large), (small, large))
        for (one, other), share in zip(pairs, self.together, strict=True):
            correlation[one, other] = correlation[other, one] = share
        return Normal(centres, correlation * np.outer(deviations, deviations))


@functools.cache
def shape_priors(engine: str) -> ShapePriors:
    """Return how far off shapes usually are under an engine, or under the first in its place."""
    entries: Mapping[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    entry = entries.get(engine) or next(iter(entries.values()))
    priors = {
        name: Prior(float(centre), float(factor), entry["source"])
        for name, (centre, factor) in entry["priors"].items()
    }
    return ShapePriors(priors, tuple(entry["together"]), entry["noise"], entry["source"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeBuild(Build):
    """Makes a server and an overhead of what is fitted to a shape.

    Parameters
    ----------
    served
        The model on its GPUs, under its engine.
    """

    served: ServedModel

    def limit(self, name: str) -> int:
        """Return a limit as it was stated, or else as the engine chooses it for these GPUs."""
        if name not in self.assumed:
            return super().limit(name)
        return dict(zip(USUAL, limits_of(self.served), strict=True))[name] or USUAL[name]

    @functools.cached_property
    def shape(self) -> Composition:
        """The batch times that follow from the shape alone."""
        most = self.limit("token_budget") + self.limit("max_batch_size")
        return self.served.times.composition(most)

    @functools.cached_property
    def kv_of_shape(self) -> int:
        """The tokens that KV memory holds: as given, or what the GPUs leave."""
        if self.kv_tokens is not None:
            block = ENGINES[self.policy].block_size
            one = f"one block of {self.policy} has {block}; give what the engine logs"
            return checks.whole("kv_tokens", self.kv_tokens, block, 2**40, "tokens", one)
        gpu, engine = self.served.on_gpus, ENGINES[self.served.engine]
        return gpu.kv_tokens(engine, self.limit("token_budget")).tokens

    def __call__(self, values: Mapping[str, float]) -> tuple[Server, Overhead]:
        """Return the server with these values; given KV tokens are what they are."""
        adjustment = Adjustment(**{name: values[name] for name in ADJUSTED})
        tokens = self.kv_of_shape
        if self.kv_tokens is None:
            tokens = round(tokens * values["kv_memory"])
        engine = ENGINES[self.policy]
        memory = dataclasses.replace(
            Memory.of_tokens(max(tokens, engine.block_size), engine.block_size),
            prefix_caching=self.prefix_caching,
            too_long="drop",
        )
        server = Server(
            adjustment.of(self.shape),
            self.limit("token_budget"),
            self.limit("max_batch_size"),
            self.policy,
            policy_params=self.policy_params or (),
            memory=memory,
        )
        return server, Overhead(values["overhead"])


def possible_shapes(hardware: Mapping[str, Any], build: Build) -> list[ShapeBuild]:
    """Return the shape that a mapping names, with each precision that its KV cache may have.

    Parameters
    ----------
    hardware
        As a scenario has it. Where it has no ``kv_precision``, the cache may be as published or
        in 8 bits; where it has no ``engine``, the policy is it.
    build
        The limits of the server, its policy and its settings.

    Raises
    ------
    InputError
        If there is no such model or GPU, or the policy is no engine's.
    """
    if build.policy not in ENGINES:
        raise InputError(
            f"policy is {shown(build.policy)}, but a shape is served by an engine"
            f"{nearest(build.policy, ENGINES)}"
        )
    section = parsed(hardware, HardwareSection, "hardware", "model and gpu")
    engine = section.engine if "engine" in section.model_fields_set else build.policy
    published = _served(section, engine, section.kv_precision)
    possible = [published]
    if section.kv_precision is None and published.numbers.kv == "bf16":
        possible.append(_served(section, engine, "fp8"))
    stated = vars(build) | {"policy": engine}
    return [ShapeBuild(**stated, served=served) for served in possible]


def _served(section: HardwareSection, engine: str, kv_precision: str | None) -> ServedModel:
    """Return what a section names, under an engine and with a precision of the KV cache."""
    chosen = section.model_copy(update={"engine": engine, "kv_precision": kv_precision})
    served = chosen.build(Path()).served
    assert served is not None
    return served


def values_of(theta: Floats) -> dict[str, float]:
    """Return the parameters of their logarithms."""
    return dict(zip(NAMES, np.exp(theta).tolist(), strict=True))
