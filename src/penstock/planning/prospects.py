"""Families of deployments on their way through a search: those that may do, and the hopeless."""

import bisect
import dataclasses
import math

from penstock.planning.evaluate import Evaluation
from penstock.planning.space import Family, Reason

Rank = tuple[float, float, str]


def rank(evaluation: Evaluation) -> Rank:
    """Return what the best has least of: cost, then latency of the first target, then name."""
    value = evaluation.estimates[0].value
    return (
        evaluation.deployment.cost,
        math.inf if value is None else value,
        evaluation.deployment.name,
    )


@dataclasses.dataclass
class Prospect:
    """What is known of a family."""

    family: Family
    least: int  # index, in `Family.counts`, of the fewest replicas that theory does not rule out
    guess: int  # index at which to begin
    why_not_fewer: str = ""  # why theory rules out fewer than `least`
    most: int = -1  # index of the most that were searched; below `least` where none were
    answer: int | None = None  # index of the fewest that do what they have to

    def cost(self, index: int) -> float:
        """Return what the deployment at an index costs."""
        return self.family.at(self.family.counts[index]).cost

    def last_within(self, cost: float) -> int:
        """Return the index of the most replicas that cost no more; -1 if none do."""
        family = self.family
        return bisect.bisect_right(family.counts, cost, key=lambda n: family.at(n).cost) - 1


def order_of(prospect: Prospect) -> tuple[float, float, str]:
    """Return by what families are put in order: the cost that is guessed."""
    return (
        prospect.cost(prospect.guess),
        prospect.cost(prospect.least),
        prospect.family.name,
    )


@dataclasses.dataclass(frozen=True)
class Hopeless:
    """A family that is ruled out at any number of replicas."""

    family: Family
    by: Reason  # what rules it out
    why: str
    # How many times the limit a latency is that no policy undercuts; infinite where it is ruled out
    # otherwise.
    excess: float = math.inf
