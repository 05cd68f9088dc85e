"""Days and jobs as sections of a page."""

import math
from collections.abc import Callable, Sequence

from penstock.planning.day import DayPlan, Period
from penstock.planning.deployment import Deployment
from penstock.planning.figures import day_figure
from penstock.planning.job import JobPlan
from penstock.planning.job_run import JobResult
from penstock.planning.rates import HOUR_S, clock
from penstock.show.page import Fact, Line, Section, Table
from penstock.words import amount, counted, seconds, span, span_of_time

_MOST_INTERVALS = 30
_MOST_CHANGES = 12
_MOST_FLEETS = 30


def day_line(day: DayPlan) -> Line:
    """Say how many replicas follow the day, and what that saves."""
    saved = f"{abs(day.saving):.0%} {'fewer' if day.saving >= 0 else 'more'}"
    missed = sum(not period.met for period in day.periods)
    but = f"; targets are missed in {counted(missed, 'interval')}" if missed else ""
    always = counted(day.deployment.replicas, "replica")
    text = f"{_replicas(day)}: {saved} accelerator-hours than {always} all the time{but}."
    return Line("Over the day", text)


def _replicas(day: DayPlan) -> str:
    counts = [period.replicas for period in day.periods]
    return span(min(counts), max(counts), "replica")


def day_section(day: DayPlan) -> Section:
    """Show what following the day saves, the replicas by interval, and what to know."""
    rates = f"{amount(float(day.profile.rates.min()))} to {amount(day.profile.peak)} requests/s"
    every = -(-len(day.periods) // _MOST_INTERVALS)

    asked = f"{day.profile.name}, {rates}; {' and '.join(map(str, day.targets))}."
    return Section(
        "Over the day",
        [asked, f"{_replicas(day)} of {day.deployment.family}."],
        facts=_day_facts(day),
        tables=[_day_table(day, every)],
        figures=lambda: [day_figure(day, [] if every == 1 else [_day_table(day, 1)])],
        notes=day.notices,
        why=True,
    )


def _day_facts(day: DayPlan) -> list[Fact]:
    hours, static, certified = day.hours.values()
    price = day.deployment.kind.price
    span_h = day.profile.span_s / HOUR_S
    lasts = f"{span_h:,.4g} hour{'' if span_h == 1 else 's'}"
    saved = f"{abs(day.saving):.0%} {'less' if day.saving >= 0 else 'more'}"
    always = counted(day.deployment.replicas, "replica")
    facts = [
        Fact("Follows the day", f"{hours:,.1f}", f"accelerator-hours in {lasts}, {saved}"),
        Fact("Static", f"{static:,.1f}", f"{always} all the time, as the peak needs"),
    ]
    if price != 1:
        against = f"against {static * price:,.2f}; {price:,.4g} per accelerator-hour"
        facts.append(Fact("Cost", f"{hours * price:,.2f}", against))
    facts.append(Fact("Certificate", f"{certified:,.1f}", "with fewer no policy is stable"))
    if day.startup_s:
        changes = [f"{count:,} from {clock(start)}" for start, count in day.schedule]
        more = " ..." if len(changes) > _MOST_CHANGES else ""
        facts.append(Fact("To ask for", "", f"{', '.join(changes[:_MOST_CHANGES])}{more}"))
    return facts


def _day_table(day: DayPlan, every: int) -> Table:
    """Lay out an interval of so many."""
    cells: dict[str, Callable[[Period], str]] = {
        "From": lambda period: clock(period.start_s),
        "Req/s": lambda period: amount(period.rate),
        "Certificate": lambda period: f"{period.certified:,}",
        "Replicas": lambda period: f"{period.replicas:,}",
        "Load": lambda period: f"{period.rho:.2f}",
        "Settles": lambda period: span_of_time(period.settles_s),
    }
    caption = [] if every == 1 else [f"One interval of {every:,}."]
    if (check := day.check) is not None:
        usual = [("ttft_s", "p50"), ("ttft_s", "p99"), ("e2e_s", "p50")]
        limited = [(target.metric, target.statistic) for target in day.targets]
        of_period = dict(zip(day.periods, check.latency, strict=True))
        for metric, statistic in dict.fromkeys([*usual, *limited]):

            def value(period: Period, name: str = metric, of: str = statistic) -> str:
                return seconds(of_period[period].get(name, {}).get(of))

            if any(value(period) != "-" for period in day.periods[::every]):
                cells[f"{metric[:-2].upper()} {statistic}"] = value
        caption.append(
            f"Latency in seconds of {counted(check.requests, 'request')} in "
            f"{counted(check.days, 'simulated day')}, on one replica; time between tokens p99 "
            f"{seconds(check.tbt_s.get('p99'))} s. "
            f"{counted(len(day.evaluations), 'evaluation')} simulated, the rest follows."
        )
    if not all(period.met for period in day.periods):
        cells["Targets"] = lambda period: "met" if period.met else "missed"
    spare = ("E2E p50", "Settles", "TTFT p50", "Load", "Certificate")
    return Table.of(
        cells,
        day.periods[::every],
        caption=" ".join(caption),
        spare=[name for name in spare if name in cells],
    )


def fleet_line(fleet: Deployment, cost: str = "") -> str:
    """Say how many replicas of what, for how much, then how each is run."""
    cost = cost or counted(fleet.total_accelerators, "accelerator")
    return f"{fleet.fleet}: {cost}; {fleet.server.policy.name}, {fleet.limits}."


def job_line(job: JobPlan) -> Line:
    """Say which fleet does offline work in time, or why none does."""
    if job.best is None:
        return Line("unreachable", f"Offline work: {job.unreachable}.", judges=True)
    return Line("met", f"Offline work takes {fleet_line(job.best.deployment)}", judges=True)


def job_section(job: JobPlan, others: Sequence[Table]) -> Section:
    """Show the fleet for a job, what bounds it, and what else was tried."""
    beside = ""
    if job.job.online_rate is not None:
        limits = " and ".join(map(str, job.job.targets))
        beside = f" beside {amount(job.job.online_rate)} online requests/s with {limits}"
    paragraphs = [
        f"{counted(job.job.requests, 'request')} by {span_of_time(job.job.deadline_s)}{beside}."
    ]
    facts = [] if job.nearest is None else _job_facts(job, job.nearest)
    if job.best is None and job.nearest is not None:
        paragraphs.append(f"The nearest is {fleet_line(job.nearest.deployment)}")
    tables = [*([_fleets(job)] if len(job.results) > 1 else []), *others]
    return Section(
        "Offline work", paragraphs, facts=facts, tables=tables, notes=job.notices, why=True
    )


def _job_facts(job: JobPlan, result: JobResult) -> list[Fact]:
    low, high = result.makespan.low or 0.0, result.makespan.high or math.inf
    margin = "" if job.margin is None else f", {job.margin:.0%} of the time left"
    within = f"{span_of_time(low)} to {span_of_time(high)}{margin}"
    left_out = ", online traffic left out" if job.job.targets else ""
    least = f"by theory, {result.tightness:.1%} of it{left_out}"
    hours = amount(result.accelerator_hours)
    facts = [
        Fact("Done after", span_of_time(result.seconds), within),
        Fact("At least", span_of_time(result.lower_bound_s), least),
        Fact("Tokens", f"{result.tokens_per_s:,.0f}", "of the job per second, all replicas"),
        Fact("Accelerators", hours, "accelerator-hours until it is done"),
    ]
    if result.deployment.kind.price != 1:
        facts.append(Fact("Cost", f"{result.cost:,.2f}", "until it is done"))
    for target, estimate in zip(job.job.targets, result.online, strict=True):
        within = f"{seconds(estimate.low)} to {seconds(estimate.high)} s: {target.judge(estimate)}"
        if estimate.value is None:
            within = "no online request came while the job lasted"
        facts.append(Fact(str(target), seconds(estimate.value), within))
    return facts


def _fleets(job: JobPlan) -> Table:
    """Lay out the fleets that were simulated."""
    by_cost = sorted(job.results, key=lambda result: (result.deployment.cost, result.seconds))[
        :_MOST_FLEETS
    ]
    cells: dict[str, Callable[[JobResult], str]] = {
        "Fleet": lambda result: (
            result.deployment.brief + ("" if result.mode == "alone" else f", {result.mode}")
        ),
        "Acc.": lambda result: f"{result.deployment.total_accelerators:,}",
        "Done after": lambda result: span_of_time(result.seconds),
        "At least": lambda result: span_of_time(result.lower_bound_s),
        "Tokens/s": lambda result: f"{result.tokens_per_s:,.0f}",
        "Acc.-hours": lambda result: amount(result.accelerator_hours),
        "Judged": lambda result: result.answer,
    }
    strong = [index for index, result in enumerate(by_cost) if result is job.best]
    spare = ("Acc.-hours", "At least")
    return Table.of(cells, by_cost, title="Fleets simulated", strong=strong, spare=spare)
