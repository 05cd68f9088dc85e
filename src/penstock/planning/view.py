"""A plan as a page: the answer, what more buys, the day, the job, how to start it, why no other."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.checking.head import BECAUSE, MIDDLE
from penstock.checking.view import traffic
from penstock.planning.aim import MOST_ROWS
from penstock.planning.view_day import (
    day_in_short,
    day_section,
    job_line,
    job_section,
    launch_section,
    reasons,
)
from penstock.planning.why import in_words, shortfalls
from penstock.show.page import MOST_LINES, Fact, Figure, Line, Page, Section, Table
from penstock.words import amount, counted, duration, seconds, sentence, span

if TYPE_CHECKING:
    from penstock.planning.day import DayPlan
    from penstock.planning.deployment import Deployment
    from penstock.planning.evaluate import Evaluation
    from penstock.planning.job import JobPlan
    from penstock.planning.launch import Launch
    from penstock.planning.plan import Plan
    from penstock.planning.space import Discarded

_MOST_SHOWN = 12  # rows of the frontier

_RULED_OUT = {
    "theory": "",
    "simulation": "more replicas of the same do not do, or are not known to; ",
    "cost": "dearer than the answer; ",
    "unsuited": "the policy is out of place there; ",
    "impossible": "cannot be deployed or judged; ",
}
"""What is said of those that were not simulated, by what ruled them out."""


def plan_page(
    title: str,
    plan: "Plan | None" = None,
    *,
    day: "DayPlan | None" = None,  # the fleet that follows the day
    no_day: str = "",  # or why there is none
    job: "JobPlan | None" = None,  # the fleet for offline work
    launches: "Sequence[Launch]" = (),
    prices: str = "",  # what they are, where nobody gave them
) -> Page:
    """Show a plan; what is not given is left out."""
    said = _head(title, plan, day, no_day, job)
    sections = [Section(line.label, [line.text], why=True) for line in said[MOST_LINES:]]
    if plan is not None:
        sections += [*_ranking(plan, prices), _answer(plan), *_frontier(plan)]
    if day is not None:
        sections.append(day_section(day))
    if job is not None:
        sections.append(job_section(job))
    sections += map(launch_section, launches)
    if plan is not None:
        sections += _others(plan)
    return Page(
        title,
        sections=sections,
        head=said[:MOST_LINES],
        why="what binds it" + (", how to start it" if launches else ""),
        rest="why not the others" if plan is not None and plan.discarded else "",
    )


def _head(
    title: str,
    plan: "Plan | None",
    day: "DayPlan | None",
    no_day: str,
    job: "JobPlan | None",
) -> list[Line]:
    """Say the cheapest fleet, what becomes of the targets, and what fewer would be; the lines that
    a head has no room for come last.
    """
    asked, lines, last = "", [], []
    if plan is not None:
        asked = f"{traffic(plan.workload)}; {_targets(plan)}"
        lines = _verdicts(plan)
        if plan.best is not None:
            last = [Line("Fewer", sentence(plan.binding))]
            if plan.next_best is not None:
                other = _next_best(plan, plan.best.deployment, plan.next_best.deployment)
                last.append(Line("Next best", f"{other}."))
    if day is not None:
        asked = asked or f"{day.profile.name}; {' and '.join(map(str, day.targets))}"
        lines.append(Line("Over the day", day_in_short(day)))
    elif no_day:
        lines.append(Line("Over the day", sentence(no_day)))
    if job is not None:
        lines.append(job_line(job))
        asked = asked or f"offline work of {counted(job.requests, 'request')}"
    return [Line(title, f"{asked}."), *lines, *last] if asked else []


def _targets(plan: "Plan") -> str:
    limits = " and ".join(map(str, plan.targets))
    if plan.objective == "goodput":
        return f"{plan.aim.goodput:.4g} of the requests within {limits}"
    return limits


def _verdicts(plan: "Plan") -> list[Line]:
    """Say the answer, and what becomes of each target."""
    best = plan.best
    if best is None:
        return [_no_answer(plan)]
    deployment = best.deployment
    server = deployment.server
    answer = (
        f"{deployment.fleet}, {server.policy.name}, {deployment.limits}; {_cost(plan, deployment)}."
    )
    lines = [Line("Cheapest", answer), *_ends(plan)]
    if plan.objective == "goodput":
        # Single targets are not judged: their values are among the facts.
        goodput = f"goodput of {plan.aim.goodput:.4g}: {in_words('goodput', best.goodput)}."
        return [*lines, Line(best.answer, goodput, judges=True)]
    parts = []
    for target, estimate, margin in zip(plan.targets, best.estimates, plan.margins, strict=True):
        left = "" if math.isnan(margin) else f"; margin {margin:.0%}"
        parts.append(f"{target}: {in_words(target, estimate)}{left}")
    worst = next((word for word in best.judgements if word != "met"), "met")
    return [*lines, Line(worst, f"{'; '.join(parts)}.", judges=True)]


def _ends(plan: "Plan") -> list[Line]:
    """Say what it takes at both ends of batch times that are not exact."""
    if plan.ends is None:
        return []
    slow, fast = (
        "more than are searched" if end is None else end.deployment.fleet
        for end in (plan.ends.slow, plan.ends.fast)
    )
    text = (
        f"that is with the middle batch times; with the fast end of them {fast}, with the slow end "
        f"{slow} ({plan.ends.origin})."
    )
    if plan.hinges_on_calibration:
        return [Line("undecided", f"{BECAUSE}: {text}", judges=True)]
    return [Line("Batch times", text)]


def _no_answer(plan: "Plan") -> Line:
    """Say that nothing is known to do, or that nothing does and what comes nearest."""
    if plan.answer == "undecided":
        example = ""
        if not plan.undecided:
            unknown = next(
                evaluation for evaluation in plan.evaluated if evaluation.answer == "undecided"
            )
            example = f", such as {unknown.deployment.name}: {unknown.known_by}"
        return Line("undecided", f"nothing simulated is known to do{example}.", judges=True)
    unreachable = plan.unreachable
    assert unreachable is not None
    text = f"{unreachable.target}: {unreachable.why}."
    if unreachable.deployment is not None and unreachable.nearest is not None:
        nearest = duration(unreachable.nearest)
        if plan.objective == "goodput":
            nearest = f"{unreachable.nearest:.2%}"
        by = f"{unreachable.deployment.name}: {_cost(plan, unreachable.deployment)}"
        text += f" The nearest that is reached is {nearest}, by {by}."
    return Line("unreachable", text, judges=True)


def _cost(plan: "Plan", deployment: "Deployment") -> str:
    """Say what a deployment costs: money an hour, or accelerators."""
    accelerators = counted(deployment.total_accelerators, "accelerator")
    return f"{deployment.cost:,.2f} per hour ({accelerators})" if plan.priced else accelerators


def _answer(plan: "Plan") -> Section:
    """Say what is known of the best, and what was simulated for it."""
    facts = []
    best = plan.best
    if best is not None:
        middle = MIDDLE if plan.ends is not None else ""
        facts.append(Fact("Stable", "", f"by {best.known_by}{middle}"))
        if plan.objective == "goodput":
            facts += [
                Fact(target.label, "", f"{in_words(target, estimate)}; limit {target}")
                for target, estimate in zip(plan.targets, best.estimates, strict=True)
            ]
        facts.append(
            Fact(
                "Goodput", "", f"{in_words('goodput', best.goodput)} of requests within all limits"
            )
        )
    share = f" ({plan.simulations / plan.space:.1%})" if plan.space else ""
    facts.append(
        Fact(
            "Simulated",
            "",
            f"{plan.simulations:,} of {counted(plan.space, 'deployment')}{share}, each on the "
            "same requests; "
            f"intervals of {plan.aim.confidence:.0%}",
        )
    )
    notes = [*_undecided(plan), *plan.notices]
    return Section("The answer", facts=facts, notes=notes, why=True)


def _ranking(plan: "Plan", prices: str) -> list[Section]:
    """Put the cheapest fleets of all hardware side by side, and say why others have none."""
    if not plan.ranking:
        return []
    shown = [(row, row.evaluation) for row in plan.ranking if row.evaluation is not None]
    rows = []
    for row, evaluation in shown:
        rows.append(
            (
                evaluation.deployment.brief,
                amount(row.cost),
                f"{row.million_tokens:.3g}",
                f"{row.million_outputs:.3g}",
                "-" if row.watts is None else f"{row.watts / 1000:,.3g}",
                f"{row.used:.0%}",
                "-" if row.slow_replicas is None else f"{row.slow_replicas:,}",
                *(seconds(estimate.value) for estimate in evaluation.estimates),
                evaluation.answer if row.exact else "short run",
            )
        )
    columns = (
        "Fleet", "Per hour" if plan.priced else "Acc.", "Per M", "Per M out", "kW",
        "Used", "Slow", *(target.label for target in plan.targets), "Judged",
    )  # fmt: skip
    caption = (
        "Per M: a million tokens. Slow: replicas with the slowest batch times that are likely, by "
        "short runs. Used: of what any scheduler can carry. Latencies in seconds."
    )
    caption += f" Prices: {prices}; yours: --prices FILE." if prices else ""
    spare = ("Per M out", "kW", "Used")
    table = Table(columns, rows, caption, spare=spare)
    others = [
        Fact(row.hardware, "" if math.isinf(row.cost) else f"from {amount(row.cost)}", row.why)
        for row in plan.ranking
        if row.evaluation is None
    ]
    return [
        Section("", tables=[table] if rows else [], below=True),
        Section("Not among them", facts=others, why=True),
    ]


def _next_best(plan: "Plan", best: "Deployment", other: "Deployment") -> str:
    server = other.server
    more = other.cost / best.cost - 1
    dearer = "at the same cost" if abs(more) < 1e-9 else f"{more:+.0%}"
    slots = server.max_batch_size
    limits = f"token budget {server.token_budget:,}"
    limits += "" if slots is None else f", max batch size {slots:,}"
    return f"{other.fleet}, {server.policy.name}, {limits}: {_cost(plan, other)}, {dearer}"


def _undecided(plan: "Plan") -> list[str]:
    """Say what may do, and how to find out."""
    if not plan.undecided:
        return []
    first, *others = plan.undecided
    values = ", ".join(
        f"{target} {in_words(target, value)}"
        for target, value in zip(plan.targets, first.estimates, strict=True)
    )
    more = f", and {len(others):,} more" if others else ""
    kind = "undecided" if plan.best is None else "cheaper, but undecided"
    name = f"{first.deployment.name} ({_cost(plan, first.deployment)})"
    return [f"{kind}: {name}: {values}{more}; {_remedy(plan)}"]


def _remedy(plan: "Plan") -> str:
    """Say what would decide what is undecided."""
    if plan.workload.rows is not None:
        return (
            f"{plan.workload.rows:,} requests are recorded: take a longer recording, or arrivals: "
            "poisson"
        )
    longer = 4 * plan.aim.most_requests
    if longer <= MOST_ROWS:
        return f"`plan: {{most_requests: {longer}}}` tells more"
    return "it is too near its limit to tell"


def _frontier(plan: "Plan") -> list[Section]:
    """Show what more money buys, and all that was simulated."""
    if not plan.measured:
        return []

    def figures() -> list[Figure]:
        from penstock.planning.charts import frontier_figure

        return [frontier_figure(plan)]

    target = plan.targets[0]
    least = f"The least {target.label} for the cost, of those simulated."
    if not plan.frontier:
        return [Section("What more buys", figures=figures)]
    return [
        Section(
            "What more buys", [least], tables=[_frontier_table(plan)], figures=figures, why=True
        )
    ]


def _frontier_table(plan: "Plan") -> Table:
    rows: list[tuple[str, ...]] = []
    strong = []
    for evaluation in _about_the_best(plan.frontier, plan.best):
        value, deployment = evaluation.estimates[0], evaluation.deployment
        if evaluation is plan.best:
            strong.append(len(rows))
        rows.append(
            (
                deployment.brief,
                amount(deployment.cost),
                seconds(value.value),
                f"{seconds(value.low)} to {seconds(value.high)}",
                "-" if evaluation.goodput.value is None else f"{evaluation.goodput.value:.1%}",
                f"{evaluation.rate / deployment.total_accelerators:,.3g}",
                evaluation.answer,
            )
        )
    cost = "Per hour" if plan.priced else "Acc."
    per = "Req/s per acc."
    columns = (
        "Deployment",
        cost,
        f"{plan.targets[0].label} (s)",
        "Interval",
        "Goodput",
        per,
        "Judged",
    )
    return Table(columns, rows, strong=strong, spare=(per, "Interval"))


def _about_the_best(
    rows: "Sequence[Evaluation]", best: "Evaluation | None"
) -> "Sequence[Evaluation]":
    """Return at most so many rows, about the best."""
    index = next((index for index, row in enumerate(rows) if row is best), len(rows) - 1)
    first = max(min(index - _MOST_SHOWN // 2, len(rows) - _MOST_SHOWN), 0)
    return rows[first : first + _MOST_SHOWN]


def _others(plan: "Plan") -> list[Section]:
    """Say why others were left out: in groups with an example each, and every reason."""
    if not plan.discarded:
        return []
    return [
        Section(
            "Why not the others",
            facts=_groups(plan),
            tables=[reasons(plan.discarded)],
        )
    ]


def _groups(plan: "Plan") -> list[Fact]:
    by_reason: dict[str, list[Discarded]] = {}
    for discarded in plan.discarded:
        by_reason.setdefault(discarded.by, []).append(discarded)
    facts = []
    for by, group in by_reason.items():
        example = max(group, key=lambda discarded: discarded.count)
        such = f"such as {span(*example.replicas, 'replica')} of {example.family}: {example.why}"
        facts.append(Fact(by, f"{sum(one.count for one in group):,}", f"{_RULED_OUT[by]}{such}"))
    for answer in ("missed", "undecided"):
        simulated = [evaluation for evaluation in plan.evaluated if evaluation.answer == answer]
        if simulated:
            cheapest = min(simulated, key=lambda evaluation: evaluation.deployment.cost)
            lacks = shortfalls(cheapest, plan.aim)
            such = f"simulated; such as {cheapest.deployment.name}: {lacks}"
            facts.append(Fact(answer, f"{len(simulated):,}", such))
    more = sum(
        evaluation.answer == "met" and evaluation is not plan.best for evaluation in plan.evaluated
    )
    if more:
        facts.append(
            Fact("met", f"{more:,}", "simulated, and cost more or are slower at the same cost")
        )
    return facts
