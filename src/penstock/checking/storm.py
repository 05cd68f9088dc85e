"""Two states by retries: a burst makes clients leave, or be refused, and those who come again keep
the server as busy as the burst did, with work that nobody waits for any more.

That is seen in runs: one whose burst is as large as can be, and one without, each followed until
long after it. Where the later quarter of those who come is lost in the one and not in the other,
there are two states. A run fell if it loses more than the middle of both.
"""

import dataclasses
import math
from typing import Annotated, ClassVar

import numpy as np

from penstock.checking.metastable import bisected, with_burst
from penstock.inputs.arrays import Floats
from penstock.kernel.records import LEFT, REFUSED
from penstock.show.answers import AsData, Meaning
from penstock.simulation.progress import Progress
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import System
from penstock.system.server import Server
from penstock.words import span_of_time
from penstock.workload.workload import Workload

_ARRIVALS = 12_000  # of a run, a quarter of them before the burst
_LARGEST = _ARRIVALS // 4  # all at once: a burst that is as large as can be
_APART = 0.2  # share of those who come by which the two states differ at least
_RUNS = 5  # each with a seed of its own
_FASTER, _RATE, _BURST = 1.05, 0.02, 0.05  # steps and shares of the searches
_BINS = 120  # of the figure


@dataclasses.dataclass(frozen=True, eq=False)
class Storm(AsData):
    """A server that a burst brings into a state of retries that lasts."""

    lost_before: Annotated[float, Meaning("Share of requests lost without a burst.")]
    lost_after: Annotated[float, Meaning("Share lost long after one.")]
    burst: Annotated[
        int,
        Meaning("Requests at once, beside those that arrive, up to which half of the runs heal."),
    ]
    holds: Annotated[float, Meaning("Requests/s up to which no run falls without a burst.")]
    heals: Annotated[
        float, Meaning("Requests/s to which the load must fall for a server that fell to heal.")
    ]
    held_s: Annotated[float, Meaning("Seconds after the burst: so long it was tried.")]
    # Seconds and requests served per second, at instants, shape (instants, 2).
    calm: Floats = dataclasses.field(repr=False)
    tipped: Floats = dataclasses.field(repr=False)
    shown: int = dataclasses.field(repr=False, default=0)
    what: ClassVar[str] = "Requests served per second"
    caption: ClassVar[str] = (
        "The same arrivals, without a burst and with one. Those who were refused or left come "
        "again, and the work done for them in vain keeps the server from serving others."
    )

    @property
    def reason(self) -> str:
        """Say it in a sentence."""
        return (
            f"without a burst {self.lost_before:.0%} of the requests are lost, and so at up to "
            f"about {self.holds:,.3g} requests/s; but with about {self.burst:,} requests at once, "
            f"beside those that arrive, half of the runs fall: {self.lost_after:.0%} are lost "
            f"still {span_of_time(self.held_s)} later, as clients come again, and it heals only "
            f"where the load falls to about {self.heals:,.3g} requests/s"
        )


def storm(system: System, progress: Progress) -> Storm | None:
    """Return the two states of a server whose clients come again; None: it has one."""
    if not isinstance(system, tuple):
        return None
    workload, server = system
    process, patience = workload.arrivals, workload.patience
    if patience is None or not patience.retries or process is None or not process.iid:
        return None
    trial = _Trial(workload, server)
    rate = workload.rate
    before, after = trial.lost(rate, 0), trial.lost(rate, _LARGEST)
    if np.median(after) < np.median(before) + _APART:
        return None
    middle = (np.median(before) + np.median(after)) / 2

    def fell(rate: float, burst: int) -> int:
        """Return how many runs lose more than the middle of both states."""
        return int((trial.lost(rate, burst) > middle).sum())

    progress(0.2)
    burst = math.ceil(
        bisected(lambda n: fell(rate, math.ceil(n)) <= _RUNS / 2, 1.0, _LARGEST, 2.0, _BURST)
    )
    if burst >= _LARGEST * (1 - _BURST) or fell(rate, 0) > 0:
        return None
    progress(0.5)
    holds = bisected(lambda r: fell(r, 0) == 0, rate, 2 * rate, _FASTER, _RATE)
    slower = bisected(lambda n: fell(rate / n, _LARGEST) > _RUNS / 2, 1.0, 64.0, _FASTER, _RATE)
    calm, tipped = (_path(trial.run(rate, size, 0)) for size in (0, 2 * burst))
    return Storm(
        float(np.median(before)), float(np.median(after)), burst, holds,
        rate / slower / (1 + _RATE), 0.75 * _ARRIVALS / rate, calm, tipped, 2 * burst,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Trial:
    """Runs of a server at some rates, without a burst and with one."""

    workload: Workload
    server: Server

    def run(self, rate: float, burst: int, seed: int) -> Run:
        """Run from empty, with so many requests more at once after a quarter of the arrivals."""
        return simulate(with_burst(self.workload, rate, _ARRIVALS, burst, seed), self.server)

    def lost(self, rate: float, burst: int) -> Floats:
        """Return which share of the last quarter of the requests each run loses."""
        shares = []
        for seed in range(_RUNS):
            failed = recorded(self.run(rate, burst, seed).rows, "requests").failed
            assert failed is not None
            shares.append(np.isin(failed[-_ARRIVALS // 4 :], (-REFUSED, -LEFT)).mean())
        return np.array(shares)


def _path(run: Run) -> Floats:
    """Return seconds and requests served per second, at instants while some arrive."""
    finish = recorded(run.rows, "requests").finish
    while_some_arrive = 0.0, run.last_arrival * run.tick_s
    counts, edges = np.histogram(finish[finish >= 0] * run.tick_s, _BINS, while_some_arrive)
    return np.column_stack([edges[1:], counts / np.diff(edges)])
