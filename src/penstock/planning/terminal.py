"""Plans as words and tables on the terminal: the answer first."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.planning.evaluate import MOST_ROWS
from penstock.planning.plan import Plan, shortfalls, told
from penstock.show.terminal import facts, make_console, print_warnings, styled
from penstock.words import amount, counted, seconds, span

if TYPE_CHECKING:
    from penstock.planning.evaluate import Evaluation
    from penstock.planning.scenario import PlanScenario
    from penstock.planning.space import Deployment, Discarded

_MOST_ROWS = 12
"""Of a table of deployments."""

_WIDE = 110
"""Columns of a terminal on which every figure has room."""


def print_plan(asked: "PlanScenario", found: Plan) -> None:
    """Print the answer, what binds it, what comes next, the frontier, and why others were left out."""
    console = make_console()
    workload = found.workload
    targets = " and ".join(str(target) for target in found.targets)
    if found.objective == "goodput":
        targets = f"{found.aim.goodput:.4g} of the requests within {targets}"
    console.print(
        f"[bold]{escape(asked.scenario.name)}[/bold]  {escape(workload.describe())}, {workload.rate:,.4g} requests/s, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens; {escape(targets)}\n",
        highlight=False,
    )
    if found.best is None:
        _print_unreachable(console, found)
    else:
        _print_best(console, found, found.best)
        _print_undecided(console, found)
    _print_frontier(console, found)
    _print_discarded(console, found)
    share = f"{found.simulations / found.space:.1%}" if found.space else "-"
    console.print(
        f"\n[dim]{found.simulations:,} of {counted(found.space, 'deployment')} simulated ({share}), each on the same "
        f"requests; intervals of {found.aim.confidence:.0%}.[/dim]",
        highlight=False,
    )
    print_warnings(console, found.notices)


def cost(found: Plan, deployment: "Deployment") -> str:
    """Say what a deployment costs: money an hour, or accelerators."""
    count = deployment.total_accelerators
    many = counted(count, "accelerator")
    return f"{deployment.cost:,.2f} per hour ({many})" if found.priced else many


def _print_best(console: Console, found: Plan, best: "Evaluation") -> None:
    deployment = best.deployment
    server = deployment.server
    console.print(f"[bold blue]{escape(deployment.fleet)}[/bold blue]", highlight=False)
    console.print(
        f"{escape(server.policy.name)}, {escape(server.limits)}; {cost(found, deployment)}\n", highlight=False
    )
    table = Table.grid(padding=(0, 2))
    for target, value, judgement, margin in zip(
        found.targets, best.estimates, best.judgements, found.margins, strict=True
    ):
        table.add_row(
            styled(judgement) if found.objective == "cost" else "",
            escape(str(target)),
            told(target, value),
            f"margin {margin:.0%}" if found.objective == "cost" and not math.isnan(margin) else "",
        )
    goodput = "met" if found.objective == "goodput" else ""
    table.add_row(
        goodput and styled(goodput), "goodput", told("goodput", best.goodput), "of requests within all limits"
    )
    console.print(table, highlight=False)
    console.print()
    rows = [("Stable", "", f"by {best.known_by}"), ("Binding", "", escape(found.binding))]
    if found.next_best is not None:
        other = found.next_best.deployment
        more = other.cost / deployment.cost - 1
        dearer = "at the same cost" if abs(more) < 1e-9 else f"{more:+.0%}"
        rows.append(("Next best", "", f"{escape(other.fleet)}, {other.server.policy.name}, {_limits(other)}: "
                     f"{cost(found, other)}, {dearer}"))  # fmt: skip
    console.print(facts(rows), highlight=False)


def _limits(deployment: "Deployment") -> str:
    server = deployment.server
    slots = "" if server.max_batch_size is None else f"/{server.max_batch_size:,}"
    return f"budget {server.token_budget:,}{slots}"


def _print_undecided(console: Console, found: Plan) -> None:
    """Say what may do, and how to find out."""
    if not found.undecided:
        return
    first, more = found.undecided[0], len(found.undecided) - 1
    values = ", ".join(
        f"{target} {told(target, value)}" for target, value in zip(found.targets, first.estimates, strict=True)
    )
    others = f", and {more:,} more" if more else ""
    kind = "undecided" if found.best is None else "cheaper, but undecided"
    console.print(
        f"\n[bold yellow]Note[/bold yellow]  {kind}: {escape(first.deployment.name)} "
        f"({cost(found, first.deployment)}): {escape(values)}{others}; {_remedy(found)}",
        highlight=False,
    )


def _remedy(found: Plan) -> str:
    """Say what would decide what is undecided."""
    if found.workload.rows is not None:
        return f"{found.workload.rows:,} requests are recorded: take a longer recording, or arrivals: poisson"
    longer = 4 * found.aim.most_requests
    return (
        f"`plan: {{most_requests: {longer}}}` tells more" if longer <= MOST_ROWS else "it is too near its limit to tell"
    )


def _print_unreachable(console: Console, found: Plan) -> None:
    said = found.unreachable
    assert said is not None
    if found.answer == "undecided":
        unknown = next(each for each in found.evaluated if each.answer == "undecided")
        why = "" if found.undecided else f", such as {unknown.deployment.name}: {unknown.known_by}"
        console.print(
            f"[bold yellow]UNDECIDED[/bold yellow]  nothing simulated is known to do{escape(why)}.", highlight=False
        )
        _print_undecided(console, found)
        return
    console.print(f"[bold red]UNREACHABLE[/bold red]  {escape(said.target)}: {escape(said.why)}.", highlight=False)
    if said.deployment is not None and said.nearest is not None:
        value = f"{said.nearest:.2%}" if found.objective == "goodput" else f"{seconds(said.nearest)} s"
        console.print(
            f"\nThe nearest that is reached is [bold]{value}[/bold], by {escape(said.deployment.name)} "
            f"({cost(found, said.deployment)}).",
            highlight=False,
        )


def _print_frontier(console: Console, found: Plan) -> None:
    """Print what more money buys; with all columns where there is room."""
    if not found.frontier:
        return
    first, wide = found.targets[0], console.width >= _WIDE
    title = f"What more buys: {first.metric[:-2]}_{first.statistic}, least for the cost among those simulated"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ["Deployment", "per hour" if found.priced else "acc.", "seconds"]
    columns += ["interval", "goodput", "req/s per acc."] if wide else ["goodput"]
    for index, column in enumerate((*columns, "")):
        table.add_column(column, justify="right" if 0 < index < len(columns) else "left", no_wrap=index > 0)
    for each in _some(found.frontier, found.best):
        value, deployment = each.estimates[0], each.deployment
        cells = [_brief(deployment), amount(deployment.cost), seconds(value.value)]
        good = "-" if each.goodput.value is None else f"{each.goodput.value:.1%}"
        if wide:
            cells.append(f"{seconds(value.low)} to {seconds(value.high)}")
        cells.append(good)
        if wide:
            cells.append(f"{each.rate / deployment.total_accelerators:,.3g}")
        table.add_row(*map(escape, cells), styled(each.answer), style="bold" if each is found.best else None)
    console.print()
    console.print(table)


def _brief(deployment: "Deployment") -> str:
    """Say what a deployment is in as few words as tell it from others."""
    server = deployment.server
    slots = "" if server.max_batch_size is None else f"/{server.max_batch_size:,}"
    parts = [
        f"{deployment.replicas} x {deployment.hardware or 'server'} {server.policy.name} {server.token_budget:,}{slots}"
    ]
    parts += [deployment.router] if deployment.router != "random" else []
    parts += [f"{deployment.ratio[0]}:{deployment.ratio[1]}"] if deployment.ratio else []
    return " ".join(parts)


def _some(rows: "Sequence[Evaluation]", best: "Evaluation | None") -> "list[Evaluation]":
    """Return at most so many rows, about the best."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    place = next((index for index, row in enumerate(rows) if row is best), len(rows) - 1)
    first = min(max(place - _MOST_ROWS // 2, 0), len(rows) - _MOST_ROWS)
    return list(rows[first : first + _MOST_ROWS])


_SHORT = {
    "theory": "theory",
    "simulation": "simulation: more replicas of the same do not do, or are not known to",
    "cost": "cost: dearer than the answer",
    "unsuited": "the policy is out of place there",
    "impossible": "cannot be deployed or judged",
}


def _print_discarded(console: Console, found: Plan) -> None:
    """Print why others were left out, in groups with an example each."""
    if not found.discarded:
        return
    console.print("\n[bold]Why not the others[/bold]")
    groups: dict[str, list[Discarded]] = {}
    for each in found.discarded:
        groups.setdefault(each.by, []).append(each)
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    simulated = [e for e in found.evaluated if e.answer != "met"]
    for by, members in groups.items():
        example = max(members, key=lambda each: each.count)
        said = f"{_SHORT[by]}; such as {span(*example.replicas, 'replica')} of {example.family}: {example.why}"
        table.add_row(f"{sum(each.count for each in members):,}", escape(said))
    for answer, words in (("missed", "simulated and not enough"), ("undecided", "simulated and undecided")):
        of = [each for each in simulated if each.answer == answer]
        if of:
            near = min(of, key=lambda each: each.deployment.cost)
            said = f"{words}; such as {near.deployment.name}: {'; '.join(shortfalls(near, found.aim))}"
            table.add_row(f"{len(of):,}", escape(said))
    more = sum(e.answer == "met" and e is not found.best for e in found.evaluated)
    if more:
        table.add_row(f"{more:,}", "simulated, and do, but cost more or are slower at the same cost")
    console.print(table, highlight=False)
