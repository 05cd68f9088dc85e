"""Charts of a calibration: predicted over measured, and errors by load."""

from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.measuring.calibration.calibration import Calibration
from penstock.show.charts import COLOURS, SHORT, on_grid

_SHOWN = {
    "ttft": ("Time to first token", "ms", 1e3),
    "itl": ("Inter-token latency", "ms", 1e3),
    "e2e": ("End to end", "s", 1.0),
}
_COLOURS = {"used to fit": COLOURS[1], "not used": COLOURS[0]}
_SHAPES = {"used to fit": "diamond", "not used": "circle"}
_FARTHEST = 0.5  # relative error that the axis reaches


def figures(found: Calibration) -> dict[str, Any]:
    """Return both figures by file name."""
    return {
        "predicted_over_measured": predicted_over_measured(found),
        "errors_by_load": errors_by_load(found),
    }


def predicted_over_measured(found: Calibration) -> alt.HConcatChart:
    """Each row as a point, measured across, predicted upwards, log axes, the line of no error."""
    predicted = [name for name in _SHOWN if _rows(found, name).drop_nulls("predicted").height]
    return on_grid(alt.hconcat(*(_panel(found, metric) for metric in predicted)))


def errors_by_load(found: Calibration) -> alt.HConcatChart:
    """Relative errors over the share of what the server carries that arrives; above 1 it queues."""
    panels = []
    for metric in ("ttft", "itl"):
        rows = _rows(found, metric).with_columns(
            (pl.col("requests_per_s_measured") / pl.col("limit_per_s")).alias("share"),
            pl.col("error").clip(-_FARTHEST, _FARTHEST),
        )
        points = (
            alt.Chart(rows.drop_nulls("share"))
            .mark_point(size=34, filled=True, opacity=0.75)
            .encode(
                x=alt.X("share:Q", title="Requests/s over what the server carries"),
                y=alt.Y("error:Q", title="Predicted / measured - 1", axis=alt.Axis(format="+%")),
                **_kinds(),
            )
        )
        zero = alt.Chart(pl.DataFrame({"y": [0.0]})).mark_rule(strokeWidth=1.5).encode(y="y:Q")
        title = f"{_SHOWN[metric][0]}: error by load"
        panels.append(
            alt.LayerChart(layer=[points, zero]).properties(width=330, height=260, title=title)
        )
    return on_grid(alt.hconcat(*panels))


def _rows(found: Calibration, metric: str) -> pl.DataFrame:
    columns = {name: f"{metric}_{name}" for name in ("measured", "predicted", "error")}
    kept = ("shape", "load", "requests_per_s_measured", "limit_per_s")
    used = pl.when("fitted").then(pl.lit("used to fit")).otherwise(pl.lit("not used")).alias("rows")
    return found.rows.select(
        *kept, used, **{name: pl.col(column) for name, column in columns.items()}
    ).drop_nulls("error")


def _kinds() -> dict[str, Any]:
    names = list(_COLOURS)
    legend = alt.Legend(title="Rows")
    return {
        "color": alt.Color(
            "rows:N", scale=alt.Scale(domain=names, range=list(_COLOURS.values())), legend=legend
        ),
        "shape": alt.Shape(
            "rows:N", scale=alt.Scale(domain=names, range=list(_SHAPES.values())), legend=legend
        ),
    }


def _panel(found: Calibration, metric: str) -> alt.LayerChart:
    title, unit, per = _SHOWN[metric]
    scaled = pl.col("measured", "predicted") * per
    rows = _rows(found, metric).with_columns(scaled).drop_nulls("predicted")
    both = np.concatenate([rows["measured"].to_numpy(), rows["predicted"].to_numpy()])
    least, most = float(both.min()) * 0.8, float(both.max()) * 1.25
    scale = alt.Scale(type="log", domain=[least, most], nice=False)
    axis = alt.Axis(labelExpr=SHORT, tickCount=5)
    points = (
        alt.Chart(rows)
        .mark_point(size=34, filled=True, opacity=0.75)
        .encode(
            x=alt.X("measured:Q", title=f"Measured ({unit})", scale=scale, axis=axis),
            y=alt.Y("predicted:Q", title=f"Predicted ({unit})", scale=scale, axis=axis),
            **_kinds(),
        )
    )
    ends = pl.DataFrame({"x": [least, most], "y": [least, most]})
    line = alt.Chart(ends).mark_line(color="black", strokeWidth=1.2).encode(x="x:Q", y="y:Q")
    panel: alt.LayerChart = alt.LayerChart(layer=[line, points]).properties(
        width=260, height=260, title=title
    )
    return panel
