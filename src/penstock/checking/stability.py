"""What the tests say: does the backlog of a server shrink, does the work of a network drain?"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from penstock.checking.backlog import Path, Start
from penstock.inputs.arrays import Floats
from penstock.show.answers import AsData, Meaning, computed
from penstock.simulation.progress import Progress, in_parts
from penstock.theory.limits import limits_of
from penstock.theory.load import Demand

Outcome = Literal["stable", "unstable", "undecided"]

RECORDED = (
    "all jobs are recorded and come to an end, so nothing can grow for ever; give them a rate to "
    "test stability"
)
"""Why there is no test of a network."""

_BEGUN = {"prefill": " of prompts", "mixed": "", "decode": " of decodes"}
_FAR = 10**7  # arrivals that nobody will wait for
_EQUALLY_FAST = 1.05  # times the work of the slowest
_UNSURE = "too little to tell, so there may be no steady state whose latency is below"


@dataclasses.dataclass(frozen=True, eq=False)
class Watch:
    """The test of a server from one backlog."""

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

    @property
    def rank(self) -> tuple[float, ...]:
        """What the deciding one has most of: it was measured, and shrank least or grew most."""
        return (self.measured, self.drift)

    def reason(self, test: "Stability") -> str:
        """Say in a sentence what the test saw, of which this decides."""
        if test.interval is None:
            return (
                "the server worked off a large backlog, and all that arrived meanwhile, so "
                "quickly that the test was over before its rate could be measured"
            )
        low, high = test.interval
        span = (
            f"seen over {self.arrivals:,} arrivals" if self.measured else "seen until it was gone"
        )
        if self.outcome != "undecided" and abs(self.drift) < test.resolution:
            span += (
                f"; so close to the limit, within {test.resolution:.1%}, it may be wrong more often"
            )
        sure = f"{1 - (test.alpha or 0.0):.2%} interval".replace(".00%", "%")
        does = (
            f"the server does {1 - self.drift:,.4g} times what arrives ({sure} {1 - high:,.4g} to "
            f"{1 - low:,.4g})"
        )
        match self.outcome:
            case "stable":
                return f"under a large backlog {does}, {span}"
            case "unstable":
                begun = _BEGUN[self.start]
                return f"under a large backlog{begun} {does}, so the backlog grows; {span}"
        more = ""
        if self.needed:
            more = "; it is at its limit"
            if self.needed < _FAR:
                more = f"; about {self.needed:,} would be needed"
        return f"under a large backlog {does}, {span}: too little to tell at this resolution{more}"

    def in_short(self, test: "Stability") -> str:
        """Say it in the head of an answer."""
        if test.interval is None:
            return "a large backlog was worked off quickly"
        low, high = test.interval
        does = f"under a large backlog it does {1 - self.drift:.3g} times what arrives"
        match self.outcome:
            case "stable":
                return does
            case "unstable":
                return f"{does}, so the backlog grows without end"
        return f"{does} ({1 - high:.4g} to {1 - low:.4g}), {_UNSURE}"


@dataclasses.dataclass(frozen=True, eq=False)
class Flood(AsData):
    """The test of a network with one stage flooded."""

    stage: Annotated[str, Meaning("Where the backlog was put.")]
    outcome: Annotated[
        Outcome,
        Meaning(
            "``stable``: the work fell to half; ``unstable``: it rose to the barrier; else "
            "``undecided``."
        ),
    ]
    initial: Annotated[int, Meaning("Jobs that began there.")]
    arrivals: Annotated[int, Meaning("Jobs that arrived while it was watched.")]
    ratio: Annotated[float, Meaning("Work at the end over that at the start.")]
    highest: Annotated[float, Meaning("The most that the work ever was over that at the start.")]
    barrier: Annotated[float, Meaning("What the work may not rise to, over that at the start.")]
    # Shape (looks, 2): seconds, and work over that at the start.
    path: Floats = dataclasses.field(repr=False)
    decodes: Annotated[
        bool, Meaning("Whether it was flooded with requests that have nothing but decodes left.")
    ] = False

    needed = None  # jobs that would decide it: not known of a flood

    @property
    def name(self) -> str:
        """The stage, and with what it was flooded where that is not its requests."""
        return f"{self.stage}, decodes alone" if self.decodes else self.stage

    @property
    def rank(self) -> tuple[float, ...]:
        """What the deciding one has most of: its work rose highest."""
        return (self.highest,)

    @property
    def drift(self) -> float:
        """Change of the work, as a share of the jobs that arrived: rough, as a job of a flood may
        bring less work than one that arrives.
        """
        return (self.ratio - 1) * self.initial / max(self.arrivals, 1)

    def reason(self, _: "Stability") -> str:
        """Say in a sentence what the test saw, of which this decides."""
        begun = f"{self.initial:,} jobs put at {self.name}"
        arrived = f"while {self.arrivals:,} more arrived"
        match self.outcome:
            case "stable":
                rose = f", after rising to {self.highest:.2f} times" if self.highest > 1.05 else ""
                hardest = f"hardest with {begun}{rose}, {arrived}"
                return f"a large backlog put at any one stage was worked down to half ({hardest})"
            case "unstable":
                return (
                    f"with {begun}, the work left rose to {self.ratio:.1f} times what it was "
                    f"{arrived}"
                )
        return (
            f"with {begun}, the work left went to {self.ratio:.2f} times what it was {arrived}: "
            "too little to tell at this resolution"
        )

    def in_short(self, _: "Stability") -> str:
        """Say it in the head of an answer."""
        match self.outcome:
            case "stable":
                return "a large backlog was worked off, at whichever stage it began"
            case "unstable":
                return (
                    f"a backlog at {self.name} grew to {self.ratio:.2g} times its work while "
                    f"{self.arrivals:,} jobs arrived"
                )
        return f"a backlog at {self.name} went to {self.ratio:.2f} times its work, {_UNSURE}"


@dataclasses.dataclass(frozen=True, eq=False)
class Stability(AsData):
    """Whether a large backlog is worked off.

    Attributes
    ----------
    watches
        Of a server: the test from each backlog: prompts, prompts beside decodes, decodes. Those
        after one that says unstable are left out, and all but the first where no request decodes.
    front_end
        Load of the front end that has most, behind which backlogs are put; 0: there is none. From 1
        on nothing is stable.
    """

    verdict: Annotated[Outcome, Meaning("``stable``, ``unstable`` or ``undecided``.")]
    resolution: Annotated[
        float,
        Meaning(
            "Loads that are at least so far from the critical one, as a share of it, are decided."
        ),
    ]
    watches: tuple[Watch, ...] = ()
    floods: Annotated[
        tuple[Flood, ...],
        Meaning("Of a network: one for each stage, up to one from which the work rises."),
    ] = ()
    alpha: Annotated[
        float | None,
        Meaning("Of a server: error rate that was chosen for the test; checked by experiment."),
    ] = None
    front_end: float = 0.0

    @property
    def deciding(self) -> Watch | Flood:
        """Of the backlogs that gave the verdict the hardest: of a server, a measured one first,
        the one that shrank least or grew most; of a network, whose work rose highest.
        """
        backlogs: tuple[Watch | Flood, ...] = self.watches or self.floods
        gave = [one for one in backlogs if one.outcome == self.verdict]
        return max(gave or backlogs, key=lambda one: one.rank)

    @property
    def _overrun(self) -> str:
        """Say that more comes than a front end takes in; empty: it does not."""
        if self.front_end < 1:
            return ""
        return (
            f"its front end has {self.front_end:,.4g} times the work that it can do, so what waits "
            "there grows without end"
        )

    @computed()
    def arrivals(self) -> int:
        """Requests or jobs that arrived while the deciding backlog was watched."""
        return self.deciding.arrivals

    @property
    def drift(self) -> float:
        """Change of the deciding backlog, as a share of what arrived; below 0 it shrinks.

        A rough figure where `interval` is None.
        """
        grows = 1 - 1 / self.front_end if self._overrun else -math.inf
        return max(self.deciding.drift, grows)

    @computed()
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the drift of a server, at level 1 - alpha.

        Where no backlog was `measured`, that of all of them if they were gone equally fast whatever
        they began with, else None: then they tell of their beginnings, and not of what the server
        does under a backlog.
        """
        deciding = self.deciding
        if isinstance(deciding, Flood):
            return None
        if self._overrun and self.drift > deciding.drift:
            return self.drift, self.drift
        if deciding.measured or self.verdict != "stable":
            return deciding.interval
        done = [1 - watch.drift for watch in self.watches]
        if not max(done) <= _EQUALLY_FAST * min(done):
            return None
        return min(watch.interval[0] for watch in self.watches), max(
            watch.interval[1] for watch in self.watches
        )

    @computed()
    def reason(self) -> str:
        """One sentence."""
        return self._overrun or self._behind + self.deciding.reason(self)

    @property
    def in_short(self) -> str:
        """The same in the head of an answer."""
        return self._overrun or self._behind + self.deciding.in_short(self)

    @property
    def _behind(self) -> str:
        return "behind its front end, " if self.front_end else ""

    @property
    def error(self) -> str:
        """What a wrong verdict is, and what to do about it."""
        if self.alpha is None:
            return (
                "the test is wrong at this resolution, or there is a bug: try another seed and a "
                "finer resolution"
            )
        return (
            "this is one of the wrong verdicts that the test may have (its error rate, alpha, is "
            f"{self.alpha:g}), or a bug: try another seed"
        )

    @computed(key="drift")
    def _known_drift(self) -> float | None:
        """Change of the deciding backlog, as a share of what arrived; below 0 it shrinks."""
        return self.drift if self.interval is not None or self.alpha is None else None

    @computed()
    def needed(self) -> float | None:
        """Of an undecided verdict: about how many arrivals would decide it, where that is known."""
        return self.deciding.needed if self.verdict == "undecided" else None


_Test = TypeVar("_Test", Watch, Flood)


def up_to_unstable(
    tests: Sequence[Callable[[Progress], _Test]], progress: Progress
) -> tuple[Outcome, tuple[_Test, ...]]:
    """Test from one beginning after another up to one that is unstable; stable if all are."""
    results: list[_Test] = []
    for test, part in in_parts(progress, tests):
        results.append(test(part))
        if results[-1].outcome == "unstable":
            break
    outcomes = {result.outcome for result in results}
    verdicts: tuple[Outcome, ...] = ("unstable", "undecided")
    return next((word for word in verdicts if word in outcomes), "stable"), tuple(results)


def with_front_end(test: Stability, demands: Iterable[Demand]) -> Stability:
    """Return a test of what front ends let in, with how much of their time is asked for."""
    limits = [limit for demand in demands for limit in limits_of(demand)]
    load = max((limit.load for limit in limits if limit.name == "front end"), default=0.0)
    verdict: Outcome = "unstable" if load >= 1 else test.verdict
    return dataclasses.replace(test, verdict=verdict, front_end=load)
