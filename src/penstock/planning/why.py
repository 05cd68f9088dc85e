"""What a deployment lacks, what binds the answer, and why nothing does, in words."""

import dataclasses
import math
from typing import Annotated, NamedTuple

from penstock.checking.targets import Estimate, Target
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation
from penstock.planning.search import Search
from penstock.show.answers import Meaning
from penstock.words import counted


def in_words(target: Target | str, estimate: Estimate) -> str:
    """Say a value and its interval: ``1.43 s (1.31 to 1.74)``; shares for goodput."""
    if estimate.value is None:
        return "unknown"
    scale, unit, digits = 100.0, "%", ".4g"
    if isinstance(target, Target):
        scale, unit = target.unit(max(estimate.value, estimate.high or 0.0))
        unit, digits = f" {unit}", ".3g"
    value, low, high = (
        None if number is None else f"{number * scale:{digits}}"
        for number in (estimate.value, estimate.low, estimate.high)
    )
    if isinstance(target, Target) and estimate.high == target.limit_s:
        high = "the limit"
    if low == high == value:
        return f"{value}{unit}"
    if low is None and high is None:
        interval = "no interval: the run is too short"
    elif high is None:
        interval = f"{low} to ?"
    else:
        interval = f"{low} to {high}" if low else f"at most {high}"
    return f"{value}{unit} ({interval})"


def shortfalls(evaluation: Evaluation, aim: Aim) -> str:
    """Say what a deployment does not do, or may not, each target in turn."""
    if evaluation.verdict == "unstable":
        return f"it is unstable (by {evaluation.known_by})"
    lacks = []
    if evaluation.verdict == "undecided":
        lacks = [f"its stability is undecided ({evaluation.known_by})"]
    if aim.objective == "goodput":
        if evaluation.answer != "met":
            word = "is" if evaluation.answer == "missed" else "may be"
            value = in_words("goodput", evaluation.goodput)
            lacks.append(f"goodput {word} {value}, below {aim.goodput:.4g}")
        return "; ".join(lacks)
    judged = zip(aim.targets, evaluation.estimates, evaluation.judgements, strict=True)
    for target, estimate, judgement in judged:
        if judgement != "met":
            open_at = f", undecided at {evaluation.requests:,} requests"
            said = "" if judgement == "missed" else open_at
            lacks.append(f"{target.name} is {in_words(target, estimate)}{said}")
    return "; ".join(lacks)


def with_replicas(evaluation: Evaluation, aim: Aim) -> str:
    """Say what so many replicas do not do."""
    deployment = evaluation.deployment
    replicas = counted(deployment.replicas, "replica")
    if deployment.other is not None and deployment.others:
        replicas += (
            f" of {deployment.kind.title} and {deployment.others:,} of {deployment.other.title}"
        )
    return f"with {replicas} {shortfalls(evaluation, aim)}"


def binding(search: Search[Evaluation], best: Evaluation, aim: Aim) -> str:
    """Say what keeps a smaller fleet than the answer from doing."""
    fleet = best.deployment
    family = search.family_of(fleet)
    index = family.counts.index(fleet.replicas)
    fewer = None
    if index:
        fewer = family.at(family.counts[index - 1])
    elif fleet.others:
        fewer = fleet.with_others(fleet.others - 1)
    if fewer is not None and (why := search.why_not(fewer.family, fewer.replicas)):
        return why
    values = zip(best.estimates, aim.targets, strict=True)
    loads = [(of.value / target.limit_s, str(target)) for of, target in values if of.value]
    nearest = f"; {max(loads)[1]} is nearest its limit" if loads else ""
    return f"no smaller fleet is in the search space{nearest}"


@dataclasses.dataclass(frozen=True)
class Unreachable:
    """Why no deployment does."""

    target: Annotated[str, Meaning("What is not met, in words.")]
    why: Annotated[str, Meaning("What keeps all of them from it.")]
    nearest: Annotated[
        float | None, Meaning("Reached: seconds, or a share for goodput; None: none is stable.")
    ]
    deployment: Annotated[Deployment | None, Meaning("That reached it.")]


class _Want(NamedTuple):
    """What is asked of a deployment, and how near it comes."""

    excess: float  # times the limit
    words: str
    value: float | None
    met: bool


def _wants(evaluation: Evaluation, aim: Aim) -> list[_Want]:
    if aim.objective == "goodput":
        share = evaluation.goodput.value
        excess, met = aim.goodput / share if share else math.inf, evaluation.answer == "met"
        return [_Want(excess, f"goodput of {aim.goodput:.4g}", share, met)]
    wants = []
    judged = zip(aim.targets, evaluation.estimates, evaluation.judgements, strict=True)
    for target, estimate, answer in judged:
        excess = math.inf if estimate.value is None else estimate.value / target.limit_s
        wants.append(_Want(excess, str(target), estimate.value, answer == "met"))
    return wants


def why_unreachable(search: Search[Evaluation], aim: Aim) -> Unreachable:
    """Say what keeps all deployments from the answer, and how near they come."""
    largest = _largest(search)
    wants = {fleet: _wants(fleet, aim) for fleet in largest if fleet.verdict == "stable"}
    if not wants:
        reasons = [
            prospect.why_not_fewer for prospect in search.hopeless if prospect.by == "theory"
        ]
        reason = reasons[0] if reasons else shortfalls(largest[0], aim)
        most = max(prospect.family.counts[-1] for prospect in (*search.hopeless, *search.prospects))
        why = (
            f"{reason}, and at most {most:,} are searched; allow more (plan.search.replicas) or "
            "other hardware"
        )
        return Unreachable("stability", why, None, None)
    # of what none does, or else of all, the deployment that comes nearest
    indices = range(len(next(iter(wants.values()))))
    never = [index for index in indices if not any(of[index].met for of in wants.values())]

    def excess(fleet: Evaluation) -> tuple[float, float]:
        return max(wants[fleet][index].excess for index in never or indices), fleet.deployment.cost

    nearest = min(wants, key=excess)
    want = max(wants[nearest][index] for index in never or indices)
    some = "" if never else "each target is met by some deployment, but none meets all; "
    why = some + _why_not(search, nearest, aim)
    return Unreachable(want.words, why, want.value, nearest.deployment)


def _largest(search: Search[Evaluation]) -> list[Evaluation]:
    """Return the largest fleet of each family that was simulated, and the least hopeless one."""
    simulated = (search.peek(p.family, p.family.counts[p.most]) for p in search.prospects)
    largest = [result for result in simulated if result is not None]
    too_slow = [prospect for prospect in search.hopeless if prospect.excess < math.inf]
    if too_slow:
        family = min(too_slow, key=lambda prospect: prospect.excess).family
        largest.append(search.simulate(family, family.counts[-1]))
    return largest


def _why_not(search: Search[Evaluation], nearest: Evaluation, aim: Aim) -> str:
    """Say what the nearest deployment does not do."""
    fleet = nearest.deployment
    for hopeless in search.hopeless:
        if hopeless.family.name == fleet.family:
            return f"{hopeless.why_not_fewer}; the simulation of {fleet.name} agrees"
    most = counted(fleet.replicas, "replica")
    return f"with {most} of {fleet.family}, the most allowed, {shortfalls(nearest, aim)}"
