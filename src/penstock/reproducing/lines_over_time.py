"""Something over time, a line for each run, in colours and dashes that grey printing keeps apart."""

from collections.abc import Mapping

import altair as alt
import polars as pl

from penstock.plotting import COLOURS, DASHES
from penstock.run import Run

_POINTS = 500


def lines_over_time(runs: Mapping[str, Run], column: str, *, measure: str, title: str, legend: str) -> alt.Chart:
    """Draw a column of `Run.series` over time, a line for each run, as long as it lasted.

    Parameters
    ----------
    runs
        By what the legend calls them.
    column
        Of the series.
    measure, title, legend
        Titles: of the vertical axis, of the chart, of the legend.
    """
    names = list(runs)
    parts = []
    for name, run in runs.items():
        series = run.series.select("time_s", value=pl.col(column).cast(pl.Float64), line=pl.lit(name))
        parts += [series.gather_every(-(-series.height // _POINTS)), series.tail(1)]
    key = alt.Legend(title=legend, symbolStrokeWidth=2.5, symbolSize=300)
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    dashes = [list(DASHES[i % len(DASHES)]) for i in range(len(names))]
    drawn: alt.Chart = (
        alt.Chart(pl.concat(parts))
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
            y=alt.Y("value:Q", title=measure, axis=alt.Axis(format="~s", tickCount=6)),
            color=alt.Color("line:N", scale=alt.Scale(domain=names, range=colours), legend=key),
            strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=names, range=dashes), legend=key),
        )
        .properties(width=400, height=280, title=title)
    )
    return drawn
