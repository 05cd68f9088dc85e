"""When did the arrivals change? A likelihood ratio over all moments at which they may have.

Requests that arrive in seconds t at rate r, I times as scattered as a Poisson process, have the
log-likelihood ratio of a change after a part (n, t) of (N, T)

    L = (n ln(n / t) + m ln(m / s) - N ln(N / T)) / I,      m = N - n, s = T - t.

If nothing changed, 2 L is beyond x with probability exp(-x / 2) or less, for each moment. Looks and
moments are added up: look k spends CHANGE_ALPHA 6 / (pi k)^2, divided by the moments it looks at,
so that a change is seen where none was in one watch of a hundred, however long it lasts.
"""

import math

import numpy as np

from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats

CHANGE_ALPHA = 0.01
_LEAST = 5.0  # requests on the busier side of a change


def last_change(arrivals: Floats, seconds: Floats, dispersion: float, looks: int) -> int | None:
    """Return after how many intervals the rate of arrivals changed, None if it did not."""
    # ``seconds``: each interval's; ``dispersion``: variance over mean of the requests of one;
    # ``looks``: how often this was asked of the engine, now included.
    if len(arrivals) < 2:
        return None
    n, t = np.cumsum(arrivals)[:-1], np.cumsum(seconds)[:-1]
    m, s = arrivals.sum() - n, seconds.sum() - t
    n, m = np.maximum(n, 0.0), np.maximum(m, 0.0)
    ratio = special.xlogy(n, n / t) + special.xlogy(m, m / s)
    ratio -= special.xlogy(n + m, (n + m) / (t + s))
    ratio = np.where(np.maximum(n, m) >= _LEAST, ratio / dispersion, 0.0)
    spent = CHANGE_ALPHA * 6 / (math.pi * looks) ** 2 / len(ratio)
    best = int(np.argmax(ratio))
    return best + 1 if 2 * ratio[best] > -2 * math.log(spent) else None
