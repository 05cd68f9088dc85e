"""Refine parameters by simulation: Gauss-Newton on the logarithms of predicted over measured times, and priors."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.measuring.calibration.equations import Row, column_of, measured
from penstock.measuring.calibration.predict import Overhead, Requests, predict
from penstock.measuring.calibration.priors import Prior
from penstock.simulation.progress import Progress
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
_NOISE = 0.02  # misfits below this, or their mean, count as squares, others as they are: one must not bend the rest
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
    """Return values under which simulated times are nearest to the measured ones, and none is far from its prior.

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
    centre = np.log([priors[name].centre for name in names])
    tightness = np.array([priors[name].deviation for name in names]) ** -2
    theta = np.log([values[name] for name in names])
    done = 0

    def misfits_at(at: Floats) -> Floats:
        nonlocal done
        done += 1
        if progress is not None:
            progress(min(done / (_MOST_ROUNDS * (len(names) + 1)), 1.0))
        return misfits(rows, *build(dict(zip(names, np.exp(at).tolist(), strict=True))))

    def cost_of(at: Floats, off: Floats) -> float:
        return float(np.abs(off).sum() / WORTH + (tightness * (at - centre) ** 2).sum() / 2)

    now, damping = misfits_at(theta), 1.0
    cost = cost_of(theta, now)
    for _ in range(_MOST_ROUNDS):
        slopes = np.column_stack([(misfits_at(theta + _SLOPE * e) - now) / _SLOPE for e in np.eye(theta.size)])
        usual = max(float(np.abs(now).mean()), _NOISE)
        weight = 1 / (WORTH * np.maximum(np.abs(now), usual))
        curvature = (slopes.T * weight) @ slopes + np.diag(tightness)
        downhill = -(slopes.T @ (weight * now)) - tightness * (theta - centre)
        before = cost
        for _ in range(_TRIES):
            step = np.linalg.solve(curvature + damping * np.eye(theta.size), downhill)
            there = theta + step * min(_LONGEST_STEP / max(np.abs(step).max(), 1e-12), 1.0)
            then = misfits_at(there)
            if cost_of(there, then) < cost:
                theta, now, cost, damping = there, then, cost_of(there, then), damping / 5
                break
            damping *= 10
        if cost > (1 - _ENOUGH) * before:
            break
    noise = max(float(np.abs(now).mean()), _NOISE)  # of each time, for what the rows can tell
    deviations = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes / noise**2 + np.diag(tightness))))
    found = dict(zip(names, np.exp(theta).tolist(), strict=True))
    return Fit(found, dict(zip(names, deviations.tolist(), strict=True)), cost, now)


def misfits(rows: Sequence[Sent], server: Server, overhead: Overhead) -> Floats:
    """Return the logarithms of predicted over measured times: to the first token, and between tokens."""
    off = []
    for row, load in rows:
        predicted = predict(load, server, overhead)
        for metric in ("ttft", "itl"):
            known, time = measured(row, metric), predicted[column_of(row, metric)]
            if known is not None:
                far = np.log(time / known) if time > 0 else _FARTHEST
                off.append(float(np.clip(far, -_FARTHEST, _FARTHEST)))
    return np.array(off)
