"""A sweep as a page: how many points are stable, what varied, the points, and their figures."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from penstock.checking.head import LATENCIES
from penstock.show.page import MOST_LINES, Fact, Line, Page, Section, Table
from penstock.sweeping.figures import sweep_figures
from penstock.sweeping.points import STATES, USUAL_ORDER, averages, best_first, varied
from penstock.sweeping.tables import cell, heads, points_table
from penstock.words import counted, duration

MOST_ROWS = 20
"""Points that are shown first; the table in the file has all."""

_NAMES = ("Best", "2nd", "3rd")  # of the points in the head
_IN_SHORT = ("ttft_p99_s", "tbt_p99_s", "e2e_p50_s")
_MOST_BAD = 5
_MOST_NAMED = 4  # points that are not stable
_MOST_VALUES = 8


def sweep_page(
    rows: pl.DataFrame, fields: Sequence[str], title: str, order: str | None = None
) -> Page:
    """Show a sweep, by the column ``order``, the best first; with ``stable_rate`` the limits."""
    # Those of `penstock.sweeping.stable_rates`.
    points = averages(rows, fields)
    bad = rows.filter(pl.col("error").is_not_null())
    counts = {state: int((points["state"] == state).sum()) for state in STATES}
    stable = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    outcome = stable or "None could be simulated"
    if bad.height:
        outcome += f"; {counted(bad.height, 'bad row')}"

    by = order or USUAL_ORDER
    facts, notes = _varied(rows, fields), _bad(bad, fields)
    mind = _not_stable(points, fields) + [Line("Bad", f"{note}.") for note in notes[:1]]
    runs = f"{counted(rows.height, 'run')} of {counted(points.height, 'point')}"
    # A rate is what arrives and no choice; but who asks for an order has all of them in it.
    rate = None if order else varied(rows, fields).rate
    each = " at each rate" if rate else ""
    known = "Verdicts are by theorems, and by the test where none speaks."
    return Page(
        title=title,
        sections=[
            Section("What varied", [known], facts=facts, notes=notes, why=True),
            Section("Points", tables=_tables(rows, points, fields, order, rate)),
            Section("Figures", figures=lambda: sweep_figures(rows, fields)),
        ],
        head=[
            Line(title, f"{runs}, over {', '.join(fields)}."),
            Line("swept", f"{outcome}. The best by {_in_words(by)}{each}:", judges=True),
            *_best(rows, fields, by, rate)[: MOST_LINES - 2 - len(mind)],
            *mind,
        ],
        why="what varied",
        rest="the table of points" if points.height else "",
    )


def _best(rows: pl.DataFrame, fields: Sequence[str], order: str, rate: str | None) -> list[Line]:
    """Say which points are best, or are at some rates, and how fast they are."""
    runs = best_first(rows.filter(pl.col("error").is_null()), order, rate)
    names: Sequence[str] = _NAMES
    if rate is not None:  # the lowest, a middle and the highest
        runs = runs.unique(rate, keep="first").sort(rate)
        ends = sorted({0, (runs.height - 1) // 2, runs.height - 1}) if runs.height else []
        runs = runs[ends]
        names = [f"At {cell(value)}" for value in runs[rate]]
    several = rows["seed"].n_unique() > 1
    lines: list[Line] = []
    for name, row in zip(names, runs.iter_rows(named=True), strict=False):
        parts = [_where(row, [field for field in fields if field != rate])]
        parts += [f"seed {row['seed']}"] if several else []
        where = ", ".join(filter(None, parts))
        latencies = [
            f"{_in_words(column)} {duration(row[column])}"
            for column in _IN_SHORT
            if row.get(column) is not None
        ]
        said = ", ".join([row["verdict"], *latencies])
        lines.append(Line(name, f"{where}: {said}." if where else f"{said}."))
    return lines


def _where(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """Say what fields are at a point."""
    return ", ".join(
        f"{of} {cell(row[field])}" for of, field in zip(heads(fields), fields, strict=True)
    )


def _not_stable(points: pl.DataFrame, fields: Sequence[str]) -> list[Line]:
    """Name the points that are not stable, of each kind that has few of them."""
    lines = []
    for state in STATES[1:]:
        bad = points.filter(pl.col("state") == state)
        if 0 < bad.height <= _MOST_NAMED and bad.height < points.height:
            named = "; ".join(_where(row, fields) for row in bad.iter_rows(named=True))
            lines.append(Line(state.capitalize(), f"{named}."))
    return lines


def _in_words(column: str) -> str:
    """Return what heads call a column: ``first token p99``."""
    metric, _, rest = column.partition("_")
    label = LATENCIES.get(f"{metric}_s", "")
    return f"{label.lower()} {rest.removesuffix('_s')}" if label else column


def _varied(rows: pl.DataFrame, fields: Sequence[str]) -> list[Fact]:
    facts = []
    several = varied(rows, fields)
    for field in (*several.numbers, *several.names):
        values = rows[field].unique().sort(nulls_last=True)
        shown = ", ".join(map(cell, values))
        if values.len() > _MOST_VALUES:
            shown = f"from {cell(values.min())} to {cell(values.max())}"
        facts.append(Fact(field, counted(values.len(), "value"), shown))
    return [*facts, Fact("Requests", f"{int(rows['requests'].sum() or 0):,}", "simulated in all")]


def _bad(bad: pl.DataFrame, fields: Sequence[str]) -> list[str]:
    """Say which points could not be simulated, and why."""
    notes = [
        f"{', '.join(f'{field}={row[field]}' for field in fields)}: {row['error']}"
        for row in bad.head(_MOST_BAD).iter_rows(named=True)
    ]
    if bad.height > _MOST_BAD:
        rest = counted(bad.height - _MOST_BAD, "more bad row")
        notes.append(f"{rest}: the column error of the table says why")
    return notes


def _tables(
    rows: pl.DataFrame,
    points: pl.DataFrame,
    fields: Sequence[str],
    order: str | None,
    rate: str | None,
) -> list[Table]:
    """Lay out the runs: in grid order if few, else the best of them, and then every point."""
    runs = rows.filter(pl.col("error").is_null())
    repeated = rows["seed"].n_unique() > 1
    if not runs.height:
        return []
    caption = ""
    shown = runs
    if runs.height > MOST_ROWS or order is not None:
        by = order or USUAL_ORDER
        shown = best_first(runs, by, rate).head(MOST_ROWS)
        each = " at each rate" if rate else ""
        caption = f"By {by}{each}, stable ones first. "
        if runs.height > MOST_ROWS:
            caption = f"The best {MOST_ROWS} of {runs.height:,} by {by}{each}, stable ones first. "
    if not repeated:
        shown = shown.drop("seed")
    tables = [points_table(shown, fields, caption)]
    if repeated or runs.height > MOST_ROWS:
        every = points_table(points.rename({"state": "verdict"}), fields)
        tables.append(dataclasses.replace(every, title="Every point", detail=True))
    return tables
