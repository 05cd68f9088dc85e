"""Does the work that arrives exceed what the engine carries? A test that may be looked at always.

The load is what arrives over what is carried. What arrives is a sum over requests, n of them in T
seconds; its variance grows by V = I + c^2 per request, in units of the mean work of one, with I the
variance over mean of arrivals and c the spread of the work. By the normal mixture (Robbins; as an
asymptotic confidence sequence Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas) the sum is within

    r(v) = sqrt((v + h) ln((v + h) / (h a^2))),     v = V n,

of its mean at all times at once with probability 1 - a; h only says when it is tightest. So the
verdict is right with probability 1 - a however often one looks and whenever one stops: ``unstable``
once the load is above 1 by more than r, ``stable`` once it is below by as much. The central limit
theorem stands behind it, so nothing is said before `FEWEST` requests have come. It takes the
capacity for known, up to the standard error of the host's time; what a wrong batch time does, no
test of arrivals can see (`penstock.live.pace` compares it with the batches that were served).
"""

import dataclasses
import math

from penstock.live.reading import Z95, Estimate, Verdict

FEWEST = 50
"""Requests before which nothing is said."""
_TIGHTEST = 500.0  # v at which the interval is tightest


@dataclasses.dataclass(frozen=True)
class Drift:
    """A load, and what can be said of it.

    Attributes
    ----------
    load
        With an interval of 95% for this one look.
    always
        The ends of the interval that holds at all looks at once.
    verdict
        ``stable``, ``unstable`` or ``undecided``.
    """

    load: Estimate
    always: tuple[float, float]
    verdict: Verdict


def drift(load: float, requests: float, variance: float, error: float, alpha: float) -> Drift:
    """Return what follows for a load.

    Parameters
    ----------
    load
        As estimated.
    requests
        That came.
    variance
        Of the work that arrives, per request, in units of the mean work of a request squared.
    error
        Standard error of the capacity, as a share of it.
    alpha
        Probability of ever being wrong.
    """
    v = max(variance * requests, 1e-9)
    once = Z95 * math.hypot(math.sqrt(v) / max(requests, 1.0), error)
    ever = radius(v, alpha) / max(requests, 1.0) + Z95 * error
    low, high = load * (1 - min(ever, 1.0)), load * (1 + ever)
    verdict: Verdict = "undecided"
    if requests >= FEWEST:
        if low > 1:
            verdict = "unstable"
        elif high < 1:
            verdict = "stable"
    interval = Estimate(load, load * (1 - min(once, 1.0)), load * (1 + once))
    return Drift(interval, (low, high), verdict)


def radius(v: float, alpha: float) -> float:
    """Return how far a sum of variance v may be from its mean, at all times at once."""
    h = _TIGHTEST / (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1))
    return math.sqrt((v + h) * math.log((v + h) / (h * alpha**2)))


def requests_to_decide(load: float, variance: float, error: float, alpha: float) -> float:
    """Return how many requests it takes to tell a load from 1; infinite if it never is told."""
    gap = abs(load - 1) / max(load, 1e-9) - Z95 * error
    if gap <= 0:
        return math.inf
    requests = float(FEWEST)
    while radius(variance * requests, alpha) / requests > gap:
        requests *= 1.05
        if requests > 1e9:
            return math.inf
    return requests
