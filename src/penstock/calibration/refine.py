"""Refine parameters by simulation: Gauss-Newton on the logarithms of predicted over measured times."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import lsq_linear

from penstock.calibration.equations import Row, column_of, measured
from penstock.calibration.predict import Overhead, Requests, predict
from penstock.run import Progress
from penstock.system.server import Server

Floats = npt.NDArray[np.float64]
Values = dict[str, float]
Build = Callable[[Values], tuple[Server, Overhead]]

_MOST_ROUNDS = 10
_TRIES = 4  # of a step, each shorter than the one before
_SLOPE = 0.02  # change of a parameter, in its own size, that slopes are taken over
_ENOUGH = 0.001  # share by which a round must improve the fit, or it is the last
_STIFFNESS = 0.2
_NOISE = 0.02  # misfits below this count as squares, others as they are: one odd row must not bend the rest
_FARTHEST = 1.0  # logarithm; what is further off counts as this far
_LEAST = {"kv_tokens": 0.5, "step": 1e-3}  # in sizes; others may vanish


def refine(
    rows: Sequence[Row],
    sent: Sequence[Requests],
    build: Build,
    values: Values,
    sizes: Values,
    progress: Progress | None = None,
    stay: bool = False,
) -> Values:
    """Return values under which simulated times are nearest to the measured ones.

    The same random numbers are used throughout, so differences come from the parameters.

    Parameters
    ----------
    rows, sent
        Rows to fit, and the requests of each.
    build
        Makes a server and an overhead of values.
    values, sizes
        Where to begin, and the natural size of each parameter.
    progress
        Called now and then with the share that is done, at most.
    stay
        Whether to stay near the values at the start, as far as the rows do not say otherwise: for few rows, and values
        found on many. A tenth of a parameter weighs as much as a misfit of 2%.
    """
    names = list(values)
    size = np.array([sizes[name] for name in names])
    least = np.array([_LEAST.get(name, 0.0) for name in names])
    theta = np.maximum(np.array([values[name] for name in names]) / size, least)
    start, done = theta.copy(), 0

    def misfits(at: Floats) -> Floats:
        nonlocal done
        done += 1
        if progress is not None:
            progress(min(done / (_MOST_ROUNDS * (len(names) + 1)), 1.0))
        found = _misfits(rows, sent, *build(dict(zip(names, (at * size).tolist(), strict=True))))
        return (
            np.concatenate([found, _STIFFNESS * (at / np.where(start > 0, start, 1) - (start > 0))]) if stay else found
        )

    now, damping = misfits(theta), 1e-3
    for _ in range(_MOST_ROUNDS):
        slopes = np.column_stack([(misfits(theta + _SLOPE * e) - now) / _SLOPE for e in np.eye(theta.size)])
        weight = 1 / np.sqrt(np.maximum(np.abs(now), _NOISE))
        before = np.abs(now).sum()
        for _ in range(_TRIES):
            bound = np.sqrt(damping) * np.eye(theta.size)
            left = np.vstack([slopes * weight[:, None], bound])
            right = np.concatenate([weight * (slopes @ theta - now), bound @ theta])
            there = lsq_linear(left, right, (least, np.inf)).x
            then = misfits(there)
            if np.abs(then).sum() < before:
                theta, now, damping = there, then, damping / 5
                break
            damping *= 10
        if np.abs(now).sum() > (1 - _ENOUGH) * before:
            break
    return dict(zip(names, (theta * size).tolist(), strict=True))


def _misfits(rows: Sequence[Row], sent: Sequence[Requests], server: Server, overhead: Overhead) -> Floats:
    found = []
    for row, load in zip(rows, sent, strict=True):
        predicted = predict(load, server, overhead)
        for metric in ("ttft", "itl"):
            known, time = measured(row, metric), predicted[column_of(row, metric)]
            if known is not None:
                far = np.log(time / known) if time > 0 else _FARTHEST
                found.append(float(np.clip(far, -_FARTHEST, _FARTHEST)))
    return np.array(found)
