"""A plan as a page: the answer, what more buys, the day, the job, how to start it, why no other."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from penstock.checking.enough_requests import MOST_TIMES_LONGER
from penstock.checking.head import BECAUSE
from penstock.checking.view_parts import traffic
from penstock.planning.aim import MOST_ROWS
from penstock.planning.answers import Answers
from penstock.planning.day import DayPlan
from penstock.planning.deployment import Deployment
from penstock.planning.evaluate import Evaluation
from penstock.planning.figures import frontier_figure
from penstock.planning.job import JobPlan
from penstock.planning.launch import Launch
from penstock.planning.plan import Plan
from penstock.planning.ranking import Ranked
from penstock.planning.space import Discarded
from penstock.planning.view_day import day_line, day_section, fleet_line, job_line, job_section
from penstock.planning.why import in_words, shortfalls
from penstock.show.answers import page_of
from penstock.show.page import MOST_LINES, Fact, Figure, Line, Page, Section, Table
from penstock.words import amount, counted, duration, seconds, sentence, span

_MOST_SHOWN = 12  # rows of the frontier
_MOST_REASONS = 60
_MOST_DRAWN = 60  # rows of its figure


@page_of.register
def answers_page(answers: Answers) -> Page:
    """Show all that a scenario asks for."""
    plan, job = answers.plan, answers.job
    head = _head(answers)
    sections = [Section(line.label, [line.text], why=True) for line in head[MOST_LINES:]]
    ranking = [] if plan is None else _ranking(plan, answers.prices)
    sections += [*ranking[:1], *map(_start, answers.launches), *ranking[1:]]
    if plan is not None:
        sections += [_answer(plan), *_frontier(plan)]
    if answers.day is not None:
        sections.append(day_section(answers.day))
    if job is not None:
        sections.append(job_section(job, [_others(job.discarded)] if job.discarded else []))
    others = "why not the others" if plan is not None and plan.discarded else ""
    if plan is not None and others:
        table = _others(plan.discarded, _simulated(plan))
        sections.append(Section(others.capitalize(), tables=[table]))
    why = ("how to start it, " if answers.launches else "") + "what binds it"
    return Page(answers.title, sections=sections, head=head[:MOST_LINES], why=why, rest=others)


@page_of.register
def page_alone(answer: Plan | DayPlan | JobPlan) -> Page:
    """Show a plan, a day or a job alone."""
    name = type(answer).__name__.removesuffix("Plan").lower() or "plan"
    alone: dict[str, Any] = {name: answer}
    return answers_page(Answers(name, **alone))


def _head(answers: Answers) -> list[Line]:
    """Say the cheapest fleet, what becomes of the targets, and what fewer would be; the lines that
    a head has no room for come last.
    """
    plan, day, job = answers.plan, answers.day, answers.job
    asked, lines, last = "", [], []
    if plan is not None:
        asked = f"{traffic(plan.workload)}; {_targets(plan)}"
        lines = _verdicts(plan)
        if plan.best is not None:
            fewer = plan.binding
            if plan.undecided:
                name = plan.undecided[0].deployment.name
                cheaper = "" if "undecided" in fewer else f"{name} is cheaper, but undecided; "
                fewer = f"{fewer}; {cheaper}{_remedy(plan)}"
            last = [Line("Fewer", sentence(fewer))]
            if plan.next_best is not None:
                other = plan.next_best.deployment
                more = other.cost / plan.best.deployment.cost - 1
                dearer = "at the same cost" if abs(more) < 1e-9 else f"{more:+.0%}"
                cost = f"{_cost(plan, other)}, {dearer}"
                last.append(Line("Next best", fleet_line(other, cost)))
    if day is not None:
        asked = asked or f"{day.profile.name}; {' and '.join(map(str, day.targets))}"
        lines.append(day_line(day))
    elif answers.no_day:
        lines.append(Line("Over the day", sentence(answers.no_day)))
    if job is not None:
        lines.append(job_line(job))
        asked = asked or f"offline work of {counted(job.job.requests, 'request')}"
    return [Line(answers.title, f"{asked}."), *lines, *last] if asked else []


def _targets(plan: Plan) -> str:
    limits = " and ".join(map(str, plan.targets))
    if plan.objective == "goodput":
        return f"{plan.aim.goodput:.4g} of the requests within {limits}"
    return limits


def _verdicts(plan: Plan) -> list[Line]:
    """Say the answer, and what becomes of each target."""
    best = plan.best
    if best is None:
        return [_no_answer(plan)]
    answer = fleet_line(best.deployment, _cost(plan, best.deployment))
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


def _ends(plan: Plan) -> list[Line]:
    """Say what it takes at both ends of batch times that are not exact."""
    if plan.ends is None:
        return []
    slow, fast = (
        "more than are searched" if end is None else _size(end.deployment)
        for end in (plan.ends.slow, plan.ends.fast)
    )
    text = f"fast ones take {fast}, slow ones {slow}"
    if slow == fast:
        text = f"fast and slow ones take {slow}, too"
    text = f"the fleet is for the middle ones; {text} ({plan.ends.origin})."
    if plan.hinges_on_calibration:
        return [Line("undecided", f"{BECAUSE}: {text}", judges=True)]
    return [Line("Batch times", text)]


def _size(deployment: Deployment) -> str:
    """Return how many replicas a fleet has, of one kind or by kind."""
    if len(deployment.kinds) > 1:
        return deployment.fleet
    return counted(deployment.total_replicas, "replica")


def _no_answer(plan: Plan) -> Line:
    """Say that nothing is known to do, or that nothing does and what comes nearest."""
    if plan.answer == "undecided":
        example = ""
        if not plan.undecided:
            unknown = next(result for result in plan.evaluated if result.answer == "undecided")
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


def _cost(plan: Plan, deployment: Deployment) -> str:
    """Say what a deployment costs: money an hour, or accelerators."""
    accelerators = counted(deployment.total_accelerators, "accelerator")
    return f"{deployment.cost:,.2f} per hour ({accelerators})" if plan.priced else accelerators


def _answer(plan: Plan) -> Section:
    """Say what is known of the best, and what was simulated for it."""
    facts = []
    best = plan.best
    if best is not None:
        facts.append(Fact("Stable", "", f"by {best.known_by}"))
        if plan.objective == "goodput":
            facts += [
                Fact(target.label, "", f"{in_words(target, estimate)}; limit {target}")
                for target, estimate in zip(plan.targets, best.estimates, strict=True)
            ]
        goodput = in_words("goodput", best.goodput)
        facts.append(Fact("Goodput", "", f"{goodput} of requests within all limits"))
    share = f" ({plan.simulations / plan.space:.1%})" if plan.space else ""
    simulated = (
        f"{plan.simulations:,} of {counted(plan.space, 'deployment')}{share}, each on the same "
        f"requests; intervals of {plan.aim.confidence:.0%}"
    )
    facts.append(Fact("Simulated", "", simulated))
    notes = [*_undecided(plan), *plan.notices]
    return Section("The answer", facts=facts, notes=notes, why=True)


def _ranking(plan: Plan, prices: str) -> list[Section]:
    """Put the cheapest fleets of all hardware side by side, and say why others have none."""
    if not plan.ranking:
        return []

    def latency(index: int) -> Callable[[Ranked], str]:
        return lambda row: seconds(
            row.evaluation.estimates[index].value if row.evaluation else None
        )

    cells: dict[str, Callable[[Ranked], str]] = {
        "Fleet": lambda row: row.evaluation.deployment.brief if row.evaluation else "",
        "Per hour" if plan.priced else "Acc.": lambda row: amount(row.cost),
        "Per M": lambda row: f"{row.million_tokens:.3g}",
        "Per M out": lambda row: f"{row.million_outputs:.3g}",
        "kW": lambda row: "-" if row.watts is None else f"{row.watts / 1000:,.3g}",
        "Load": lambda row: f"{row.used:.0%}",
        "Slow": lambda row: "-" if row.slow_replicas is None else f"{row.slow_replicas:,}",
        **{target.label: latency(index) for index, target in enumerate(plan.targets)},
        "Judged": lambda row: (
            row.evaluation.answer if row.exact and row.evaluation else "short run"
        ),
    }
    caption = (
        "Fleet: with token budget/max batch size. Per M: a million tokens. Slow: replicas at the "
        "slow end of the batch times, by short runs. Latencies in seconds."
    )
    caption += f" Prices: {prices}; yours: --prices FILE." if prices else ""
    shown = [row for row in plan.ranking if row.evaluation is not None]
    table = Table.of(cells, shown, caption=caption, spare=("Per M out", "kW", "Load"))
    others = [
        Fact(row.hardware, "" if math.isinf(row.cost) else f"from {amount(row.cost)}", row.why)
        for row in plan.ranking if row.evaluation is None
    ]  # fmt: skip
    return [
        Section("", tables=[table] if shown else [], below=True),
        Section("Not among them", facts=others, why=True),
    ]


def _undecided(plan: Plan) -> list[str]:
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


def _remedy(plan: Plan) -> str:
    """Say what would decide what is undecided."""
    if plan.workload.rows is not None:
        return (
            f"{plan.workload.rows:,} requests are recorded: take a longer recording, or arrivals: "
            "poisson"
        )
    first = 4 * plan.aim.most_requests // MOST_TIMES_LONGER
    if first * MOST_TIMES_LONGER <= MOST_ROWS:
        return f"--requests {first} tells more"
    return "it is too near its limit to tell"


def _frontier(plan: Plan) -> list[Section]:
    """Show what more money buys, and all that was simulated."""
    if not plan.measured:
        return []

    def figures() -> list[Figure]:
        by_cost = sorted(plan.evaluated, key=lambda result: result.deployment.by_cost)
        unseen = f"The first {_MOST_DRAWN} of {len(by_cost):,}." if by_cost[_MOST_DRAWN:] else ""
        table = _evaluations(plan, by_cost[:_MOST_DRAWN])
        return [frontier_figure(plan, [dataclasses.replace(table, caption=unseen)])]

    if not plan.frontier:
        return [Section("What more buys", figures=figures)]
    # at most so many rows, about the best
    rows = plan.frontier
    index = next((index for index, row in enumerate(rows) if row is plan.best), len(rows) - 1)
    first = max(min(index - _MOST_SHOWN // 2, len(rows) - _MOST_SHOWN), 0)
    table = _evaluations(plan, rows[first : first + _MOST_SHOWN])
    least = f"The least {plan.targets[0].label} for the cost, of those simulated."
    return [Section("What more buys", [least], tables=[table], figures=figures, why=True)]


def _evaluations(plan: Plan, rows: Sequence[Evaluation]) -> Table:
    """Lay out deployments that were simulated."""
    per = "Req/s per acc."

    def interval(result: Evaluation) -> str:
        return f"{seconds(result.estimates[0].low)} to {seconds(result.estimates[0].high)}"

    cells: dict[str, Callable[[Evaluation], str]] = {
        "Deployment": lambda result: result.deployment.brief,
        "Per hour" if plan.priced else "Acc.": lambda result: amount(result.deployment.cost),
        f"{plan.targets[0].label} (s)": lambda result: seconds(result.estimates[0].value),
        "Interval": interval,
        "Goodput": lambda result: (
            "-" if result.goodput.value is None else f"{result.goodput.value:.1%}"
        ),
        per: lambda result: f"{result.rate / result.deployment.total_accelerators:,.3g}",
        "Judged": lambda result: "unstable" if result.verdict == "unstable" else result.answer,
    }
    strong = [index for index, result in enumerate(rows) if result is plan.best]
    return Table.of(cells, rows, strong=strong, spare=(per, "Interval"))


def _simulated(plan: Plan) -> list[tuple[str, ...]]:
    """Say of those simulated that are not the answer what became of them, with an example each."""
    rows: list[tuple[str, ...]] = []
    for answer in ("missed", "undecided", "met"):
        alike = [
            result
            for result in plan.evaluated
            if result.answer == answer and result is not plan.best
        ]
        if alike:
            cheapest = min(alike, key=lambda result: result.deployment.cost)
            why = shortfalls(cheapest, plan.aim)
            if answer == "met":
                why = "they cost more or are slower at the same cost"
            rows.append((answer, f"{len(alike):,}", cheapest.deployment.name, f"simulated: {why}"))
    return rows


def _others(discarded: Sequence[Discarded], simulated: Sequence[Sequence[str]] = ()) -> Table:
    """Lay out why others were left out, the most frequent reason first."""
    by_reason: dict[tuple[str, str], list[Discarded]] = {}
    for part in discarded:
        by_reason.setdefault((part.by, part.why), []).append(part)
    counts = {reason: sum(part.count for part in alike) for reason, alike in by_reason.items()}
    rows = list(simulated)
    for by, why in sorted(counts, key=lambda key: -counts[key])[:_MOST_REASONS]:
        first, *more = by_reason[by, why]
        such = f"{first.family}, {span(*first.replicas, 'replica')}"
        families = "family" if len(more) == 1 else "families"
        such += f"\nand {len(more):,} more {families}" if more else ""
        rows.append((by, f"{counts[by, why]:,}", such, why))
    unseen = len(counts) - _MOST_REASONS
    caption = f"The {_MOST_REASONS} most frequent reasons; {unseen:,} more." if unseen > 0 else ""
    return Table(("By", "Deployments", "Such as", "Why"), rows, caption, detail=True)


def _start(launch: Launch) -> Section:
    """Show the command line of one replica, after what to know before it is started."""
    each = "" if launch.replicas == 1 else ", each"
    where = f"{counted(launch.replicas, 'replica')}{each} on {counted(launch.accelerators, 'GPU')}."
    paragraphs = [where, *map(sentence, launch.notes)]
    return Section("To start", paragraphs, commands=[launch.shell], why=True)
