"""How figures look: the same faint grid in all, and colours, dashes and marks that keep lines
apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from penstock.show import charts
from penstock.show.charts import COLOURS
from penstock.simulation.run import Run

STROKES: dict[str, Any] = {"symbolType": "stroke", "labelLimit": 260, "columns": 1}
"""Of a legend that shows lines below each other, whose names may be long."""

DASHES = [list(dash) for dash in charts.DASHES]
_POINTS = 500
_MARKS = 10  # of each line, where no other line has its own, so that lines on each other are seen
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")


def cycled(names: Sequence[str], values: Sequence[Any]) -> alt.Scale:
    """Return a scale that gives each name one of the values, and begins again where there are too
    few.
    """
    return alt.Scale(
        domain=list(names), range=[values[index % len(values)] for index in range(len(names))]
    )


def channels(field: str, names: Sequence[str], title: str, **legend: Any) -> dict[str, Any]:
    """Colour and dash by a field, one legend for both."""
    key = alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300, **legend)
    return {
        "color": alt.Color(f"{field}:N", scale=cycled(names, COLOURS), legend=key),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=cycled(names, DASHES), legend=key),
    }


def lines_over_time(
    runs: Mapping[str, Run],
    column: str,
    *,
    measure: str,
    title: str,
    legend: str,
    log: bool = False,
) -> alt.LayerChart:
    """Draw a column of `Run.series` over time, a line for each run, as long as it lasted.

    Parameters
    ----------
    runs
        By what the legend calls them.
    column
        Of the series.
    measure, title, legend
        Titles: of the vertical axis, of the chart, of the legend.
    log
        Whether the vertical axis is logarithmic; what is below 1 is then drawn at 1.
    """
    names = list(runs)
    parts = []
    until = max(run.series["time_s"].item(-1) for run in runs.values())
    for index, (name, run) in enumerate(runs.items()):
        series = run.series.select(
            "time_s", value=pl.col(column).cast(pl.Float64).clip(1 if log else 0), line=pl.lit(name)
        )
        drawn = pl.concat([series.gather_every(-(-series.height // _POINTS)), series.tail(1)])
        period = (pl.col("time_s") * _MARKS / until - (index + 0.5) / len(names)).floor()
        parts.append(drawn.with_columns(marked=(period > period.shift(1)).fill_null(value=False)))
    key = alt.Legend(title=legend, symbolSize=90, symbolStrokeWidth=0)
    base = alt.Chart(pl.concat(parts)).encode(
        x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
        y=alt.Y(
            "value:Q",
            title=measure,
            axis=alt.Axis(format="~s", tickCount=6),
            scale=alt.Scale(type="log")
            if log
            else alt.Scale(nice=6),  # a tick on top: titles side by side are level
        ),
        color=alt.Color("line:N", scale=cycled(names, COLOURS), legend=key),
    )
    lines = base.mark_line(strokeWidth=1.6).encode(
        strokeDash=alt.StrokeDash("line:N", scale=cycled(names, DASHES), legend=None)
    )
    marks = (
        base.transform_filter("datum.marked")
        .mark_point(filled=True, size=55, opacity=1)
        .encode(shape=alt.Shape("line:N", scale=cycled(names, SHAPES), legend=key))
    )
    return alt.LayerChart(layer=[lines, marks]).properties(width=400, height=280, title=title)
