"""Answers about networks as words and tables on the terminal, at any width."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.checking.network_answer import ANOTHER_ORDER, POOLS_IN_WORDS
from penstock.show.terminal import facts, make_console, print_contradiction, print_warnings, signed, styled
from penstock.words import digits, seconds

if TYPE_CHECKING:
    from penstock.checking.batches import Statistics
    from penstock.checking.network_answer import NetworkAnswer
    from penstock.checking.targets import Estimate
    from penstock.scenario.network import NetworkScenario
    from penstock.theory.network.certificate import NetworkCertificate

_WIDE = 100
"""Columns from which on the table of pools has room for what the scenario says anyway."""


def print_network(scenario: "NetworkScenario", found: "NetworkAnswer") -> None:
    """Print the answer for a network: verdict first."""
    console = make_console()
    _print_heading(console, scenario, found)
    _print_verdicts(console, found)
    console.print()
    console.print(facts(_load_facts(found)), highlight=False)
    _print_pools(console, found)
    _print_hypotheses(console, found.certificate)
    _print_asked(console, found)
    _print_run(console, found)
    if found.latency_refused:
        console.print(f"\n[bold]No latency[/bold]  {_sentence(found.latency_refused)}", highlight=False)
    else:
        _print_latency(console, found)
    print_warnings(console, found.warnings)


def print_orders(scenario: "NetworkScenario", found: "Mapping[str, NetworkAnswer]") -> None:
    """Print the answers under several orders side by side, one row each."""
    console = make_console()
    first = next(iter(found.values()))
    _print_heading(console, scenario, first)
    table = _table("Order", "Theory", "Test", left=3)
    for each in first.workflows:
        table.add_column(f"E2E of {escape(each.name)} (s)", justify="right", overflow="fold")
    for name, answer in found.items():
        said = styled(answer.stability.verdict) if answer.stability else "skipped"
        e2e = [_mean_with_interval(each.e2e) for each in answer.workflows]
        table.add_row(escape(name), styled(answer.certificate.verdict), said, *e2e)
    console.print(table)
    steady = next((answer.latency for answer in found.values() if answer.latency), None)
    held = f", and the {steady.confidence:.0%} interval that holds it" if steady else ""
    console.print(
        f"[dim]The same jobs under all orders. E2E: mean in the steady state{held}. Refused: there is none.[/dim]",
        highlight=False,
    )
    for name, answer in found.items():
        if answer.disagreement:
            print_contradiction(console, f"{name}: {answer.disagreement}")
    known = {n: [a.certificate.reason] for n, a in found.items() if a.certificate.verdict != "unknown"}
    for reason, names in _gathered(known).items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold], theory: {_sentence(reason)}", highlight=False)
    failing = {
        n: [f"{h.name}: {h.why}" for h in a.certificate.hypotheses if not h.held] or [a.certificate.reason]
        for n, a in found.items()
        if a.certificate.verdict == "unknown"
    }
    if failing:
        console.print("\n[bold]What keeps theorems from saying stable[/bold]")
        rows = Table.grid(padding=(0, 2))
        for why, names in _gathered(failing).items():
            rows.add_row("", "all" if len(names) == len(found) else escape(", ".join(names)), _sentence(why, False))
        console.print(rows, highlight=False)
    tested = {n: [a.stability.reason] for n, a in found.items() if a.stability and a.stability.verdict != "stable"}
    for reason, names in _gathered(tested).items():
        console.print(f"\n[bold]{escape(', '.join(names))}[/bold], test: {_sentence(reason)}", highlight=False)
    notes = _gathered({name: answer.warnings for name, answer in found.items()})
    print_warnings(console, [w if len(n) == len(found) else f"{', '.join(n)}: {w}" for w, n in notes.items()])


def _print_heading(console: Console, scenario: "NetworkScenario", found: "NetworkAnswer") -> None:
    network = found.network
    replicas = int(network.replicas.sum())
    pools = _several(len(network.pools), "pool")
    if replicas > len(network.pools):
        pools += f" of {replicas:,} replicas in all"
    visitors = [
        f"{escape(each.name)}: {each.jobs_per_s:,.4g} jobs/s, {_several(len(_of(found, each.name)), 'stage')}"
        for each in found.workflows
    ]
    console.print(f"[bold]{escape(scenario.name)}[/bold]  {'; '.join([pools, *visitors])}", highlight=False)
    console.print()


def _print_verdicts(console: Console, found: "NetworkAnswer") -> None:
    """Print what theory and simulation say, and shout where they contradict each other."""
    certificate, stability = found.certificate, found.stability
    by = f" by {certificate.theorem}" if certificate.theorem else " to theory"
    both: list[tuple[str, str, str]] = [(certificate.verdict, by, certificate.reason)]
    if stability:
        both.append((stability.verdict, " by simulation", stability.reason))
    for word, source, reason in reversed(both) if certificate.verdict == "unknown" else both:
        console.print(f"{styled(word.upper())}{source}: {_sentence(reason, capital=False)}", highlight=False)
    if found.stability_skipped:
        console.print(f"[bold]NOT TESTED[/bold]: {_sentence(found.stability_skipped, capital=False)}", highlight=False)
    if found.disagreement:
        print_contradiction(console, found.disagreement)


def _load_facts(found: "NetworkAnswer") -> list[tuple[str, str, str]]:
    """Return bottleneck, margin, cycles, virtual station and joins."""
    certificate, tightest = found.certificate, found.bottleneck
    held = f", held by the {' and '.join(tightest.binding)}" if tightest.binding else ""
    if not found.network.reuse_is_certain:
        held += ", if replicas reuse nothing"
    rows = [
        ("Bottleneck", escape(tightest.name), f"load {_load(tightest.rho)}, the least margin of all"),
        (
            "Margin",
            _margin(tightest.margin),
            f"no policy is stable above {found.max_load:,.4g} times this load, at pool {escape(tightest.name)}{held}",
        ),
    ]
    if certificate.certified_load is not None:
        rows.append(("Certified", f"{certificate.certified_load:,.4g} x", "up to so many times this load, by theorem"))
    rows += [("Cycle", f"{factor:,.4g} x", escape(said)) for factor, said in found.cycles_in_words()]
    if virtual := certificate.virtual_station:
        starving = zip(virtual.classes, virtual.loads, virtual.pools, strict=True)
        both = " and ".join(
            f"{escape(', '.join(stages))} ({load:.3f} of {escape(pool)})" for stages, load, pool in starving
        )
        rows.append(
            (
                "This order",
                f"{virtual.max_load:,.4g} x",
                f"fails above so many times this load: {both} are never served at once, and each round between them "
                f"multiplies a backlog by {digits(math.prod(virtual.amplification()))} at this load",
            )
        )
    if found.order_fails:
        rows.append(("To try", "another order", ANOTHER_ORDER))
    rows += [("Join", escape(join.stage), f"{join.branches} branches; {join.bound}") for join in certificate.joins]
    return rows


def _print_pools(console: Console, found: "NetworkAnswer") -> None:
    wide = console.width >= _WIDE
    table = _table("Pool", "Load", "Margin", "Busy", "A batch", "Replicas", left=1)
    if wide:
        table.add_column("Tokens/s", justify="right")
    for column in ("Order", *(("Router", "Policy") if wide else ()), "Held by"):
        table.add_column(column, overflow="fold")
    for pool in found.pools:
        router = pool.router if pool.replicas > 1 else "-"
        table.add_row(
            escape(pool.name),
            _load(pool.rho),
            _margin(pool.margin),
            f"{pool.busy:.0%}",
            f"{pool.tokens_per_batch:,.0f}",
            f"{pool.replicas:,}",
            *([f"{pool.tokens_per_s:,.0f}"] if wide else []),
            escape(pool.order),
            *([escape(router), escape(pool.policy)] if wide else []),
            " and ".join(pool.binding) or "-",
        )
    console.print("\n[bold]Pools[/bold]")
    console.print(table)
    console.print(f"[dim]{POOLS_IN_WORDS} A batch: tokens in it, on average.[/dim]", highlight=False)


def _print_hypotheses(console: Console, certificate: "NetworkCertificate") -> None:
    """Print the hypotheses, those that fail first, since they are what can be changed."""
    used = certificate.theorem if certificate.verdict == "stable" else "the theorems that say stable"
    console.print(f"\n[bold]Hypotheses of {used}[/bold]", highlight=False)
    table = Table.grid(padding=(0, 2))
    for hypothesis in sorted(certificate.hypotheses, key=lambda h: h.held):
        table.add_row("", styled(hypothesis.state), escape(hypothesis.name), escape(hypothesis.why))
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
        f"is left changed by {signed(run.growth_tokens_per_s)} tokens/s",
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
            first = (seconds(ttft["mean"].value), seconds(ttft["p99"].value))
            wait = [seconds(waits["mean"].value) if waits else ""] if joins else []
            table.add_row(f"  {_short(stage.name)}", *_interval(stage.latency["e2e_s"]), *first, *wait)
    console.print(
        f"\n[bold]Latency in the steady state (s)[/bold]  means, with the {steady.confidence:.0%} interval of E2E",
        highlight=False,
    )
    console.print(table)
    waits_mean = "; join wait: what a branch that is done waits for the others" if joins else ""
    unknown = "; -: the run is too short to tell" if steady.too_short or _lacks_ends(found) else ""
    console.print(
        "[dim]Stages: from arrival at a replica to the last token (E2E) and the first (TTFT)"
        f"{waits_mean}{unknown}.[/dim]",
        highlight=False,
    )


def _lacks_ends(found: "NetworkAnswer") -> bool:
    """Return whether some interval has no end."""
    known = [each.e2e for each in found.workflows] + [(each.latency or {}).get("e2e_s") for each in found.stages]
    return any(of is not None and None in (of["mean"].low, of["mean"].high) for of in known)


def _table(*columns: str, left: int) -> Table:
    """Return a table whose first columns are flush left; only those may wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        text = index < left
        table.add_column(column, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    return table


def _interval(known: "Statistics") -> tuple[str, str, str, str]:
    mean = known["mean"]
    return seconds(mean.value), seconds(mean.low), seconds(mean.high), seconds(known["p99"].value)


def _mean_with_interval(known: "Statistics | None") -> str:
    if known is None:
        return "refused"
    mean: Estimate = known["mean"]
    if mean.low is None and mean.high is None:
        return seconds(mean.value)
    return f"{seconds(mean.value)} ({seconds(mean.low)} to {seconds(mean.high)})"


def _of(found: "NetworkAnswer", workflow: str) -> list:  # type: ignore[type-arg]
    """Return the stages of a workflow."""
    place = [each.name for each in found.workflows].index(workflow)
    first, last = found.network.first_stage[place : place + 2].tolist()
    return list(found.stages[first:last])


def _short(stage: str) -> str:
    """Return a stage's own name."""
    return escape(stage.partition(".")[2])


def _load(rho: float) -> str:
    return f"{rho:.{5 if abs(1 - rho) < 0.01 else 3}f}"


def _margin(margin: float) -> str:
    return f"{margin:.{5 if abs(margin) < 0.01 else 3}f}"


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
