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

from penstock.checking.bursts import bisected, with_burst
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
    shown: int = dataclasses.field(repr=False)
    what: ClassVar[str] = "Requests served per second"
    caption: ClassVar[str] = (
        "The same arrivals, without a burst and with one. Those who were refused or left come "
        "again, and the work done for them in vain keeps the server from serving others."
    )

    @property
    def reason(self) -> str:
        """Say it in a sentence."""
        return (
            f"calm, {self.lost_before:.0%} of the requests are lost, at up to about "
            f"{self.holds:,.3g} requests/s; about {self.burst:,} requests at once, beside those "
            f"that arrive, bring half of the runs into a storm of retries: {self.lost_after:.0%} "
            f"are lost, still {span_of_time(self.held_s)} later. It heals where the load falls to "
            f"about {self.heals:,.3g} requests/s"
        )


def has_retries(system: System) -> bool:
    """Whether clients come again."""
    each = [system[0].patience] if isinstance(system, tuple) else system.patience_of_stages
    return any(patience is not None and patience.retries for patience in each)


def is_looked_for(system: System) -> bool:
    """Whether it is known how to look for a storm: at a server, under arrivals at random."""
    if not isinstance(system, tuple) or not has_retries(system):
        return False
    process = system[0].arrivals
    return process is not None and process.iid


def storm(workload: Workload, server: Server, progress: Progress) -> Storm | str:
    """Return the two states of a server whose clients come again, or say why it has one."""
    rate = workload.rate

    def run_of(rate: float, burst: int, seed: int) -> Run:
        """Run from empty, with so many requests more at once after a quarter of the arrivals."""
        return simulate(with_burst(workload, rate, _ARRIVALS, burst, seed), server)

    def lost(rate: float, burst: int) -> Floats:
        """Return which share of the last quarter of the requests each run loses."""
        rows = [recorded(run_of(rate, burst, seed).rows, "requests") for seed in range(_RUNS)]
        last = [np.asarray(of.failed)[-_ARRIVALS // 4 :] for of in rows]
        return np.asarray(np.isin(last, (REFUSED, LEFT)).mean(axis=1))

    before, after = lost(rate, 0), lost(rate, _LARGEST)
    calm, bad = float(np.median(before)), float(np.median(after))
    middle = (calm + bad) / 2 if bad > calm + _APART else bad / 2

    def fell(rate: float, burst: float) -> int:
        """Return how many runs lose more than the middle of both states."""
        return int((lost(rate, math.ceil(burst)) > middle).sum())

    progress(0.2)
    if bad <= _APART:
        return f"no burst of up to {_LARGEST:,} requests brings about a storm of retries that lasts"
    slower = bisected(lambda n: fell(rate / n, _LARGEST) > _RUNS / 2, 1.0, 64.0, _FASTER, _RATE)
    heals = rate / slower / (1 + _RATE)
    progress(0.5)
    if (before > middle).any():
        return (
            f"without any burst clients come again until {bad:.0%} of the requests are lost; such "
            f"a server heals where the load falls to about {heals:,.3g} requests/s"
        )
    burst = math.ceil(bisected(lambda n: fell(rate, n) <= _RUNS / 2, 1.0, _LARGEST, 2.0, _BURST))
    progress(0.8)
    holds = bisected(lambda r: fell(r, 0) == 0, rate, 2 * rate, _FASTER, _RATE)
    shown = 2 * burst
    return Storm(
        lost_before=calm,
        lost_after=bad,
        burst=burst,
        holds=holds,
        heals=heals,
        held_s=0.75 * _ARRIVALS / rate,
        calm=_path(run_of(rate, 0, 0)),
        tipped=_path(run_of(rate, shown, 0)),
        shown=shown,
    )


def _path(run: Run) -> Floats:
    """Return seconds and requests served per second, at instants while some arrive."""
    finish = recorded(run.rows, "requests").finish
    while_some_arrive = 0.0, run.last_arrival * run.tick_s
    counts, edges = np.histogram(finish[finish >= 0] * run.tick_s, _BINS, while_some_arrive)
    return np.column_stack([edges[1:], counts / np.diff(edges)])
