"""Refine parameters by simulation: Gauss-Newton on log(predicted / measured), and priors."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.equations import Row, column_of, measured, saturated
from penstock.measuring.calibration.laplace import slopes_of
from penstock.measuring.calibration.predict import Overhead, Requests, predict
from penstock.measuring.calibration.priors import Prior
from penstock.simulation.progress import Progress, counting
from penstock.system.server import Server

Values = dict[str, float]
Sent = tuple[Row, Requests]
Build = Callable[[Values], tuple[Server, Overhead]]

_MOST_ROUNDS = 10
_TRIES = 6  # of a step, each shorter than the one before
_LONGEST_STEP = 1.0  # change of a logarithm in a round
_ENOUGH = 0.002  # share by which a round must improve the fit, or it is the last
_FARTHEST = 3.0  # logarithm; what is further off counts as this far
_FARTHEST_BEYOND = 0.7  # the same of TTFT where more arrives than is carried
_NOISE = 0.02  # misfits below this, or their mean, count as squares, others as they are
FITTED = ("ttft", "itl")
"""Metrics that are fitted."""

WORTH = 0.01
"""Misfit, as a logarithm, that weighs as much as 1.4 standard deviations from a prior."""


class Fit(NamedTuple):
    """Parameters that were fitted."""

    values: Values  # by parameter, in seconds and tokens
    deviations: Values  # standard deviation of the logarithm of each, given rows and priors
    cost: float  # misfits in units of `WORTH`, and half the squared deviations from the priors
    misfits: Floats  # logarithms of predicted over measured, a few for each row


def refine(
    rows: Sequence[Sent],
    build: Build,
    values: Values,
    priors: Mapping[str, Prior],
    progress: Progress | None = None,
) -> Fit:
    """Return values whose simulated times are near measured ones, and none far from its prior."""
    # The same random numbers are used throughout, so differences come from the parameters.
    names = list(values)
    prior = _Prior(
        np.log([priors[name].centre for name in names]),
        np.array([priors[name].deviation for name in names]) ** -2,
    )
    step = counting(progress, _MOST_ROUNDS * (len(names) + 1))

    def misfits_at(theta: Floats) -> Floats:
        step()
        return misfits(rows, *build(_named(names, np.exp(theta))))

    theta = np.log([values[name] for name in names])
    now = misfits_at(theta)
    cost = prior.cost(theta, now)
    damping = 1.0
    for _ in range(_MOST_ROUNDS):
        slopes = slopes_of(misfits_at, theta, now)
        before = cost
        for _ in range(_TRIES):
            there = theta + prior.step(theta, now, slopes, damping)
            then = misfits_at(there)
            if prior.cost(there, then) < cost:
                theta, now, cost = there, then, prior.cost(there, then)
                damping /= 5
                break
            damping *= 10
        if cost > (1 - _ENOUGH) * before:
            break
    # How far off a time usually is says what the rows can tell.
    curvature = slopes.T @ slopes / _usual(now) ** 2 + np.diag(prior.tightness)
    deviations = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return Fit(_named(names, np.exp(theta)), _named(names, deviations), cost, now)


class _Prior(NamedTuple):
    """Where logarithms of the parameters are likely to be, and how tightly they are held there."""

    centre: Floats
    tightness: Floats

    def cost(self, theta: Floats, off: Floats) -> float:
        far = (self.tightness * (theta - self.centre) ** 2).sum() / 2
        return float(np.abs(off).sum() / WORTH + far)

    def step(self, theta: Floats, off: Floats, slopes: Floats, damping: float) -> Floats:
        """Return a damped step of Gauss-Newton, not longer than the longest."""
        weight = 1 / (WORTH * np.maximum(np.abs(off), _usual(off)))
        curvature = (slopes.T * weight) @ slopes + np.diag(self.tightness)
        downhill = -(slopes.T @ (weight * off)) - self.tightness * (theta - self.centre)
        step = np.linalg.solve(curvature + damping * np.eye(theta.size), downhill)
        return np.asarray(step * min(_LONGEST_STEP / max(np.abs(step).max(), 1e-12), 1.0))


def _usual(off: Floats) -> float:
    return max(float(np.abs(off).mean()), _NOISE)


def _named(names: Sequence[str], numbers: Floats) -> Values:
    return dict(zip(names, numbers.tolist(), strict=True))


def misfits(rows: Sequence[Sent], server: Server, overhead: Overhead) -> Floats:
    """Return `misfits_of_all` of what was measured, none farther than the farthest."""
    off = misfits_of_all(rows, server, overhead).reshape(len(rows), len(FITTED))
    beyond = np.array([saturated(row) for row, _ in rows], bool)
    # TTFT of a queue that grows is off by many times what batch times are, so beyond what costs
    # can mend it says nothing of them.
    off[beyond, 0] = np.clip(off[beyond, 0], -_FARTHEST_BEYOND, _FARTHEST_BEYOND)
    return np.clip(off[~np.isnan(off)], -_FARTHEST, _FARTHEST)


def slowed(server: Server, slower: float) -> Server:
    """Return a server whose batches take longer, by so much of their logarithm."""
    if not slower:
        return server
    longer = server.batch_time.scaled(float(np.exp(slower)))
    return dataclasses.replace(server, batch_time=longer)


def misfits_of_all(
    rows: Sequence[Sent], server: Server, overhead: Overhead, metrics: Sequence[str] = FITTED
) -> Floats:
    """Return log(predicted / measured) of these metrics, one row after another."""
    # NaN where nothing was measured, infinite where nothing ends in the simulation.
    off = []
    for row, load in rows:
        predicted = predict(load, server, overhead)
        for metric in metrics:
            known = measured(row, metric)
            time = predicted[column_of(row, metric)]
            within = np.log(time / known) if known and time > 0 else np.inf
            off.append(float(within) if known else np.nan)
    return np.array(off)
