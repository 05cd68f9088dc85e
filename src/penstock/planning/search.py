"""One search for the cheapest fleet, and the questions put to it: targets at a rate, a rate of a
day, a job by its deadline.

More replicas never harm: so of each family (all else equal) the fewest that do what is asked are
found by steps and bisection. Families are searched in order of what they may cost; once one is
found to do, another is asked first with as many replicas as cost no more, and discarded if it does
not do even then.

In a pool of two kinds that is taken for granted of the better kind alone, beside so many of the
other: more machines that are slow may get requests that fast ones would have served in time. Where
neither kind is better in all respects, every number is tried.
"""

import abc
import bisect
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from penstock.checking.targets import Judgement
from penstock.errors import InputError
from penstock.planning.deployment import Deployment
from penstock.planning.space import Discarded, Family, Reason
from penstock.words import amount

_PATIENCE = 6  # undecided deployments

Report = Callable[[float, str], None]
"""Called with the share that is done, and what is being simulated."""


class Result(Protocol):
    """One deployment, simulated."""

    @property
    def deployment(self) -> Deployment:
        """What was simulated."""

    @property
    def answer(self) -> Judgement:
        """Whether it does what is asked."""


R = TypeVar("R", bound=Result)


@dataclasses.dataclass(frozen=True)
class Theory:
    """What theory says of a family, before anything is simulated."""

    # Indices, in `Family.counts`: of the fewest that it does not rule out, beyond the last where it
    # rules out all; and where to begin.
    least: int
    guess: int
    why_not_fewer: str
    # How many times the limit a latency is that no policy undercuts; infinite where it is ruled out
    # otherwise.
    excess: float = math.inf


class Question(abc.ABC, Generic[R]):
    """What is asked of a fleet."""

    @abc.abstractmethod
    def theory(self, family: Family) -> Theory:
        """Say what theory knows of a family; refuse one that cannot be judged."""

    @abc.abstractmethod
    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> R:
        """Simulate so many replicas."""

    @abc.abstractmethod
    def worth(self, result: R) -> float:
        """Return what the better of two has less of, where both do and cost the same."""

    @abc.abstractmethod
    def lacks(self, result: R) -> str:
        """Say what a deployment does not do, or is not known to."""

    def more_helps(self, deployment: Deployment) -> bool:
        """Return whether more replicas of the first kind do no harm, as far as is known."""
        return True

    def worth_at_least(self, family: Family, count: int) -> float:
        """Return what no policy undercuts in `worth`."""
        return -math.inf

    asks_the_most = True
    """Whether a family whose first guess misses is asked with the most replicas at once."""

    def in_vain(self, results: Sequence[R]) -> bool:
        """Return whether ever more replicas of a family hardly helped, so that no more will do."""
        return False


@dataclasses.dataclass
class Prospect:
    """What is known of a family on its way through a search."""

    family: Family
    theory: Theory
    by: Reason = "theory"  # what rules out fewer than `least`
    most: int = -1  # index of the most that were searched; below `least` where none were
    why_not_more: tuple[Reason, str] | None = None  # None: they cost more than the answer
    answer: int | None = None  # index of the fewest that do what is asked

    @property
    def least(self) -> int:
        """Index of the fewest replicas that theory does not rule out."""
        return self.theory.least

    @property
    def hopeless(self) -> bool:
        """Whether it is ruled out at any number of replicas."""
        return self.least == len(self.family.counts)

    @property
    def order(self) -> tuple[float, float, str]:
        """By what families are put in order: the cost that is guessed."""
        return self.cost(self.theory.guess), self.cost(self.theory.least), self.family.name

    def cost(self, index: int) -> float:
        """Return what the deployment at an index costs."""
        return self.family.at(self.family.counts[index]).cost

    def last_within(self, cost: float) -> int:
        """Return the index of the most replicas that cost no more; -1 if none do."""
        family = self.family
        if math.isinf(cost):
            return len(family.counts) - 1
        return bisect.bisect_right(family.counts, cost, key=lambda n: family.at(n).cost) - 1


class Search(Generic[R]):
    """A search on its way.

    ``prospects``: one for each family that theory leaves, in the order in which they are asked;
    ``hopeless``: families ruled out at any number of replicas. Of hardware that is not the best's
    the cheapest fleet that does is searched, too, where it costs less than ``beyond`` times as
    much; ``by_hardware`` are the cheapest known to do.
    """

    def __init__(
        self,
        question: Question[R],
        families: Sequence[Family],
        report: Report | None = None,
        beyond: float = 1.0,
    ) -> None:
        self.question, self.beyond = question, beyond
        self.by_hardware: dict[str | None, R] = {}
        self._results: dict[tuple[str, int], R] = {}
        self._report = report or (lambda share, what: None)
        self._done = 0
        self.hopeless: list[Prospect] = []
        self.prospects: list[Prospect] = []
        self.add(families)

    def add(self, families: Sequence[Family]) -> None:
        """Let `run` search families, besides those that it has searched."""
        every = [self._prospect(family) for family in families]
        self.hopeless += [one for one in every if one.hopeless]
        self._next = [one for one in every if not one.hopeless]
        self._next.sort(key=lambda prospect: prospect.order)
        self.prospects += self._next

    def _prospect(self, family: Family) -> Prospect:
        try:
            return Prospect(family, self.question.theory(family))
        except InputError as error:  # such as a request that no replica has the memory for
            return Prospect(family, Theory(len(family.counts), 0, str(error)), "impossible")

    @property
    def results(self) -> tuple[R, ...]:
        """What was simulated, in that order."""
        return tuple(self._results.values())

    @property
    def best(self) -> R | None:
        """The best that is known to do."""
        return min(self.by_hardware.values(), key=self.rank, default=None)

    def rank(self, result: R) -> tuple[float, float, str]:
        """Return what the best has least of: cost, what the question says, then name."""
        deployment = result.deployment
        return deployment.cost, self.question.worth(result), deployment.name

    def run(self) -> None:
        """Search every family, once."""
        for done, prospect in enumerate(self._next, len(self.prospects) - len(self._next)):
            self._done = done
            hardware = prospect.family.smallest.kind.hardware
            best, rival = self.best, self.by_hardware.get(hardware)
            costs = [self.beyond * best.deployment.cost] if best else []
            costs += [rival.deployment.cost] if rival else []
            prospect.most = prospect.last_within(min(costs, default=math.inf))
            if prospect.most < prospect.least or (best and self._is_worse(prospect, best)):
                continue
            asked_first = best is None or (self.beyond > 1 and rival is None)
            guess = prospect.theory.guess if asked_first else prospect.most
            self.search(prospect, min(guess, prospect.most))
        self._done = len(self.prospects)
        self._next = []

    def _is_worse(self, prospect: Prospect, best: R) -> bool:
        """Return whether theory says that none of a family within the cost of the best beats it."""
        family = prospect.family
        count = family.counts[prospect.least]
        if (
            prospect.most > prospect.least
            or family.at(count).cost < best.deployment.cost
            or self.question.worth_at_least(family, count) < self.question.worth(best)
        ):
            return False
        prospect.most = prospect.least - 1
        prospect.why_not_more = "theory", "no fleet of the same cost is better than the answer"
        return True

    def search(self, prospect: Prospect, start: int) -> None:
        """Find the fewest replicas that do, from an index to begin with."""
        # What is missed is missed with fewer replicas, too. What is undecided says nothing of
        # others, so the fewest that do not miss are found first, and from there each is tried.
        # Where more replicas may harm, all are tried, fewest first.
        if not self.question.more_helps(prospect.family.smallest):
            every = range(prospect.least, prospect.most + 1)
            prospect.answer = next((i for i in every if self.at(prospect, i).answer == "met"), None)
            return

        def missed(index: int) -> bool:
            return self.at(prospect, index).answer == "missed"

        # the answer lies above the most that is known to miss, up to the least that is known not to
        failed = prospect.least - 1
        top = start
        upward = missed(start)
        if upward:
            failed = start
            top = prospect.most
            if start == top or (self.question.asks_the_most and missed(top)):
                return
        step = 1
        while top - failed > 1:
            # from where the search began, in steps that double, then by halves
            if not step:
                probe = (top + failed) // 2
            elif upward:
                probe = failed + step
            else:
                probe = top - step
            probe = min(max(probe, failed + 1), top - 1)
            if missed(probe):
                failed = probe
                if self._in_vain(prospect, probe):
                    return
            else:
                top = probe
            step = 2 * step if missed(probe) == upward else 0
        prospect.answer = self._first_that_does(prospect, top)

    def _in_vain(self, prospect: Prospect, last: int) -> bool:
        """Give a family up where its replicas, up to an index, hardly helped."""
        family = prospect.family
        tried = [self.peek(family, count) for count in family.counts[: last + 1]]
        if not self.question.in_vain([one for one in tried if one is not None]):
            return False
        prospect.most = last
        why = f"more replicas hardly help: {self.question.lacks(self.at(prospect, last))}"
        prospect.why_not_more = "simulation", why
        return True

    def _first_that_does(self, prospect: Prospect, first: int) -> int | None:
        """Return the first index known to do; after many undecided, in steps that double."""
        last = first - 1
        index = first
        step = 1
        while index <= prospect.most:
            if self.at(prospect, index).answer == "met":
                between = range(last + 1, index)
                return next((p for p in between if self.at(prospect, p).answer == "met"), index)
            if index - first >= _PATIENCE:
                step *= 2
            last = index
            index = max(min(index + step, prospect.most), index + 1)
        return None

    def at(self, prospect: Prospect, index: int) -> R:
        """Return the deployment at an index, simulated."""
        return self.simulate(prospect.family, prospect.family.counts[index])

    def simulate(self, family: Family, count: int) -> R:
        """Return the deployment with so many replicas, simulated once."""
        key = family.name, count
        if key not in self._results:
            name = f"{count} x {family.name}"

            def report(share: float) -> None:
                self._report((self._done + share / 2) / max(len(self.prospects), 1), name)

            report(0.0)
            result = self._results[key] = self.question.judge(family, count, report)
            if result.answer == "met":
                hardware = family.smallest.kind.hardware
                rival = self.by_hardware.get(hardware, result)
                self.by_hardware[hardware] = min(rival, result, key=self.rank)
        return self._results[key]

    def peek(self, family: Family, count: int) -> R | None:
        """Return what was found out about so many replicas, if they were simulated."""
        return self._results.get((family.name, count))

    def why_not(self, family: str, count: int) -> str:
        """Say why so many replicas of a family are not the answer; nothing if none were asked."""
        if (result := self._results.get((family, count))) is not None:
            return self.question.lacks(result)
        left_out = (one for one in self.discarded() if one.family == family)
        ends = ((*one.replicas, one.why) for one in left_out)
        return next((why for low, high, why in ends if low <= count <= high), "")

    def discarded(self) -> list[Discarded]:
        """Account for every deployment that was not simulated."""
        every = (*self.hopeless, *self.prospects)
        return [one for prospect in every for one in self._left_out(prospect)]

    def _left_out(self, prospect: Prospect) -> list[Discarded]:
        """Account for the deployments of a family that were not simulated."""
        family, counts = prospect.family, prospect.family.counts
        results = [self.peek(family, count) for count in counts]
        last = prospect.most if prospect.answer is None else prospect.answer
        untried = [index for index, result in enumerate(results) if result is None]
        below = [index for index in untried if index < prospect.least]
        fewer = [index for index in untried if prospect.least <= index <= last]
        more = [index for index in untried if index > max(last, prospect.least - 1)]
        parts: list[tuple[list[int], Reason, str]] = [
            (below, prospect.by, prospect.theory.why_not_fewer)
        ]
        if fewer:
            larger = results[fewer[-1] + 1 :]
            failed = next(one for one in larger if one is not None and one.answer != "met")
            parts.append((fewer, "simulation", self.question.lacks(failed)))
        if more:
            by, why = prospect.why_not_more or ("cost", "")
            if not why:
                bound = self.best.deployment.cost if self.best else 0.0
                least = amount(prospect.cost(more[0]))
                why = f"they cost {least} or more, the answer {amount(bound)}"
            parts.append((more, by, why))
        return [
            Discarded.of(family.name, [counts[index] for index in part], by, why)
            for part, by, why in parts
            if part
        ]
