"""Points of a sweep as cells of text, the same in its page and beside its figures."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from penstock.show.page import Table
from penstock.sweeping.points import SHOWN
from penstock.sweeping.stable_rates import RATE, is_rate
from penstock.words import METRICS, NO_LIMIT, digits

_MOST_POINTS = 300

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
