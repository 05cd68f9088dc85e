"""The most probable parameters, and how uncertain they are: a prior, a few measured times, and
predictions that are simulated.

Steps of Levenberg and Marquardt on logarithms; a time that is far off counts less and less
(Student's t), so that one odd measurement does not bend the rest. What is left of the uncertainty
is Laplace's approximation: normal around the most probable logarithms.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from penstock.inputs.arrays import Floats

Misfits = Callable[[Floats], Floats]

FREEDOM = 4.0
"""Degrees of freedom of the errors: heavier tails than a normal distribution's."""

SLOPE = 0.02  # change of a logarithm that slopes are taken over
_MOST_ROUNDS = 30
_TRIES = 4  # of a step, each damped more than the one before
_LONGEST_STEP = 0.7  # change of a logarithm in a round
_GAIN = 0.95  # of the cost that may be left for a round to be worth another like it
_SHRINK = 3.0  # in a round, of how far off a row must be to count less
_ENOUGH = 0.01  # by which a round must lower the cost, or it is the last


@dataclasses.dataclass(frozen=True)
class Normal:
    """A normal distribution of some logarithms."""

    mean: Floats  # shape (parameters,)
    covariance: Floats  # shape (parameters, parameters)

    @property
    def deviations(self) -> Floats:
        """Standard deviation of each."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))


@dataclasses.dataclass(frozen=True)
class Posterior(Normal):
    """What prior and rows say together."""

    # Minus the logarithm of prior and likelihood at the mean, but for constants, plus half that of
    # the volume that is left: smaller is more probable (Laplace's evidence).
    cost: float
    unexplained: float  # of that, what misfits and the distance from the prior make
    misfits: Floats  # logarithms of predicted over measured times at the mean
    noise: Floats  # the scale of each that no parameter explains


def most_probable(
    misfits: Misfits,
    prior: Normal,
    noise_at: Misfits,
    start: Floats | None = None,
    whole: Sequence[int] = (),
) -> Posterior:
    """Return the most probable logarithms, and their uncertainty.

    ``misfits`` goes from logarithms of parameters to those of predicted over measured, NaN: none;
    ``noise_at`` to the scale of each that no parameter explains. It begins at the prior's mean
    without a start. ``whole``: which parameters are whole numbers.
    """
    tightness = np.linalg.inv(prior.covariance)
    theta = prior.mean.copy() if start is None else start
    off, noise = misfits(theta), noise_at(theta)

    def cost_of(theta: Floats, off: Floats, wider: float) -> float:
        tails = wider**2 * (FREEDOM + 1) / 2 * np.log1p((off / noise / wider) ** 2 / FREEDOM)
        away = theta - prior.mean
        return float(np.nansum(tails) + away @ tightness @ away / 2)

    slopes, exact = np.nan_to_num(slopes_of(misfits, theta, off, whole)), True
    # Far from the rows all of them look odd, and none would count: so at first only what is further
    # off than any of them does.
    wider = max(float(np.nanmax(np.abs(off) / noise)), 1.0)
    damping = 1.0
    for _ in range(_MOST_ROUNDS):
        before = cost = cost_of(theta, off, wider)
        curvature = _information(slopes, off, noise, wider) + tightness
        weighed = np.nan_to_num(_weights(off, noise, wider) * off)
        downhill = slopes.T @ weighed + tightness @ (theta - prior.mean)
        for _ in range(_TRIES):
            step = -np.linalg.solve(curvature + damping * np.eye(theta.size), downhill)
            step *= min(1.0, _LONGEST_STEP / max(float(np.abs(step).max()), 1e-12))
            then = misfits(theta + step)
            if cost_of(theta + step, then, wider) < cost:
                # Broyden: the step itself says how misfits change along it.
                unforeseen = np.nan_to_num(then - off) - slopes @ step
                slopes = slopes + np.outer(unforeseen, step) / (step @ step)
                theta, off, cost = theta + step, then, cost_of(theta + step, then, wider)
                exact = False
                damping /= 5
                break
            damping *= 10
        if wider > 1 and cost > _GAIN * before:
            wider = max(wider / _SHRINK, 1.0)
            noise = noise_at(theta) if wider == 1 else noise
        elif wider == 1 and cost > before - _ENOUGH:
            if exact:
                break
            slopes, exact = np.nan_to_num(slopes_of(misfits, theta, off, whole)), True
            damping = 1.0
    if not exact:
        slopes = np.nan_to_num(slopes_of(misfits, theta, off, whole))
    covariance = np.linalg.inv(_information(slopes, off, noise) + tightness)
    volume = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(prior.covariance)[1]
    unexplained = cost_of(theta, off, 1.0)
    constant = float(np.log(noise)[~np.isnan(off)].sum())
    return Posterior(
        theta, covariance, unexplained + constant - volume / 2, unexplained, off, noise
    )


def slopes_of(function: Misfits, theta: Floats, at: Floats, whole: Sequence[int] = ()) -> Floats:
    """Return how each value changes with each logarithm; shape (values, parameters)."""
    # ``at``: the values of the function here. Nothing changes within less than one of a whole
    # number.
    steps = np.full(theta.size, SLOPE)
    for index in whole:
        steps[index] = max(SLOPE, float(np.log1p(np.exp(-theta[index]))))
    ahead = [(function(theta + step) - at) for step in np.diag(steps)]
    return np.asarray(np.column_stack(ahead) / steps)


def _weights(off: Floats, noise: Floats, wider: float) -> Floats:
    """Return the weight of each misfit in least squares: less for those that are far off."""
    far = (np.nan_to_num(off, nan=np.inf) / noise / wider) ** 2
    return np.asarray((FREEDOM + 1) / (FREEDOM + far) / noise**2)


def _information(slopes: Floats, off: Floats, noise: Floats, wider: float = 1.0) -> Floats:
    """Return what the times say of the logarithms."""
    return np.asarray((slopes.T * _weights(off, noise, wider)) @ slopes)
