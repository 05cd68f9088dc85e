"""Why no deployment meets the targets, and how near the nearest comes."""

import dataclasses
import math
from typing import Any

from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation
from penstock.planning.search import Search
from penstock.planning.shortfalls import shortfalls
from penstock.planning.targets_at_rate import TargetsAtRate
from penstock.words import counted


@dataclasses.dataclass(frozen=True)
class Unreachable:
    """Why no deployment does."""

    target: str  # what is not met, in words
    why: str  # what keeps all of them from it
    # The nearest value that was reached: seconds, or a share for goodput; None where none is
    # stable.
    nearest: float | None
    deployment: Deployment | None  # that reached it

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "target": self.target,
            "why": self.why,
            "nearest": self.nearest,
            "deployment": self.deployment and self.deployment.as_dict(),
        }


def why_unreachable(question: TargetsAtRate, search: Search[Evaluation]) -> Unreachable:
    """Say which target keeps all deployments from the answer, and how near they come."""
    aim, targets = question.aim, question.aim.targets
    simulated = [
        search.peek(prospect.family, prospect.family.counts[prospect.most])
        for prospect in search.prospects
    ]
    largest = [evaluation for evaluation in simulated if evaluation is not None]
    too_slow = [hopeless for hopeless in search.hopeless if hopeless.theory.excess < math.inf]
    if too_slow:  # what the least hopeless of them reaches
        family = min(too_slow, key=lambda hopeless: hopeless.theory.excess).family
        largest.append(search.simulate(family, family.counts[-1]))
    stable = [evaluation for evaluation in largest if evaluation.verdict == "stable"]
    if not stable:
        reasons = [one.theory.why_not_fewer for one in search.hopeless if one.by == "theory"]
        reason = reasons[0] if reasons else "; ".join(shortfalls(largest[0], aim))
        return Unreachable(
            "stability", f"{reason}; allow more replicas or other hardware", None, None
        )
    if aim.objective == "goodput":
        nearest = max(
            stable,
            key=lambda evaluation: (evaluation.goodput.value or 0.0, -evaluation.deployment.cost),
        )
        name = f"goodput of {aim.goodput:.4g}"
        return Unreachable(
            name, _why_not(question, search, nearest), nearest.goodput.value, nearest.deployment
        )

    def excess(evaluation: Evaluation, *indices: int) -> tuple[float, float]:
        values = [(evaluation.estimates[index].value, targets[index].limit_s) for index in indices]
        worst = max(math.inf if value is None else value / limit for value, limit in values)
        return worst, evaluation.deployment.cost

    # a target that none meets, by the deployment that comes nearest to it; else the one nearest to
    # all
    indices = range(len(targets))
    by_target = [min(stable, key=lambda evaluation: excess(evaluation, index)) for index in indices]
    never = [
        index
        for index in indices
        if all(evaluation.judgements[index] != "met" for evaluation in stable)
    ]
    if never:
        index = max(never, key=lambda index: excess(by_target[index], index)[0])
        nearest = by_target[index]
        reason = _why_not(question, search, nearest)
    else:
        nearest = min(stable, key=lambda evaluation: excess(evaluation, *indices))
        index = max(indices, key=lambda index: excess(nearest, index)[0])
        reason = (
            "each target is met by some deployment, but none meets all; "
            f"{_why_not(question, search, nearest)}"
        )
    return Unreachable(
        str(targets[index]), reason, nearest.estimates[index].value, nearest.deployment
    )


def _why_not(question: TargetsAtRate, search: Search[Evaluation], nearest: Evaluation) -> str:
    """Say what the nearest deployment does not do."""
    for hopeless in search.hopeless:
        if hopeless.family.name == nearest.deployment.family:
            why = hopeless.theory.why_not_fewer
            return f"{why}; the simulation of {nearest.deployment.name} agrees"
    reason = "; ".join(shortfalls(nearest, question.aim))
    if nearest.answer == "undecided":
        reason += "; simulate more requests to decide it"
        reason += (
            ""
            if question.workload.rows is None
            else ", of a recording drawn at random (arrivals: poisson)"
        )
    most = counted(nearest.deployment.replicas, "replica")
    return f"with {most} of {nearest.deployment.family}, the most allowed, {reason}"
