"""Answers as words and tables on the terminal, at any width."""

import math
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from penstock.words import METRICS, STATISTICS, gathered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.capacity.max_rate import MaxRate
    from penstock.capacity.recommend import Recommendation
    from penstock.checking.answer import Answer, TargetAnswer
    from penstock.checking.latency import SteadyState
    from penstock.scenario.scenario import Scenario
    from penstock.simulation.run import Run
    from penstock.system.batch_time_file import BatchTimeFile
    from penstock.system.server import Server
    from penstock.theory.certificate import Certificate
    from penstock.theory.operating_point import OperatingPoint

_NARROWEST = 20  # columns

COLOUR_OF = {
    "stable": "bold blue",
    "met": "bold blue",
    "unstable": "bold red",
    "critical": "bold red",
    "missed": "bold red",
    "fails": "bold red",
    "held": "default",
    "on trust": "default",
    "unknown": "bold yellow",
    "undecided": "bold yellow",
}


class _Terminal(Console):
    """A console that shows every column: a table that is too wide is printed row by row."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as Rich does, but cut no word and no column."""
        super().print(*(self._whole(one) if isinstance(one, Table) else one for one in objects), **options)

    def _whole(self, table: Table) -> Table:
        for column in table.columns:
            column.overflow = "fold"  # a word that is too long is broken, and not cut
        headed = any(column.header for column in table.columns)
        gaps = 2 * (len(table.columns) - 1)
        if not headed or sum(map(self._needs, table.columns)) + gaps <= self.width:
            return table
        return _row_by_row(table)

    def _needs(self, column: Column) -> int:
        """Return how wide a column has to be, in characters."""
        cells = [Text.from_markup(cell).plain for cell in (column.header, *column.cells) if isinstance(cell, str)]
        parts = [cell.splitlines() if column.no_wrap else cell.split() for cell in cells]
        return max((cell_len(part) for some in parts for part in some), default=0)


def _row_by_row(table: Table) -> Table:
    """Return a table of two columns, names and values: the rows of a wide one below each other."""
    title = {"title": table.title, "title_justify": table.title_justify, "title_style": table.title_style}
    narrow = Table(box=None, show_header=False, pad_edge=False, **title)  # type: ignore[arg-type]
    narrow.add_column(overflow="fold")
    narrow.add_column(overflow="fold")
    first, *others = table.columns
    for name, *values in zip(*(list(column.cells) for column in table.columns), strict=True):
        narrow.add_row(f"{first.header}: {name}" if first.header else name)
        for column, value in zip(others, values, strict=True):
            narrow.add_row(f"  {column.header}", value)
    return narrow


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that leaves names as they are: ``a:b:c`` holds no emoji."""
    console = _Terminal(stderr=stderr, emoji=False)
    if console.width < _NARROWEST:  # COLUMNS=0, where nothing could be read
        console.width = _NARROWEST
    return console


def print_run(scenario: "Scenario", certificate: "Certificate", run: "Run", warnings: list[str]) -> None:
    """Print what happened in one run."""
    console = make_console()
    _print_heading(console, scenario, scenario.server.policy.name)
    _print_load(console, certificate, scenario.server)
    _print_run(console, run)
    console.print("This is what happened in one finite run, and no verdict; for one ask check.", highlight=False)
    _print_latency(console, run)
    print_warnings(console, warnings)


def _print_heading(console: Console, scenario: "Scenario", policies: str, notes: "Sequence[str] | None" = None) -> None:
    """Print what was asked, and what to know of the KV memory before the answer is read."""
    workload, server = scenario.workload, scenario.server
    console.print(
        f"[bold]{escape(scenario.name)}[/bold]  {escape(workload.describe())}, {workload.rate:,.4g} requests/s, "
        f"{workload.mean_prompt:,.0f} prompt + {workload.mean_output:,.0f} output tokens; "
        f"{escape(policies)}, {server.limits}",
        highlight=False,
    )
    if notes is None:
        notes = [f"{server.kv_note}."] if server.kv_note else []
    print_warnings(console, notes)
    console.print()


def styled(word: str) -> str:
    """Put a verdict into its colour."""
    colour = COLOUR_OF[word.lower()]
    return f"[{colour}]{word}[/{colour}]"


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


def print_contradiction(console: Console, said: str) -> None:
    """Shout that theory and simulation do not agree."""
    console.print(f"\n[bold red reverse] CONTRADICTION [/] {escape(said)}.", highlight=False)


def facts(rows: list[tuple[str, str, str]]) -> Table:
    """Lay out name, figure, explanation."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


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
        f"{run.n_batches:,} batches of {_tokens_per_batch(run):,.0f} tokens on average, {run.seconds:,.0f} s: "
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


def seconds(value: float | None) -> str:
    """Return seconds with as many decimals as matter."""
    if value is None:
        return "-"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{decimals}f}"


def _tokens_per_batch(run: "Run") -> float:
    return run.started_tokens / run.n_batches if run.n_batches else 0.0


def signed(growth: float) -> str:
    """Return a rate of growth with its sign."""
    return "-" if math.isnan(growth) else f"{growth:+,.1f}" if abs(growth) >= 0.05 else "0.0"


def print_warnings(console: Console, warnings: "Sequence[str]") -> None:
    """Print notes, each a paragraph."""
    for warning in warnings:
        console.print(f"\n[bold yellow]Note[/bold yellow]  {escape(warning)}", highlight=False)


def print_check(scenario: "Scenario", found: "Answer") -> None:
    """Print the answer for one policy: verdict first."""
    console = make_console()
    certificate = found.certificate
    _print_heading(console, scenario, scenario.server.policy.name, found.front)
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
    _print_heading(console, scenario, f"{len(found)} policies", gathered({n: a.front for n, a in found.items()}))
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
            f"{_tokens_per_batch(run):,.0f}",
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


def print_region(scenario: "Scenario", found: "OperatingPoint") -> None:
    """Print the region's corners, where the load lies, and what holds it back."""
    console = make_console()
    _print_heading(console, scenario, scenario.server.policy.name)
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
    _print_heading(console, scenario, f"{len(found)} policies" if len(found) > 1 else next(iter(found)), notes)
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
    _print_heading(console, scenario, server.policy.name)
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
