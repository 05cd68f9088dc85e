"""Days, jobs and command lines as sections of a page."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.planning.rates import HOUR_S, clock
from penstock.show.page import Fact, Figure, Line, Section, Table
from penstock.words import amount, counted, seconds, sentence, span, span_of_time

if TYPE_CHECKING:
    from penstock.planning.day import DayPlan
    from penstock.planning.job import JobPlan
    from penstock.planning.job_run import JobResult
    from penstock.planning.launch import Launch
    from penstock.planning.space import Discarded

_MOST_INTERVALS = 30
_MOST_CHANGES = 12
_MOST_FLEETS = 30
_MOST_REASONS = 60


def day_section(day: "DayPlan") -> Section:
    """Show what following the day saves, the replicas by interval, and what to know."""
    counts = [period.replicas for period in day.periods]
    profile = day.profile
    rates = f"{amount(float(profile.rates.min()))} to {amount(profile.peak)} requests/s"
    every = -(-len(counts) // _MOST_INTERVALS)

    def figures() -> list[Figure]:
        from penstock.planning.charts import day_figure

        return [day_figure(day, [] if every == 1 else [_day_table(day, 1)])]

    return Section(
        "Over the day",
        [
            f"{profile.name}, {rates}; {' and '.join(map(str, day.targets))}.",
            f"{span(min(counts), max(counts), 'replica')} of {day.deployment.family}.",
        ],
        facts=_day_facts(day),
        tables=[_day_table(day, every)],
        figures=figures,
        notes=day.notices,
        why=True,
    )


def day_in_short(day: "DayPlan") -> str:
    """Say how many replicas follow the day, and what that saves."""
    counts = [period.replicas for period in day.periods]
    saved = f"{abs(day.saving):.0%} {'fewer' if day.saving >= 0 else 'more'}"
    missed = sum(not period.met for period in day.periods)
    but = f"; targets are missed in {counted(missed, 'interval')}" if missed else ""
    return (
        f"{span(min(counts), max(counts), 'replica')}: {saved} accelerator-hours than "
        f"{counted(day.deployment.replicas, 'replica')} all the time{but}."
    )


def _day_facts(day: "DayPlan") -> list[Fact]:
    hours, static, price = day.accelerator_hours(), day.static_hours, day.deployment.kind.price
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
    least = f"{day.certified_hours:,.1f}"
    facts.append(Fact("Certificate", least, "with fewer no policy is stable"))
    if day.startup_s:
        changes = [f"{count:,} from {clock(start)}" for start, count in day.schedule]
        more = " ..." if len(changes) > _MOST_CHANGES else ""
        facts.append(Fact("To ask for", "", f"{', '.join(changes[:_MOST_CHANGES])}{more}"))
    return facts


def _day_table(day: "DayPlan", every: int) -> Table:
    """Lay out an interval of so many."""
    periods = day.periods[::every]
    columns = {
        "From": [clock(period.start_s) for period in periods],
        "Req/s": [amount(period.rate) for period in periods],
        "Certificate": [f"{period.certified:,}" for period in periods],
        "Replicas": [f"{period.replicas:,}" for period in periods],
        "Load": [f"{period.rho:.2f}" for period in periods],
        "Settles": [span_of_time(period.settles_s) for period in periods],
    }
    limited = [(target.metric, target.statistic) for target in day.targets]
    usual = [("ttft_s", "p50"), ("ttft_s", "p99"), ("e2e_s", "p50")]
    caption = [] if every == 1 else [f"One interval of {every:,}."]
    if day.check is not None:
        for metric, statistic in dict.fromkeys([*usual, *limited]):
            values = [of.get(metric, {}).get(statistic) for of in day.check.latency[::every]]
            if any(value is not None for value in values):
                columns[f"{metric[:-2].upper()} {statistic}"] = [seconds(one) for one in values]
        caption.append(
            f"Latency in seconds of {counted(day.check.requests, 'request')} in "
            f"{counted(day.check.days, 'simulated day')}, on one replica; time between tokens p99 "
            f"{seconds(day.check.gaps.get('p99'))} s. "
            f"{counted(len(day.evaluations), 'evaluation')} simulated, the rest follows."
        )
    if not all(period.met for period in day.periods):
        columns["Targets"] = ["met" if period.met else "missed" for period in periods]
    spare = ("E2E p50", "Settles", "TTFT p50", "Load", "Certificate")
    rows = list(zip(*columns.values(), strict=True))
    return Table(
        list(columns), rows, " ".join(caption), spare=[name for name in spare if name in columns]
    )


def job_line(job: "JobPlan") -> Line:
    """Say which fleet does offline work in time, or why none does."""
    if job.best is None:
        return Line("unreachable", f"Offline work: {job.unreachable}.", judges=True)
    return Line("met", f"Offline work: {_fleet(job.best)}.", judges=True)


def _fleet(result: "JobResult") -> str:
    deployment = result.deployment
    accelerators = counted(deployment.total_accelerators, "accelerator")
    return (
        f"{deployment.fleet}, {deployment.server.policy.name}, {deployment.server.limits}; "
        f"{accelerators}"
    )


def job_section(job: "JobPlan") -> Section:
    """Show the fleet for a job, what bounds it, and what else was tried."""
    beside = ""
    if job.online_rate is not None:
        limits = " and ".join(map(str, job.targets))
        beside = f" beside {amount(job.online_rate)} online requests/s with {limits}"
    paragraphs = [f"{counted(job.requests, 'request')} by {span_of_time(job.deadline_s)}{beside}."]
    facts, tables = [], []
    if job.nearest is not None:
        facts = _job_facts(job, job.nearest)
        if job.best is None:
            paragraphs.append(f"The nearest is {_fleet(job.nearest)}.")
    if len(job.results) > 1:
        tables.append(_fleets_table(job))
    if job.discarded:
        tables.append(reasons(job.discarded))
    return Section(
        "Offline work", paragraphs, facts=facts, tables=tables, notes=job.notices, why=True
    )


def _job_facts(job: "JobPlan", result: "JobResult") -> list[Fact]:
    low, high = result.makespan.low or 0.0, result.makespan.high or math.inf
    within = f"{span_of_time(low)} to {span_of_time(high)}"
    margin = "" if job.margin is None else f", {job.margin:.0%} of the time left"
    left_out = ", online traffic left out" if job.targets else ""
    facts = [
        Fact("Done after", span_of_time(result.seconds), f"{within}{margin}"),
        Fact(
            "At least",
            span_of_time(result.lower_bound_s),
            f"by theory, {result.tightness:.1%} of it{left_out}",
        ),
        Fact("Tokens", f"{result.tokens_per_s:,.0f}", "of the job per second, all replicas"),
        Fact(
            "Accelerators", amount(result.accelerator_hours), "accelerator-hours until it is done"
        ),
    ]
    if result.deployment.kind.price != 1:
        facts.append(Fact("Cost", f"{result.cost:,.2f}", "until it is done"))
    for target, estimate in zip(job.targets, result.online, strict=True):
        within = f"{seconds(estimate.low)} to {seconds(estimate.high)} s: {target.judge(estimate)}"
        if estimate.value is None:
            within = "no online request came while the job lasted"
        facts.append(Fact(str(target), seconds(estimate.value), within))
    return facts


def _fleets_table(job: "JobPlan") -> Table:
    """Lay out the fleets that were simulated."""
    by_cost = sorted(job.results, key=lambda one: (one.deployment.cost, one.seconds))[:_MOST_FLEETS]
    rows = [
        (
            result.deployment.brief + ("" if result.mode == "alone" else f", {result.mode}"),
            f"{result.deployment.total_accelerators:,}",
            span_of_time(result.seconds),
            span_of_time(result.lower_bound_s),
            f"{result.tokens_per_s:,.0f}",
            amount(result.accelerator_hours),
            result.answer,
        )
        for result in by_cost
    ]
    strong = [index for index, result in enumerate(by_cost) if result is job.best]
    columns = ("Fleet", "Acc.", "Done after", "At least", "Tokens/s", "Acc.-hours", "Judged")
    return Table(
        columns, rows, title="Fleets simulated", strong=strong, spare=("Acc.-hours", "At least")
    )


def reasons(discarded: "Sequence[Discarded]") -> Table:
    """Lay out every reason, the most frequent first."""
    by_reason: dict[tuple[str, str], list[Discarded]] = {}
    for one in discarded:
        by_reason.setdefault((one.by, one.why), []).append(one)
    counts = {reason: sum(one.count for one in group) for reason, group in by_reason.items()}
    rows = []
    for by, reason in sorted(counts, key=lambda key: -counts[key])[:_MOST_REASONS]:
        first, *others = by_reason[by, reason]
        such = f"{first.family}, {span(*first.replicas, 'replica')}"
        if others:
            families = "family" if len(others) == 1 else "families"
            such += f"\nand {len(others):,} more {families}"
        rows.append((by, f"{counts[by, reason]:,}", such, reason))
    unseen = len(counts) - len(rows)
    caption = f"The {len(rows)} most frequent reasons; {unseen:,} more." if unseen else ""
    columns = ("By", "Deployments", "Such as", "Why")
    return Table(columns, rows, caption, title="Every reason", detail=True)


def launch_section(launch: "Launch") -> Section:
    """Show the command line of one replica, after what to know before it is started."""
    each = "" if launch.replicas == 1 else ", each"
    where = f"{counted(launch.replicas, 'replica')}{each} on {counted(launch.accelerators, 'GPU')}."
    paragraphs = [where, *map(sentence, launch.notes)]
    return Section("To start", paragraphs, commands=[launch.shell], why=True)
