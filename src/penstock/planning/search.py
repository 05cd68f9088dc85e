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


@dataclasses.dataclass
class Prospect:
    """What is known of a family: by theory, then on its way through a search."""

    family: Family
    # Indices, in `Family.counts`: of the fewest that theory does not rule out, beyond the last
    # where it rules out all; and where to begin.
    least: int
    guess: int
    why_not_fewer: str
    # How many times the limit a latency is that no policy undercuts; infinite where it is ruled out
    # otherwise.
    excess: float = math.inf
    by: Reason = "theory"  # what rules out fewer than `least`
    most: int = -1  # index of the most that were searched; below `least` where none were
    # Why more than those are not asked; None: they cost more than the answer.
    why_not_more: tuple[Reason, str] | None = None
    answer: int | None = None  # index of the fewest that do what is asked

    @property
    def hopeless(self) -> bool:
        """Whether it is ruled out at any number of replicas."""
        return self.least == len(self.family.counts)

    @property
    def order(self) -> tuple[float, float, str]:
        """By what families are put in order: the cost that is guessed."""
        return self.cost(self.guess), self.cost(self.least), self.family.name

    def cost(self, index: int) -> float:
        """Return what the deployment at an index costs."""
        return self.family.at(self.family.counts[index]).cost


class Question(abc.ABC, Generic[R]):
    """What is asked of a fleet."""

    asks_the_most = True
    """Whether a family whose first guess misses is asked with the most replicas at once."""

    @abc.abstractmethod
    def prospect(self, family: Family) -> Prospect:
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

    def in_vain(self, results: Sequence[R]) -> bool:
        """Return whether ever more replicas of a family hardly helped, so that no more will do."""
        return False


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
        self.hopeless += [prospect for prospect in every if prospect.hopeless]
        self._next = [prospect for prospect in every if not prospect.hopeless]
        self._next.sort(key=lambda prospect: prospect.order)
        self.prospects += self._next

    def _prospect(self, family: Family) -> Prospect:
        try:
            return self.question.prospect(family)
        except InputError as error:  # such as a request that no replica has the memory for
            return Prospect(family, len(family.counts), 0, str(error), by="impossible")

    @property
    def results(self) -> tuple[R, ...]:
        """What was simulated, in that order."""
        return tuple(self._results.values())

    @property
    def best(self) -> R | None:
        """The best that is known to do."""
        return min(self.by_hardware.values(), key=self.rank, default=None)

    def family_of(self, fleet: Deployment) -> Family:
        """Return the family of a fleet that was searched."""
        return next(p.family for p in self.prospects if p.family.name == fleet.family)

    def rank(self, result: R) -> tuple[float, float, str]:
        """Return what the best has least of: cost, what the question says, then name."""
        deployment = result.deployment
        return deployment.cost, self.question.worth(result), deployment.name

    def run(self) -> None:
        """Search every family, once."""
        for done, prospect in enumerate(self._next, len(self.prospects) - len(self._next)):
            self._done = done
            counts, hardware = prospect.family.counts, prospect.family.smallest.kind.hardware
            best, rival = self.best, self.by_hardware.get(hardware)
            prospect.most = len(counts) - 1
            if best is not None:
                most = self.beyond * best.deployment.cost
                most = most if rival is None else min(most, rival.deployment.cost)
                costs = range(len(counts))
                prospect.most = bisect.bisect_right(costs, most, key=prospect.cost) - 1
                if prospect.most == prospect.least and self._is_no_better(prospect, best):
                    prospect.most -= 1
                    why = "no fleet of the same cost is better than the answer"
                    prospect.why_not_more = "theory", why
            if prospect.most >= prospect.least:
                asked_first = best is None or (self.beyond > 1 and rival is None)
                start = prospect.guess if asked_first else prospect.most
                self.search(prospect, min(start, prospect.most))
        self._done = len(self.prospects)
        self._next = []

    def _is_no_better(self, prospect: Prospect, best: R) -> bool:
        """Return whether theory says that the fewest of a family are no better than the best."""
        least = self.question.worth_at_least(
            prospect.family, prospect.family.counts[prospect.least]
        )
        costs = prospect.cost(prospect.least) >= best.deployment.cost
        return costs and least >= self.question.worth(best)

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
        failed, top = prospect.least - 1, start
        upward = missed(start)
        if upward:
            failed, top = start, prospect.most
            if start == top or (self.question.asks_the_most and missed(top)):
                return
        step = 1
        while top - failed > 1:
            # from where the search began, in steps that double, then by halves
            probe = failed + step if upward else top - step
            probe = min(max(probe, failed + 1), top - 1) if step else (top + failed) // 2
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
        if not self.question.in_vain([result for result in tried if result is not None]):
            return False
        prospect.most = last
        why = f"more replicas hardly help: {self.question.lacks(self.at(prospect, last))}"
        prospect.why_not_more = "simulation", why
        return True

    def _first_that_does(self, prospect: Prospect, first: int) -> int | None:
        """Return the first index known to do; after many undecided, in steps that double."""
        last, index, step = first - 1, first, 1
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
        ends = ((*part.replicas, part.why) for part in self.discarded() if part.family == family)
        return next((why for low, high, why in ends if low <= count <= high), "")

    def discarded(self) -> list[Discarded]:
        """Account for every deployment that was not simulated."""
        every = (*self.hopeless, *self.prospects)
        return [part for prospect in every for part in self._left_out(prospect)]

    def _left_out(self, prospect: Prospect) -> list[Discarded]:
        """Account for the deployments of a family that were not simulated."""
        family, counts = prospect.family, prospect.family.counts
        results = [self.peek(family, count) for count in counts]
        last = prospect.most if prospect.answer is None else prospect.answer
        untried = [index for index, result in enumerate(results) if result is None]
        below = [index for index in untried if index < prospect.least]
        fewer = [index for index in untried if prospect.least <= index <= last]
        more = [index for index in untried if index > max(last, prospect.least - 1)]
        parts: list[tuple[list[int], Reason, str]] = [(below, prospect.by, prospect.why_not_fewer)]
        if fewer:
            larger = results[fewer[-1] + 1 :]
            failed = next(result for result in larger if result and result.answer != "met")
            parts.append((fewer, "simulation", self.question.lacks(failed)))
        if more and prospect.why_not_more:
            parts.append((more, *prospect.why_not_more))
        elif more:
            least, best = amount(prospect.cost(more[0])), self.best
            bound = amount(best.deployment.cost if best else 0.0)
            parts.append((more, "cost", f"they cost {least} or more, the answer {bound}"))
        return [
            Discarded.of(family.name, [counts[index] for index in part], by, why)
            for part, by, why in parts if part
        ]  # fmt: skip
