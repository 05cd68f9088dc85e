"""Days, jobs and command lines on the terminal."""

import math

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.planning.day import DayPlan
from penstock.planning.job import JobPlan
from penstock.planning.job_run import JobResult
from penstock.planning.launch import Launch
from penstock.terminal import facts, print_warnings, seconds, styled
from penstock.words import counted

_MOST_ROWS = 30
"""Of a table of a day."""


def print_day(found: DayPlan) -> None:
    """Print what following the day saves, the replicas by interval, and what to know."""
    console = Console()
    fewest, most = (f(period.replicas for period in found.periods) for f in (min, max))
    profile, deployment = found.profile, found.deployment
    targets = " and ".join(map(str, found.targets))
    console.print(
        f"[bold]Over the day[/bold]  {escape(profile.name)}, {profile.rates.min():,.4g} to {profile.peak:,.4g} "
        f"requests/s; {escape(targets)}\n\n[bold blue]{fewest:,} to {most:,} replicas[/bold blue] of "
        f"{escape(deployment.family)}\n",
        highlight=False,
    )
    hours = found.accelerator_hours()
    certified = found.accelerator_hours([period.certified for period in found.periods])
    days = profile.span_s / 86_400
    span = "a day" if math.isclose(days, 1) else f"{profile.span_s / 3600:,.4g} hours"
    rows = [
        ("Follows the day", f"{hours:,.1f}", f"accelerator-hours in {span}, {found.saving:.0%} less"),
        ("Static", f"{found.static_hours:,.1f}", f"{most:,} replicas all the time, as the peak needs"),
        ("Certificate", f"{certified:,.1f}", "with fewer no policy is stable"),
    ]
    if deployment.price != 1:
        cost = f"against {found.static_hours * deployment.price:,.2f}; {deployment.price:,.4g} per accelerator-hour"
        rows.insert(2, ("Cost", f"{hours * deployment.price:,.2f}", cost))
    console.print(facts(rows), highlight=False)
    console.print()
    console.print(_day_table(found))
    if found.check is not None:
        gaps, simulated = found.check.gaps, counted(found.check.days, "simulated day")
        console.print(
            f"\n[dim]Latency of {found.check.requests:,} requests in {simulated}, on one replica; time between tokens "
            f"p99 {seconds(gaps.get('p99'))} s. {len(found.evaluations):,} deployments were simulated, the rest "
            "follows.[/dim]",
            highlight=False,
        )
    if found.startup_s:
        changes = ", ".join(f"{n:,} from {_clock(start)}" for start, n in found.schedule[:12])
        more = " ..." if len(found.schedule) > 12 else ""
        console.print(f"\n[bold]To ask for[/bold]  {changes}{more}", highlight=False)
    print_warnings(console, found.notices)


def _clock(start_s: float) -> str:
    return f"{int(start_s // 3600):02d}:{int(start_s % 3600 // 60):02d}"


def _day_table(found: DayPlan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ["from", "req/s", "certificate", "replicas", "load", "settles"]
    columns += ["TTFT p50", "p99", "E2E p50"] if found.check else []
    for column in (*columns, ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    every = -(-len(found.periods) // _MOST_ROWS)
    for place, period in list(enumerate(found.periods))[::every]:
        cells = [
            found.profile.clock(place), f"{period.rate:,.4g}", f"{period.certified:,}", f"{period.replicas:,}",
            f"{period.rho:.2f}", f"{seconds(period.settles_s)} s",
        ]  # fmt: skip
        if found.check:
            of = found.check.latency[place]
            cells += [
                seconds(of["ttft_s"].get("p50")),
                seconds(of["ttft_s"].get("p99")),
                seconds(of["e2e_s"].get("p50")),
            ]
        table.add_row(*cells, "" if period.met else styled("missed"))
    return table


def print_job(found: JobPlan) -> None:
    """Print the fleet for a job, what bounds it, and what else was tried."""
    console = Console()
    beside = f" beside online traffic with {' and '.join(map(str, found.targets))}" if found.targets else ""
    console.print(
        f"[bold]Offline work[/bold]  {found.requests:,} requests by {_long(found.deadline_s)}{escape(beside)}\n",
        highlight=False,
    )
    shown = found.best or found.nearest
    if shown is None:
        console.print("[bold red]UNREACHABLE[/bold red]", highlight=False)
    else:
        _print_result(console, found, shown)
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
    word = "" if found.best else "[bold red]UNREACHABLE[/bold red]  nearest: "
    console.print(f"{word}[bold blue]{escape(result.deployment.name)}[/bold blue]\n", highlight=False)
    span = result.makespan
    aside = ", online traffic left out" if found.targets else ""
    margin = "" if found.margin is None else f", {found.margin:.0%} of the time left"
    rows = [
        ("Done after", _long(span.value), f"{_long(span.low)} to {_long(span.high)}{margin}"),
        ("At least", _long(result.lower_bound_s), f"by theory, {result.tightness:.1%} of it{aside}"),
        ("Tokens", f"{result.tokens_per_s:,.0f}", "of the job per second, all replicas"),
        ("Accelerators", f"{result.accelerator_hours:,.1f}", "accelerator-hours until it is done"),
    ]
    if result.deployment.price != 1:
        rows.append(("Cost", f"{result.accelerator_hours * result.deployment.price:,.2f}", "until it is done"))
    if result.mode != "alone":
        rows.append(("Mode", result.mode, "online first" if result.mode == "priority" else "let in evenly"))
    for target, estimate in zip(found.targets, result.online, strict=True):
        rows.append((escape(str(target)), seconds(estimate.value), f"{seconds(estimate.low)} to "
                     f"{seconds(estimate.high)} s: {styled(target.judge(estimate))}"))  # fmt: skip
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
    console = Console()
    times = "" if found.replicas == 1 else f", {found.replicas:,} times"
    console.print(f"[bold]To start[/bold]  on {found.accelerators:,} GPU each{times}\n", highlight=False)
    console.print(found.shell, highlight=False, markup=False, soft_wrap=True)
    print_warnings(console, found.notes)
