"""Two states at one rate: a server that holds from empty, and does not recover once it is full.

Where KV memory is short, requests that run when it is full preempt each other, and what they do
again makes a full server slower than one that never fills. So there are rates at which a backlog
grows, and which the same server carries for hours from empty: until a burst, or bad luck, fills it.

That is seen in runs of so many arrivals that the growth of a backlog would show beyond the noise of
arrivals. A run fell if it ends with more than half of what would pile up while the server is full.
"""

import dataclasses
import functools
import math
from typing import Annotated, ClassVar

import numpy as np

from penstock.checking.bursts import bisected, with_burst
from penstock.checking.stability import Stability
from penstock.inputs.arrays import Floats
from penstock.show.answers import AsData, Meaning
from penstock.simulation.progress import Progress
from penstock.simulation.quick import MemoryEstimate
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.words import span_of_time
from penstock.workload.workload import Workload

_LEAST, _MOST = 50_000, 400_000  # arrivals that it has to hold
# Arrivals times the squared share that piles up: half of the growth, by which a run is judged, is
# then 4 times the noise of Poisson arrivals, and 2.8 times that of arrivals and outputs.
_NOISE = 64
_LEAST_AFTER, _NOISE_AFTER = 10_000, 16  # the same after a burst, where half of many runs decide
_FULL = 5  # as many as run when it is full pile up at least
_HOLDS, _TIPS = 8, 12  # runs, each with a seed of its own
_FASTER = 1.05  # times the rate, until it does not hold
_RATE, _BURST = 0.01, 0.03  # shares to which they are searched for
_GAPS = 20_000  # between arrivals, for how they vary
_LARGEST = 16  # times as many as run when it is full: a burst
_SHOWN = 1.5  # times the burst, in the figure


@dataclasses.dataclass(frozen=True, eq=False)
class Metastable(AsData):
    """A server with two states at this rate."""

    drains: Annotated[
        float, Meaning("Requests/s up to which it works off a backlog, once KV memory is full.")
    ]
    holds: Annotated[
        float, Meaning("Requests/s up to which it holds from empty, for as many arrivals.")
    ]
    held_s: Annotated[
        float,
        Meaning("Seconds for which no run from empty fell at this rate: so long it was tried."),
    ]
    burst: Annotated[
        int,
        Meaning("Requests at once, beside those that arrive, up to which half of the runs hold."),
    ]
    # Seconds and requests in the server, at instants, shape (instants, 2): with no burst, and with
    # one of `shown` requests.
    calm: Floats = dataclasses.field(repr=False)
    tipped: Floats = dataclasses.field(repr=False)
    shown: int = dataclasses.field(repr=False, default=0)
    what: ClassVar[str] = "Requests in the server"
    caption: ClassVar[str] = (
        "The same arrivals, without a burst and with one. Once KV memory is full, requests preempt "
        "each other, and what they do again keeps it full."
    )

    @property
    def reason(self) -> str:
        """Say it in a sentence."""
        return (
            f"from empty none of {_HOLDS} runs fell within {span_of_time(self.held_s)}, nor at up "
            f"to about {self.holds:,.3g} requests/s; but it works off a backlog only up to "
            f"{self.drains:,.3g} requests/s: with about {self.burst:,} requests at once, beside "
            "those that arrive, KV memory fills in half of the runs, and stays full"
        )


def two_states(
    workload: Workload,
    server: Server,
    test: Stability,
    certificate: Certificate,
    full: MemoryEstimate | None,
    progress: Progress,
) -> Metastable | None:
    """Return the two states of a server under whose backlog KV memory is full; None: it has one.

    ``test`` and ``full``: what a backlog does, and what it carries.
    """
    if full is None or test.verdict != "unstable" or test.front_end >= 1:
        return None
    process = workload.arrivals
    if certificate.verdict not in ("unknown", "critical") or process is None or not process.iid:
        return None
    trial = _Trial(workload, server.behind_front_end, full)
    if trial.arrivals > _MOST or not trial.holds(workload.rate):
        return None
    progress(0.3)
    most = bisected(trial.holds, workload.rate, certificate.max_rate, _FASTER, _RATE)
    progress(0.6)
    largest = _LARGEST * max(full.running, 1.0)
    burst = math.ceil(bisected(trial.stays, 1.0, largest, 2.0, _BURST))
    if burst >= largest * (1 - _BURST):
        return None
    shown = math.ceil(_SHOWN * burst)
    calm, tipped = (_path(trial.run(workload.rate, trial.after, size, 0)) for size in (0, shown))
    held_s = trial.arrivals / 2 / workload.rate  # who fell later has not piled up half
    return Metastable(full.rate, most, held_s, burst, calm, tipped, shown)


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """Runs of a server that is full at some rates, from empty and with a burst."""

    workload: Workload
    server: Server
    full: MemoryEstimate

    @functools.cached_property
    def piles_up(self) -> float:
        """Share of what arrives that piles up at least while the server is full."""
        return 1 - self.full.rate_interval[1] / self.workload.rate

    def _enough(self, least: int, noise: int) -> int:
        """Return after how many arrivals a backlog shows."""
        if self.piles_up <= 0:
            return _MOST + 1
        gaps = np.diff(self.workload.requests(_GAPS).arrival_s)
        bursty = max(float(gaps.var() / gaps.mean() ** 2), 1.0)  # than Poisson arrivals
        shows = max(noise * bursty / self.piles_up**2, _FULL * self.full.running / self.piles_up)
        return max(least, math.ceil(shows))

    @functools.cached_property
    def arrivals(self) -> int:
        """Arrivals that it has to hold."""
        return self._enough(_LEAST, _NOISE)

    @functools.cached_property
    def after(self) -> int:
        """Arrivals, of which a quarter come before a burst."""
        return 4 * self._enough(_LEAST_AFTER, _NOISE_AFTER) // 3

    def run(self, rate: float, arrivals: int, burst: int, seed: int) -> Run:
        """Run from empty, with so many requests more at once after a quarter of the arrivals."""
        whole = with_burst(self.workload, rate, arrivals, burst, seed)
        until = float(whole.requests(arrivals + burst).arrival_s[-1])
        return simulate(whole, self.server, until=until, record="summary")

    def fell(self, rate: float, arrivals: int, burst: int, seed: int) -> bool:
        """Return whether at the end more are there than half of what piles up at a full server."""
        since = arrivals - arrivals // 4 if burst else arrivals
        piled = (1 - self.full.rate_interval[1] / rate) * since
        return self.run(rate, arrivals, burst, seed).unfinished > piled / 2

    def holds(self, rate: float) -> bool:
        """Return whether no run from empty falls."""
        return not any(self.fell(rate, self.arrivals, 0, seed) for seed in range(_HOLDS))

    def stays(self, burst: float) -> bool:
        """Return whether at least half of the runs with a burst do not fall."""
        rate, size = self.workload.rate, math.ceil(burst)
        fell = sum(self.fell(rate, self.after, size, seed) for seed in range(_TIPS))
        return fell <= _TIPS / 2


def _path(run: Run) -> Floats:
    """Return seconds and requests in the server, at instants of a run."""
    series = run.series
    return np.column_stack([series["time_s"].to_numpy(), series["requests"].to_numpy()])
