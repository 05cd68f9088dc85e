"""Regions, rates and recommendations on the terminal."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.words import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.capacity.max_rate import MaxRate
    from penstock.capacity.recommend import Recommendation
    from penstock.scenario.scenario import Scenario
    from penstock.theory.operating_point import OperatingPoint
from penstock.checking.terminal import _print_targets, print_heading
from penstock.show.terminal import facts, make_console, print_contradiction, print_warnings
from penstock.words import seconds


def print_region(scenario: "Scenario", found: "OperatingPoint") -> None:
    """Print the region's corners, where the load lies, and what holds it back."""
    console = make_console()
    print_heading(console, scenario, scenario.server.policy.name)
    word = "inside" if found.region.contains(found.point) else "outside"
    prefill, decode = found.point
    best = found.optimum
    price = ""
    if found.full is not None:
        price = f"the server carries about {found.full.rate:,.4g} requests/s once it is full (an estimate)"
    elif found.bound.name == "KV memory":
        price = found.bound.why
    elif found.binding == ("batch time",):
        price = "the speed of its batches: no limit that you set, only faster hardware helps"
    elif best.slot_price:
        price = f"one more slot lets the best policy carry {best.slot_price:,.1f} tokens/s more; others may carry less"
    rows = [
        ("Load", f"{prefill:,.0f} + {decode:,.0f}", f"prefill + decode tokens/s, {word} the region"),
        ("Margin", f"{found.margin:.3f}", f"no policy is stable above {found.max_rate:,.4g} requests/s"),
        ("Held by", " and ".join(found.binding), price),
    ]
    if found.own_max_rate is not None:
        said = f"requests/s: {scenario.server.policy.name} at this budget, by a fluid argument"
        rows.append(("Its own", f"{found.own_max_rate:,.4g}", said))
    console.print(facts(rows), highlight=False)
    for note in found.notes:
        console.print(f"\n[bold]Note[/bold]  {escape(note)}", highlight=False)
    if found.inside:
        name = escape(scenario.server.policy.name)
        console.print(
            f"\nInside, some policy may be stable; whether {name} is, say check and max-rate.", highlight=False
        )
    console.print()
    table = Table(title="Corners of the region", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("Prefill tokens/s", "Decode tokens/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for x, y in found.region.vertices[1:]:
        table.add_row(f"{x:,.1f}", f"{y:,.1f}")
    console.print(table)
    console.print("\n[bold]The most along the load's ray is carried by[/bold]")
    table = Table.grid(padding=(0, 2))
    for use in best.mix:
        prompts = f"{use.prefill_tokens:,} prefill tokens (prompts: {use.prefill_requests:,} or fewer)"
        parts = [prompts] if use.prefill_tokens else []
        parts += [f"{use.decode_tokens:,} decode tokens"] if use.decode_tokens else []
        table.add_row("", f"{use.share:.1%}", f"of the time batches of {' and '.join(parts)}")
    console.print(table, highlight=False)


def print_max_rate(scenario: "Scenario", found: "dict[str, MaxRate]", notes: "Sequence[str]") -> None:
    """Print the highest stable rate of each policy beside its bound, after notes on their KV memory."""
    console = make_console()
    print_heading(console, scenario, f"{len(found)} policies" if len(found) > 1 else next(iter(found)), notes)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, column in enumerate(("Policy", "Stable up to", "Not at", "Any policy", "Share", "Certified to")):
        table.add_column(column, justify="left" if index == 0 else "right")
    for name, each in found.items():
        certified = each.certificate.certified_rate
        table.add_row(
            escape(name),
            f"{each.rate:,.4g}",
            f"{each.above:,.4g}",
            f"{each.bound:,.4g}",
            f"{each.share:.1%}",
            "-" if certified is None else f"{certified:,.4g}",
        )
    console.print(table)
    console.print(
        "[dim]Requests/s. 'Stable up to' and 'not at' were found by simulation of the same requests at each rate; "
        "above 'any policy' none is stable; up to 'certified to' a theorem says stable.[/dim]",
        highlight=False,
    )
    for notice in scenario.workload.notices:
        console.print(f"\n[bold yellow]Note[/bold yellow]  {escape(notice)}", highlight=False)
    for name, each in found.items():
        if each.disagreement:
            print_contradiction(console, f"{name}: {each.disagreement}")


def print_recommend(scenario: "Scenario", found: "Recommendation") -> None:
    """Print what to use, what that gains, and what else was looked at."""
    console = make_console()
    server, new = scenario.server, found.recommended.server
    print_heading(console, scenario, server.policy.name)
    if found.overload:
        console.print(f"[bold red]OVERLOADED[/bold red]  {escape(found.overload)}.\n", highlight=False)
    if found.change:
        word, use = "CHANGE", f"policy {new.policy.name}, token budget {new.token_budget:,}"
    else:
        word, use = "KEEP", "what you have"
    console.print(f"[bold blue]{word}[/bold blue]  [bold]{escape(use)}[/bold]", highlight=False)
    reason = found.reason
    if not reason.startswith(new.policy.name):  # a name is written as it is
        reason = reason[0].upper() + reason[1:]
    console.print(f"{escape(reason)}.\n", highlight=False)
    if found.trade:
        console.print(f"[bold]Worth knowing[/bold]  {escape(found.trade)}.\n", highlight=False)
    if found.with_plugin:
        console.print(f"[bold]With the plugin[/bold]  {escape(found.with_plugin)}.\n", highlight=False)
    _print_gains(console, found)
    _print_targets(console, found.recommended.targets)
    if next_step := found.next_step(scenario.file):
        console.print(f"\n[bold]Next[/bold]  {escape(next_step)}.", highlight=False)
    _print_candidates(console, found)
    _print_pruned(console, found)
    if found.step:
        more = found.step
        brings = f"no policy would exceed {more.bound:,.4g} requests/s then ({more.gain:+.1%}), by theory"
        console.print(
            f"\n[bold]Max batch size[/bold]  it binds; with {more.max_batch_size:,}, {brings}", highlight=False
        )
    print_warnings(console, found.warnings)


def _print_gains(console: Console, found: "Recommendation") -> None:
    """Print what there is now beside what is recommended."""
    both = (found.current, found.recommended) if found.change else (found.current,)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("", "Now", *(("Recommended", "Gain") if found.change else ())):
        table.add_column(column, justify="right" if column == "Gain" else "left", no_wrap=True)
    gains = [found.gains["stable_rate"]] if found.change else []
    table.add_row(
        "Stable up to", *(f"{each.stable_rate:,.4g} requests/s" for each in both), *(f"{gain:+.1%}" for gain in gains)
    )
    for metric in METRICS:
        for statistic in ("mean", "p99"):
            known = [each.answer.latency and each.answer.latency.estimates[metric][statistic] for each in both]
            ends = [e and f"{seconds(e.value)} s ({seconds(e.low)} to {seconds(e.high)})" for e in known]
            gain = found.gains[metric] if statistic == "mean" else None
            share = ["" if gain is None else f"{gain:+.1%}"] if found.change else []
            table.add_row(f"{metric[:-2].upper()} {statistic}", *(shown or "refused" for shown in ends), *share)
    console.print(table, highlight=False)
    if found.change and found.current.answer.latency and found.recommended.answer.latency:
        console.print(
            "[dim]Gains are of means: a p99 is known less well, see its interval (-: no upper end).[/dim]",
            highlight=False,
        )


def _print_candidates(console: Console, found: "Recommendation") -> None:
    console.print(
        f"\n[bold]What was simulated[/bold]  stable rate (requests/s), and latency (s) at {found.rate:,.4g} requests/s",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for index, column in enumerate(("  Policy", "Budget", "Stable", "TTFT", "p99", "TBT", "p99", "E2E", "p99")):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index > 0)
    for each in found.candidates:
        name, budget = each.server.policy.name, f"{each.server.token_budget:,}"
        latency = each.answer.latency
        values = [seconds(latency.estimates[m][s].value) for m in METRICS for s in ("mean", "p99")] if latency else []
        best = each is found.recommended
        name = f"> {name}" if best else f"  {name}"
        row = (escape(name), budget, f"{each.stable_rate:,.4g}", *(values or ["refused"]))
        table.add_row(*row, style="bold" if best else None)
    console.print(table)
    said = "The same requests for all; the first is the current one. No policy exceeds "
    said += f"{found.bound:,.4g} requests/s at any of these token budgets."
    if any(each.answer.latency is None for each in found.candidates):
        said += " Refused: not stable at this rate."
    if others := found.only_with_plugin:
        said += f" Only with the plugin, penstock.vllm_plugin: {', '.join(others)}."
    console.print(f"[dim]{escape(said)}[/dim]", highlight=False)


def _print_pruned(console: Console, found: "Recommendation") -> None:
    """Print what was ruled out, by its reason."""
    if not found.pruned:
        return
    console.print("\n[bold]What was ruled out[/bold]")
    by_reason: dict[str, dict[str, list[int]]] = {}
    for policy, budget, why in found.pruned:
        by_reason.setdefault(why, {}).setdefault(policy, []).append(budget)
    table = Table.grid(padding=(0, 2))
    for why, budgets in by_reason.items():
        alike: dict[str, list[str]] = {}
        for policy, at in budgets.items():
            *most, last = (f"{budget:,}" for budget in sorted(at))
            alike.setdefault(f"{', '.join(most)} and {last}" if most else last, []).append(policy)
        what = "; ".join(f"{', '.join(names)} at {at}" for at, names in alike.items())
        table.add_row("", escape(what), escape(why))
    console.print(table, highlight=False)
