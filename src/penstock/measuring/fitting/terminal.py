"""Fits of batch times as words and tables on the terminal."""

import math

from rich.markup import escape
from rich.table import Table

from penstock.measuring.fitting.description import formula, parameters, quality
from penstock.measuring.fitting.fit import Fit
from penstock.show.terminal import facts, make_console, print_warnings

_PLAIN = 1e4  # from here on four digits would need an exponent
_KNOTS = 12
"""Rows of a table of batch times that are printed."""


def print_fit(fit: Fit) -> None:
    """Print the model, its parameters, how well it fits, and what it was chosen from."""
    console = make_console()
    console.print(f"[bold]{escape(fit.batches.source)}[/bold]", highlight=False)
    console.print(f"\n[bold]{fit.name.upper()}[/bold]  batch time of b tokens: {escape(formula(fit))}", highlight=False)
    console.print()
    console.print(_parameters(fit), highlight=False)
    console.print()
    console.print(facts([(name, figure, escape(why)) for name, figure, why in quality(fit)]), highlight=False)
    if fit.candidates:
        console.print()
        console.print(_candidates(fit), highlight=False)
    print_warnings(console, fit.warnings)


def _parameters(fit: Fit) -> Table:
    rows = parameters(fit)
    loads = [row for row in rows if row.name.startswith("t_")]
    every = -(-len(loads) // _KNOTS) or 1
    shown = [*loads[:-1:every], *loads[-1:], *rows[len(loads) :]]
    some = f"; {len(shown) - len(rows) + len(loads)} of {len(loads)} token loads" if len(shown) < len(rows) else ""
    title = f"Parameters, with {fit.confidence:.0%} intervals{some}"
    table = _table(title, ("", "value", "from", "to", "", "cost of"))
    for row in shown:
        table.add_row(row.name, *(_figures(value) for value in (row.value, row.low, row.high)), row.unit, row.meaning)
    return table


def _figures(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _PLAIN else f"{value:,.4g}"


def _candidates(fit: Fit) -> Table:
    table = _table("Error on batches held out of the fit", ("", "parameters", "error", "+-", ""))
    for one in fit.candidates:
        chosen = "[bold blue]chosen[/bold blue]" if one.chosen else ""
        held_out = (f"{value:.2%}" if math.isfinite(value) else "-" for value in (one.error, one.standard_error))
        table.add_row(one.name, str(one.parameters), *held_out, chosen)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    words = ("", "cost of")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if column in words else "right", no_wrap=place < len(columns) - 1)
    return table
