"""Any page as words and tables on the terminal, at any width."""

import textwrap
from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.show import page as pages

_NARROWEST = 20  # columns; with COLUMNS=0 nothing could be read
_GAP = 2
_LABEL = 11  # columns of a label in the head: those of `Batch times`
_ROOMY = 40  # columns, below which the text of the head is not set off from its labels

_COLOUR_OF = (
    dict.fromkeys(pages.GOOD, "bold blue")
    | dict.fromkeys(pages.BAD, "bold red")
    | dict.fromkeys(pages.PLAIN, "bold")
    | dict.fromkeys(pages.OPEN, "bold yellow")
    | dict.fromkeys(("held", "on trust"), "default")
    | {"contradiction": "bold red reverse"}
)


def print_page(
    page: pages.Page,
    console: Console | None = None,
    depth: pages.Depth = "head",
    begun: int = 0,
) -> None:
    """Print the head, after the lines of it that are printed already, and what is asked besides."""
    console = _wide_enough(console)
    print_head(page.head[begun:], console)
    for section in page.sections:
        if section.below and page.head:
            _print_section(console, section, depth)
    if depth != "head" or not page.head:
        _print_behind(console, page, depth)
    behind = {"--why": page.why if depth == "head" else "", "--all": page.rest}
    hints = [f"{option}: {what}" for option, what in behind.items() if what and depth != "all"]
    if page.head and hints:
        _say(console, f"[dim]{escape('   '.join(hints))}[/dim]")


def print_head(lines: Sequence[pages.Line], console: Console | None = None) -> None:
    """Print lines of a head, each as it is whatever the others are."""
    console = _wide_enough(console)
    indent = _LABEL + _GAP if console.width >= _ROOMY else _GAP
    for line in lines:
        label = line.label.upper() if line.judges else line.label
        whole = textwrap.fill(
            line.text,
            console.width,
            initial_indent=f"{label:<{indent - _GAP}}{' ' * _GAP}",
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        styled = _styled(line.label, label) if line.judges else f"[bold]{escape(label)}[/bold]"
        text = f"{styled}{escape(whole[len(label) :])}"
        console.print(text, highlight=False, soft_wrap=True)


def _wide_enough(console: Console | None) -> Console:
    console = console or Console(emoji=False)  # in names: `a:b:c` holds none
    console.width = max(console.width, _NARROWEST)
    return console


def _print_behind(console: Console, page: pages.Page, depth: pages.Depth) -> None:
    """Print what is behind the head, or the whole page where it has none; notes come last."""
    if page.head:
        if page.heading:
            _say(console, f"\n{escape(page.heading)}")
    else:
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
        if (section.why or depth != "why" or not page.head) and not (section.below and page.head):
            _print_section(console, section, depth)
    for section in page.sections:
        for note in section.notes:
            _note(console, note)


def _print_section(console: Console, section: pages.Section, depth: pages.Depth) -> None:
    tables = [table for table in section.tables if depth == "all" or not table.detail]
    if not (
        section.paragraphs or section.facts or section.hypotheses or section.commands or tables
    ):
        return
    title = f"[bold]{escape(section.title)}[/bold]" if section.title else ""
    first, *others = section.paragraphs or [""]
    console.print()
    if title or first:
        _say(console, "  ".join(part for part in (title, escape(first)) if part))
    for paragraph in others:
        _say(console, escape(paragraph))
    if section.facts:
        _show(console, _facts(section.facts))
    if section.hypotheses:
        _show(console, _hypotheses(section.hypotheses))
    for index, table in enumerate(tables):
        if index or section.facts or table.title:
            console.print()
        _print_table(console, table)
    for command in section.commands:
        console.print(f"\n{command}", highlight=False, markup=False, soft_wrap=True)


def _facts(facts: Sequence[pages.Fact]) -> Table:
    """Lay out name, figure, explanation."""
    grid = Table.grid(padding=(0, _GAP))
    grid.add_column(style="bold")
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for fact in facts:
        grid.add_row(escape(fact.name), escape(fact.figure), escape(fact.explanation))
    return grid


def _hypotheses(hypotheses: Sequence[pages.Hypothesis]) -> Table:
    grid = Table.grid(padding=(0, _GAP))
    for hypothesis in hypotheses:
        state = _styled(hypothesis.state, hypothesis.state)
        grid.add_row("", state, escape(hypothesis.name), escape(hypothesis.why))
    return grid


def _print_table(console: Console, table: pages.Table) -> None:
    """Print a table; where room lacks, without spare columns, and if need be row by row."""
    for column in table.spare:
        if _width(table, [False] * len(table.columns)) > console.width:
            table = table.without(column)
    if table.title:
        _say(console, f"[bold]{escape(table.title)}[/bold]")
    fits = _width(table, table.of_words) <= console.width
    _show(console, _side_by_side(table) if fits else _row_by_row(table))
    if table.caption:
        _say(console, f"[dim]{escape(table.caption)}[/dim]")


def _width(table: pages.Table, broken: Sequence[bool]) -> int:
    """Return the terminal columns that a table needs if some of its own break between words."""
    widths = []
    for head, breaks, *cells in zip(table.columns, broken, *table.rows, strict=True):
        parts = [
            part
            for cell in (head, *cells)
            for part in (cell.split() if breaks else cell.splitlines())
        ]
        widths.append(max(map(cell_len, parts), default=0))
    return sum(widths) + _GAP * (len(widths) - 1)


def _side_by_side(table: pages.Table) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for column, words in zip(table.columns, table.of_words, strict=True):
        justify: Literal["left", "right"] = "left" if words else "right"
        grid.add_column(escape(column), justify=justify, no_wrap=not words)
    for index, row in enumerate(table.rows):
        style = "bold" if index in table.strong else None
        grid.add_row(*(_styled(cell, cell) for cell in row), style=style)
    return grid


def _row_by_row(table: pages.Table) -> Table:
    """Lay out names and values, the rows below each other."""
    grid = Table.grid(padding=(0, _GAP))
    first, *others = table.columns
    for name, *cells in table.rows:
        grid.add_row(escape(f"{first}: {name}" if first else name))
        for column, cell in zip(others, cells, strict=True):
            grid.add_row(f"  {escape(column)}".replace("\n", " "), _styled(cell, cell))
    return grid


def _show(console: Console, grid: Table) -> None:
    for column in grid.columns:
        column.overflow = "fold"  # a word that is too long is broken, and not cut
    console.print(grid, highlight=False)


def _styled(word: str, text: str) -> str:
    """Return a text in the colour of a verdict, if the word is one."""
    colour = _COLOUR_OF.get(word)
    return f"[{colour}]{escape(text)}[/{colour}]" if colour else escape(text)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=" " not in text)  # an address is not broken


def _note(console: Console, note: str) -> None:
    _say(console, f"\n[bold yellow]Note[/bold yellow]  {escape(note)}")
