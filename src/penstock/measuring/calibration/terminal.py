"""Calibrations as words and tables on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.measuring.calibration.calibrate import LESS, METRICS, Calibration
from penstock.measuring.calibration.words import error_rows, errors_said, parameter_rows, server_words
from penstock.show.terminal import facts, make_console, print_warnings

_HEADS = {"requests_per_s": "req/s", "ttft_p99": "p99 TTFT", "e2e_p99": "p99 E2E"} | {
    name: name.upper() for name in ("ttft", "itl", "e2e")
}

_MOST_MISSED = 8  # rows that are named in full


def print_calibration(found: Calibration, names: str) -> None:
    """Print the server, the errors of its predictions, and every row."""
    console = make_console()
    count = found.rows.height
    loads = "1 load" if count == 1 else f"{count:,} loads"
    console.print(
        f"[bold]{escape(names)}[/bold]  {loads}, shapes: {found.rows['shape'].n_unique():,}; "
        f"{escape(server_words(found))}",
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
    """Print what was measured, what was predicted, and by how much it is off."""
    metrics = [("ttft", "TTFT", "ms", 1e3), ("itl", "ITL", "ms", 1e3)]
    if console.width >= 100:
        metrics.append(("e2e", "E2E", "s", 1.0))
    heads = [head for _, name, unit, _ in metrics for head in (f"{name} {unit}", "model", "off")]
    table = _table(
        "Measured, predicted by the model, and how far off", ("Row", " Shape", "Load", *heads, "Carries/s"), 3
    )
    rows = found.rows.sort("shape", "requests_per_s_measured", maintain_order=True)
    for row in rows.iter_rows(named=True):
        cells: list[str] = []
        for metric, _, _, per in metrics:
            values = (row[f"{metric}_measured"], row[f"{metric}_predicted"])
            cells += ["-" if value is None else f"{value * per:,.4g}" for value in values]
            error = row[f"{metric}_error"]
            cells.append("-" if error is None else f"{round(error, 2) + 0.0:+.0%}")
        limit = _carried(row)
        limit = f"[bold red]{limit}[/bold red]" if row["beyond"] else limit
        name = f"{'*' if row['fitted'] else ' '}{row['shape']}"
        table.add_row(str(row["row"]), escape(name), escape(row["load"]), *cells, limit)
    console.print()
    console.print(table)
    said = ["* used to fit. TTFT: median where there is one.", _carries_said(found)]
    console.print(f"[dim]{' '.join(said)}[/dim]", highlight=False)
    if found.rows["run"].n_unique() > 1:
        console.print(f"[dim]{escape(_files_said(found))}[/dim]", highlight=False)


def _carried(row: Mapping[str, Any]) -> str:
    """Return what the server carries of a shape: a range, where memory that nobody saw may matter."""
    most = f"{row['limit_per_s']:,.3g}"
    return f"{row['limit_at_least_per_s']:,.3g}-{most}" if _ranges(row) else most


def _ranges(row: Mapping[str, Any]) -> bool:
    return bool(row["limit_at_least_per_s"] < (1 - LESS) * row["limit_per_s"])


def _carries_said(found: Calibration) -> str:
    said = "Carries/s: requests of this shape that leave per second while many more wait, simulated"
    if any(_ranges(row) for row in found.rows.iter_rows(named=True)):
        said += "; a range: from the KV memory that the rows are known to have used, to memory without limit"
    beyond = int(found.rows["beyond"].fill_null(value=False).sum())
    if beyond:
        said += f". In {beyond} of the rows more arrive than that: queues grow for as long as they last"
    return f"{said}."


def _files_said(found: Calibration) -> str:
    """Say which rows each file has."""
    parts = []
    for run, rows in found.rows.group_by("run", maintain_order=True):
        numbers = rows["row"].to_list()
        which = f"row {numbers[0]}" if len(numbers) == 1 else f"rows {numbers[0]} to {numbers[-1]}"
        parts.append(f"{which} {run[0]}")
    return f"Files: {', '.join(parts)}."
