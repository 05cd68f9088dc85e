"""Answers as words and tables on the terminal, at any width."""

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from penstock.analysis.answer import Answer
    from penstock.run import Run
    from penstock.scenario import Scenario
    from penstock.system.server import Server
    from penstock.theory.certificate import Certificate
    from penstock.theory.load import Load

COLOUR_OF_VERDICT = {"stable": "bold blue", "unstable": "bold red", "critical": "bold red", "unknown": "bold yellow"}


def print_run(scenario: "Scenario", load: "Load", run: "Run", warnings: list[str]) -> None:
    """Print what happened in one run."""
    console = Console()
    _print_heading(console, scenario, scenario.server.policy.name)
    _print_load(console, load, scenario.server)
    _print_run(console, run)
    _print_latency(console, run, "Latency in this run (s)")
    _print_warnings(console, warnings)


def _print_heading(console: Console, scenario: "Scenario", policies: str) -> None:
    workload, server = scenario.workload, scenario.server
    size = (
        "no max batch size"
        if server.max_batch_size is None
        else f"max batch size {server.max_batch_size:,} ({server.scope})"
    )
    console.print(
        f"[bold]{escape(scenario.name)}[/bold]  {escape(workload.describe())}, {workload.rate:,.4g} requests/s, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens; "
        f"{escape(policies)}, token budget {server.token_budget:,}, {size}",
        highlight=False,
    )
    console.print()


def _print_verdict(console: Console, certificate: "Certificate", prefix: str = "") -> None:
    by = f" by {certificate.theorem}" if certificate.theorem else ""
    style = COLOUR_OF_VERDICT[certificate.verdict]
    console.print(
        f"{prefix}[{style}]{certificate.verdict.upper()}[/{style}]{by}: {escape(certificate.reason)}.", highlight=False
    )


def _facts(rows: list[tuple[str, str, str]]) -> Table:
    """Lay out name, figure, explanation."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _print_load(console: Console, load: "Load", server: "Server") -> None:
    digits = 3 if abs(1 - load.rho) > 0.01 else 5
    capacity = f"tokens/s, with batches of {load.best_token_load:,}"
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        capacity += f"; the max batch size of {server.max_batch_size:,} can only lower it"
    headroom = load.max_rate / load.arrival_rate - 1
    rows = [
        (
            "Load rho",
            f"{load.rho:.{digits}f}",
            f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} to process a request",
        ),
        ("Capacity", f"{load.capacity_tokens_per_s:,.0f}", capacity),
        (
            "Margin",
            f"{1 - load.rho:.{digits}f}",
            f"no policy is stable above {load.max_rate:,.4g} requests/s ({headroom:+.1%} from here)",
        ),
    ]
    console.print(_facts(rows), highlight=False)


def _print_hypotheses(console: Console, certificate: "Certificate") -> None:
    if not certificate.hypotheses:
        return
    half = "(a)" if certificate.verdict == "unstable" else "(b)"
    console.print(f"\n[bold]Hypotheses of Theorem 1{half}[/bold]", highlight=False)
    table = Table.grid(padding=(0, 2))
    for hypothesis in certificate.hypotheses:
        held = "held" if hypothesis.held else "[bold red]fails[/bold red]"
        table.add_row("", held, hypothesis.name, escape(hypothesis.why))
    console.print(table, highlight=False)


def _print_run(console: Console, run: "Run") -> None:
    console.print(
        f"\n[bold]Simulated[/bold]  {run.arrived:,} requests ({run.unfinished:,} unfinished), "
        f"{run.n_batches:,} batches of {_tokens_per_batch(run):,.0f} tokens on average, {run.seconds:,.0f} s: "
        f"{run.tokens_per_s:,.0f} tokens/s, busy {run.utilisation:.0%} of the time; over the second half of the "
        f"arrivals the backlog changed by {_signed(run.growth_tokens_per_s)} tokens/s",
        highlight=False,
    )


def _print_latency(console: Console, run: "Run", title: str) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = {"ttft_s": "Time to first token", "tbt_s": "Time between tokens", "e2e_s": "End to end"}
    for index, column in enumerate(("", "mean", "p50", "p90", "p95", "p99")):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for metric, *values in run.latency().iter_rows():
        table.add_row(names[metric], *(_seconds(value) for value in values))
    console.print()
    console.print(table)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{decimals}f}"


def _tokens_per_batch(run: "Run") -> float:
    return run.started_tokens / run.n_batches if run.n_batches else 0.0


def _signed(growth: float) -> str:
    return "-" if math.isnan(growth) else f"{growth:+,.1f}" if abs(growth) >= 0.05 else "0.0"


def _print_warnings(console: Console, warnings: "list[str] | tuple[str, ...]") -> None:
    for warning in warnings:
        console.print(f"\n[bold yellow]Note[/bold yellow]  {escape(warning)}", highlight=False)


def print_check(scenario: "Scenario", found: "Answer") -> None:
    """Print the answer for one policy: verdict first."""
    console = Console()
    _print_heading(console, scenario, scenario.server.policy.name)
    _print_verdict(console, found.certificate)
    console.print()
    _print_load(console, found.certificate.load, scenario.server)
    _print_hypotheses(console, found.certificate)
    _print_run(console, found.run)
    if found.latency_refused:
        console.print(f"\n[bold]No latency[/bold]  {escape(found.latency_refused)}", highlight=False)
    else:
        _print_latency(console, found.run, "Latency (s)")
    _print_warnings(console, found.warnings)


def print_compare(scenario: "Scenario", found: "dict[str, Answer]") -> None:
    """Print the answers for several policies side by side."""
    console = Console()
    _print_heading(console, scenario, f"{len(found)} policies")
    _print_load(console, next(iter(found.values())).certificate.load, scenario.server)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(("Policy", "Certificate", "Tokens/s", "A batch", "Unfinished", "Backlog tokens/s")):
        table.add_column(column, justify="left" if index < 2 else "right")
    for name, answer in found.items():
        run, verdict = answer.run, answer.certificate.verdict
        style = COLOUR_OF_VERDICT[verdict]
        table.add_row(
            escape(name),
            f"[{style}]{verdict}[/{style}]",
            f"{run.tokens_per_s:,.0f}",
            f"{_tokens_per_batch(run):,.0f}",
            f"{run.unfinished:,}",
            _signed(run.growth_tokens_per_s),
        )
    console.print(table)
    console.print()
    _print_latency_of_all(console, found)
    reasons: dict[str, list[str]] = {}
    for name, answer in found.items():
        reasons.setdefault(answer.certificate.reason, []).append(name)
    for reason, names in reasons.items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold]  {escape(reason)}.", highlight=False)
    notes: dict[str, list[str]] = {}
    for name, answer in found.items():
        for warning in answer.warnings:
            notes.setdefault(warning, []).append(name)
    _print_warnings(console, [w if len(n) == len(found) else f"{', '.join(n)}: {w}" for w, n in notes.items()])


def _print_latency_of_all(console: Console, found: "dict[str, Answer]") -> None:
    table = Table(
        title="Latency (s)", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("Policy")
    for metric in ("TTFT", "TBT", "E2E"):
        for quantile in ("p50", "p99"):
            table.add_column(f"{metric} {quantile}", justify="right")
    for name, answer in found.items():
        if answer.latency_refused:
            table.add_row(escape(name), "refused", "", "", "", "", "")
            continue
        latency = answer.run.latency()
        cells = [_seconds(row[q]) for row in latency.iter_rows(named=True) for q in ("p50", "p99")]
        table.add_row(escape(name), *cells)
    console.print(table)
