"""A model's shape as the prior of a calibration: few factors, how far off each usually is, what
rows say of them, and how uncertain that leaves them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml

from penstock import checks
from penstock.checks import shown
from penstock.document import parsed
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.build import USUAL, Build, with_known
from penstock.measuring.calibration.equations import Row, column_of, measured, saturated
from penstock.measuring.calibration.laplace import Normal, Posterior, most_probable, slopes_of
from penstock.measuring.calibration.predict import Overhead, Requests, predict, requests_of
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import FITTED, Fit, Sent, misfits_of_all, slowed
from penstock.measuring.calibration.steps import Common
from penstock.scenario.server import HardwareSection
from penstock.simulation.progress import Progress, counting
from penstock.system.batch_time import Composition
from penstock.system.engines import ENGINES, without_version
from penstock.system.memory import Memory
from penstock.system.models.adjusted import KNOTS, Adjustment
from penstock.system.models.served import ServedModel
from penstock.system.server import Server
from penstock.system.uncertain import Seen, Uncertainty

_FILE = Path(__file__).parent / "shape_priors.yaml"

ADJUSTED = tuple(field.name for field in dataclasses.fields(Adjustment))
"""Parameters that batch times have; `overhead` and `kv_memory` come beside."""

NAMES = (*ADJUSTED, "overhead", "kv_memory")
"""What is fitted to a shape. Factors are 1 for what the shape says; the others are seconds."""


class WholeRequests(NamedTuple):
    """What rows say of whole requests: TTFT, and the time of all tokens after the first.

    A scheduler that is not quite the one that ran moves time from one of the two to the other, but
    hardly their sum, which decides how many requests end in a second. The sum says the more that is
    new, the larger the share of TTFT: without it the time between tokens says the same.
    """

    parts: Floats  # shape (rows, 2), measured seconds of the two; NaN: not measured

    @classmethod
    def of(cls, seconds: Floats, outputs: Floats) -> "WholeRequests":
        """Return those of rows with TTFT and time between tokens, and so many output tokens."""
        return cls(seconds * np.column_stack([np.ones_like(outputs), outputs - 1.0]))

    @property
    def share(self) -> Floats:
        """Of TTFT in the time of a request; 1 where only the request was measured."""
        return np.asarray(np.nan_to_num(self.parts[:, 0] / self.parts.sum(axis=1), nan=1.0))

    def misfits(self, off: Floats, unstreamed: Floats | float = np.nan) -> Floats:
        """Return misfits of TTFT, time between tokens and requests of each row, row after row."""
        # ``off``: of the first two, NaN: not measured. ``unstreamed``: of requests, where neither
        # was: without streaming a client sees only whole requests; beside one of the two they say
        # the same.
        whole = np.log((self.parts * np.exp(off)).sum(axis=1) / self.parts.sum(axis=1))
        whole = np.where(np.isnan(off).all(axis=1), unstreamed, whole)
        return np.column_stack([off, whole]).ravel()


@dataclasses.dataclass(frozen=True)
class ShapePriors:
    """How far off shapes usually are under an engine."""

    priors: Mapping[str, Prior]  # of each of `NAMES`
    # Correlations of the factors of small and medium, of medium and large, and of small and large
    # batches: a kernel that is slow at one load is slow near it.
    together: tuple[float, float, float]
    # By metric (`ttft`, `itl`): what no parameter explains, as a logarithm.
    noise: Mapping[str, float]
    # By metric: times that noise, of rows of a length that none of the fitted has.
    unseen: Mapping[str, float]
    source: str  # which runs say so

    def noise_of(self, requests: WholeRequests) -> Floats:
        """Return the noise of each misfit of some rows, as `WholeRequests.misfits` has them."""
        noise = np.full((requests.parts.shape[0], 3), self.noise["itl"])
        noise[:, 0] = self.noise["ttft"]
        noise[:, 2] /= np.sqrt(requests.share)
        return noise.ravel()

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
    return priors_in(entries.get(engine) or next(iter(entries.values())))


def priors_in(entry: Mapping[str, Any]) -> ShapePriors:
    """Return what a section of the file of priors says."""
    priors = {
        name: Prior(float(centre), float(factor), entry["source"])
        for name, (centre, factor) in entry["priors"].items()
    }
    noise = entry["noise"]
    unseen = entry.get("unseen", dict.fromkeys(noise, 1.0))
    return ShapePriors(priors, tuple(entry["together"]), noise, unseen, entry["source"])


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
        """The tokens that KV memory holds: as given, or what the GPUs leave."""
        if self.kv_tokens is not None:
            block = ENGINES[self.policy].memory.block_size
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
        block_size = ENGINES[self.policy].memory.block_size
        memory = dataclasses.replace(
            Memory.of_tokens(max(tokens, block_size), block_size),
            prefix_caching=self.prefix_caching or None,
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


def values_of(theta: Floats) -> dict[str, float]:
    """Return the parameters of their logarithms."""
    return dict(zip(NAMES, np.exp(theta).tolist(), strict=True))


_MOST_REQUESTS = 10_000  # of a row, while it is fitted
_OTHER_NOISE = 0.3  # change of a logarithm by which the noise of a row is another
_ROUNDS = 3  # that a fit usually takes, for the progress bar
_T90 = 2.132  # half of the 90% interval of Student's t with four degrees of freedom, in its scales
_N90 = 1.645  # and of a normal distribution


# Metrics that get an interval, and whose noise they have.
_NOISE_OF = {"ttft": "ttft", "itl": "itl", "e2e": "itl", "requests_per_s": "itl"}


class ShapeFit(NamedTuple):
    """What rows say of a shape."""

    build: ShapeBuild  # of several precisions of the KV cache, with the most probable
    common: Common  # the fit as others are
    posterior: Posterior  # of the logarithms of `NAMES`
    priors: ShapePriors

    def with_uncertainty(self, server: Server, seen: Seen) -> Server:
        """Return a server whose batch times know what the rows left open, and have seen."""
        here = [NAMES.index(name) for name in ADJUSTED]
        covariance = self.posterior.covariance[np.ix_(here, here)]
        values = {name: self.common.fit.values[name] for name in ADJUSTED}
        # Of Student's t, as a normal distribution with the same 90%, for lengths of no row.
        noise = self.priors.noise["itl"] * self.priors.unseen["itl"] * _T90 / _N90
        return with_known(server, Uncertainty(values, covariance.tolist(), noise, seen))


def shape_fit(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    builds: Sequence[ShapeBuild],
    seed: int,
    progress: Progress | None,
) -> ShapeFit:
    """Return what rows say of a shape; of builds by KV precision the first is as published."""
    to_fit = [row for row, use in zip(rows, fitted, strict=True) if use]
    if not any(measured(row, metric) for row in to_fit for metric in (*FITTED, "e2e")):
        raise InputError(
            f"{len(to_fit)} rows to fit have no inter-token latency, no time to first token and no "
            "end-to-end latency, so nothing can be fitted; choose rows with one of them"
        )
    longest = max(row["prompt_tokens"] + row["output_tokens"] for row in to_fit)
    kv_tokens = builds[0].kv_tokens
    if kv_tokens is not None and kv_tokens < longest:
        raise InputError(
            f"kv_tokens is {kv_tokens:,}, but requests of the rows have {longest:,.0f} tokens, so "
            "none could be served; give what the engine logs"
        )
    priors = shape_priors(builds[0].policy)
    guess = values_of(priors.normal.mean)
    sent = [(row, requests_of(row, builds[0](guess)[0], seed, _MOST_REQUESTS)) for row in to_fit]
    step = counting(progress, len(builds) * _ROUNDS * (len(NAMES) + 2))
    posteriors: list[Posterior] = []
    for build in builds:
        start = posteriors[0].mean if posteriors else None
        posteriors.append(posterior_of(sent, build, priors, step, start))
    best = min(range(len(builds)), key=lambda index: posteriors[index].cost)
    posterior, build = posteriors[best], builds[best]
    held = _held(builds, build)
    names = [name for name in NAMES if name not in held]
    values, deviations = values_of(posterior.mean), posterior.deviations
    fit = Fit(
        {name: values[name] for name in names},
        {name: float(deviations[NAMES.index(name)]) for name in names},
        posterior.cost,
        posterior.misfits,
    )
    return ShapeFit(build, Common(fit, sent, priors.priors, held, None), posterior, priors)


def posterior_of(
    sent: Sequence[Sent],
    build: ShapeBuild,
    priors: ShapePriors,
    step: Callable[[], None] = lambda: None,
    start: Floats | None = None,
) -> Posterior:
    """Return what rows say of a shape, ``start`` as in `most_probable`."""
    # ``step`` is called before each simulation of the rows.
    times = np.array([[measured(row, metric) or np.nan for metric in FITTED] for row, _ in sent])
    requests = WholeRequests.of(times, np.array([row["output_tokens"] for row, _ in sent]))
    beyond = np.array([saturated(row) for row, _ in sent])
    usual = np.append(priors.noise_of(requests), np.full(len(sent), priors.noise["itl"]))

    def misfits(theta: Floats, slower: float = 0.0) -> Floats:
        step()
        server, overhead = build(values_of(theta))
        server = slowed(server, slower)
        off = misfits_of_all(sent, server, overhead, (*FITTED, "e2e", "requests_per_s"))
        off = np.where(np.isinf(off), np.nan, off).reshape(len(sent), -1)
        carried = np.where(beyond, off[:, 3], np.nan)
        return np.append(requests.misfits(off[:, :2], off[:, 2]), carried)

    def noise_at(theta: Floats) -> Floats:
        return with_swing(usual, lambda slower: misfits(theta, slower), priors)

    # A row is fitted as far as its times go with batch times: first as far as the usual server
    # says so, then as the fitted one does.
    begin = priors.normal.mean if start is None else start
    noise = noise_at(begin)
    posterior = most_probable(misfits, priors.normal, noise, start)
    now = noise_at(posterior.mean)
    if np.nanmax(np.abs(np.log(now / noise))) > _OTHER_NOISE:
        posterior = most_probable(misfits, priors.normal, now, posterior.mean)
    return posterior


def with_swing(noise: Floats, logs: Callable[[float], Floats], priors: ShapePriors) -> Floats:
    """Return the noise of some times, of which a queue makes more than of batch times.

    ``logs``: their logarithms, with batches that take longer by so much of theirs. Near what a
    server carries, and beyond, TTFT moves by several times what batch times do, so what no
    parameter explains of these moves it as far.
    """
    batches = priors.noise["itl"]
    swing = np.abs(logs(batches) - logs(-batches)) / 2
    more = np.maximum(np.nan_to_num(swing, nan=0.0, posinf=0.0) ** 2 - batches**2, 0.0)
    return np.asarray(np.sqrt(noise**2 + more))


def _held(builds: Sequence[ShapeBuild], chosen: ShapeBuild) -> dict[str, str]:
    """Say which precision of the KV cache was taken, and whether its tokens were given."""
    assert chosen.served is not None
    kv = chosen.served.numbers.kv
    held = {"kv_precision": f"{kv}: the rows fit better with it; give --kv-precision if known"}
    if len(builds) == 1:
        held = {"kv_precision": f"{kv}, as given or published"}
    if chosen.kv_tokens is not None:
        held["kv_memory"] = f"{chosen.kv_tokens:,} tokens were given"
    return held


def _interval_of(fit: ShapeFit, load: Requests, row: Row) -> dict[str, float | None]:
    """Return ``ttft_low``, ``ttft_high`` and so on of a row, in seconds: 90% intervals."""
    # Of calibration, and of what no parameter explains: more where no row of its shape was fitted.
    seen = any(row["shape"] == fitted["shape"] for fitted, _ in fit.common.sent)

    def logs(theta: Floats, slower: float = 0.0) -> Floats:
        server, overhead = fit.build(values_of(theta))
        predicted = predict(load, slowed(server, slower), overhead)
        return np.log([predicted[column_of(row, metric)] for metric in _NOISE_OF])

    mean, priors = fit.posterior.mean, fit.priors
    near = logs(mean)
    slopes = slopes_of(logs, mean, near)
    spread = np.einsum("mi,ij,mj->m", slopes, fit.posterior.covariance, slopes)
    usual = [
        priors.noise[kind] * (1.0 if seen else priors.unseen[kind]) for kind in _NOISE_OF.values()
    ]
    noise = with_swing(np.array(usual), lambda slower: logs(mean, slower), priors)
    answer: dict[str, float | None] = {}
    for metric, middle, variance, stray in zip(_NOISE_OF, near, spread, noise, strict=True):
        half = float(np.hypot(_N90 * np.sqrt(variance), _T90 * stray))
        known = bool(np.isfinite(middle) and np.isfinite(half))
        answer[f"{metric}_low"] = float(np.exp(middle - half)) if known else None
        answer[f"{metric}_high"] = float(np.exp(middle + half)) if known else None
    return answer


def with_intervals(
    table: pl.DataFrame, fit: ShapeFit, rows: Sequence[Row], seed: int
) -> pl.DataFrame:
    """Return judged rows with the interval of each prediction."""
    server = fit.build(fit.common.fit.values)[0]
    entries = [_interval_of(fit, requests_of(row, server, seed), row) for row in rows]
    names = [f"{metric}_{end}" for metric in _NOISE_OF for end in ("low", "high")]
    return table.hstack(pl.DataFrame(entries, schema=dict.fromkeys(names, pl.Float64)))
