"""Does a queue drain or grow: the tokens that a server carries while there is a backlog, against
those that arrive.
"""

import dataclasses
from typing import Literal

import numpy as np
from scipy import stats

from penstock.simulation.run import Run

BLOCKS = 10
SETTLING = 0.15
"""Share of the arrivals' time that is left out at first: a backlog of prompts alone is no typical
one.
"""
_LEFT = 0.2  # the backlog counts as there while so much of the first one is left

Direction = Literal["drains", "grows", "undecided"]


@dataclasses.dataclass(frozen=True)
class Drift:
    """Tokens carried under a backlog, and tokens that arrive.

    Attributes
    ----------
    offered
        Tokens/s that arrive in the long run.
    carried, low, high
        Tokens/s that the server completed while there was a backlog, and the ends of a 95%
        interval, from the means of blocks of time.
    seconds
        For how long it was watched.
    """

    offered: float
    carried: float
    low: float
    high: float
    seconds: float

    @property
    def growth(self) -> float:
        """Tokens/s by which a backlog changes."""
        return self.offered - self.carried

    @property
    def load(self) -> float:
        """Offered over carried: the load rho as it turned out."""
        return self.offered / self.carried

    @property
    def direction(self) -> Direction:
        """Whether a backlog drains or grows, if the interval tells."""
        if self.offered < self.low:
            return "drains"
        return "grows" if self.offered > self.high else "undecided"


def drift_of(run: Run, offered: float) -> Drift | None:
    """Estimate the drift under a backlog, from the batches of a run that began with one.

    Parameters
    ----------
    run
        Of ``record="batches"``, or observed.
    offered
        Tokens/s that arrive in the long run.

    Returns
    -------
    None if the backlog was gone before anything could be told.
    """
    series = run.series
    time, backlog = series["time_s"].to_numpy(), series["uncompleted_tokens"].to_numpy()
    last = run.last_arrival * run.tick_s
    from_s, until = SETTLING * last, last
    gone = (time > 0) & (backlog < _LEFT * backlog[0])
    if gone.any():
        until = min(until, float(time[np.argmax(gone)]))
    ends = (run.batches["start_ns"] + run.batches["duration_ns"]).to_numpy() * 1e-9
    tokens = (run.batches["prefill_tokens"] + run.batches["decode_tokens"]).to_numpy()
    watched = (ends > from_s) & (ends <= until)
    if watched.sum() < 4 * BLOCKS:
        return None
    # Blocks of whole batches: time is cut where batches end, so that none counts in part.
    done = np.cumsum(tokens)
    edges = np.flatnonzero(watched)[np.linspace(0, watched.sum() - 1, BLOCKS + 1).astype(int)]
    spans = np.diff(ends[edges])
    rates = np.diff(done[edges]) / spans
    carried = float((done[edges[-1]] - done[edges[0]]) / (ends[edges[-1]] - ends[edges[0]]))
    error = float(np.sqrt(np.average((rates - carried) ** 2, weights=spans) / (BLOCKS - 1)))
    reach = float(stats.t.ppf(0.975, BLOCKS - 1)) * error
    return Drift(
        offered, carried, carried - reach, carried + reach, float(ends[edges[-1]] - ends[edges[0]])
    )
