"""Confidence intervals from batches of one run, and the warm-up before them.

Samples of one run depend on each other, the more so the nearer the server is to saturation. Batches
of many samples in a row are nearly independent; how much their values spread tells how far the
value of the whole run may be off.

* Means and other ratios of sums: batch means, with a t interval widened for the correlation that is
  left between neighbouring batches and adjusted for their skewness, as in N-Skart (Tafazzoli,
  Steiger and Wilson, IEEE Transactions on Automatic Control 56, 2011).
* Quantiles: the share of samples up to q has an interval of the same kind, and the quantiles of the
  whole run at its two ends are one for q (Heidelberger and Lewis, Operations Research 32, 1984).
  The lower end is judged by the spread there and not at the estimate, as in Wilson's interval: a
  single burst may have made the estimate. Batch quantiles (sectioning; Asmussen and Glynn,
  Stochastic Simulation, 2007, III.4) were tried: for M/M/1 at load 0.9 and 20,000 requests theirs
  held the 99th percentile 54 times of 100, these do 94 times. Samples beyond a high quantile come
  in bursts, and a run that saw few of them tells neither how often they come nor how large they
  are. `effective_bursts` counts them, and the upper end allows for how far their own spread is then
  unknown (`burst_student`). With fewer than some ten bursts there is no upper end
  (`bursts_needed`). Behind a tail of long requests rare bursts do not show, so for E2E those beyond
  the same quantile of TTFT count where they are fewer.
* Warm-up: MSER-5 (White, Simulation 69, 1997), except that it may only remove a stretch that lies
  below the rest. A queue that starts empty warms up from below; a first half that lies above is a
  burst, and cutting bursts off biases latency downwards (M/M/1 as above: by 4% instead of 1%, and
  intervals held the mean 88 times of 100 instead of 94).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats
from penstock.simulation.distribution import Distribution


class QuantileInterval(NamedTuple):
    """Interval of a quantile."""

    # In the unit of the samples; None: there is too little data to tell.
    low: float | None
    high: float | None
    bursts: float  # effective number of bursts of samples beyond the quantile


_MOST_WIDENING = 0.8  # correlation up to which its effect can be estimated from a few batches

# E[T^4] E[T]^2 / E[T^2]^3 of the time T that a burst stays beyond a level, in heavy traffic. The
# work in the queue is then a Brownian motion, scaled here to the drift -1 and the variance 1. The
# time that it spends beyond a level once it has reached it has the Laplace transform 2 / (1 +
# sqrt(1 + 2 s)), so the moments are 1/2, 1, 15/4 and 21. For bursts of one length the ratio is 1,
# for exponential ones 3.
_BURST_KURTOSIS = 21 / 4


def warmup(series: npt.ArrayLike) -> tuple[int, bool]:
    """Return how many leading values to remove, and whether the warm-up may go on."""
    # MSER-5, held to removing what lies below the rest: of truncations in the first half the one
    # with the smallest marginal standard error of the means of 5; at the end of that half it may go
    # on. The series is in order of time.
    fives = np.asarray(series, np.float64)
    fives = fives[: fives.size // 5 * 5].reshape(-1, 5).mean(axis=1)
    if fives.size < 2:
        return 0, False
    fives = fives - fives.mean()  # differences of large sums below
    half = fives.size // 2
    left = (fives.size - np.arange(fives.size))[: half + 1]
    rest = np.cumsum(fives[::-1])[::-1][: half + 1]
    squares = np.cumsum(fives[::-1] ** 2)[::-1][: half + 1]
    error = (squares - rest**2 / left) / left**2
    error[1:][rest[1:] <= 0] = np.inf
    best = int(np.argmin(error))
    return 5 * best, best == half


def correlation(batches: Floats) -> float:
    """Return the correlation of neighbouring batches, 0 where they are all alike."""
    centred = batches - batches.mean()
    spread = np.sum(centred * centred)
    return float(np.sum(centred[1:] * centred[:-1]) / spread) if spread > 0 else 0.0


def ratio_interval(sums: Floats, counts: Floats, confidence: float) -> tuple[float, float]:
    """Return an interval for the long-run ratio of sums to counts, shape (batches,) each."""
    # Such as the mean of all samples, of which each batch has some.
    ratio = sums.sum() / counts.sum()
    residuals = (sums - ratio * counts) / counts.mean()
    error = standard_error(residuals)
    n = residuals.size
    if error == 0:
        return float(ratio), float(ratio)
    skewness = n / ((n - 1) * (n - 2)) * float(((residuals / residuals.std(ddof=1)) ** 3).sum())
    beta, t = skewness / (6 * math.sqrt(n)), student(confidence, n)
    return float(ratio - _skewed(t, beta) * error), float(ratio - _skewed(-t, beta) * error)


def quantile_interval(
    batches: Sequence[Distribution],
    whole: Distribution,
    share: float,
    confidence: float,
    most_bursts: float = math.inf,
) -> QuantileInterval:
    """Return an interval for a quantile, in the unit of the samples."""
    # No more than ``most_bursts`` are believed in: those expected, or those beyond the same
    # quantile of a part of each sample, such as the wait in E2E, whose long requests hide how few
    # they are.
    counts = np.array([batch.size for batch in batches], np.float64)
    t = student(confidence, len(batches))

    def share_at(q: float, side: Literal["left", "right"]) -> tuple[float, float]:
        """Return the share of samples below q (left) or up to q (right), and its standard error."""
        # Whole numbers like the samples: else those would be copied as floats each time
        tick = math.ceil(q) if side == "left" else math.floor(q)
        most = tick - 1 if side == "left" else tick
        sums = np.array([batch.count_up_to(most) for batch in batches], np.float64)
        ratio = float(sums.sum() / counts.sum())
        return ratio, standard_error((sums - ratio * counts) / counts.mean())

    q = whole.quantile(share)
    below, error_below = share_at(q, "left")
    up_to, error_up_to = share_at(q, "right")
    error = max(error_below, error_up_to)
    bursts = effective_bursts(1 - below, error)
    believed = min(bursts, most_bursts)
    t_bursts = burst_student(confidence, len(batches), believed)
    level = share + t_bursts * error
    high: float | None = None
    if t_bursts**2 < bursts:
        # Many samples may equal q: then it is an end itself, where the share up to it leaves no
        # doubt.
        if up_to - t_bursts * error_up_to >= share:
            high = q
        elif level < 1:
            high = whole.quantile(level)
    if below + t * error_below <= share:
        return QuantileInterval(q, high, believed)
    level = share - t * error
    for _ in range(10):  # down to where the spread at the lower end no longer reaches the share
        if level <= 0:
            return QuantileInterval(None, high, believed)
        end = whole.quantile(level)
        lower = share - t * max(share_at(end, "left")[1], share_at(end, "right")[1])
        if lower >= level - 1e-3 * (1 - share):
            break
        level = lower
    return QuantileInterval(whole.quantile(level) if level > 0 else None, high, believed)


def effective_bursts(beyond: float, error: float) -> float:
    """Return how many equal independent bursts give a share ``beyond`` the standard ``error``."""
    # They come at random (Poisson), so the share of samples beyond a level has the variance
    # ``beyond`` ** 2 / bursts. Bursts of unequal length count less: so many times E[T]^2 / E[T^2].
    return (beyond / error) ** 2 if error > 0 else math.inf


@functools.cache
def bursts_needed(confidence: float, batches: int) -> int:
    """Return how many effective bursts beyond a quantile its upper end needs."""
    return next(n for n in itertools.count(1) if burst_student(confidence, batches, n) ** 2 < n)


def standard_error(residuals: Floats) -> float:
    """Return the standard error of the mean of batches that depend on the last one only (AR(1))."""
    phi = min(max(correlation(residuals), 0.0), _MOST_WIDENING)
    return float(residuals.std(ddof=1)) * math.sqrt((1 + phi) / (1 - phi) / residuals.size)


def student(confidence: float, batches: int) -> float:
    """Return the two-sided t quantile for so many batches."""
    return float(special.stdtrit(batches - 1, (1 + confidence) / 2))


def burst_student(confidence: float, batches: int, bursts: float) -> float:
    """Return the two-sided t quantile for a variance measured on so many effective bursts."""
    # Of bursts at random a variance has the squared coefficient of variation 2 / (batches - 1) +
    # kurtosis / bursts; 2 over that is its degrees of freedom (Satterthwaite, Biometrics Bulletin
    # 2, 1946).
    freedom = 1 / (1 / (batches - 1) + _BURST_KURTOSIS / 2 / bursts) if bursts > 0 else 0.0
    return float(special.stdtrit(freedom, (1 + confidence) / 2)) if freedom > 0 else math.inf


def merged(parts: Sequence[Distribution]) -> Distribution:
    """Put distributions together."""
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    return Distribution.merged(values, counts, sum(part.total for part in parts))


def _skewed(t: float, beta: float) -> float:
    """Return the t quantile adjusted for the skewness of the mean."""
    # Willink, Statistics & Probability Letters 2005.
    return float(np.cbrt(1 + 6 * beta * (t - beta)) - 1) / (2 * beta) if abs(beta) > 1e-3 else t
