"""Answers as words and tables on the terminal, at any width."""

import math
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def styled(word: str) -> str:
    """Put a verdict into its colour."""
    colour = COLOUR_OF[word.lower()]
    return f"[{colour}]{word}[/{colour}]"


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


def signed(growth: float) -> str:
    """Return a rate of growth with its sign."""
    if math.isnan(growth):
        return "-"
    return f"{growth:+,.1f}" if abs(growth) >= 0.05 else "0.0"


def print_warnings(console: Console, warnings: "Sequence[str]") -> None:
    """Print notes, each a paragraph."""
    for warning in warnings:
        console.print(f"\n[bold yellow]Note[/bold yellow]  {escape(warning)}", highlight=False)
