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
    """What the arrivals ask of one limit, as a share of what it carries."""

    limit: str  # `token budget`, `max batch size` or `KV memory`
    load: Estimate  # 1: as much as it carries; an interval of 95%


@dataclasses.dataclass(frozen=True)
class TimeUntil:
    """How long until a limit is reached if all stays as it is, in seconds; an interval of 90%."""

    limit: str  # `queue`, `KV memory` or `TTFT`, and what was asked for, as in `queue of 200`
    seconds: Estimate  # the median and both ends; infinite where it may never be reached


@dataclasses.dataclass(frozen=True)
class FittedTimes:
    """Batch times fitted to the last iterations that an engine told of."""

    # How many they are fitted to, and the mean seconds of these.
    batches: int
    mean_s: float
    # Tokens of the largest of them, and how long such a batch takes.
    tokens: float
    seconds: Estimate
    parameters: dict[str, Estimate]  # by the names of `penstock fit`, in seconds
    # How long the batches take by the batch time given, over how long they took.
    given_over: float | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """What follows from scrapes of one engine, or of all behind one router together.

    None: it cannot be known from what was seen; a note says why. Intervals are of 95% where nothing
    else is said.
    """

    engine: str  # its name, or `all`
    engines: int  # how many it is about
    time_s: float  # of the last scrape, Unix time
    watched_s: float
    scrapes: int  # read
    # Unix time since when the arrival rate is the one given: the last change, or the first scrape.
    since_s: float
    verdict: Verdict  # of the drift test
    reason: str
    alpha: float  # it aims at being wrong with this probability however often one looks
    arrival_rate: Estimate | None = None  # requests/s
    changes: tuple[Change, ...] = ()
    # Mean tokens of a request that comes; corrected for long ones that have not finished yet.
    prompt: Estimate | None = None
    output: Estimate | None = None
    cached_share: float | None = None  # of prompt tokens, that the prefix cache held
    running: float | None = None
    waiting: float | None = None
    kv_used: float | None = None
    preemptions_per_s: float | None = None
    batch_s: Estimate | None = None  # from one batch to the next while it was busy
    # How much of that the batch time given does not explain (host, gap between batches).
    host_s: Estimate | None = None
    fitted: FittedTimes | None = None  # batch times that are used in place of those given
    iterations: int | None = None
    loads: tuple[LimitLoad, ...] = ()
    load: Estimate | None = None  # of the limit that binds
    margin: Estimate | None = None  # 1 less the load
    binding: str | None = None  # the name of that limit
    # Requests/s by which more arrive than the limit that binds carries; below 0: by which fewer.
    drift: Estimate | None = None
    backlog_tokens: float | None = None  # still to be computed of requests that have arrived
    preempted: float | None = None  # requests whose memory was taken back, and that wait to go on
    until: tuple[TimeUntil, ...] = ()  # limits are reached
    drain_s: Estimate | None = None  # until the backlog is gone, if it goes
    # Engines needed to stay at the load asked for.
    replicas: int | None = None
    replicas_low: int | None = None
    replicas_high: int | None = None
    # That it takes more to decide, at least; None: over 30 days, or never.
    watch_s: float | None = None
    # Of several engines that do not share requests evenly, the name of the one with the highest
    # load: loads, margin, drift, verdict, times and replicas are by that one. None: by the mean.
    worst: str | None = None
    # With `worst`: that each would have if requests were shared evenly.
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
