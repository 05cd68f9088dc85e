"""Calibrations as words and tables on the terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.calibration.calibrate import LESS, METRICS, Calibration
from penstock.calibration.words import error_rows, errors_said, parameter_rows
from penstock.terminal import facts, make_console, print_warnings

_HEADS = {"requests_per_s": "req/s", "ttft_p99": "p99 TTFT", "e2e_p99": "p99 E2E"} | {
    name: name.upper() for name in ("ttft", "itl", "e2e")
}

_MOST_MISSED = 8  # rows that are named in full


def print_calibration(found: Calibration, names: str) -> None:
    """Print the server, the errors of its predictions, and every row."""
    console = make_console()
    server = found.server
    console.print(
        f"[bold]{escape(names)}[/bold]  {found.rows.height:,} loads, shapes: {found.rows['shape'].n_unique():,}; "
        f"{escape(server.policy.name)}, {server.limits}",
        highlight=False,
    )
    _print_warnings(console, found)
    _print_parameters(console, found)
    _print_errors(console, found)
    _print_rows(console, found)


def _print_warnings(console: Console, found: Calibration) -> None:
    """Print what a reader must know first; the worst of the rows that are missed by name."""
    if found.missed:
        console.print(f"\n[bold red]Warning[/bold red]  {escape(found.warnings[0])}", highlight=False)
    for words in found.missed[:_MOST_MISSED]:
        console.print(f"  [red]{escape(words)}[/red]", highlight=False)
    if len(found.missed) > _MOST_MISSED:
        console.print(f"  [red]and {len(found.missed) - _MOST_MISSED:,} more, which --json names[/red]")
    print_warnings(console, found.warnings[bool(found.missed) :])
    console.print()


def _print_parameters(console: Console, found: Calibration) -> None:
    console.print("[bold]Calibrated[/bold]")
    rows = [(escape(name), value, f"[dim]{escape(said)}[/dim]") for name, value, said in parameter_rows(found)]
    console.print(facts(rows), highlight=False)


def _table(title: str, columns: tuple[str, ...], words: int) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right", no_wrap=True)
    return table


def _print_errors(console: Console, found: Calibration) -> None:
    columns = ("Rows", "", *(_HEADS[name] for name in METRICS))
    table = _table("Mean of |predicted / measured - 1|", columns, 1)
    for row in error_rows(found):
        table.add_row(*row)
    console.print()
    console.print(table)
    for said in (errors_said(found), *found.notes):
        console.print(f"[dim]{escape(said)}[/dim]", highlight=False)


def _print_rows(console: Console, found: Calibration) -> None:
    """Print what was predicted beside what was measured, and by how much it is off."""
    wide = console.width >= 100
    heads = ("TTFT ms", "off", "ITL ms", "off", "E2E s", "off") if wide else ("TTFT ms", "off", "ITL ms", "off")
    table = _table("Predicted, and how far off", (" Shape", "Load", *heads, "Carries/s"), 2)
    metrics = (("ttft", 1e3), ("itl", 1e3), ("e2e", 1.0))[: 3 if wide else 2]
    for row in found.rows.sort("shape", "requests_per_s_measured", maintain_order=True).iter_rows(named=True):
        cells: list[str] = []
        for metric, per in metrics:
            value, error = row[f"{metric}_predicted"], row[f"{metric}_error"]
            cells += ["-" if value is None else f"{value * per:,.4g}", "-" if error is None else f"{error:+.1%}"]
        limit = f"{row['limit_per_s']:,.4g}"
        if row["limit_at_least_per_s"] < (1 - LESS) * row["limit_per_s"]:
            limit = f"{row['limit_at_least_per_s']:,.4g} to {limit}"
        name = f"{'*' if row['fitted'] else ' '}{row['shape']}"
        table.add_row(
            escape(name), escape(row["load"]), *cells, f"[bold red]{limit}[/bold red]" if row["beyond"] else limit
        )
    console.print()
    console.print(table)
    beyond = int(found.rows["beyond"].fill_null(value=False).sum())
    last = f" In {beyond} of the rows more arrive than that: queues grow for as long as they last." if beyond else ""
    console.print(
        "[dim]* used to fit. TTFT: median where there is one. Carries/s: requests of this shape that leave per second "
        f"while many more wait, simulated; with the KV memory that the rows held to one without limit.{last}[/dim]",
        highlight=False,
    )
