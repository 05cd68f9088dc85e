"""How figures look: the same faint grid in all, and colours with dashes that keep lines apart."""

from typing import Any

import altair as alt

from penstock.show.charts import COLOURS, DASHES, GRID


def on_grid(chart: Any) -> Any:
    """Return a figure with the faint grid that all have."""
    return chart.configure_axis(gridColor=GRID)


def channels(field: str, names: list[str], title: str) -> dict[str, Any]:
    """Colour and dash by a field, one legend for both."""
    legend = alt.Legend(
        title=title, symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=300, labelLimit=260, columns=1
    )
    colours = [COLOURS[index % len(COLOURS)] for index in range(len(names))]
    dashes = [list(DASHES[index % len(DASHES)]) for index in range(len(names))]
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=names, range=dashes), legend=legend),
    }
