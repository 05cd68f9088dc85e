"""The fit of a calibration: one server for all runs, of several that may be the most probable, and
what each run says of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.laplace import Posterior
from penstock.measuring.calibration.loads import Row, column_of, measured
from penstock.measuring.calibration.posterior import Sent, posterior_of
from penstock.measuring.calibration.predict import Overhead, predict, requests_of
from penstock.measuring.calibration.priors import Prior, Priors
from penstock.system.server import Server

_MOST_REQUESTS = 10_000  # of a row, while it is fitted: the rest tells little more
_NEAR = 0.1  # standard deviation of a parameter's logarithm between runs of one server


class Fit(NamedTuple):
    """What rows say of a server."""

    build: Build
    priors: Priors
    posterior: Posterior
    sent: Sequence[Sent]  # the rows that were fitted
    held: Mapping[str, str] = {}  # why other parameters were left out
    warning: str | None = None  # what is not certain of the limits

    @property
    def values(self) -> dict[str, float]:
        """The most probable value of each parameter."""
        return self.priors.values(self.posterior.mean)

    @property
    def deviations(self) -> dict[str, float]:
        """Standard deviation of the logarithm of each, given rows and priors."""
        return dict(zip(self.priors.of, self.posterior.deviations.tolist(), strict=True))


def as_sent(rows: Sequence[Row], build: Build, priors: Priors, seed: int) -> list[Sent]:
    """Return rows with the requests that a benchmark of the usual server sends."""
    usual, _ = build(priors.values(priors.normal.mean))
    return [(row, requests_of(row, usual, seed, _MOST_REQUESTS)) for row in rows]


def fit_of(
    sent: Sequence[Sent],
    build: Build,
    priors: Priors,
    step: Callable[[], None],
    start: Floats | None = None,
) -> Fit:
    """Return what rows say of a server; the search begins at ``start``, or at the priors.

    Of several kinds of server the one whose posterior costs least is the most probable.
    """
    return Fit(build, priors, posterior_of(sent, build, priors, step, start), sent)


def widened(fit: Fit, more: Mapping[str, Prior], step: Callable[[], None]) -> Fit:
    """Return what the rows of a fit say where there are further parameters."""
    priors = fit.priors.with_priors(more)
    start = priors.normal.mean.copy()
    start[: len(fit.priors.of)] = fit.posterior.mean
    return fit_of(fit.sent, fit.build, priors, step, start)


def values_of_runs(rows: Sequence[Row], fit: Fit, per_run: str) -> dict[str, dict[str, float]]:
    """Return the values of each run: those of all, but for what its own rows say."""
    values_of = {row["run"]: fit.values for row in rows}
    if len(values_of) == 1 or per_run == "nothing":
        return values_of
    near = fit.priors.near(fit.values, math.exp(_NEAR), "the server of all runs")
    for run in values_of:
        own = [(row, load) for row, load in fit.sent if row["run"] == run]
        if len(own) < 2:
            continue
        if per_run == "all":
            values_of[run] = near.values(posterior_of(own, fit.build, near).mean)
        if "overhead" in fit.values:
            overhead = _own_overhead(own, *fit.build(values_of[run]))
            values_of[run] = values_of[run] | {"overhead": overhead}
    return values_of


def _own_overhead(rows: Sequence[Sent], server: Server, overhead: Overhead) -> float:
    """Return the overhead, s, with the median of what the fitted rows of a run lack."""
    # Rows whose closed loop queues say little of it, and count only where there are no others.
    lacks: dict[bool, list[float]] = {False: [], True: []}
    for row, load in rows:
        known = measured(row, "ttft")
        predicted = predict(load, server, overhead)[column_of(row, "ttft")]
        if known is not None and np.isfinite(predicted):
            lacks[(load.in_flight or 1) > 1].append(known - predicted)
    lack = lacks[False] or lacks[True] or [0.0]
    return max(overhead.fixed + float(np.median(lack)), 0.0)
