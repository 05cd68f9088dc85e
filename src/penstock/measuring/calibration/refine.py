"""Refine parameters by simulation: Gauss-Newton on log(predicted / measured), and priors."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.measuring.calibration.equations import Row, column_of, measured
from penstock.measuring.calibration.predict import Overhead, Requests, predict
from penstock.measuring.calibration.priors import Prior
from penstock.simulation.run import Progress
from penstock.system.server import Server

Floats = npt.NDArray[np.float64]
Values = dict[str, float]
Sent = tuple[Row, Requests]
Build = Callable[[Values], tuple[Server, Overhead]]

_MOST_ROUNDS = 10
_TRIES = 6  # of a step, each shorter than the one before
_SLOPE = 0.02  # change of a logarithm that slopes are taken over
_LONGEST_STEP = 1.0  # change of a logarithm in a round
_ENOUGH = 0.002  # share by which a round must improve the fit, or it is the last
_FARTHEST = 3.0  # logarithm; what is further off counts as this far
_NOISE = 0.02
"""Misfits below this, or their mean, count as squares, others as they are: no row bends the rest."""
WORTH = 0.01
"""Misfit, as a logarithm, that weighs as much as 1.4 standard deviations from a prior."""


class Fit(NamedTuple):
    """Parameters that were fitted.

    Attributes
    ----------
    values
        By parameter, in seconds and tokens.
    deviations
        Standard deviation of the logarithm of each, given rows and priors.
    cost
        Misfits in units of `WORTH`, and half the squared deviations from the priors.
    misfits
        Logarithms of predicted over measured, a few for each row.
    """

    values: Values
    deviations: Values
    cost: float
    misfits: Floats


def refine(
    rows: Sequence[Sent],
    build: Build,
    values: Values,
    priors: Mapping[str, Prior],
    progress: Progress | None = None,
) -> Fit:
    """Return values under which simulated times are near the measured ones, and none off its prior.

    The same random numbers are used throughout, so differences come from the parameters.

    Parameters
    ----------
    rows
        Rows to fit, each with its requests.
    build
        Makes a server and an overhead of values.
    values
        Where to begin.
    priors
        Of each parameter.
    progress
        Called now and then with the share that is done, at most.
    """
    names = list(values)
    search = _Search(rows, build, names, priors, progress)
    point = search.at(np.log([values[name] for name in names]))
    damping = 1.0
    for _ in range(_MOST_ROUNDS):
        slopes = search.slopes(point)
        before = point.cost
        for _ in range(_TRIES):
            other = search.at(point.theta + search.step(point, slopes, damping))
            if other.cost < point.cost:
                point = other
                damping /= 5
                break
            damping *= 10
        if point.cost > (1 - _ENOUGH) * before:
            break
    curvature = slopes.T @ slopes / point.usual**2 + np.diag(search.tightness)
    deviations = np.sqrt(np.diag(np.linalg.inv(curvature))).tolist()
    named = dict(zip(names, deviations, strict=True))
    return Fit(search.values(point.theta), named, point.cost, point.off)


class _Point(NamedTuple):
    """Logarithms of the parameters, the misfits there, and the cost of both."""

    theta: Floats
    off: Floats
    cost: float

    @property
    def usual(self) -> float:
        """The size of a misfit that is usual, and no less than the noise of a time."""
        return max(float(np.abs(self.off).mean()), _NOISE)


class _Search:
    """What parameters cost, and which way that falls."""

    def __init__(
        self,
        rows: Sequence[Sent],
        build: Build,
        names: Sequence[str],
        priors: Mapping[str, Prior],
        progress: Progress | None,
    ) -> None:
        self.rows, self.build, self.names, self.progress = rows, build, names, progress
        self.centre = np.log([priors[name].centre for name in names])
        self.tightness = np.array([priors[name].deviation for name in names]) ** -2
        self.done = 0

    def values(self, theta: Floats) -> Values:
        return dict(zip(self.names, np.exp(theta).tolist(), strict=True))

    def misfits(self, theta: Floats) -> Floats:
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done / (_MOST_ROUNDS * (len(self.names) + 1)), 1.0))
        return misfits(self.rows, *self.build(self.values(theta)))

    def at(self, theta: Floats) -> _Point:
        off = self.misfits(theta)
        far = (self.tightness * (theta - self.centre) ** 2).sum() / 2
        return _Point(theta, off, float(np.abs(off).sum() / WORTH + far))

    def slopes(self, point: _Point) -> Floats:
        """Return how each misfit grows with each parameter; shape (misfits, parameters)."""
        off = [self.misfits(point.theta + _SLOPE * e) for e in np.eye(point.theta.size)]
        return np.column_stack([(other - point.off) / _SLOPE for other in off])

    def step(self, point: _Point, slopes: Floats, damping: float) -> Floats:
        """Return a damped step of Gauss-Newton, not longer than the longest."""
        weight = 1 / (WORTH * np.maximum(np.abs(point.off), point.usual))
        curvature = (slopes.T * weight) @ slopes + np.diag(self.tightness)
        far = self.tightness * (point.theta - self.centre)
        downhill = -(slopes.T @ (weight * point.off)) - far
        step = np.linalg.solve(curvature + damping * np.eye(point.theta.size), downhill)
        return np.asarray(step * min(_LONGEST_STEP / max(np.abs(step).max(), 1e-12), 1.0))


def misfits(rows: Sequence[Sent], server: Server, overhead: Overhead) -> Floats:
    """Return log(predicted / measured) of times to the first token, and between tokens."""
    off = []
    for row, load in rows:
        predicted = predict(load, server, overhead)
        for metric in ("ttft", "itl"):
            known = measured(row, metric)
            time = predicted[column_of(row, metric)]
            if known is not None:
                far = np.log(time / known) if time > 0 else _FARTHEST
                off.append(float(np.clip(far, -_FARTHEST, _FARTHEST)))
    return np.array(off)
