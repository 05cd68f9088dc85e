"""Reproductions as pages: published against measured, and a table of all items."""

import dataclasses
from collections.abc import Iterator, Sequence

from penstock.reproducing.catalogue import ITEMS
from penstock.reproducing.item import Reproduction
from penstock.show.page import Figure, Page, Section, Table, Verdict
from penstock.words import counted

_MOST_ROWS = 40


def reproduction_page(answer: Reproduction) -> Page:
    """Show an item: each claim with its verdict, then why some differ, then what was measured."""
    claims = [
        (claim.what, claim.published, claim.measured, claim.verdict) for claim in answer.claims
    ]
    reasons = [(claim.what, claim.why) for claim in answer.claims if claim.why]
    columns = ("Claim", "Published or known", "Measured", "Verdict")
    return Page(
        title=answer.title,
        heading=f"{answer.name}, {answer.source}",
        verdicts=[_verdict(answer)],
        sections=[
            Section("", tables=[Table(columns, claims, prose=True)], notes=answer.assumed),
            *_table_section("Why", ("Claim", "Reason"), reasons),
            *_measured(answer),
        ],
    )


def summary_page(answers: Sequence[Reproduction]) -> Page:
    """Show a line for each item, and the reason of each claim that differs."""
    rows = []
    for answer in answers:
        differing = len(answer.differing)
        same = len(answer.claims) - differing
        rows.append(
            (answer.name, answer.title, answer.source, f"{same}", f"{differing}", answer.verdict)
        )
    items = Table(
        ("Item", "Shows", "In the paper", "Same", "Differ", "Verdict"),
        rows,
        "Notes on what was assumed, and on traces that were not here, are on the page of each "
        "item.",
        spare=("Shows",),
        links=[f"{answer.name}.html" for answer in answers],
    )
    reasons = [
        (answer.name, claim.what, claim.why) for answer in answers for claim in answer.differing
    ]
    return Page(
        title="The paper, measured again",
        heading=total(answers),
        sections=[
            Section("", tables=[items]),
            *_table_section("Why", ("Item", "Claim", "Reason"), reasons),
        ],
    )


def items_page() -> Page:
    """Show what can be reproduced."""
    rows = [(item.name, item.source, item.title) for item in ITEMS]
    table = Table(
        ("Item", "In the paper", "Shows"),
        rows,
        "`penstock reproduce NAME` measures one again, `all` all.",
    )
    return Page(
        "The paper",
        "tables and figures that can be measured again",
        sections=[Section("", tables=[table])],
    )


def total(answers: Sequence[Reproduction]) -> str:
    """Return in one line how many items and claims are the same.

    >>> total([])
    '0 items: 0 same, 0 differ. 0 claims: 0 same, 0 differ.'
    """
    claims = [claim for answer in answers for claim in answer.claims]
    items = counted(len(answers), "item") + _parted([answer.verdict for answer in answers])
    reason = ", each with its reason" if any(answer.differing for answer in answers) else ""
    return (
        f"{items}. "
        f"{counted(len(claims), 'claim')}{_parted([claim.verdict for claim in claims])}{reason}."
    )


def _parted(verdicts: Sequence[str]) -> str:
    changed = verdicts.count("changed")
    last = f", {changed:,} changed" if changed else ""
    return f": {verdicts.count('same'):,} same, {verdicts.count('differs'):,} differ{last}"


def _verdict(answer: Reproduction) -> Verdict:
    claims = counted(len(answer.claims), "claim")
    if answer.changed:
        reason = "measured with a scenario of your own: nothing is judged."
    elif answer.differing:
        reason = f"{len(answer.differing):,} of {claims} differ, each with its reason below."
    else:
        reason = f"{claims}, all as published or proved."
    return Verdict(answer.verdict, reason)


def _table_section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[Section]:
    """Return a section with a table of words, if there are any."""
    return [Section(title, tables=[Table(columns, rows, prose=True)])] if rows else []


def _measured(answer: Reproduction) -> Iterator[Section]:
    """Yield what was drawn and compared, for a page alone: there is more of it than a terminal has
    room for.
    """
    if answer.charts:
        figure = Figure(answer.title, answer.charts, [_rows(answer)], answer.caption, wide=True)
        yield Section("What was measured", figures=lambda: [figure])
    if answer.tables:
        yield Section(
            "In numbers",
            tables=[dataclasses.replace(table, detail=True) for table in answer.tables],
        )


def _rows(answer: Reproduction) -> Table:
    rows = [tuple(map(_cell, row)) for row in answer.rows.head(_MOST_ROWS).iter_rows()]
    caption = ""
    if answer.rows.height > len(rows):
        caption = (
            f"The first {len(rows)} rows; all {answer.rows.height:,} are in {answer.name}.csv."
        )
    return Table([name.replace("_", " ") for name in answer.rows.columns], rows, caption)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
