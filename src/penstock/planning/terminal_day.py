"""Days, jobs and command lines on the terminal."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from penstock.planning.day import DayPlan
from penstock.planning.job import JobPlan
from penstock.planning.job_run import JobResult
from penstock.planning.launch import Launch
from penstock.planning.rates import DAY_S
from penstock.show.terminal import facts, make_console, print_warnings, styled
from penstock.words import amount, counted, seconds, span

_MOST_ROWS = 30
"""Of a table of a day."""


def print_day(found: DayPlan) -> None:
    """Print what following the day saves, the replicas by interval, and what to know."""
    console = make_console()
    fewest, most = (f(period.replicas for period in found.periods) for f in (min, max))
    profile, deployment = found.profile, found.deployment
    targets = " and ".join(map(str, found.targets))
    rates = f"{amount(float(profile.rates.min()))} to {amount(profile.peak)} requests/s"
    console.print(
        f"[bold]Over the day[/bold]  {escape(profile.name)}, {rates}; {escape(targets)}\n\n"
        f"[bold blue]{span(fewest, most, 'replica')}[/bold blue] of {escape(deployment.family)}\n",
        highlight=False,
    )
    hours = found.accelerator_hours()
    certified = found.accelerator_hours([period.certified for period in found.periods])
    lasts = "a day" if math.isclose(profile.span_s, DAY_S) else _hours(profile.span_s)
    saved = f"{abs(found.saving):.0%} {'less' if found.saving >= 0 else 'more'}"
    static = counted(deployment.replicas, "replica")
    rows = [
        ("Follows the day", f"{hours:,.1f}", f"accelerator-hours in {lasts}, {saved}"),
        ("Static", f"{found.static_hours:,.1f}", f"{static} all the time, as the peak needs"),
        ("Certificate", f"{certified:,.1f}", "with fewer no policy is stable"),
    ]
    if deployment.price != 1:
        cost = f"against {found.static_hours * deployment.price:,.2f}; {deployment.price:,.4g} per accelerator-hour"
        rows.insert(2, ("Cost", f"{hours * deployment.price:,.2f}", cost))
    console.print(facts(rows), highlight=False)
    console.print()
    console.print(_day_table(found, console))
    if found.check is not None:
        gaps, simulated = found.check.gaps, counted(found.check.days, "simulated day")
        requests = counted(found.check.requests, "request")
        console.print(
            f"\n[dim]Latency of {requests} in {simulated}, on one replica; time between tokens p99 "
            f"{seconds(gaps.get('p99'))} s. {counted(len(found.evaluations), 'evaluation')} simulated, the "
            "rest follows.[/dim]",
            highlight=False,
        )
    if found.startup_s:
        changes = ", ".join(f"{n:,} from {_clock(start)}" for start, n in found.schedule[:12])
        more = " ..." if len(found.schedule) > 12 else ""
        console.print(f"\n[bold]To ask for[/bold]  {changes}{more}", highlight=False)
    print_warnings(console, found.notices)


def _clock(start_s: float) -> str:
    return f"{int(start_s // 3600):02d}:{int(start_s % 3600 // 60):02d}"


def _hours(span_s: float) -> str:
    hours = round(span_s / 3600, 4)
    return counted(int(hours), "hour") if hours == int(hours) else f"{hours:,.4g} hours"


def print_no_day(why: str) -> None:
    """Say that no day was planned, and why."""
    make_console().print(f"[bold]Over the day[/bold]  {escape(why)}", highlight=False)


_SPARED = ("E2E p50", "settles", "TTFT p50", "load", "certificate")
"""Columns of a day that go first where the terminal is narrow."""


def _day_table(found: DayPlan, console: Console) -> Table:
    """Return the replicas by interval, with the columns that have room."""
    spared: list[str] = []
    wide = console.options.update(max_width=10_000)
    while True:
        table = _with_columns(found, spared)
        if len(spared) == len(_SPARED) or Measurement.get(console, wide, table).maximum <= console.width:
            return table
        spared.append(_SPARED[len(spared)])


def _with_columns(found: DayPlan, spared: Sequence[str]) -> Table:
    rows = [_cells(found, place) for place in range(0, len(found.periods), -(-len(found.periods) // _MOST_ROWS))]
    names = [name for name in rows[0] if name not in spared]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        heading = "TTFT p99" if name == "p99" and "TTFT p50" not in names else name
        table.add_column(heading, justify="right" if name else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _cells(found: DayPlan, place: int) -> dict[str, str]:
    """Return what is known of an interval, by column."""
    period = found.periods[place]
    cells = {
        "from": found.profile.clock(place),
        "req/s": amount(period.rate),
        "certificate": f"{period.certified:,}",
        "replicas": f"{period.replicas:,}",
        "load": f"{period.rho:.2f}",
        "settles": f"{seconds(period.settles_s)} s" if math.isfinite(period.settles_s) else "never",
    }
    if found.check:
        of = found.check.latency[place]
        cells["TTFT p50"], cells["p99"] = (seconds(of["ttft_s"].get(name)) for name in ("p50", "p99"))
        cells["E2E p50"] = seconds(of["e2e_s"].get("p50"))
    return cells | {"": "" if period.met else styled("missed")}


def print_job(found: JobPlan) -> None:
    """Print the fleet for a job, what bounds it, and what else was tried."""
    console = make_console()
    beside = ""
    if found.online_rate is not None:
        beside = f" beside {amount(found.online_rate)} online requests/s with {' and '.join(map(str, found.targets))}"
    asked = f"{counted(found.requests, 'request')} by {_long(found.deadline_s)}"
    console.print(
        f"[bold]Offline work[/bold]  {asked}{escape(beside)}\n",
        highlight=False,
    )
    if found.unreachable:
        end = "" if found.nearest is None else "\n"
        console.print(f"[bold red]UNREACHABLE[/bold red]  {escape(found.unreachable)}{end}", highlight=False)
    if found.nearest is not None:
        _print_result(console, found, found.nearest)
    if len(found.results) > 1:
        console.print()
        console.print(_job_table(found))
    if found.discarded:
        console.print("\n[bold]Why not the others[/bold]")
        table = Table.grid(padding=(0, 2))
        for family, why in found.discarded[:_MOST_ROWS]:
            table.add_row(escape(family), escape(why))
        console.print(table, highlight=False)
    print_warnings(console, found.notices)


def _print_result(console: Console, found: JobPlan, result: JobResult) -> None:
    word = "" if found.best else "nearest: "
    deployment = result.deployment
    console.print(f"{word}[bold blue]{escape(deployment.fleet)}[/bold blue]", highlight=False)
    many = counted(deployment.total_accelerators, "accelerator")
    console.print(
        f"{escape(deployment.server.policy.name)}, {escape(deployment.server.limits)}; {many}\n", highlight=False
    )
    lasts = result.makespan
    aside = ", online traffic left out" if found.targets else ""
    margin = "" if found.margin is None else f", {found.margin:.0%} of the time left"
    rows = [
        ("Done after", _long(lasts.value), f"{_long(lasts.low)} to {_long(lasts.high)}{margin}"),
        ("At least", _long(result.lower_bound_s), f"by theory, {result.tightness:.1%} of it{aside}"),
        ("Tokens", f"{result.tokens_per_s:,.0f}", "of the job per second, all replicas"),
        ("Accelerators", amount(result.accelerator_hours), "accelerator-hours until it is done"),
    ]
    if result.deployment.price != 1:
        rows.append(("Cost", f"{result.accelerator_hours * result.deployment.price:,.2f}", "until it is done"))
    if result.mode != "alone":
        rows.append(("Mode", result.mode, "online first" if result.mode == "priority" else "let in evenly"))
    for target, estimate in zip(found.targets, result.online, strict=True):
        between = f"{seconds(estimate.low)} to {seconds(estimate.high)} s: {styled(target.judge(estimate))}"
        untested = "no online request came while the job lasted"
        rows.append((escape(str(target)), seconds(estimate.value), untested if estimate.value is None else between))
    console.print(facts(rows), highlight=False)


def _job_table(found: JobPlan) -> Table:
    title = "Fleets simulated"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ("Fleet", "budget", "acc.", "done after", "tokens/s", "")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if 0 < place < len(columns) - 1 else "left", no_wrap=place > 0)
    for result in sorted(found.results, key=lambda one: (one.deployment.cost, one.makespan.value or 0))[:_MOST_ROWS]:
        deployment = result.deployment
        name = f"{deployment.replicas:,} x {deployment.hardware or 'server'}"
        table.add_row(
            escape(name if result.mode == "alone" else f"{name}, {result.mode}"),
            f"{deployment.server.token_budget:,}", f"{deployment.total_accelerators:,}", _long(result.makespan.value),
            f"{result.tokens_per_s:,.0f}", styled(result.answer), style="bold" if result is found.best else None,
        )  # fmt: skip
    return table


def _long(value: float | None) -> str:
    """Return seconds, as hours where they are many."""
    if value is None:
        return "-"
    return f"{value / 3600:,.2f} h" if value >= 7200 else f"{seconds(value)} s"


def print_launch(found: Launch) -> None:
    """Print the command line of one replica, and what to know before it is started."""
    console = make_console()
    times = "" if found.replicas == 1 else f", {found.replicas:,} times"
    console.print(f"[bold]To start[/bold]  on {found.accelerators:,} GPU each{times}\n", highlight=False)
    console.print(found.shell, highlight=False, markup=False, soft_wrap=True)
    print_warnings(console, found.notes)
