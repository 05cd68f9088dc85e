"""The cheapest fleet of each kind of hardware, side by side: what it costs, takes and leaves.

All kinds are sketched by short runs with the same requests, whose values are taken for true; the
cheapest few are then searched as a plan is, with intervals and a test of stability.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Annotated

from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation
from penstock.planning.search import Report, Search
from penstock.planning.space import Discarded, Family
from penstock.planning.targets_at_rate import TargetsAtRate, at_both_ends
from penstock.show.answers import Meaning
from penstock.system.models.served import ShapedHardware
from penstock.theory.certify import certify

BEYOND = 1.5
"""Times the cost of the best at which a fleet of other hardware is no longer looked for."""

EXACTLY = 2
"""Kinds of hardware whose fleets are searched with intervals, the cheapest first."""

SKETCH = 20_000
"""Requests of a short run, of all replicas together."""

_LIMITS = 2  # of each kind, that are searched with intervals
_SHARE = 0.6  # of the work, for the progress


@dataclasses.dataclass(frozen=True)
class Ranked:
    """The cheapest fleet of some hardware that does, or why none is shown."""

    hardware: Annotated[str, Meaning("Its name.")]
    cost: Annotated[float, Meaning("An hour; of one that is not shown, the least by theory.")]
    evaluation: Annotated[Evaluation | None, Meaning("Of the cheapest that does; None: no such.")]
    exact: Annotated[bool, Meaning("Whether it was judged by intervals, and not by a short run.")]
    used: Annotated[float, Meaning("Least load of a replica over what any policy can carry.")]
    million_tokens: Annotated[float, Meaning("Cost of a million tokens, of prompts and outputs.")]
    million_outputs: Annotated[float, Meaning("Cost of a million output tokens, prompts free.")]
    watts: Annotated[float | None, Meaning("Of all accelerators, by their sheet; None: not known.")]
    slow_replicas: Annotated[int | None, Meaning(
        "At the slow end of the batch times, by short runs; None: they are exact, or none does."
    )]  # fmt: skip
    why: Annotated[str, Meaning("Why none is shown.")] = ""


def ranked(
    question: TargetsAtRate, families: Sequence[Family], report: Report | None = None,
    first: Callable[[Sequence[Deployment]], None] | None = None,
) -> tuple[Search[Evaluation], list[Ranked], list[Discarded]]:  # fmt: skip
    """Return the search of the cheapest few kinds, all kinds in order, and what was left out."""
    by_sketch = TargetsAtRate(question.workload, question.aim, SKETCH)
    if first is not None:
        first(by_theory(by_sketch, families))
    sketch = Search(by_sketch, families, part_of_report(report, 0.0, _SHARE), BEYOND)
    sketch.run()
    rows = {result.deployment.kind.title: (result, False) for result in sketch.by_hardware.values()}
    # Of each with the two limits that do it best, between which intervals decide.
    for best in sorted(sketch.by_hardware.values(), key=sketch.rank)[:EXACTLY]:
        alike = [
            result for result in sketch.results
            if result.answer == "met" and result.deployment.kind.title == best.deployment.kind.title
            and result.deployment.cost == best.deployment.cost
        ]  # fmt: skip
        for result in sorted(alike, key=sketch.rank)[:_LIMITS]:
            question.likely[result.deployment.family] = result.deployment.replicas
    nearest = [prospect.family for prospect in sketch.prospects[:EXACTLY]] or families[:EXACTLY]
    chosen = [family for family in families if family.name in question.likely] or [*nearest]
    search = Search(question, chosen, part_of_report(report, _SHARE, 1.0), BEYOND)
    search.run()
    # A short run does not see whether a fleet is stable: what it takes for cheaper than the answer
    # is searched, too.
    while cheaper := _cheaper(sketch, search, chosen):
        question.likely |= cheaper
        more = [family for family in families if family.name in cheaper]
        chosen = [*chosen, *more]
        search.add(more)
        search.run()
    rows |= {result.deployment.kind.title: (result, True) for result in search.by_hardware.values()}
    by_name = {family.name: family for family in families}
    shown = [
        _row(question, by_name[result.deployment.family], result, exact)
        for result, exact in rows.values()
    ]
    titles = dict.fromkeys(family.smallest.kind.title for family in families)
    shown += [_not_shown(sketch, title) for title in titles if title not in rows]
    shown.sort(key=lambda row: (row.evaluation is None, row.cost, row.hardware))
    names = {family.name for family in chosen}
    left_out = [part for part in sketch.discarded() if part.family not in names]
    left_out += [
        _by_sketch(sketch, result)
        for result in sketch.results
        if result.deployment.family not in names
    ]
    return search, shown, left_out


def _cheaper(
    sketch: Search[Evaluation], search: Search[Evaluation], chosen: Sequence[Family]
) -> dict[str, int]:
    """Return fleets that do by a short run and cost less than the answer: replicas by family."""
    most = math.inf if search.best is None else search.best.deployment.cost
    names = {family.name for family in chosen}
    does = [
        result.deployment for result in sorted(sketch.results, key=sketch.rank)
        if result.answer == "met" and result.deployment.family not in names
    ]  # fmt: skip
    does = [fleet for fleet in does if fleet.cost < most]
    return {fleet.family: fleet.replicas for fleet in reversed(does[: EXACTLY * _LIMITS])}


def by_theory(question: TargetsAtRate, families: Sequence[Family]) -> list[Deployment]:
    """Return of each hardware the cheapest fleet with a usual load, the cheapest first."""
    cheapest: dict[str, Deployment] = {}
    for family in families:
        stable = question.stability(family)
        if stable.least < len(family.counts):
            fleet = family.at(family.counts[min(stable.usual, len(family.counts) - 1)])
            rival = cheapest.get(fleet.kind.title, fleet)
            cheapest[fleet.kind.title] = min(rival, fleet, key=lambda fleet: fleet.cost)
    return sorted(cheapest.values(), key=lambda fleet: fleet.by_cost)


def part_of_report(report: Report | None, low: float, high: float) -> Report | None:
    """Return what reports a part of the work."""
    return report and (lambda share, what: report(low + share * (high - low), what))


def _row(question: TargetsAtRate, family: Family, evaluation: Evaluation, exact: bool) -> Ranked:
    workload, fleet = question.workload, evaluation.deployment
    ends = at_both_ends(question, family, SKETCH)
    slow = None
    if ends is not None and ends.slow is not None:  # fewer than with the middle ones: by chance
        slow = max(ends.slow.deployment.replicas, fleet.replicas)
    known = fleet.kind.known
    watts = known.served.gpu.sheet.watts if isinstance(known, ShapedHardware) else None
    of_a_token = fleet.cost / 3600 / workload.rate  # but for the tokens of a request
    return Ranked(
        fleet.kind.title, fleet.cost, evaluation, exact,
        workload.rate / (certify(workload, fleet.server).max_rate * fleet.replicas),
        1e6 * of_a_token / (workload.mean_prompt + workload.mean_output),
        1e6 * of_a_token / workload.mean_output,
        watts and watts * fleet.total_accelerators, slow,
    )  # fmt: skip


def _by_sketch(sketch: Search[Evaluation], result: Evaluation) -> Discarded:
    """Account for a fleet that a short run alone judged."""
    why = "it does, and there are cheaper or quicker ones"
    if result.answer != "met":
        why = sketch.question.lacks(result)
    fleet = result.deployment
    return Discarded.of(fleet.family, [fleet.replicas], "simulation", f"by a short run {why}")


def _not_shown(sketch: Search[Evaluation], title: str) -> Ranked:
    """Say why no fleet of some hardware is shown: the least that it may cost, or what fails."""
    of_theory = (*sketch.prospects, *sketch.hopeless)
    mine = [prospect for prospect in of_theory if prospect.family.smallest.kind.title == title]
    results = [result for result in sketch.results if result.deployment.kind.title == title]
    cost = min((p.cost(p.least) for p in mine if not p.hopeless), default=math.inf)
    why = mine[0].why_not_fewer
    if results:
        why = sketch.question.lacks(max(results, key=lambda result: result.deployment.replicas))
    return Ranked(title, cost, None, False, math.nan, math.nan, math.nan, None, None, why)
