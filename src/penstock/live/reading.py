"""What follows from watching engines: the answer of `penstock watch`."""

import dataclasses
from typing import Any, Literal

Verdict = Literal["stable", "unstable", "undecided", "unknown"]

TOGETHER = "all"
"""The name of all engines together."""
Z95 = 1.959964
"""Standard deviations within which 95% of a normal distribution lie."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its interval."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The standard error, of an interval of 95%."""
        return (self.high - self.low) / (2 * Z95)

    def times(self, factor: float) -> "Estimate":
        """Return it in another unit."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclasses.dataclass(frozen=True)
class Change:
    """The arrival rate changed: when (Unix time, s), and requests/s before and after."""

    time_s: float
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class LimitLoad:
    """What the arrivals ask of one limit, as a share of what it carries.

    Attributes
    ----------
    limit
        ``token budget``, ``max batch size`` or ``KV memory``.
    load
        1: as much as it carries; an interval of 95%.
    """

    limit: str
    load: Estimate


@dataclasses.dataclass(frozen=True)
class TimeUntil:
    """How long until a limit is reached if all stays as it is, in seconds; an interval of 90%.

    Attributes
    ----------
    limit
        ``queue``, ``KV memory`` or ``TTFT``, and what was asked for, as in ``queue of 200``.
    seconds
        The median and both ends; infinite where it may never be reached.
    """

    limit: str
    seconds: Estimate


@dataclasses.dataclass(frozen=True)
class FittedTimes:
    """Batch times fitted to the last iterations that an engine told of.

    Attributes
    ----------
    batches, mean_s
        How many they are fitted to, and the mean seconds of these.
    tokens, seconds
        Tokens of the largest of them, and how long such a batch takes.
    parameters
        By the names of `penstock fit`, in seconds.
    given_over
        How long the batches take by the batch time given, over how long they took.
    """

    batches: int
    mean_s: float
    tokens: float
    seconds: Estimate
    parameters: dict[str, Estimate]
    given_over: float | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """What follows from the scrapes of one engine, or of all engines behind one router together.

    None says that it cannot be known from what was seen; a note says why. Intervals are of 95%
    where nothing else is said.

    Attributes
    ----------
    engine
        The name of the engine, or ``all``.
    engines
        How many engines it is about.
    time_s, watched_s, scrapes
        Of the last scrape (Unix time, s); seconds watched; scrapes read.
    since_s
        Unix time since when the arrival rate is the one given: the last change, or the first
        scrape.
    arrival_rate, changes
        Requests/s, and when it changed.
    prompt, output
        Mean tokens of a request that comes; corrected for long ones that have not finished yet.
    cached_share
        Share of prompt tokens that the prefix cache held.
    running, waiting, kv_used, preemptions_per_s
        As the engine says.
    batch_s, host_s
        Seconds from one batch to the next while it was busy; and how much of that the batch time
        given does not explain (host, gap between batches).
    fitted, iterations
        Batch times that are used in place of those given, and the iterations seen so far.
    loads, load, margin, binding
        The load by limit; that of the limit that binds, 1 less that, and its name.
    drift
        Requests/s by which more arrive than the limit that binds carries; below 0: by which fewer.
    verdict, reason, alpha
        The drift test: it aims at being wrong with probability alpha however often one looks.
    backlog_tokens
        Tokens still to be computed of requests that have arrived.
    preempted
        Requests whose memory was taken back, and that wait to go on.
    until
        Time until limits are reached.
    drain_s
        Seconds until the backlog is gone, if it goes.
    replicas, replicas_low, replicas_high
        Engines needed to stay at the load asked for.
    watch_s
        Seconds more that it takes to decide, at least; None: over 30 days, or it is never told.
    worst
        Of several engines that do not share requests evenly, the name of the one with the highest
        load: loads, margin, drift, verdict, times and replicas are by that one. None: by the mean.
    even_load
        With `worst`: the load that each would have if requests were shared evenly.
    notes
        What was not known, and what happened: an engine started anew, scrapes lost ...
    """

    engine: str
    engines: int
    time_s: float
    watched_s: float
    scrapes: int
    since_s: float
    verdict: Verdict
    reason: str
    alpha: float
    arrival_rate: Estimate | None = None
    changes: tuple[Change, ...] = ()
    prompt: Estimate | None = None
    output: Estimate | None = None
    cached_share: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    preemptions_per_s: float | None = None
    batch_s: Estimate | None = None
    host_s: Estimate | None = None
    fitted: FittedTimes | None = None
    iterations: int | None = None
    loads: tuple[LimitLoad, ...] = ()
    load: Estimate | None = None
    margin: Estimate | None = None
    binding: str | None = None
    drift: Estimate | None = None
    backlog_tokens: float | None = None
    preempted: float | None = None
    until: tuple[TimeUntil, ...] = ()
    drain_s: Estimate | None = None
    replicas: int | None = None
    replicas_low: int | None = None
    replicas_high: int | None = None
    watch_s: float | None = None
    worst: str | None = None
    even_load: Estimate | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What follows for each engine that is watched, and for all of them together."""

    time_s: float
    together: Reading
    engines: tuple[Reading, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return dataclasses.asdict(self)
