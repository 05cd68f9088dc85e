"""A model's shape as the prior of a calibration: few factors, and how far off each usually is."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.checks import shown
from penstock.document import parsed
from penstock.errors import InputError, nearest
from penstock.measuring.calibration.build import USUAL, Build
from penstock.measuring.calibration.limits import limited, no_limit_seen
from penstock.measuring.calibration.loads import Row
from penstock.measuring.calibration.posterior import NOISE_90, Fit, as_sent, fit_of
from penstock.measuring.calibration.predict import Overhead
from penstock.measuring.calibration.priors import shape_priors
from penstock.scenario.server import HardwareSection
from penstock.simulation.progress import Progress, counting
from penstock.system.batch_time import Composition
from penstock.system.engines import ENGINES, without_version
from penstock.system.models.adjusted import Adjustment
from penstock.system.models.served import ServedModel
from penstock.system.server import Server
from penstock.system.uncertain import PARAMETERS, Seen, Uncertainty

_ROUNDS = 5  # that a fit usually takes, for the progress bar


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeBuild(Build):
    """Makes a server and an overhead of what is fitted to a shape."""

    served: ServedModel

    def limit(self, name: str) -> int:
        """Return a limit as it was stated, or else as the engine chooses it for these GPUs."""
        if name not in self.assumed:
            return super().limit(name)
        return dict(zip(USUAL, self.served.limits, strict=True))[name] or USUAL[name]

    @functools.cached_property
    def shape(self) -> Composition:
        """The batch times that follow from the shape alone."""
        most = self.limit("token_budget") + self.limit("max_batch_size")
        return self.served.times.composition(most)

    @functools.cached_property
    def kv_of_shape(self) -> int:
        """The tokens of KV memory that the GPUs leave."""
        gpu, engine = self.served.on_gpus, ENGINES[self.served.engine]
        return gpu.kv_tokens(engine, self.limit("token_budget")).tokens

    def __call__(self, values: Mapping[str, float]) -> tuple[Server, Overhead]:
        """Return the server with these values; given KV tokens are what they are."""
        adjustment = Adjustment(**{name: values[name] for name in PARAMETERS})
        tokens = self.kv_tokens
        if tokens is None:
            tokens = round(self.kv_of_shape * values["kv_memory"])
        return self.server(adjustment.of(self.shape), tokens, values), Overhead(values["overhead"])


def possible_shapes(hardware: Mapping[str, Any], build: Build) -> list[ShapeBuild]:
    """Return the shape that a mapping names, with each precision that its KV cache may have."""
    # Without ``kv_precision`` the cache may be as published or in 8 bits; without ``engine`` the
    # policy is it.
    if build.policy not in ENGINES:
        raise InputError(
            f"policy is {shown(build.policy)}, but a shape is served by an engine"
            f"{nearest(build.policy, ENGINES)}"
        )
    section = parsed(hardware, HardwareSection, "hardware", "model and gpu")
    engine = section.engine if "engine" in section.model_fields_set else build.policy
    policy, _ = without_version(engine)
    published = _served(section, engine, section.kv_precision)
    possible = [published]
    if section.kv_precision is None and published.numbers.kv == "bf16":
        possible.append(_served(section, engine, "fp8"))
    stated = vars(build) | {"policy": policy}
    return [ShapeBuild(**stated, served=served) for served in possible]


def _served(section: HardwareSection, engine: str, kv_precision: str | None) -> ServedModel:
    """Return what a section names, under an engine and with a precision of the KV cache."""
    chosen = section.model_copy(update={"engine": engine, "kv_precision": kv_precision})
    served = chosen.build(Path()).served
    assert served is not None
    return served


def shape_fit(
    rows: Sequence[Row],
    to_fit: Sequence[Row],
    builds: Sequence[ShapeBuild],
    seed: int,
    progress: Progress | None,
) -> Fit:
    """Return what rows say of a shape; of builds by KV precision the first is as published."""
    kv_tokens = builds[0].kv_tokens
    priors = shape_priors(builds[0].policy)
    if kv_tokens is not None:
        priors = priors.only(set(priors.of) - {"kv_memory"})
    sent = as_sent(to_fit, builds[0], priors, seed)
    step = counting(progress, len(builds) * _ROUNDS * (len(priors.of) + 2))
    fits: list[Fit] = []
    for build in builds:
        fits.append(fit_of(sent, build, priors, step, fits[0].posterior.mean if fits else None))
    best = min(range(len(fits)), key=lambda index: fits[index].posterior.cost)
    kv = builds[best].served.numbers.kv
    held = {"kv_precision": f"{kv}: the rows fit better with it; give --kv-precision if known"}
    if len(builds) == 1:
        held = {"kv_precision": f"{kv}, as given or published"}
    if kv_tokens is not None:
        held["kv_memory"] = f"{kv_tokens:,} tokens were given"
    fit = limited(fits[best], builds[best].limit("max_batch_size"), ("front_end",), step)
    if "front_end" not in fit.values:
        held |= no_limit_seen("front_end", rows)
    return fit._replace(held=held)


def open_of(fit: Fit, seen: Seen) -> Uncertainty:
    """Return what the rows left open of batch times, and what they have seen."""
    here = [list(fit.priors.of).index(name) for name in PARAMETERS]
    covariance = fit.posterior.covariance[np.ix_(here, here)]
    values = {name: fit.values[name] for name in PARAMETERS}
    # Of Student's t, as a normal distribution with the same 90%, for lengths of no row.
    noise = fit.priors.noise["itl"] * fit.priors.unseen["itl"] * NOISE_90
    return Uncertainty(values, covariance.tolist(), noise, seen)
