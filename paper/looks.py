"""How figures of several scripts look: colours, dashes and marks keep lines apart, even those on each other."""

import altair as alt
import polars as pl

from penstock.show.plot import By

SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
STROKES = {"symbolType": "stroke", "labelLimit": 260, "columns": 1}  # a legend of lines whose names may be long
POINTS = 500  # of each line
MARKS = 10  # of each line, where no other line has its own


def channels(field, names, title, **legend):
    """Colour and dash by a field, one legend for both."""
    return drawn_with(field, names, alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300, **legend))


def drawn_with(field, names, legend):
    """Return the colours and dashes that Penstock's own lines have."""
    looks = By(field, names).channels()
    colours, dashes = (alt.Scale(**looks[channel]["scale"]) for channel in ("color", "strokeDash"))
    return {
        "color": alt.Color(f"{field}:N", scale=colours, legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=dashes, legend=legend),
    }


def lines_over_time(runs, column, *, measure, title, legend, log=False):
    """Draw a column of `Run.series` over time, a line for each run, as long as it lasted.

    ``runs`` are by what the legend calls them; on a log scale what is below 1 is drawn at 1.
    """
    names = list(runs)
    until = max(run.series["time_s"].item(-1) for run in runs.values())
    lines = []
    for index, (name, run) in enumerate(runs.items()):
        value = pl.col(column).cast(pl.Float64).clip(int(log))
        series = run.series.select("time_s", value=value, line=pl.lit(name))
        drawn = pl.concat([series.gather_every(-(-series.height // POINTS)), series.tail(1)])
        period = (pl.col("time_s") * MARKS / until - (index + 0.5) / len(names)).floor()
        lines.append(drawn.with_columns(marked=(period > period.shift(1)).fill_null(value=False)))
    key = alt.Legend(title=legend, symbolSize=90, symbolStrokeWidth=0)
    look = drawn_with("line", names, key)
    # with a tick on top, titles of panels side by side are level
    scale = alt.Scale(type="log") if log else alt.Scale(nice=6)
    base = alt.Chart(pl.concat(lines)).encode(
        x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
        y=alt.Y("value:Q", title=measure, axis=alt.Axis(format="~s", tickCount=6), scale=scale),
        color=look["color"],
    )
    dashed = base.mark_line(strokeWidth=1.6).encode(strokeDash=look["strokeDash"].legend(None))
    shape = alt.Shape("line:N", scale=alt.Scale(domain=names, range=SHAPES), legend=key)
    marks = base.transform_filter("datum.marked").mark_point(filled=True, size=55, opacity=1).encode(shape=shape)
    return alt.LayerChart(layer=[dashed, marks]).properties(width=400, height=280, title=title)
