"""Answers about networks as words and tables on the terminal, at any width."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.terminal import (
    _facts,
    _print_contradiction,
    _print_warnings,
    _seconds,
    _signed,
    _styled,
)

if TYPE_CHECKING:
    from penstock.analysis.network_answer import NetworkAnswer
    from penstock.analysis.network_latency import Statistics
    from penstock.analysis.targets import Estimate
    from penstock.scenario_network import NetworkScenario
    from penstock.theory.network import NetworkCertificate

_NARROW = 100
"""Columns below which the table of pools leaves out what the scenario says anyway."""


def print_network(scenario: "NetworkScenario", found: "NetworkAnswer") -> None:
    """Print the answer for a network: verdict first."""
    console = Console()
    _print_heading(console, scenario, found)
    _print_verdicts(console, found)
    console.print()
    console.print(_facts(_load_facts(found)), highlight=False)
    _print_pools(console, found)
    _print_hypotheses(console, found.certificate)
    _print_asked(console, found)
    _print_run(console, found)
    if found.latency_refused:
        console.print(f"\n[bold]No latency[/bold]  {_sentence(found.latency_refused)}", highlight=False)
    else:
        _print_latency(console, found)
    _print_warnings(console, found.warnings)


def print_orders(scenario: "NetworkScenario", found: "Mapping[str, NetworkAnswer]") -> None:
    """Print the answers under several orders side by side, one row each."""
    console = Console()
    first = next(iter(found.values()))
    _print_heading(console, scenario, first)
    table = _table("Order", "Theory", "Test", *(f"E2E of {each.name} (s)" for each in first.workflows), left=3)
    for name, answer in found.items():
        said = _styled(answer.stability.verdict) if answer.stability else "skipped"
        e2e = [_mean_with_interval(each.e2e) for each in answer.workflows]
        table.add_row(escape(name), _styled(answer.certificate.verdict), said, *e2e)
    console.print(table)
    steady = next((answer.latency for answer in found.values() if answer.latency), None)
    held = f", and the {steady.confidence:.0%} interval that holds it" if steady else ""
    console.print(
        f"[dim]The same jobs under all orders. E2E: mean in the steady state{held}. Refused: there is none.[/dim]",
        highlight=False,
    )
    for name, answer in found.items():
        if answer.disagreement:
            _print_contradiction(console, f"{name}: {answer.disagreement}")
    for reason, names in _gathered({n: [a.certificate.reason] for n, a in found.items()}).items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold], theory: {_sentence(reason)}", highlight=False)
    tested = {n: [a.stability.reason] for n, a in found.items() if a.stability and a.stability.verdict != "stable"}
    for reason, names in _gathered(tested).items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold], test: {_sentence(reason)}", highlight=False)
    notes = _gathered({name: answer.warnings for name, answer in found.items()})
    _print_warnings(console, [w if len(n) == len(found) else f"{', '.join(n)}: {w}" for w, n in notes.items()])


def _print_heading(console: Console, scenario: "NetworkScenario", found: "NetworkAnswer") -> None:
    network = found.network
    replicas = int(network.replicas.sum())
    parts = [
        _several(len(network.pools), "pool") + (f" of {replicas:,} replicas" if replicas > len(network.pools) else ""),
        _several(len(network.workflows), "workflow"),
        _several(len(network.stages), "stage"),
    ]
    described = "; ".join(workflow.describe() for workflow in network.workflows)
    console.print(
        f"[bold]{escape(scenario.name)}[/bold]  {', '.join(parts)}. {escape(described)}", highlight=False
    )
    console.print()


def _print_verdicts(console: Console, found: "NetworkAnswer") -> None:
    """Print what theory and simulation say, and shout where they contradict each other."""
    certificate, stability = found.certificate, found.stability
    by = f" by {certificate.theorem}" if certificate.theorem else " to theory"
    both = [(certificate.verdict, by, certificate.reason)]
    if stability:
        both.append((stability.verdict, " by simulation", stability.reason))
    for word, source, reason in reversed(both) if certificate.verdict == "unknown" else both:
        console.print(f"{_styled(word.upper())}{source}: {_sentence(reason, capital=False)}", highlight=False)
    if found.stability_skipped:
        console.print(f"[bold]NOT TESTED[/bold]: {_sentence(found.stability_skipped, capital=False)}", highlight=False)
    if found.disagreement:
        _print_contradiction(console, found.disagreement)


def _load_facts(found: "NetworkAnswer") -> list[tuple[str, str, str]]:
    """Return bottleneck, margin, cycles, virtual station and joins."""
    certificate = found.certificate
    tightest = min(found.pools, key=lambda pool: pool.margin)
    limit = 1 / (1 - tightest.margin) if tightest.margin < 1 else float("inf")
    held = f", held by the {' and '.join(tightest.binding)}" if tightest.binding else ""
    rows = [
        ("Bottleneck", escape(certificate.bottleneck.name), f"load {_digits(certificate.rho)}, the highest of all"),
        (
            "Margin",
            _digits(tightest.margin),
            f"no policy is stable above {limit:,.4g} times this load, at pool {escape(tightest.name)}{held}",
        ),
    ]
    if certificate.certified_load is not None:
        rows.append(("Certified", f"{certificate.certified_load:,.4g} x", "up to so many times this load, by theorem"))
    if certificate.any_policy:
        for cycle in certificate.any_policy.cycles:
            within = " - ".join(map(escape, cycle.pools))
            said = f"jobs go round between {within}: every work-conserving policy is stable up to so many times"
            if cycle.max_load == 0:
                said = f"jobs go round between {within}, of which no theorem says anything"
            elif cycle.exact and cycle.max_load < cycle.overload * (1 - 1e-9):
                said += " this load, and some policy is not above"
            else:
                said += " this load, at least"
            rows.append(("Cycle", f"{cycle.max_load:,.4g} x", said))
    if virtual := certificate.virtual_station:
        first, second = (", ".join(map(escape, stages)) for stages in virtual.classes)
        rows.append(
            (
                "This order",
                f"{virtual.max_load:,.4g} x",
                f"fails above so many times this load: {first} at {escape(virtual.pools[0])} and {second} at "
                f"{escape(virtual.pools[1])} are never served at once, as one at a time starves the other",
            )
        )
    rows += [
        ("Join", escape(join.stage), f"{join.branches} branches; {escape(join.bound)}, Q_l unfinished in branch l")
        for join in certificate.joins
    ]
    return rows


def _print_pools(console: Console, found: "NetworkAnswer") -> None:
    wide = console.width >= _NARROW
    table = _table("Pool", "Load", "Margin", "Busy", "Tokens/s", "Replicas", *(["Router"] if wide else []), "Order",
                   *(["Policy"] if wide else []), "Held by", left=1, words=("Router", "Order", "Policy", "Held by"))  # fmt: skip
    for pool in found.pools:
        replicas = f"{pool.replicas:,}"
        router = pool.router if pool.replicas > 1 else "-"
        table.add_row(
            escape(pool.name), _digits(pool.rho), _digits(pool.margin), f"{pool.busy:.0%}", f"{pool.tokens_per_s:,.0f}",
            replicas, *([escape(router)] if wide else []), escape(pool.order), *([escape(pool.policy)] if wide else []),
            " and ".join(pool.binding) or "-",
            style="bold" if pool.name == found.certificate.bottleneck.name and len(found.pools) > 1 else None,
        )  # fmt: skip
    console.print("\n[bold]Pools[/bold]")
    console.print(table)


def _print_hypotheses(console: Console, certificate: "NetworkCertificate") -> None:
    """Print the hypotheses, those that fail first, since they are what can be changed."""
    console.print(f"\n[bold]Hypotheses of {certificate.theorem or 'the theorems'}[/bold]", highlight=False)
    table = Table.grid(padding=(0, 2))
    for hypothesis in sorted(certificate.hypotheses, key=lambda h: h.held):
        held = "[bold red]fails[/bold red]" if not hypothesis.held else "held" if hypothesis.checked else "on trust"
        table.add_row("", held, escape(hypothesis.name), escape(hypothesis.why))
    console.print(table, highlight=False)


def _print_asked(console: Console, found: "NetworkAnswer") -> None:
    """Print what each workflow and stage asks for."""
    table = _table("", "Pool", "Visits/s", "Prefill tokens", "Decode tokens", left=2)
    for workflow in found.workflows:
        table.add_row(f"[bold]{escape(workflow.name)}[/bold]", "", f"[bold]{workflow.jobs_per_s:,.4g}[/bold]", "", "")
        for stage in _of(found, workflow.name):
            table.add_row(
                f"  {_short(stage.name)}",
                escape(stage.pool),
                f"{stage.visits_per_s:,.4g}",
                f"{stage.prefill_tokens:,.0f}",
                f"{stage.decode_tokens:,.0f}",
            )
    console.print("\n[bold]Workflows and stages[/bold]  in the long run, tokens a visit", highlight=False)
    console.print(table)


def _print_run(console: Console, found: "NetworkAnswer") -> None:
    run = found.run
    console.print(
        f"\n[bold]Simulated[/bold]  {run.arrived:,} jobs ({run.arrived - run.finished:,} unfinished), "
        f"{run.requests.height:,} requests, {run.seconds:,.0f} s; over the second half of the arrivals the work that "
        f"is left changed by {_signed(run.growth_tokens_per_s)} tokens/s",
        highlight=False,
    )


def _print_latency(console: Console, found: "NetworkAnswer") -> None:
    """Print E2E of workflows and stages over their intervals, time to first token, and waits at joins."""
    steady = found.latency
    assert steady is not None
    columns = ("E2E", "from", "to", "p99", "TTFT", "p99")
    joins = any("join_wait_s" in (stage.latency or {}) for stage in found.stages)
    table = _table("", *columns, *(["Join wait"] if joins else []), left=1)
    for workflow in found.workflows:
        assert workflow.e2e is not None
        row = (f"[bold]{escape(workflow.name)}[/bold]", *_interval(workflow.e2e), "", "")
        table.add_row(*row, *([""] if joins else []))
        for stage in _of(found, workflow.name):
            assert stage.latency is not None
            ttft, waits = stage.latency["ttft_s"], stage.latency.get("join_wait_s")
            first = (_seconds(ttft["mean"].value), _seconds(ttft["p99"].value))
            wait = [_seconds(waits["mean"].value) if waits else ""] if joins else []
            table.add_row(f"  {_short(stage.name)}", *_interval(stage.latency["e2e_s"]), *first, *wait)
    console.print(
        f"\n[bold]Latency in the steady state (s)[/bold]  means, with the {steady.confidence:.0%} interval of E2E",
        highlight=False,
    )
    console.print(table)
    waits_mean = "; join wait: what a branch that is done waits for the others" if joins else ""
    console.print(
        f"[dim]Stages: from arrival at a replica to the last token (E2E) and the first (TTFT){waits_mean}.[/dim]",
        highlight=False,
    )


def _table(*columns: str, left: int, words: tuple[str, ...] = ()) -> Table:
    """Return a table whose first columns, and those of words, are flush left; only those may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        text = index < left or column in words
        table.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    return table


def _interval(known: "Statistics") -> tuple[str, str, str, str]:
    mean = known["mean"]
    return _seconds(mean.value), _seconds(mean.low), _seconds(mean.high), _seconds(known["p99"].value)


def _mean_with_interval(known: "Statistics | None") -> str:
    if known is None:
        return "refused"
    mean: Estimate = known["mean"]
    if mean.low is None and mean.high is None:
        return _seconds(mean.value)
    return f"{_seconds(mean.value)} ({_seconds(mean.low)} to {_seconds(mean.high)})"


def _of(found: "NetworkAnswer", workflow: str) -> list:  # type: ignore[type-arg]
    """Return the stages of a workflow."""
    place = [each.name for each in found.workflows].index(workflow)
    first, last = found.network.first_stage[place : place + 2].tolist()
    return list(found.stages[first:last])


def _short(stage: str) -> str:
    """Return a stage's own name."""
    return escape(stage.partition(".")[2])


def _digits(load: float) -> str:
    return f"{load:.{5 if abs(1 - load) < 0.01 or 0 < abs(load) < 0.01 else 3}f}"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _sentence(text: str, capital: bool = True) -> str:
    return escape(f"{text[0].upper() if capital else text[0]}{text[1:]}.")


def _gathered(said: "Mapping[str, list[str] | tuple[str, ...]]") -> dict[str, list[str]]:
    """Put the names together of which the same is said."""
    names: dict[str, list[str]] = {}
    for name, texts in said.items():
        for text in texts:
            names.setdefault(text, []).append(name)
    return names
