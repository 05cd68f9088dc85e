"""Any page as words and tables on the terminal, at any width."""

from collections.abc import Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from penstock.show import page as pages

_NARROWEST = 20  # columns

_COLOUR_OF = (
    dict.fromkeys(pages.GOOD, "bold blue")
    | dict.fromkeys(pages.BAD, "bold red")
    | dict.fromkeys(pages.PLAIN, "bold")
    | dict.fromkeys(("unknown", "undecided", "not tested", "differs"), "bold yellow")
    | dict.fromkeys(("held", "on trust", "same"), "default")
    | {"contradiction": "bold red reverse"}
)


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


def print_page(page: pages.Page, console: Console | None = None) -> None:
    """Print a page: verdicts first, then the sections, then what to know besides."""
    console = console or make_console()
    _say(console, f"[bold]{escape(page.title)}[/bold]  {escape(page.heading)}".rstrip())
    for note in page.notes:
        _note(console, note)
    if page.verdicts:
        console.print()
    for verdict in page.verdicts:
        parts = [_styled(verdict.word, verdict.word.upper())]
        parts += [escape(part) for part in (verdict.about, verdict.source) if part]
        _say(console, f"{' '.join(parts)}: {escape(verdict.reason)}")
    for section in page.sections:
        _print_section(console, section)
    for section in page.sections:
        for note in section.notes:
            _note(console, note)


def _print_section(console: Console, section: pages.Section) -> None:
    tables = [table for table in section.tables if not table.detail]
    if not (section.paragraphs or section.facts or section.hypotheses or section.commands or tables):
        return
    title = f"[bold]{escape(section.title)}[/bold]" if section.title else ""
    first, *others = section.paragraphs or [""]
    console.print()
    if title or first:
        _say(console, "  ".join(part for part in (title, escape(first)) if part))
    for paragraph in others:
        _say(console, escape(paragraph))
    if section.facts:
        console.print(_facts(section.facts), highlight=False)
    if section.hypotheses:
        console.print(_hypotheses(section.hypotheses), highlight=False)
    for table in tables:
        _print_table(console, table)
    for command in section.commands:
        console.print(f"\n{command}", highlight=False, markup=False, soft_wrap=True)


def _facts(facts: Sequence[pages.Fact]) -> Table:
    """Lay out name, figure, explanation."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for fact in facts:
        grid.add_row(escape(fact.name), escape(fact.figure), escape(fact.explanation))
    return grid


def _hypotheses(hypotheses: Sequence[pages.Hypothesis]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for hypothesis in hypotheses:
        state = _styled(hypothesis.state, hypothesis.state)
        grid.add_row("", state, escape(hypothesis.name), escape(hypothesis.why))
    return grid


def _print_table(console: Console, table: pages.Table) -> None:
    """Print a table, without its spare columns where there is no room for them."""
    for column in table.spare:
        unbroken = console.options.update(max_width=10_000)
        if Measurement.get(console, unbroken, _laid_out(table)).maximum <= console.width:
            break
        table = table.without(column)
    if table.title:
        _say(console, f"[bold]{escape(table.title)}[/bold]")
    console.print(_laid_out(table), highlight=False)
    if table.caption:
        _say(console, f"[dim]{escape(table.caption)}[/dim]")


def _laid_out(table: pages.Table) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, words in zip(table.columns, table.of_words, strict=True):
        justify: Literal["left", "right"] = "left" if words else "right"
        grid.add_column(escape(column), justify=justify, no_wrap=not words)
    for index, row in enumerate(table.rows):
        style = "bold" if index in table.strong else None
        grid.add_row(*(_styled(cell, cell) for cell in row), style=style)
    return grid


def _styled(word: str, text: str) -> str:
    """Return a text in the colour of a verdict, if the word is one."""
    colour = _COLOUR_OF.get(word)
    return f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=" " not in text)  # an address is not broken


def _note(console: Console, note: str) -> None:
    _say(console, f"\n[bold yellow]Note[/bold yellow]  {escape(note)}")
