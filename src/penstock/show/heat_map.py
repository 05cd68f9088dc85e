"""Heat maps: a figure over two quantities, its cells coloured and labelled."""

import altair as alt
import polars as pl

from penstock.show.charts import SHORT

_WIDE, _NARROW, _HIGH, _LOW = 62, 26, 44, 22  # px of a cell with text, and without
_MOST_WITH_TEXT = 12  # columns
_INK = (
    0.68  # of the way from the lightest to the darkest colour white letters become easier to read
)


def heat_map(
    rows: pl.DataFrame,
    *,
    x: alt.X,
    y: alt.Y,
    value: str,
    title: str,
    name: str,
    cells: tuple[int, int],
) -> alt.LayerChart:
    """Draw coloured cells with their figures: light is low, dark is high; the best is framed. A row
    is a cell: ``value``, ``text`` and ``note`` (two lines in it), ``best``. The column of the value
    is coloured; null leaves the cell white. The title is that of the colours; ``cells`` are columns
    and rows: text is left out where there are too many.
    """
    across, down = cells
    known = rows[value].drop_nulls().to_list()
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    high = high if high > low else low + abs(low) + 1e-9
    scale = alt.Scale(scheme="blues", domain=[low, high], nice=False)
    legend = alt.Legend(
        title=title,
        labelExpr=SHORT,
        gradientLength=200,
        direction="horizontal",
        orient="bottom",
        tickCount=4,
    )
    base = alt.Chart(rows).encode(x=x, y=y)
    frame = base.transform_filter("datum.best").mark_rect(
        fillOpacity=0, stroke="black", strokeWidth=2.5
    )
    colour = alt.Color(f"{value}:Q", scale=scale, legend=legend)
    drawn = base.transform_filter(f"datum.{value} !== null")
    layers = [drawn.mark_rect(stroke="#ffffff", strokeWidth=1).encode(color=colour), frame]
    roomy = across <= _MOST_WITH_TEXT
    if roomy:
        dark = f"datum.{value} !== null && datum.{value} > {low + _INK * (high - low)}"
        ink = alt.condition(dark, alt.value("white"), alt.value("black"))
        layers.append(base.mark_text(fontSize=13, dy=-7).encode(text="text:N", color=ink))
        layers.append(base.mark_text(fontSize=10, dy=9).encode(text="note:N", color=ink))
    width, height = (_WIDE, _HIGH) if roomy else (_NARROW, _LOW)
    size = {"width": max(width * across, 220), "height": max(height * down, 180)}
    return alt.LayerChart(layer=layers).properties(**size, title=name)


def significant(value: float | None) -> str:
    """Return three figures, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".rstrip(".")
