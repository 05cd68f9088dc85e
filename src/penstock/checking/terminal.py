"""What is known of a server, on the terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.words import METRICS, STATISTICS, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.checking.answer import Answer, TargetAnswer
    from penstock.checking.latency import SteadyState
    from penstock.scenario.scenario import Scenario
    from penstock.simulation.run import Run
    from penstock.system.batch_time_file import BatchTimeFile
    from penstock.system.server import Server
    from penstock.theory.certificate import Certificate
from penstock.show.terminal import facts, make_console, print_contradiction, print_warnings, signed, styled
from penstock.words import seconds


def print_run(scenario: "Scenario", certificate: "Certificate", run: "Run", warnings: list[str]) -> None:
    """Print what happened in one run."""
    console = make_console()
    print_heading(console, scenario, scenario.server.policy.name)
    _print_load(console, certificate, scenario.server)
    _print_run(console, run)
    console.print("This is what happened in one finite run, and no verdict; for one ask check.", highlight=False)
    _print_latency(console, run)
    print_warnings(console, warnings)


def print_heading(console: Console, scenario: "Scenario", policies: str, notes: "Sequence[str] | None" = None) -> None:
    """Print what was asked, and what to know of the KV memory before the answer is read."""
    workload, server = scenario.workload, scenario.server
    console.print(
        f"[bold]{escape(scenario.name)}[/bold]  {escape(workload.describe())}, {workload.rate:,.4g} requests/s, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens; "
        f"{escape(policies)}, {server.limits}",
        highlight=False,
    )
    if notes is None:
        notes = server.kv_notes
    print_warnings(console, notes)
    console.print()


def _print_verdicts(console: Console, found: "Answer") -> None:
    """Print what theory and simulation say, and shout where they contradict each other."""
    certificate, stability = found.certificate, found.stability
    by = f" by {certificate.theorem}" if certificate.theorem else " to theory"
    both = [
        (certificate.verdict, by, certificate.reason),
        (stability.verdict, " by simulation", stability.reason),
    ]
    for word, source, reason in reversed(both) if certificate.verdict == "unknown" else both:
        console.print(f"{styled(word.upper())}{source}: {escape(reason)}.", highlight=False)
    if found.disagreement:
        print_contradiction(console, found.disagreement)


def _print_load(
    console: Console, certificate: "Certificate", server: "Server", measured: "BatchTimeFile | None" = None
) -> None:
    """Print what arrives and what can be carried; where batch times come from, if they were published."""
    load, max_rate = certificate.load, certificate.max_rate
    digits = 3 if abs(1 - load.rho) > 0.01 else 5
    capacity = load.capacity_in_words
    if server.max_batch_size is not None and server.max_batch_size < server.token_budget:
        capacity += f"; the max batch size of {server.max_batch_size:,} can only lower it"
    headroom = max_rate / load.arrival_rate - 1
    margin = 1 - load.arrival_rate / max_rate
    rows = [
        (
            "Load rho",
            f"{load.rho:.{digits}f}",
            f"{load.offered_tokens_per_s:,.0f} tokens/s arrive, {load.tokens_per_request:,.0f} to process a request",
        ),
        ("Capacity", f"{load.capacity_tokens_per_s:,.0f}", capacity),
        (
            "Margin",
            f"{margin:.{3 if abs(margin) > 0.01 else 5}f}",
            f"no policy is stable above {max_rate:,.4g} requests/s ({headroom:+.1%} from here)"
            f"{_beside_the_limit(certificate, server)}",
        ),
    ]
    if measured and measured.year:
        rows.append(("Measured", str(measured.year), escape(measured.origin)))
    console.print(facts(rows), highlight=False)


_SAME = 0.01  # of a rate that a theorem certifies and of the one above which no policy is stable


def _beside_the_limit(certificate: "Certificate", server: "Server") -> str:
    """Say what the limit of any policy leaves out: KV memory, and that a scheduler's own may be lower."""
    certified = certificate.certified_rate or 0.0
    if certified >= (1 - _SAME) * certificate.max_rate or certificate.margin < 0:
        return ""
    memory = server.memory is not None and certificate.binding.name != "KV memory"
    counted = ", KV memory not counted" if memory else ""
    return f"{counted}; a scheduler's own limit may be lower: ask max-rate"


def _print_hypotheses(console: Console, certificate: "Certificate") -> None:
    if not certificate.hypotheses:
        return
    console.print(f"\n[bold]Hypotheses of {certificate.theorem or 'the theorems'}[/bold]", highlight=False)
    table = Table.grid(padding=(0, 2))
    for hypothesis in certificate.hypotheses:
        table.add_row("", styled(hypothesis.state), escape(hypothesis.name), escape(hypothesis.why))
    console.print(table, highlight=False)


def _print_run(console: Console, run: "Run") -> None:
    console.print(
        f"\n[bold]Simulated[/bold]  {run.arrived:,} requests ({run.unfinished:,} unfinished), "
        f"{run.n_batches:,} batches of {tokens_per_batch(run):,.0f} tokens on average, {run.seconds:,.0f} s: "
        f"{run.tokens_per_s:,.0f} tokens/s, busy {run.utilisation:.0%} of the time; over the second half of the "
        f"arrivals the backlog changed by {signed(run.growth_tokens_per_s)} tokens/s{run.memory_facts}",
        highlight=False,
    )


def _latency_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(("", *STATISTICS)):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _print_latency(console: Console, run: "Run") -> None:
    table = _latency_table("Latency in this run (s)")
    for metric, *values in run.latency().iter_rows():
        table.add_row(METRICS[metric], *(seconds(value) for value in values))
    console.print()
    console.print(table)


def _print_steady_state(console: Console, latency: "SteadyState") -> None:
    """Print each latency over the half-width of its interval."""
    table = _latency_table(f"Latency in the steady state (s), and its {latency.confidence:.0%} interval")
    for metric, estimates in latency.estimates.items():
        known = [estimates[name] for name in STATISTICS]
        table.add_row(METRICS[metric], *(seconds(e.value) for e in known))
        if any(e.low is not None or e.high is not None for e in known):
            table.add_row("  from", *(seconds(e.low) for e in known), style="dim")
            table.add_row("  to", *(seconds(e.high) for e in known), style="dim")
    console.print()
    console.print(table)


def _print_targets(console: Console, targets: "Sequence[TargetAnswer]") -> None:
    if not targets:
        return
    console.print("\n[bold]Targets[/bold]")
    table = Table.grid(padding=(0, 2))
    for target, estimate, judgement in targets:
        if estimate is None:
            seen = "there is no steady state"
        else:
            seen = f"{seconds(estimate.value)} s, from {seconds(estimate.low)} to {seconds(estimate.high)}"
        table.add_row("", styled(judgement), escape(str(target)), seen)
    console.print(table, highlight=False)


def tokens_per_batch(run: "Run") -> float:
    """Return the mean token load of a batch."""
    return run.started_tokens / run.n_batches if run.n_batches else 0.0


def print_check(scenario: "Scenario", found: "Answer") -> None:
    """Print the answer for one policy: verdict first."""
    console = make_console()
    certificate = found.certificate
    print_heading(console, scenario, scenario.server.policy.name, found.front)
    _print_verdicts(console, found)
    console.print()
    _print_load(console, certificate, scenario.server, scenario.measured)
    _print_hypotheses(console, certificate)
    _print_run(console, found.run)
    if found.latency_refused:
        console.print(f"\n[bold]No latency[/bold]  {escape(found.latency_refused)}", highlight=False)
    elif found.latency:
        _print_steady_state(console, found.latency)
    else:
        _print_latency(console, found.run)
    _print_targets(console, found.targets)
    if next_step := found.next_step(scenario.file):
        console.print(f"\n[bold]Next[/bold]  {escape(next_step)}.", highlight=False)
    print_warnings(console, found.warnings)


def print_compare(scenario: "Scenario", found: "dict[str, Answer]") -> None:
    """Print the answers for several policies side by side."""
    console = make_console()
    certificate = next(iter(found.values())).certificate
    print_heading(console, scenario, f"{len(found)} policies", gathered({n: a.front for n, a in found.items()}))
    _print_load(console, certificate, scenario.server)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(("Policy", "Theory", "Test", "Can do", "Tokens/s", "A batch", "Unfinished")):
        table.add_column(column, justify="left" if index < 3 else "right")
    for name, answer in found.items():
        run = answer.run
        table.add_row(
            escape(name),
            styled(answer.certificate.verdict),
            styled(answer.stability.verdict),
            f"{1 - answer.stability.drift:,.3g} x" if answer.stability.interval else "> 1 x",
            f"{run.tokens_per_s:,.0f}",
            f"{tokens_per_batch(run):,.0f}",
            f"{run.unfinished:,}",
        )
    console.print(table)
    unknown = any(answer.stability.interval is None for answer in found.values())
    console.print(
        "[dim]Can do: work done under a large backlog over the work that arrives; below 1 it grows"
        f"{'; > 1 where it was gone before it could be measured' if unknown else ''}.[/dim]\n",
        highlight=False,
    )
    _print_latency_of_all(console, found)
    for name, answer in found.items():
        if answer.disagreement:
            print_contradiction(console, f"{name}: {answer.disagreement}")
    reasons: dict[str, list[str]] = {}
    for name, answer in found.items():
        reasons.setdefault(answer.certificate.reason, []).append(name)
    for reason, names in reasons.items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold]  {escape(reason)}.", highlight=False)
    print_warnings(console, gathered({name: answer.warnings for name, answer in found.items()}))


def _print_latency_of_all(console: Console, found: "dict[str, Answer]") -> None:
    table = Table(
        title="Latency (s)", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("Policy")
    for metric in ("TTFT", "TBT", "E2E"):
        for quantile in ("p50", "p99"):
            table.add_column(f"{metric} {quantile}", justify="right")
    open_end = False
    for name, answer in found.items():
        if answer.latency_refused:
            table.add_row(escape(name), "refused", "", "", "", "", "")
            continue
        if answer.latency:
            known = [answer.latency.estimates[metric][q] for metric in METRICS for q in ("p50", "p99")]
            open_end = open_end or any(e.high is None for e in known)
            table.add_row(escape(name), *(seconds(e.value) + ("?" if e.high is None else "") for e in known))
        else:
            rows = answer.run.latency().iter_rows(named=True)
            table.add_row(escape(name), *(seconds(row[q]) for row in rows for q in ("p50", "p99")))
    console.print(table)
    if open_end:
        console.print("[dim]?: the run is too short to bound this from above; check shows intervals.[/dim]")
