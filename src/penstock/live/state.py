"""One engine that is watched: its arrivals, its lengths, its pace, and what it carries."""

import dataclasses

import numpy as np

from penstock.errors import InputError
from penstock.live.changes import last_change
from penstock.live.fitted_server import FittedServer
from penstock.live.history import History, Interval
from penstock.live.lengths import Lengths, lengths
from penstock.live.limits import Carried, Limits
from penstock.live.pace import Pace, pace
from penstock.live.reading import Change
from penstock.live.scrape import Scrape
from penstock.system.memory import Memory
from penstock.system.server import Server

AS_SEEN = "as seen"
"""The limit of an engine whose batch times are not known: what it carried while requests waited."""
_PRIOR = 10.0
"""Intervals with the scatter of a Poisson process, before any was seen. More would take bursty
arrivals for regular ones for longer, and so call a stable load unstable."""
_HOST_KNOWN = 0.1  # share of a batch by which the host's time must be known to be used
_HOST_MOVED = 0.02  # share of a batch by which it must move for the limits to be worked out anew
_RECENT = 512  # intervals in which a change is looked for
_CHANGES = 16  # that are remembered
_QUEUE = 5.0  # requests that wait at both ends, for an engine to be full
_FEWEST = 100.0  # requests that leave meanwhile, for that to say what it carries


@dataclasses.dataclass
class Arrivals:
    """Requests that came since the rate of arrivals last changed.

    The scatter is that of neighbouring intervals, so a change of the rate does not count as one.
    """

    since_s: float
    seconds: float = 0.0
    requests: float = 0.0
    scatter: float = 0.0
    pairs: int = 0
    before: Interval | None = None

    def add(self, interval: Interval) -> None:
        """Count an interval."""
        self.seconds += interval.seconds
        self.requests += interval.arrivals
        if self.before is not None:
            a, b = self.before, interval
            gap = a.arrivals / a.seconds - b.arrivals / b.seconds
            rate = max(a.arrivals + b.arrivals, 1.0) / (a.seconds + b.seconds)
            self.scatter += gap**2 / (rate * (1 / a.seconds + 1 / b.seconds))
            self.pairs += 1
        self.before = interval

    @property
    def dispersion(self) -> float:
        """Variance over mean of what comes; that of a Poisson process at least."""
        return max((_PRIOR + self.scatter) / (_PRIOR + self.pairs), 1.0)


@dataclasses.dataclass(frozen=True)
class State:
    """What is known of one engine now."""

    history: History
    arrivals: Arrivals
    changes: tuple[Change, ...]
    lengths: Lengths | None
    pace: Pace | None
    server: Server | None
    carried: dict[str, Carried]
    stretches: int
    fitted_server: FittedServer


class Engine:
    """One engine that is watched."""

    def __init__(self, name: str, fitted_server: FittedServer) -> None:
        self.history = History(name)
        self._fitted_server = fitted_server
        self._limits: Limits | None = None
        self._host_s: float | None = None
        self._arrivals: Arrivals | None = None
        self._changes: list[Change] = []
        self._recent: list[Interval] = []
        self._looks = 0
        self._stretches = 1

    def take(self, scrape: Scrape) -> None:
        """Take a scrape, and see whether the arrivals have changed."""
        interval = self.history.take(scrape)
        if self._arrivals is None:
            self._arrivals = Arrivals(scrape.time_s)
        if interval is None:
            return
        self._arrivals.add(interval)
        self._recent.append(interval)
        del self._recent[:-_RECENT]
        self._looks += 1
        rates = np.array([[each.arrivals, each.seconds] for each in self._recent]).T
        index = last_change(rates[0], rates[1], self._arrivals.dispersion, self._looks)
        if index is not None:
            self._begin_anew(index)

    def _begin_anew(self, index: int) -> None:
        """Count arrivals from the change on."""
        before, after = self._recent[:index], self._recent[index:]
        self._arrivals = Arrivals(after[0].begin.time_s)
        for interval in after:
            self._arrivals.add(interval)
        self._recent = after
        self._stretches += 1
        self._changes.append(Change(self._arrivals.since_s, _rate(before), _rate(after)))
        del self._changes[:-_CHANGES]

    def state(self) -> State:
        """Return what is known of it."""
        last = self.history.last
        arrivals = self._arrivals or Arrivals(last.time_s if last else 0.0)
        means = lengths(self.history)
        speed, server, carried = None, self._fitted_server.server, {}
        if means is not None:
            batch_time = None if server is None else server.batch_time
            speed = pace(self.history.intervals, batch_time, means.prompt.value)
        if server is not None and means is not None:
            server = self._with_host(self._with_memory(server), speed)
            carried = self._carried(server, means)
        if not carried:
            carried = self._seen()
        return State(
            history=self.history,
            arrivals=arrivals,
            changes=tuple(self._changes),
            lengths=means,
            pace=speed,
            server=server,
            carried=carried,
            stretches=self._stretches,
            fitted_server=self._fitted_server,
        )

    def _with_host(self, server: Server, speed: Pace | None) -> Server:
        """Return the server with the host's time seen, if well known; else with its log's."""
        # That is what the log has between two batches.
        if speed is None or speed.host_s is None or speed.error > _HOST_KNOWN:
            gap_s = self._fitted_server.gap_s
            if not gap_s:
                return server
            return dataclasses.replace(server, batch_time=server.batch_time.with_host(gap_s))
        host = max(speed.host_s.value, 0.0)
        if self._host_s is None or abs(host - self._host_s) > _HOST_MOVED * speed.batch_s.value:
            self._host_s = host
        return dataclasses.replace(server, batch_time=server.batch_time.with_host(self._host_s))

    def _with_memory(self, server: Server) -> Server:
        """Return the server with the KV memory that the engine says it has, if none was given."""
        last = self.history.last
        if last is None or last.kv_tokens is None:
            return server
        if server.memory is not None and not server.memory.estimated:
            return server
        size = int(last.kv_block or server.policy.memory.block_size or 16)
        # What the engine says itself is better than what its GPU has room for.
        try:
            memory = Memory.of_tokens(int(last.kv_tokens), size)
        except InputError as error:
            self.history.note(f"the KV memory that the engine states cannot be used: {error}")
            return server
        return dataclasses.replace(server, memory=memory, gpu=None)

    def _carried(self, server: Server, means: Lengths) -> dict[str, Carried]:
        if self._limits is None or self._limits.server != server:
            self._limits = Limits(server)
        spreads = (means.prompt_spread, means.output_spread)
        try:
            return dict(self._limits.carried(means.computed, means.output.value, spreads))
        except InputError as error:
            self.history.note(f"what the engine carries is not known: {error}")
            return {}

    def _seen(self) -> dict[str, Carried]:
        """Return what the engine carried while requests waited."""
        full = [
            each
            for each in self.history.intervals
            if min(each.begin.waiting or 0.0, each.end.waiting or 0.0) >= _QUEUE
            and each.change("first_tokens") is not None
        ]
        left = sum(each.change("first_tokens") or 0.0 for each in full)
        if left < _FEWEST:
            return {}
        return {AS_SEEN: Carried(left / sum(each.seconds for each in full), 1.0, 1.0)}


def _rate(intervals: list[Interval]) -> float:
    return sum(each.arrivals for each in intervals) / sum(each.seconds for each in intervals)
