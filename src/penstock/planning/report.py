"""The report on a plan, as a page: the answer, what it costs and why, what one replica carries, the day, the job."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.capacity.figures import rate_cells, rate_heat_map
from penstock.capacity.stable_rates import RateMap
from penstock.planning import figures as plotting_plan
from penstock.planning.plan import told
from penstock.planning.terminal import cost
from penstock.show import page
from penstock.show.heat_map import significant
from penstock.show.page import Fact, Figure, Section, Table, Verdict
from penstock.words import amount, counted, span

if TYPE_CHECKING:
    from penstock.planning.day import DayPlan
    from penstock.planning.evaluate import Evaluation
    from penstock.planning.job import JobPlan
    from penstock.planning.launch import Launch
    from penstock.planning.plan import Plan
    from penstock.planning.space import Deployment, Discarded

_MOST_ROWS = 60
_TARGET_LINE = "The dashed line is the {}. Horizontal lines: intervals. Stairs: what more money, or less, buys."


def report_plan(
    path: Path,
    title: str,
    plan: "Plan | None" = None,
    *,
    rates: RateMap | None = None,
    day: "DayPlan | None" = None,
    job: "JobPlan | None" = None,
    launches: "Sequence[Launch]" = (),
) -> None:
    """Write a plan; what is not given is left out.

    Parameters
    ----------
    path
        File to write.
    title
        Of the page: the scenario.
    plan
        The answer.
    rates
        What one replica carries, see `penstock.planning.limits.stable_rates`.
    day
        The fleet that follows the day.
    job
        The fleet for offline work.
    launches
        How to start a replica.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    verdicts: list[Verdict] = []
    sections: list[Section] = []
    heading = title
    if plan is not None:
        workload = plan.workload
        limits = " and ".join(map(str, plan.targets))
        asked = f"{plan.aim.goodput:.4g} of the requests within {limits}" if plan.objective == "goodput" else limits
        heading = f"{workload.describe()}, {workload.rate:,.4g} requests/s; {asked}"
        verdicts += _verdicts(plan)
        sections += [_answer(plan), *_frontier(plan)]
    if rates is not None:
        sections.append(_rates(rates))
    if day is not None:
        sections.append(_day(day))
    if job is not None:
        verdicts.append(_job_verdict(job))
        sections.append(_job(job))
    if launches:
        sections.append(_launches(launches))
    if plan is not None:
        sections += _others(plan)
    page.write(path, title=f"Plan for {title}", heading=heading, verdicts=verdicts, sections=sections)


def _verdicts(plan: "Plan") -> list[Verdict]:
    if plan.best is None:
        said = plan.unreachable
        assert said is not None
        nearest = ""
        if said.deployment is not None and said.nearest is not None:
            value = f"{said.nearest:.2%}" if plan.objective == "goodput" else f"{significant(said.nearest)} s"
            nearest = f" The nearest that is reached: {value}, by {_fleet(said.deployment)}."
        return [Verdict("missed", f"{said.target}: {said.why}.{nearest}", "no deployment of the space does")]
    best = plan.best
    found = [Verdict("met", f"{_fleet(best.deployment)}; {cost(plan, best.deployment)}", "the least cost", "Answer")]
    if plan.objective == "goodput":  # single targets are not judged: their values are among the facts
        asked = f"goodput of {plan.aim.goodput:.4g}"
        return [*found, Verdict(best.answer, told("goodput", best.goodput), "simulation", asked)]
    for target, estimate, judgement, margin in zip(
        plan.targets, best.estimates, best.judgements, plan.margins, strict=True
    ):
        within = told(target, estimate) + ("" if math.isnan(margin) else f"; margin {margin:.0%}")
        found.append(Verdict(judgement, within, "simulation", str(target)))
    return found


def _answer(plan: "Plan") -> Section:
    facts = []
    if plan.best is not None:
        facts.append(Fact("Stable", "yes", f"by {plan.best.known_by}"))
        facts.append(Fact("Binding", "", plan.binding))
        if plan.objective == "goodput":
            facts += [
                Fact(plotting_plan.named(target), "", f"{told(target, found)}; limit {target}")
                for target, found in zip(plan.targets, plan.best.estimates, strict=True)
            ]
        good = told("goodput", plan.best.goodput)
        facts.append(Fact("Goodput", f"{plan.best.goodput.value or 0:.1%}", f"of requests within all limits: {good}"))
    if plan.best is not None and plan.next_best is not None:
        more = plan.next_best.deployment.cost / plan.best.deployment.cost - 1
        other = plan.next_best.deployment
        dearer = "same cost" if abs(more) < 1e-9 else f"{more:+.0%}"
        facts.append(Fact("Next best", dearer, f"{_fleet(other)}; {cost(plan, other)}"))
    share = plan.simulations / plan.space if plan.space else 0.0
    facts.append(Fact("Simulated", f"{plan.simulations:,}", f"of {counted(plan.space, 'deployment')}, {share:.1%}"))
    return Section("The answer", facts=facts, notes=plan.notices)


def _fleet(deployment: "Deployment") -> str:
    """Say what the fleet is, and how its replicas schedule."""
    return f"{deployment.fleet}: {deployment.server.policy.name}, {deployment.server.limits}"


def _frontier(plan: "Plan") -> list[Section]:
    if plotting_plan.evaluations(plan).is_empty():
        return []
    target = plan.targets[0]
    name = plotting_plan.named(target)
    none = "none has the goodput" if plan.objective == "goodput" else "none meets the targets"
    answer = none if plan.best is None else f"the answer is {plan.best.deployment.name}"
    texts = [
        f"Cost over {name} of each deployment that was simulated; {answer}.",
        f"Throughput per cost over {name} of each deployment that was simulated; {answer}.",
    ]
    charts = dict(zip(texts, plotting_plan.frontier_panels(plan), strict=True))
    line = _TARGET_LINE.format("limit of a good request" if plan.objective == "goodput" else "target")
    figure = Figure("Cost and throughput against latency", charts, [_simulated(plan, plan.evaluated)], line)
    table = _simulated(plan, plan.frontier, "What more money buys: the least latency for the cost, of those simulated.")
    return [Section("Cost and throughput against latency", tables=[table] if table.rows else [], figures=[figure])]


def _simulated(plan: "Plan", rows: "Sequence[Evaluation]", caption: str = "") -> Table:
    unit = "Money per hour" if plan.priced else "Accelerators"
    columns = (
        "Judged",
        "Deployment",
        "Replicas",
        unit,
        *(f"{plotting_plan.named(t)} (s)" for t in plan.targets),
        "Goodput",
        "Requests/s",
    )
    cells = []
    for found in sorted(rows, key=lambda one: (one.deployment.cost, one.deployment.name))[:_MOST_ROWS]:
        values = [significant(estimate.value) for estimate in found.estimates]
        good = "-" if found.goodput.value is None else f"{found.goodput.value:.1%}"
        state = "unstable" if found.verdict == "unstable" else plotting_plan.judged(plan, found)
        price = amount(found.deployment.cost)
        counts = (f"{found.deployment.replicas:,}", price)
        cells.append((state, found.deployment.family, *counts, *values, good, significant(found.throughput)))
    if len(rows) > _MOST_ROWS:
        caption += f" The first {_MOST_ROWS} of {len(rows):,}."
    return Table(columns, cells, caption.strip())


def _rates(rates: RateMap) -> Section:
    cells = [
        (row["token_budget"], row["max_batch_size"], row["text"], significant(row["above"]), row["known"])
        for row in rate_cells(rates).iter_rows(named=True)
    ]
    columns = ("Token budget", "Max batch size", "Stable at (requests/s)", "Not known above", "Known by")
    best = rates.best
    most = "" if best is None else f"; the highest at token budget {best[0]:,}, max batch size {best[1] or 'none'}"
    text = f"Heat map of the highest stable rate over token budget and max batch size{most}."
    figure = Figure(
        "What one replica carries",
        {text: rate_heat_map(rates)},
        [Table(columns, cells)],
        "Requests/s. Theorem: what is certified is all that any policy could carry, so nothing was simulated. "
        "Simulated: theorems leave a gap, which a search by simulation closes. Framed: the highest.",
    )
    return Section("What one replica carries", figures=[figure])


def _day(day: "DayPlan") -> Section:
    hours, static, price = day.accelerator_hours(), day.static_hours, day.deployment.price
    always = counted(day.deployment.replicas, "replica")
    certified = day.accelerator_hours([period.certified for period in day.periods])
    facts = [
        Fact("Follows the day", f"{hours:,.1f}", f"accelerator-hours, {day.saving:.0%} less than the static fleet"),
        Fact("Static", f"{static:,.1f}", f"accelerator-hours: {always} all the time"),
        Fact("Certificate", f"{certified:,.1f}", "accelerator-hours: with fewer no policy is stable"),
    ]
    if price != 1:
        facts.append(Fact("Cost", f"{hours * price:,.2f}", f"against {static * price:,.2f}"))
    texts = {
        "rate": "Arrival rate over the day.",
        "replicas": "Replicas over the day: following it, static, and the least that theory allows.",
        "latency": "Latency over the day with the replicas that follow it, simulated, with its target.",
    }
    charts = {texts[name]: chart for name, chart in plotting_plan.day_panels(day).items()}
    shown = [target for target in day.targets if target.metric != "tbt_s"] if day.check is not None else []
    latencies = [plotting_plan.latency_of_day(day, target) for target in shown]
    rows = []
    for place, period in enumerate(day.periods[:_MOST_ROWS]):
        counts = (f"{period.certified:,}", f"{period.replicas:,}", f"{day.deployment.replicas:,}", f"{period.rho:.2f}")
        measured = (significant(latency[place]) for latency in latencies)
        rows.append((day.profile.clock(place), significant(period.rate), *counts, *measured))
    columns = ("From", "Requests/s", "Least by theory", "Following", "Static", "Load")
    table = Table((*columns, *(f"{plotting_plan.named(target)} (s)" for target in shown)), rows)
    figure = Figure("The day", charts, [table], "", wide=True)
    said = [f"{day.profile.name}; {day.deployment.family}."]
    return Section("The day", said, facts, figures=[figure], notes=day.notices)


def _job_verdict(job: "JobPlan") -> Verdict:
    asked = f"{counted(job.requests, 'request')} by {job.deadline_s / 3600:,.4g} h"
    if job.best is None:
        return Verdict("missed", f"{asked}: {job.unreachable}", "simulation", "Offline work")
    done = f"{_fleet(job.best.deployment)}; done after {(job.best.makespan.value or 0) / 3600:,.4g} h"
    return Verdict("met", f"{asked}: {done}", "simulation", "Offline work")


def _job(job: "JobPlan") -> Section:
    rows = []
    for one in sorted(job.results, key=lambda r: (r.deployment.cost, r.makespan.value or 0.0))[:_MOST_ROWS]:
        hours = ["-" if v is None else f"{v / 3600:,.4g}" for v in (one.makespan.value, one.lower_bound_s)]
        figures = (*hours, f"{one.tokens_per_s:,.0f}", f"{one.accelerator_hours:,.4g}")
        rows.append((one.deployment.name, one.mode, *figures, one.answer))
    columns = (
        "Fleet",
        "Mode",
        "Done after (h)",
        "At least, by theory (h)",
        "Tokens/s",
        "Accelerator-hours",
        "Deadline",
    )
    tables = [Table(columns, rows)]
    if job.discarded:
        reasons: dict[str, list[str]] = {}
        for family, why in job.discarded:
            reasons.setdefault(why, []).append(family)
        left = [(f"{len(families):,}", families[0], why) for why, families in reasons.items()]
        tables.append(Table(("Left out", "Such as", "Why"), left[:_MOST_ROWS]))
    return Section("Offline work", tables=tables, notes=job.notices)


def _launches(launches: "Sequence[Launch]") -> Section:
    rows = [(one.engine, one.shell, f"{one.replicas:,}", f"{one.accelerators:,}") for one in launches]
    notes = [f"{one.engine}: {note}" for one in launches for note in one.notes]
    return Section("To start it", tables=[Table(("Engine", "Command", "Replicas", "GPUs each"), rows)], notes=notes)


def _others(plan: "Plan") -> list[Section]:
    """Say why others were left out, those with the same reason together."""
    groups: dict[tuple[str, str], list[Discarded]] = {}
    for each in plan.discarded:
        groups.setdefault((each.by, each.why), []).append(each)
    rows = []
    for (by, why), members in groups.items():
        such = f"{members[0].family}, {span(*members[0].replicas, 'replica')}"
        more = len(members) - 1
        such += f"\nand {more:,} more {'family' if more == 1 else 'families'}" if more else ""
        rows.append((by, f"{sum(each.count for each in members):,}", such, why))
    if not rows:
        return []
    rows.sort(key=lambda row: -int(row[1].replace(",", "")))
    unseen = len(rows) - _MOST_ROWS
    caption = f"The {_MOST_ROWS} most frequent reasons; {unseen:,} more." if unseen > 0 else ""
    table = Table(("By", "Deployments", "Such as", "Why"), rows[:_MOST_ROWS], caption)
    return [Section("Why not the others", tables=[table])]
