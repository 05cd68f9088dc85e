"""What a deployment reaches, and what it lacks, in words."""

from penstock.checking.targets import Estimate, Target
from penstock.planning.aim import Aim
from penstock.planning.evaluate import Evaluation
from penstock.words import counted


def in_words(target: Target | str, estimate: Estimate) -> str:
    """Say a value and its interval: ``1.43 s (1.31 to 1.74)``; shares for goodput."""
    if estimate.value is None:
        return "unknown"
    scale, unit, digits = 100.0, "%", ".4g"
    if isinstance(target, Target):
        scale, unit = target.unit(max(estimate.value, estimate.high or 0.0))
        unit, digits = f" {unit}", ".3g"
    low, high = (
        None if end is None else f"{end * scale:{digits}}" for end in (estimate.low, estimate.high)
    )
    value = f"{estimate.value * scale:{digits}}"
    if low == high == value:
        return f"{value}{unit}"
    if low is None and high is None:
        interval = "no interval: the run is too short"
    elif high is None:
        interval = f"at least {low}"
    else:
        interval = f"{low} to {high}" if low else f"at most {high}"
    return f"{value}{unit} ({interval})"


def shortfalls(evaluation: Evaluation, aim: Aim) -> list[str]:
    """Say what a deployment does not do, or may not: a part of a sentence for each target."""
    if evaluation.verdict == "unstable":
        return [f"it is unstable (by {evaluation.known_by})"]
    parts = (
        [f"its stability is undecided ({evaluation.known_by})"]
        if evaluation.verdict == "undecided"
        else []
    )
    if aim.objective == "goodput":
        if evaluation.answer == "met":
            return parts
        word = "is" if evaluation.answer == "missed" else "may be"
        return [
            *parts,
            f"goodput {word} {in_words('goodput', evaluation.goodput)}, below {aim.goodput:.4g}",
        ]
    for target, estimate, judgement in zip(
        aim.targets, evaluation.estimates, evaluation.judgements, strict=True
    ):
        if judgement != "met":
            undecided = (
                "" if judgement == "missed" else f", undecided at {evaluation.requests:,} requests"
            )
            parts.append(f"{target.name} is {in_words(target, estimate)}{undecided}")
    return parts


def with_replicas(evaluation: Evaluation, aim: Aim) -> str:
    """Say what so many replicas do not do."""
    deployment = evaluation.deployment
    replicas = counted(deployment.replicas, "replica")
    if deployment.other is not None and deployment.others:
        replicas += f" of {deployment.title} and {deployment.others:,} of {deployment.other.title}"
    return f"with {replicas} {'; '.join(shortfalls(evaluation, aim))}"
