"""What follows from watching engines: the answer of `penstock watch`."""

import dataclasses
import datetime
from typing import Annotated, Literal

from penstock.show.answers import UNKNOWN, Meaning, Shown, cell, fact
from penstock.show.page import Fact, Section
from penstock.words import digits, share, span_of_time, whole

Verdict = Literal["stable", "unstable", "undecided", "unknown"]

TOGETHER = "all"
"""The name of all engines together."""
Z95 = 1.959964
"""Standard deviations within which 95% of a normal distribution lie."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its interval."""

    value: Annotated[float, Meaning("The figure.")]
    low: Annotated[float, Meaning("Low end of its interval.")]
    high: Annotated[float, Meaning("High end of its interval.")]

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

    time_s: Annotated[float, Meaning("When, Unix time.")]
    before: Annotated[float, Meaning("Requests/s.")]
    after: Annotated[float, Meaning("Requests/s.")]


@dataclasses.dataclass(frozen=True)
class LimitLoad:
    """What the arrivals ask of one limit, as a share of what it carries."""

    limit: Annotated[str, Meaning("`token budget`, `max batch size` or `KV memory`.")]
    load: Annotated[Estimate, Meaning("1: as much as it carries; an interval of 95%.")]


@dataclasses.dataclass(frozen=True)
class TimeUntil:
    """How long until a limit is reached if all stays as it is, in seconds; an interval of 90%."""

    limit: Annotated[
        str,
        Meaning("`queue`, `KV memory` or `TTFT`, and what was asked for, as in `queue of 200`."),
    ]
    seconds: Annotated[
        Estimate, Meaning("The median and both ends; infinite where it may never be reached.")
    ]


@dataclasses.dataclass(frozen=True)
class FittedTimes:
    """Batch times fitted to the last iterations that an engine told of."""

    batches: Annotated[int, Meaning("How many they are fitted to.")]
    mean_s: Annotated[float, Meaning("Mean of these.")]
    tokens: Annotated[float, Meaning("Of the largest of them.")]
    seconds: Annotated[Estimate, Meaning("How long such a batch takes.")]
    parameters: Annotated[
        dict[str, Estimate], Meaning("By the names of `penstock fit`, in seconds.")
    ]
    given_over: Annotated[
        float | None,
        Meaning("How long the batches take by the batch time given, over how long they took."),
    ] = None


LOAD, COMES, AHEAD = Section("Load"), Section("What comes"), Section("If it stays so")

_ASK = "not known; the notes say why"
_LIMITS = ("token budget", "max batch size", "KV memory")


def clock(time_s: float) -> str:
    """Return a Unix time as the clock here shows it."""
    try:
        return datetime.datetime.fromtimestamp(time_s).astimezone().strftime("%H:%M:%S")
    except (OSError, OverflowError, ValueError):  # a recording with times that are none
        return UNKNOWN


def _milliseconds(seconds: float) -> str:
    return digits(seconds * 1e3)


def _from_now(name: str, time: Estimate) -> Fact:
    """Show after how long something comes about, with both ends where they differ."""

    def words(seconds: float) -> str:
        return "already" if seconds <= 0 else span_of_time(seconds)

    low, high = words(time.low), words(time.high)
    between = f"({low} to {high}) from now" if low != high else ""
    return Fact(name, words(time.value), between)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What follows from scrapes of one engine, or of all behind one router together.

    None: it cannot be known from what was seen; a note says why. Intervals are of 95% where nothing
    else is said.
    """

    engine: Annotated[str, Meaning("Its name, or `all`.")]
    engines: Annotated[int, Meaning("How many it is about.")]
    time_s: Annotated[float, Meaning("Of the last scrape, Unix time.")]
    watched_s: Annotated[float, Meaning("From the first scrape to the last.")]
    scrapes: Annotated[int, Meaning("Read.")]
    since_s: Annotated[float, Meaning(
        "Unix time since when arrivals come at the rate given: the last change, or the first "
        "scrape."
    )]  # fmt: skip
    verdict: Annotated[Verdict, Meaning("Of the drift test.")]
    reason: Annotated[str, Meaning("Why.")]
    alpha: Annotated[float, Meaning(
        "The test aims at being wrong with this probability however often one looks."
    )]  # fmt: skip
    load: Annotated[Estimate | None, Meaning(
        "Of the limit that binds.", LOAD, "Load", lambda of: of.of_what, unknown=_ASK
    )] = None  # fmt: skip
    margin: Annotated[Estimate | None, Meaning(
        "1 less the load.", LOAD, "Margin", "left until no scheduler keeps up", unknown=_ASK
    )] = None  # fmt: skip
    binding: Annotated[str | None, Meaning("The name of the limit that binds.")] = None
    loads: Annotated[tuple[LimitLoad, ...], Meaning(
        "Of each limit.", LOAD, shows=lambda of: [
            fact(f"  {each.limit}", each.load, "of what this limit carries")
            for each in of.loads if each.limit not in of.first
        ]
    )] = ()  # fmt: skip
    drift: Annotated[Estimate | None, Meaning(
        "Requests/s by which more arrive than the limit that binds carries; below 0: fewer."
    )] = None  # fmt: skip
    running: Annotated[float | None, Meaning(
        "Requests.", LOAD, shows=lambda of: Fact(
            "Running", cell(of.running, whole, UNKNOWN), f"requests; {of.wait} wait"
        )
    )] = None  # fmt: skip
    waiting: Annotated[float | None, Meaning("Requests.")] = None
    kv_used: Annotated[float | None, Meaning(
        "Share of its blocks.", LOAD, "KV in use", "of its blocks", format=share
    )] = None  # fmt: skip
    batch_s: Annotated[Estimate | None, Meaning(
        "From one batch to the next while it was busy.", LOAD, "Batch", "from one to the next",
        "ms", _milliseconds,
    )] = None  # fmt: skip
    host_s: Annotated[Estimate | None, Meaning(
        "How much of that the batch time given does not explain (host, gap between batches).",
        LOAD, "Host", "of them that the batch time does not explain", "ms", _milliseconds,
    )] = None  # fmt: skip
    fitted: Annotated[FittedTimes | None, Meaning(
        "Batch times that are used in place of those given.", LOAD, "Fitted",
        lambda of: of.fitted_to, "ms", _milliseconds, lambda of: of.fitted and of.fitted.seconds,
    )] = None  # fmt: skip
    iterations: Annotated[int | None, Meaning("That the engine told of.")] = None
    preempted: Annotated[float | None, Meaning(
        "Requests whose memory was taken back, and that wait to go on.", LOAD, "Preempted",
        "requests wait to go on", format=whole, shows=lambda of: of.preempted or None,
    )] = None  # fmt: skip
    preemptions_per_s: Annotated[float | None, Meaning(
        "Per second.", LOAD, "Preemptions", "per second",
        shows=lambda of: of.preemptions_per_s or None,
    )] = None  # fmt: skip
    arrival_rate: Annotated[Estimate | None, Meaning(
        "Requests/s.", COMES, "Arrivals", lambda of: f"requests/s, since {clock(of.since_s)}",
        unknown=_ASK,
    )] = None  # fmt: skip
    refused_per_s: Annotated[float | None, Meaning(
        "Requests/s of them that the engine refused.", COMES, "Refused",
        "requests/s of them, on arrival", shows=lambda of: of.refused_per_s or None,
    )] = None  # fmt: skip
    left_per_s: Annotated[float | None, Meaning(
        "Requests/s, at least, whose clients left after the first token.", COMES, "Left",
        "requests/s at least, by clients who had a first token",
        shows=lambda of: of.left_per_s or None,
    )] = None  # fmt: skip
    changes: Annotated[tuple[Change, ...], Meaning(
        "Of the arrival rate.", COMES, shows=lambda of: [
            fact("  changed", each.after, f"from {digits(each.before)}, at {clock(each.time_s)}")
            for each in of.changes[-3:]
        ]
    )] = ()  # fmt: skip
    prompt: Annotated[Estimate | None, Meaning(
        "Mean tokens of a request that comes.", COMES, "Prompt", "tokens", unknown=_ASK
    )] = None  # fmt: skip
    output: Annotated[Estimate | None, Meaning(
        "The same, corrected for long ones that have not finished yet.", COMES, "Output",
        "tokens, with those that still run", unknown=_ASK,
    )] = None  # fmt: skip
    cached_share: Annotated[float | None, Meaning(
        "Of prompt tokens, that the prefix cache held.", COMES, "From cache", "of prompt tokens",
        format=share,
    )] = None  # fmt: skip
    backlog_tokens: Annotated[float | None, Meaning(
        "Still to be computed of requests that have arrived.", AHEAD, "Backlog",
        "tokens still to be computed", format=whole, unknown=_ASK,
    )] = None  # fmt: skip
    until: Annotated[tuple[TimeUntil, ...], Meaning(
        "Limits are reached.", AHEAD, shows=lambda of: [
            _from_now(f"{each.limit[0].upper()}{each.limit[1:]}", each.seconds)
            for each in of.until
        ]
    )] = ()  # fmt: skip
    drain_s: Annotated[Estimate | None, Meaning(
        "Until the backlog is gone, if it goes.", AHEAD,
        shows=lambda of: of.drain_s and _from_now("Drained", of.drain_s),
    )] = None  # fmt: skip
    replicas: Annotated[int | None, Meaning(
        "Engines needed to stay at the load asked for.", AHEAD, "Replicas",
        lambda of: of.needed, format=whole,
    )] = None  # fmt: skip
    replicas_low: Annotated[int | None, Meaning("The fewest that may be.")] = None
    replicas_high: Annotated[int | None, Meaning("The most that may be.")] = None
    watch_s: Annotated[float | None, Meaning(
        "That it takes more to decide, at least; null: over 30 days, or never.", AHEAD,
        "Watch for", "more at least, until a verdict can be reached", format=span_of_time,
        shows=lambda of: of.watch_s or None,
    )] = None  # fmt: skip
    worst: Annotated[str | None, Meaning(
        "Of several engines that do not share requests evenly, the name of the one with the "
        "highest load: loads, margin, drift, verdict, times and replicas are by that one. Null: "
        "by the mean."
    )] = None  # fmt: skip
    even_load: Annotated[Estimate | None, Meaning(
        "With `worst`: that each would have if requests were shared evenly."
    )] = None  # fmt: skip
    notes: Annotated[tuple[str, ...], Meaning("What is not known and why, what happened.")] = ()

    @property
    def first(self) -> list[str]:
        """The limits that bind: alike as far as they are shown."""
        return [each.limit for each in self.loads if cell(each.load) == cell(self.load)]

    @property
    def of_what(self) -> str:
        """Of what the load is a share."""
        if self.binding not in _LIMITS:
            return "of what it was seen to carry"
        binds = "bind" if len(self.first) > 1 else "binds"
        return f"of the {' and the '.join(self.first)}, which {binds} first"

    @property
    def wait(self) -> str:
        """How many requests wait."""
        return cell(self.waiting, whole, UNKNOWN)

    @property
    def fitted_to(self) -> str:
        """Which iterations told the batch times, and how far these are from those given."""
        assert self.fitted is not None
        words = (
            f"for a batch of {self.fitted.tokens:,.0f} tokens, by the last "
            f"{self.fitted.batches:,} of {self.iterations or 0:,} seen"
        )
        if self.fitted.given_over is not None:
            words += f"; times given are {self.fitted.given_over - 1:+.1%} off"
        return words

    @property
    def needed(self) -> str:
        """Between what the engines lie that are needed, and how many are watched."""
        low, high = self.replicas_low, self.replicas_high
        interval = "" if low is None or high is None or low == high else f"({low:,} to {high:,}) "
        return f"{interval}needed; {self.engines:,} watched"


@dataclasses.dataclass(frozen=True)
class Answer(Shown):
    """What follows for each engine that is watched, and for all of them together."""

    time_s: Annotated[float, Meaning("Of the last scrape, Unix time.")]
    together: Annotated[Reading, Meaning("Of all engines.")]
    engines: Annotated[tuple[Reading, ...], Meaning("Of each engine.")]
