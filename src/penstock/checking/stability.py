"""What the tests say: does the backlog of a server shrink, does the work of a network drain?"""

import dataclasses
from typing import Any

from penstock.checking.backlog import Path, Start
from penstock.checking.verdict import Outcome
from penstock.inputs.arrays import Floats

RECORDED = (
    "all jobs are recorded and come to an end, so nothing can grow for ever; give them a rate to "
    "test stability"
)
"""Why there is no test of a network."""

_BEGUN = {"prefill": " of prompts", "mixed": "", "decode": " of decodes"}
_FAR = 10**7  # arrivals that nobody will wait for
_EQUALLY_FAST = 1.05  # times the work of the slowest


@dataclasses.dataclass(frozen=True, eq=False)
class Watch:
    """The test from one backlog."""

    # The initial backlog: prompts, prompts beside decoding requests at every stage, or decodes.
    start: Start
    # `stable`: the work fell by the barrier, or everything was served. `unstable`: it rose.
    outcome: Outcome
    # Requests: in the initial backlog, that arrived until all of it had left, and that arrived
    # under watch.
    initial: int
    warmup: int
    arrivals: int
    # Change of the work, as a share of the work that arrived: 0.05 says that a twentieth of it
    # piles up. Rough, because it holds the unnatural start, where the backlog was not `measured`.
    drift: float
    interval: tuple[float, float]
    barrier: float  # tokens that the work had to move by; where attention takes time, mean ones
    needed: int | None  # arrivals that an undecided test would need at this drift, if it shows one
    path: Path = dataclasses.field(repr=False)

    @property
    def measured(self) -> bool:
        """Whether there was a backlog to watch; else it and all that arrived had left before."""
        return self.arrivals > 0


@dataclasses.dataclass(frozen=True, eq=False)
class Stability:
    """Whether the backlog of a server shrinks.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable`` or ``undecided``.
    alpha, resolution
        Share of wrong verdicts that the test aims at, for loads that are at least the resolution
        away from the critical one; checked by experiment.
    watches
        The test from each backlog: prefill, mixed, decode. Those after one that says unstable are
        left out, and all but the first where no request decodes.
    """

    verdict: Outcome
    alpha: float
    resolution: float
    watches: tuple[Watch, ...]

    @property
    def deciding(self) -> Watch:
        """Of the watches that gave the verdict, a measured one first, that whose backlog shrank
        least or grew most.
        """
        gave = (watch for watch in self.watches if watch.outcome == self.verdict)
        return max(gave, key=lambda watch: (watch.measured, watch.drift))

    @property
    def arrivals(self) -> int:
        """Requests that arrived under the deciding watch, the warm-up not counted."""
        return self.deciding.arrivals

    @property
    def drift(self) -> float:
        """Change of the deciding backlog, as a share of the work that arrived; below 0 it shrinks.

        A rough figure where `interval` is None.
        """
        return self.deciding.drift

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the drift, at level 1 - alpha.

        Where no backlog was `measured`, that of all of them if they were gone equally fast whatever
        they began with, else None: then they tell of their beginnings, and not of what the server
        does under a backlog.
        """
        if self.deciding.measured or self.verdict != "stable":
            return self.deciding.interval
        done = [1 - watch.drift for watch in self.watches]
        if not max(done) <= _EQUALLY_FAST * min(done):
            return None
        return min(watch.interval[0] for watch in self.watches), max(
            watch.interval[1] for watch in self.watches
        )

    @property
    def reason(self) -> str:
        """One sentence."""
        watch = self.deciding
        if self.interval is None:
            return (
                "the server worked off a large backlog, and all that arrived meanwhile, so "
                "quickly that the test was "
                "over before its rate could be measured"
            )
        low, high = self.interval
        span = (
            f"seen over {self.arrivals:,} arrivals" if watch.measured else "seen until it was gone"
        )
        if watch.outcome != "undecided" and abs(watch.drift) < self.resolution:
            span += (
                f"; so close to the limit, within {self.resolution:.1%}, it may be wrong more often"
            )
        sure = f"{1 - self.alpha:.2%} interval".replace(".00%", "%")
        does = (
            f"the server does {1 - watch.drift:,.4g} times what arrives ({sure} {1 - high:,.4g} to "
            f"{1 - low:,.4g})"
        )
        match self.verdict:
            case "stable":
                return f"under a large backlog {does}, {span}"
            case "unstable":
                begun = _BEGUN[watch.start]
                return f"under a large backlog{begun} {does}, so the backlog grows; {span}"
        more = ""
        if watch.needed:
            more = (
                f"; about {watch.needed:,} would be needed"
                if watch.needed < _FAR
                else "; it is at its limit"
            )
        return f"under a large backlog {does}, {span}: too little to tell at this resolution{more}"

    @property
    def error(self) -> str:
        """What a wrong verdict is, and what to do about it."""
        return (
            f"this is one of the wrong verdicts that the test has in a share alpha of cases "
            f"({self.alpha:g} is aimed at), or a bug: try another seed"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        watch = self.deciding
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "alpha": self.alpha,
            "resolution": self.resolution,
            "arrivals": self.arrivals,
            "drift": watch.drift if self.interval else None,
            "interval": list(self.interval) if self.interval else None,
            "needed": watch.needed if self.verdict == "undecided" else None,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Flood:
    """The test with one stage flooded."""

    stage: str
    outcome: Outcome  # `stable`: the work fell to half; `unstable`: it rose to the barrier
    # Jobs that began there, and that arrived while it was watched.
    initial: int
    arrivals: int
    ratio: float  # work at the end over that at the start
    highest: float  # the most that the work ever was over that at the start
    barrier: float  # what the work may not rise to, over that at the start
    # Shape (looks, 2): seconds, and work over that at the start.
    path: Floats = dataclasses.field(repr=False)
    decodes: bool = False  # flooded with requests that have nothing but decodes left

    @property
    def name(self) -> str:
        """The stage, and with what it was flooded where that is not its requests."""
        return f"{self.stage}, decodes alone" if self.decodes else self.stage


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkStability:
    """Whether the work of a network drains.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable`` or ``undecided``.
    resolution
        Networks whose loads are at least so far from the critical ones are decided.
    floods
        One for each stage; those after one from which the work rises are left out.
    """

    verdict: Outcome
    resolution: float
    floods: tuple[Flood, ...]

    @property
    def deciding(self) -> Flood:
        """Of the floods that gave the verdict, the one whose work rose highest."""
        return max(
            (flood for flood in self.floods if flood.outcome == self.verdict),
            key=lambda flood: flood.highest,
        )

    @property
    def drift(self) -> float:
        """Change of the deciding backlog, as a share of the jobs that arrived; below 0 it shrinks.

        A rough figure: a job of a flood may bring less work than one that arrives.
        """
        flood = self.deciding
        return (flood.ratio - 1) * flood.initial / max(flood.arrivals, 1)

    @property
    def reason(self) -> str:
        """One sentence."""
        flood = self.deciding
        begun = f"{flood.initial:,} jobs put at {flood.name}"
        arrived = f"while {flood.arrivals:,} more arrived"
        match self.verdict:
            case "stable":
                rose = (
                    f", after rising to {flood.highest:.2f} times" if flood.highest > 1.05 else ""
                )
                hardest = f"hardest with {begun}{rose}, {arrived}"
                return f"a large backlog put at any one stage was worked down to half ({hardest})"
            case "unstable":
                return (
                    f"with {begun}, the work left rose to {flood.ratio:.1f} times what it was "
                    f"{arrived}"
                )
        return (
            f"with {begun}, the work left went to {flood.ratio:.2f} times what it was {arrived}: "
            "too little to tell at "
            "this resolution"
        )

    @property
    def error(self) -> str:
        """What a wrong verdict is, and what to do about it."""
        return (
            "the test is wrong at this resolution, or there is a bug: try another seed and a "
            "finer resolution"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = (
            "stage", "decodes", "outcome", "initial", "arrivals", "ratio", "highest", "barrier",
        )  # fmt: skip
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "resolution": self.resolution,
            "floods": [{name: getattr(flood, name) for name in names} for flood in self.floods],
        }
