"""Reproductions on the terminal: published against measured, and a table of all items."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from penstock.reproducing.catalogue import ITEMS
from penstock.reproducing.claims import Reproduction
from penstock.reproducing.write import total
from penstock.show.terminal import make_console, print_warnings

_COLOUR = {"same": "green", "differs": "yellow", "changed": "default"}


def print_reproduction(found: Reproduction) -> None:
    """Print an item: each claim with its verdict, then why some differ, then what was assumed."""
    console = make_console()
    console.print(
        f"[bold]{escape(found.title)}[/bold]  {escape(found.name)}, {escape(found.source)}\n", highlight=False
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
    for name in ("claim", "published or known", "measured", "verdict"):
        table.add_column(name, overflow="fold")
    for claim in found.claims:
        table.add_row(escape(claim.what), escape(claim.published), escape(claim.measured), _styled(claim.verdict))
    console.print(table, highlight=False)
    for claim in found.claims:
        if claim.why:
            console.print(f"\n[bold]{escape(claim.what)}[/bold]: {escape(claim.why)}", highlight=False)
    print_warnings(console, found.assumed)


def print_summary(found: Sequence[Reproduction]) -> None:
    """Print a line for each item, and the reason of each claim that differs."""
    console = make_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(("item", "in the paper", "same", "differ", "verdict")):
        table.add_column(name, justify="right" if place in (2, 3) else "left", no_wrap=place != 1)
    for each in found:
        bad = len(each.differing)
        verdict = _styled(each.verdict)
        table.add_row(escape(each.name), escape(each.source), f"{len(each.claims) - bad}", f"{bad}", verdict)
    console.print(table, highlight=False)
    console.print(f"\n[bold]{total(found)}[/bold]", highlight=False)
    console.print("\n[dim]Notes on what was assumed, and on traces that were not here, are on each page.[/dim]")
    for each in found:
        for claim in each.differing:
            console.print(
                f"\n[bold]{escape(each.name)}, {escape(claim.what)}[/bold]: {escape(claim.why)}", highlight=False
            )


def print_items() -> None:
    """Print what can be reproduced."""
    console = make_console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("item", "in the paper", "shows"):
        table.add_column(name, no_wrap=name == "item")
    for each in ITEMS:
        table.add_row(each.name, escape(each.source), escape(each.title))
    console.print(table, highlight=False)
    console.print("\n[dim]penstock reproduce NAME, or all[/dim]", highlight=False)


def _styled(word: str) -> str:
    return f"[{_COLOUR[word]}]{word}[/{_COLOUR[word]}]"
