"""Figures of a sweep: charts that fit what varied, in pictures, words and tables."""

from collections.abc import Sequence

import polars as pl

from penstock.show.heat_map import significant
from penstock.show.page import Figure, Table
from penstock.sweeping import charts
from penstock.sweeping.points import SHOWN, averages
from penstock.sweeping.stable_rates import KNOWN, RATE, is_rate
from penstock.sweeping.view import cell, heads, points_table

_MOST_ROWS = 300
_STATISTICS = {"p50": "Medians", "p99": "99th percentiles"}


def sweep_figures(rows: pl.DataFrame, fields: Sequence[str]) -> list[Figure]:
    """Draw the figures of a sweep; none where nothing that varies can be drawn."""
    points = averages(rows, fields)
    return [
        Figure(
            _title(name),
            charts,
            [_table(points, fields, name)],
            _caption(name, points),
            wide="each" in name,
        )
        for name, charts in charts.panels(rows, fields).items()
    ]


def _title(name: str) -> str:
    for statistic, words in _STATISTICS.items():
        if f"_{statistic}" in name:
            metric = name.split("_")[0]
            if metric != "latency":
                return f"{words} of {metric.upper()}"
            over = " over the rate, with the limits" if name.endswith("limits") else ""
            return f"{words} of latency{over}"
    return "Highest stable rate" if name.startswith(RATE) else "Latency of each"


def _caption(name: str, points: pl.DataFrame) -> str:
    if name.endswith("limits"):
        steady = (
            "Latency is drawn where there is a steady state: points of unstable servers are left "
            "out."
        )
        return f"{charts.LIMITS} {steady}"
    if name == f"{RATE}_map":
        return "Theorem: what is certified is all that any policy could carry. Framed: the highest."
    if name.endswith("map"):
        return (
            "Framed: the least of the stable ones. Unstable ones have no steady state, so they "
            "are white."
        )
    if name.startswith(RATE) or not (points["state"] == "unstable").any():
        return ""
    if name.endswith("each"):
        return "Where it is unstable: what a finite run showed, which grows with the run."
    return "A cross is what a finite run of an unstable server showed: it grows with the run."


def _table(points: pl.DataFrame, fields: Sequence[str], name: str) -> Table:
    """Return the figures that a group of charts draws."""
    if not name.startswith(RATE):
        statistics = [statistic for statistic in SHOWN if f"_{statistic}" in name] or list(SHOWN)
        return points_table(points.rename({"state": "verdict"}), fields, statistics=statistics)
    others = [field for field in fields if not is_rate(field)]
    rows = [
        (*(cell(row[field]) for field in others), significant(row[RATE]), row[KNOWN] or "-")
        for row in points.unique(others, keep="first", maintain_order=True)
        .head(_MOST_ROWS)
        .iter_rows(named=True)
    ]
    return Table((*heads(others), "Stable rate (requests/s)", "Known by"), rows)
