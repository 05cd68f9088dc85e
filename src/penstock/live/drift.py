"""Does the work that arrives exceed what the engine carries? A test that may be looked at always.

The load is what arrives over what is carried. What arrives is a sum over n requests; its variance
grows by V = I + c^2 per request, in units of the mean work of one, with I the variance over mean of
arrivals and c the spread of the work. What is carried has the standard error e, as a share. So the
estimate of the load is off by a share with the variance

    s^2 = V / n + e^2.

Each look uses what the looks before it used, and more, so the errors of two looks have the variance
of the later one for their covariance; an error of what is carried that stays the same has, too.
Then error / s^2 is a Brownian motion in the time 1 / s^2. By the one-sided normal mixture (Robbins;
Howard, Ramdas, McAuliffe, Sekhon 2021) the error exceeds

    s sqrt((1 + h s^2) 2 ln((1 + sqrt(1 + 1 / (h s^2)) / a) / 2))

at any look with probability a at most; h only says when that is least. Of the two verdicts only one
can be wrong, so each may spend all of alpha: ``unstable`` once the load is above 1 by more than
that, ``stable`` once it is below by as much, is right with probability 1 - alpha, for normal
errors, however often one looks and whenever one stops. Where a look no longer uses what those
before it used, as lengths are taken from the latest requests alone, the caller spends a part of
alpha on each time that all of it was replaced. The central limit theorem stands behind it, so alpha
is an aim (``docs/detectors.md`` counts false alarms), and nothing is said before `FEWEST` requests
have come. A batch time that was given is taken for right: what a wrong one does, no test of
arrivals can see (`penstock.live.pace` compares it with the batches that were served).

The tokens in the engine tell nothing more: they grow by the work that arrives less what is carried,
which is this sum again, and by the time that the engine stood idle.
"""

import dataclasses
import math

from penstock.live.reading import Z95, Estimate, Verdict

FEWEST = 50
"""Requests before which nothing is said."""
_TIGHTEST = 1_000.0  # 1 / s^2 at which the test is sharpest: loads of .9 and 1.1 are told there


@dataclasses.dataclass(frozen=True)
class Drift:
    """A load, and what can be said of it."""

    load: Estimate  # with an interval of 95% for this one look
    # The ends at all looks at once; each aims at a share alpha of watches.
    always: tuple[float, float]
    verdict: Verdict


def drift(load: float, requests: float, variance: float, error: float, alpha: float) -> Drift:
    """Return what follows for a load."""
    # ``requests`` came; ``variance``: of the work that arrives, per request, in units of the mean
    # work squared; ``error``: the capacity's standard error, as a share of it; ``alpha``: the
    # probability of ever being wrong.
    deviation = _deviation(requests, variance, error)
    once = Z95 * deviation
    ever = reach(deviation, alpha)
    # Errors are shares of the true load: a load of 1 is excluded where it is further off than that.
    low, high = load / (1 + ever), load / (1 - ever) if ever < 1 else math.inf
    verdict: Verdict = "undecided"
    if requests >= FEWEST:
        if low > 1:
            verdict = "unstable"
        elif high < 1:
            verdict = "stable"
    interval = Estimate(load, load / (1 + once), load * (1 + once))
    return Drift(interval, (low, high), verdict)


def reach(deviation: float, alpha: float) -> float:
    """Return what an error of so many a standard deviation never exceeds, at all looks at once."""
    spent = -2 * math.log(alpha)
    h = _TIGHTEST / (spent + math.log1p(spent))
    growth = h * deviation**2
    mixed = (1 + math.sqrt(1 + 1 / growth) / alpha) / 2
    return deviation * math.sqrt((1 + growth) * 2 * math.log(mixed))


def requests_to_decide(load: float, variance: float, error: float, alpha: float) -> float:
    """Return how many requests it takes to tell a load from 1; infinite if it never is told."""
    requests = float(FEWEST)
    while reach(_deviation(requests, variance, error), alpha) > abs(load - 1):
        requests *= 1.05
        if requests > 1e9:
            return math.inf
    return requests


def _deviation(requests: float, variance: float, error: float) -> float:
    """Return the standard deviation of an estimated load, as a share of it."""
    return max(math.hypot(math.sqrt(variance / max(requests, 1.0)), error), 1e-9)
