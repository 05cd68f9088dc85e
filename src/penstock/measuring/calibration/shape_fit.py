"""Calibrate with a shape as the prior: what rows say of its factors, and how uncertain that is."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.equations import Row, column_of, measured
from penstock.measuring.calibration.laplace import Posterior, most_probable, slopes_of
from penstock.measuring.calibration.predict import Requests, predict, requests_of
from penstock.measuring.calibration.refine import FITTED, Fit, Sent, misfits_of_all
from penstock.measuring.calibration.shape_prior import (
    ADJUSTED,
    NAMES,
    ShapeBuild,
    ShapePriors,
    shape_priors,
    values_of,
)
from penstock.measuring.calibration.steps import Common
from penstock.simulation.progress import Progress, counting
from penstock.system.batch_time import Composition
from penstock.system.server import Server
from penstock.system.uncertain import Uncertainty

_MOST_REQUESTS = 10_000  # of a row, while it is fitted
_ROUNDS = 3  # that a fit usually takes, for the progress bar
_T90 = 2.132  # half of the 90% interval of Student's t with four degrees of freedom, in its scales
_N90 = 1.645  # and of a normal distribution


# Metrics that get an interval, and whose noise they have.
_NOISE_OF = {"ttft": "ttft", "itl": "itl", "e2e": "itl", "requests_per_s": "itl"}


class ShapeFit(NamedTuple):
    """What rows say of a shape.

    Attributes
    ----------
    build
        Makes the server; of several precisions of the KV cache, with the most probable.
    common
        The fit as others are.
    posterior
        Of the logarithms of `NAMES`.
    priors
        Beside which it was found.
    """

    build: ShapeBuild
    common: Common
    posterior: Posterior
    priors: ShapePriors

    def with_uncertainty(self, server: Server) -> Server:
        """Return a server whose batch times know what the rows left open."""
        here = [NAMES.index(name) for name in ADJUSTED]
        covariance = self.posterior.covariance[np.ix_(here, here)]
        values = {name: self.common.fit.values[name] for name in ADJUSTED}
        batch_time = server.batch_time
        assert isinstance(batch_time, Composition)
        known = Uncertainty(values, covariance.tolist())
        return dataclasses.replace(
            server, batch_time=dataclasses.replace(batch_time, uncertainty=known)
        )


def shape_fit(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    builds: Sequence[ShapeBuild],
    seed: int,
    progress: Progress | None,
) -> ShapeFit:
    """Return what some rows say of a shape.

    Parameters
    ----------
    rows, fitted
        What was measured, and what of it is to be fitted.
    builds
        The shape with each precision of its KV cache that it may have had, the first as published.
    seed
        For arrivals and the order of lengths.
    progress
        Called now and then with the share that is done, at most.

    Raises
    ------
    InputError
        If no row to fit has a time to first token or an inter-token latency.
    """
    to_fit = [row for row, use in zip(rows, fitted, strict=True) if use]
    if not any(measured(row, metric) for row in to_fit for metric in FITTED):
        raise InputError(
            f"{len(to_fit)} rows to fit have no inter-token latency and no time to first token, so "
            "nothing can be fitted; choose rows with either, or benchmark with streaming"
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
    """Return what rows say of one shape; ``start`` as in `most_probable`, ``step`` is called before
    each simulation of the rows.
    """
    noise = np.array([priors.noise[metric] for _ in sent for metric in FITTED])

    def misfits(theta: Floats) -> Floats:
        step()
        off = misfits_of_all(sent, *build(values_of(theta)))
        return np.where(np.isinf(off), np.nan, off)

    return most_probable(misfits, priors.normal, noise, start)


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
    """Return ``ttft_low``, ``ttft_high`` and so on of a row, in seconds: 90% intervals, of
    calibration and of what no parameter explains.
    """

    def logs(theta: Floats) -> Floats:
        predicted = predict(load, *fit.build(values_of(theta)))
        return np.log([predicted[column_of(row, metric)] for metric in _NOISE_OF])

    mean = fit.posterior.mean
    near = logs(mean)
    slopes = slopes_of(logs, mean, near)
    spread = np.einsum("mi,ij,mj->m", slopes, fit.posterior.covariance, slopes)
    answer: dict[str, float | None] = {}
    for metric, middle, variance in zip(_NOISE_OF, near, spread, strict=True):
        noise = fit.priors.noise[_NOISE_OF[metric]]
        half = float(np.hypot(_N90 * np.sqrt(variance), _T90 * noise))
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
