"""What happened between two scrapes, and what of it can be believed."""

import dataclasses
import itertools

from penstock.live.scrape import COUNTERS, GAUGES, LARGEST, Scrape

_KEPT = 4_096
"""Intervals that are looked back at; what comes from older ones stays in the sums."""
_LOST = 2.5  # times the usual distance of scrapes: some between were lost
_SLACK = 3.0  # requests by which gauges and counters may disagree, taken a moment apart
_SHARE = 0.1  # of what was counted, the same


@dataclasses.dataclass(frozen=True)
class Interval:
    """What an engine did from one scrape to the next, without a restart between."""

    begin: Scrape
    end: Scrape
    arrivals: float  # requests that came, those turned away included

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end.time_s - self.begin.time_s

    def change(self, counter: str) -> float | None:
        """Return by how much a counter grew, None if it is not known."""
        before, after = getattr(self.begin, counter), getattr(self.end, counter)
        if before is None or after is None:
            return None
        return float(after - before)

    def mean(self, gauge: str) -> float | None:
        """Return a gauge halfway between its values at both ends."""
        before, after = getattr(self.begin, gauge), getattr(self.end, gauge)
        if before is None or after is None:
            return None
        return float(before + after) / 2


class History:
    """The scrapes of one engine, as intervals, the last of them, oldest first.

    ``first`` and ``last``: the first scrape and the last one believed; ``notes``: what happened,
    newest last, with how often.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.intervals: list[Interval] = []
        self.first: Scrape | None = None
        self.last: Scrape | None = None
        self.scrapes = 0
        self.notes: dict[str, int] = {}
        self._gaps: list[float] = []

    def note(self, text: str) -> None:
        """Keep a note; the same text is counted."""
        self.notes[text] = self.notes.get(text, 0) + 1

    def take(self, scrape: Scrape) -> Interval | None:
        """Take a scrape; return the interval that it ends, if there is one to believe."""
        wrong = _impossible(scrape)
        if wrong is not None:
            self.note(f"a page was left out: {wrong}")
            return None
        if self.last is not None and scrape.time_s <= self.last.time_s:
            self.note("a scrape was left out that was no later than the one before")
            return None
        self.scrapes += 1
        before, self.last = self.last, scrape
        if before is None:
            self.first = scrape
            return None
        fallen = _fallen(before, scrape)
        if fallen is not None:
            self.note(
                f"the engine started anew ({fallen} fell): requests in flight then are not counted"
            )
            return None
        self._note_gap(scrape.time_s - before.time_s)
        arrivals = _arrivals(before, scrape)
        if arrivals is None:
            self.note(
                "arrivals between two scrapes are not known: the engine did not say how many "
                "requests finished, or how many are running and waiting"
            )
            return None
        interval = Interval(before, scrape, arrivals)
        contradiction = _contradiction(interval)
        if contradiction is not None:
            self.note(f"what happened between two scrapes was left out: {contradiction}")
            return None
        self.intervals.append(interval)
        del self.intervals[:-_KEPT]
        return interval

    @property
    def seconds(self) -> float:
        """Length of all intervals together."""
        return sum(interval.seconds for interval in self.intervals)

    def rate_of(self, counter: str) -> float | None:
        """Return by how much a counter grew per second, None if it is not known."""
        changes = [interval.change(counter) for interval in self.intervals]
        known = [change for change in changes if change is not None]
        if not changes or len(known) < len(changes):
            return None
        return sum(known) / self.seconds

    @property
    def refused_per_s(self) -> float | None:
        """Requests/s that the engine refused; None if it does not say."""
        if not self.intervals or self.intervals[-1].end.refused is None:
            return None
        refused = sum(_refused(interval.begin, interval.end) for interval in self.intervals)
        return refused / self.seconds

    @property
    def left_per_s(self) -> float | None:
        """Requests/s, at least, that got a first token, and neither finished nor run: their clients
        have left; None if it is not known.
        """
        first, finished = self.rate_of("first_tokens"), self.rate_of("finished")
        # Who runs at the end of each stretch without a gap may finish yet.
        following = itertools.zip_longest(self.intervals, self.intervals[1:])
        ends = [of.end for of, later in following if later is None or later.begin is not of.end]
        running = [end.running + _SLACK for end in ends if end.running is not None]
        if first is None or finished is None or len(running) < len(ends):
            return None
        return max(first - finished - sum(running) / self.seconds, 0.0)

    def _note_gap(self, seconds: float) -> None:
        """Say when scrapes are missing: what came and left between them is known all the same."""
        if self._gaps and seconds > _LOST * sorted(self._gaps)[len(self._gaps) // 2]:
            self.note("scrapes were late or lost; counters bridge the gap")
        self._gaps.append(seconds)
        del self._gaps[:-32]


def _impossible(scrape: Scrape) -> str | None:
    """Return what a page says that cannot be, if anything."""
    for name in (*COUNTERS, *GAUGES):
        value = getattr(scrape, name)
        if value is None:
            continue
        if not 0 <= value < LARGEST:
            return f"{name} is {value}"
    if scrape.kv_used is not None and scrape.kv_used > 1:
        return f"kv_used is {scrape.kv_used}, more than all"
    return None


def _fallen(before: Scrape, after: Scrape) -> str | None:
    """Return a counter that is smaller than before."""
    for name in COUNTERS:
        old, new = getattr(before, name), getattr(after, name)
        if old is not None and new is not None and new < old:
            return name
    return None


def _arrivals(before: Scrape, after: Scrape) -> float | None:
    """Return the requests that came.

    By a counter of arrivals, else those that left and those that are in the engine more than
    before.
    """
    if before.arrived is not None and after.arrived is not None:
        return after.arrived - before.arrived
    ends = (before.finished, before.running, before.waiting)
    if None in ends or None in (after.finished, after.running, after.waiting):
        return None
    return _seen(after) - _seen(before) + _refused(before, after)


def _refused(before: Scrape, after: Scrape) -> float:
    """Return the requests that were refused: the counter begins with the first of them."""
    return max((after.refused or 0.0) - (before.refused or 0.0), 0.0)


def _seen(scrape: Scrape) -> float:
    """Return the requests that have finished, run or wait."""
    return (scrape.finished or 0.0) + (scrape.running or 0.0) + (scrape.waiting or 0.0)


def _contradiction(interval: Interval) -> str | None:
    """Return how what was counted contradicts itself, if it does."""
    # A first token comes from a request that finishes or runs; a batch gives each request one
    # token, or several with drafts; so a counter that a torn page shows wrong stands out.
    begin, end = interval.begin, interval.end
    finished = interval.change("finished")
    first = interval.change("first_tokens")
    output = interval.change("output_tokens")
    prompt = interval.change("prompt_tokens")
    if interval.arrivals < -_SLACK - _SHARE * (finished or 0.0):
        return f"{interval.arrivals:g} requests came"
    in_flight = (begin.running or 0.0) + (end.running or 0.0)
    if first is not None and finished is not None:
        allowed = in_flight + _SLACK + _SHARE * max(first, finished)
        if begin.running is not None and end.running is not None and first - finished > allowed:
            return f"{first:,.0f} first tokens came out, {finished:,.0f} requests finished"
    if first is not None and output is not None and output < first * (1 - _SHARE) - _SLACK:
        return f"{output:,.0f} tokens came out for {first:,.0f} requests"
    if first is not None and prompt is not None and prompt < first * (1 - _SHARE) - _SLACK:
        return f"{prompt:,.0f} tokens of prompts for {first:,.0f} requests"
    return None
