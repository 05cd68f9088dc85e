"""A sweep as a page: how many points are stable, what varied, the points, and their figures."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from penstock.checking.head import LATENCIES
from penstock.show.page import Fact, Figure, Line, Page, Section, Table
from penstock.sweeping.points import SHOWN, STATES, USUAL_ORDER, averages, best_first, varied
from penstock.sweeping.stable_rates import RATE, is_rate
from penstock.words import METRICS, NO_LIMIT, counted, digits, duration

MOST_ROWS = 20
"""Points that are shown first; the table in the file has all."""

_NAMES = ("Best", "2nd", "3rd")  # of the points in the head
_IN_SHORT = ("ttft_p99_s", "tbt_p99_s", "e2e_p50_s")
_MOST_POINTS = 300
_MOST_BAD = 5
_MOST_VALUES = 8

_LATENCIES = {
    f"{metric[:-2]}_{statistic}_s": f"{metric[:-2].upper()} {statistic}"
    for metric in METRICS
    for statistic in ("mean", *SHOWN)
}
# the head of a column of the sweep's table, and how a value is written
_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "seed": ("seed", str),
    "verdict": ("Verdict", str),
    "rho": ("rho", "{:.3f}".format),
    "throughput": ("req/s", "{:.4g}".format),
    **{column: (head, digits) for column, head in _LATENCIES.items()},
    RATE: ("Stable rate (req/s)", digits),
}

_SPARE = (
    "E2E mean", "TBT mean", "TTFT mean", "Stable rate (req/s)", "TBT p50", "E2E p99", "TTFT p99",
    "req/s",
    "TBT p99", "rho",
)  # fmt: skip


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

    def figures() -> list[Figure]:
        from penstock.sweeping.figures import sweep_figures

        return sweep_figures(rows, fields)

    by = order or USUAL_ORDER
    runs = f"{counted(rows.height, 'run')} of {counted(points.height, 'point')}"
    known = "Verdicts are by theorems, and by the test where none speaks."
    facts, notes = _varied(rows, fields), _bad(bad, fields)
    return Page(
        title=title,
        sections=[
            Section("What varied", [known], facts=facts, notes=notes, why=True),
            Section("Points", tables=_tables(rows, points, fields, order)),
            Section("Figures", figures=figures),
        ],
        head=[
            Line(title, f"{runs}, over {', '.join(fields)}."),
            Line("swept", f"{outcome}. The best by {_in_words(by)}:", judges=True),
            *_best(rows, fields, by),
            *(Line("Bad", f"{note}.") for note in notes[:1]),
        ],
        why="what varied",
        rest="the table of points" if points.height else "",
    )


def _best(rows: pl.DataFrame, fields: Sequence[str], order: str) -> list[Line]:
    """Say which points are best, and how fast they are."""
    runs = best_first(rows.filter(pl.col("error").is_null()), order).head(len(_NAMES))
    several = rows["seed"].n_unique() > 1
    lines: list[Line] = []
    for name, row in zip(_NAMES, runs.iter_rows(named=True), strict=False):
        where = ", ".join(
            f"{of} {cell(row[field])}" for of, field in zip(heads(fields), fields, strict=True)
        )
        where += f", seed {row['seed']}" if several else ""
        latencies = [
            f"{_in_words(column)} {duration(row[column])}"
            for column in _IN_SHORT
            if row.get(column) is not None
        ]
        lines.append(Line(name, f"{where}: {', '.join([row['verdict'], *latencies])}."))
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
    rows: pl.DataFrame, points: pl.DataFrame, fields: Sequence[str], order: str | None
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
        shown = best_first(runs, by).head(MOST_ROWS)
        caption = f"By {by}, stable ones first. "
        if runs.height > MOST_ROWS:
            caption = f"The best {MOST_ROWS} of {runs.height:,} by {by}, stable ones first. "
    if not repeated:
        shown = shown.drop("seed")
    tables = [points_table(shown, fields, caption)]
    if repeated or runs.height > MOST_ROWS:
        every = points_table(points.rename({"state": "verdict"}), fields)
        tables.append(dataclasses.replace(every, title="Every point", detail=True))
    return tables


def points_table(
    rows: pl.DataFrame,
    fields: Sequence[str],
    caption: str = "",
    statistics: Sequence[str] = ("mean", *SHOWN),
) -> Table:
    """Lay out points, or single runs of them: their fields, and what is known of them."""
    left_out = {column for column in _LATENCIES if column.rsplit("_", 2)[1] not in statistics}
    shown = [column for column in _COLUMNS if column in rows.columns and column not in left_out]
    if RATE in shown and not rows[RATE].count():
        shown.remove(RATE)
    cells = [
        [
            *(cell(row[field]) for field in fields),
            *("-" if row[name] is None else _COLUMNS[name][1](row[name]) for name in shown),
        ]
        for row in rows.head(_MOST_POINTS).iter_rows(named=True)
    ]
    parts = [f"{caption}Latencies in seconds."]
    if (rows["verdict"] != "stable").any():
        parts.append(
            "Where it is not stable, they are those of a finite run, and grow with its length."
        )
    if rows.height > _MOST_POINTS:
        parts.append(
            f"The first {_MOST_POINTS:,} of {rows.height:,} points; the table of the sweep has all."
        )
    names = [_COLUMNS[column][0] for column in shown]
    return Table(
        [*heads(fields), *names],
        cells,
        " ".join(parts),
        spare=[name for name in _SPARE if name in names],
    )


def heads(fields: Sequence[str]) -> list[str]:
    """Return each field's last part, or all where two would be alike, and the unit of a rate."""
    short = [field.rsplit(".", 1)[-1].replace("_", " ").replace("-", " ") for field in fields]
    names = short if len(set(short)) == len(short) else fields
    return [
        f"{name} (req/s)" if is_rate(field) else name
        for name, field in zip(names, fields, strict=True)
    ]


def cell(value: Any) -> str:
    """Return the value of a field."""
    if value is None:
        return NO_LIMIT
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.6g}"
    return str(value)
