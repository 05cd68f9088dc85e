"""Charts of a fit: measured batches with the model, and its relative errors."""

from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.fit import Fit
from penstock.show.charts import COLOURS, SHORT, on_grid

_MOST = 3_000  # batches drawn; more are thinned evenly
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_SHAPES = {"fitted": "circle", "left out": _CROSS}
_COLOURS = {"fitted": COLOURS[0], "left out": COLOURS[1]}
_LINE = "#000000"
_EACH, _OF_ALL = "for each batch", "the line"


def fitted_line(fit: Fit) -> alt.LayerChart:
    """Batch times over token load, with the model's line, or a composition's predictions."""
    points = _points(fit)
    y = alt.Y("measured_ms:Q", title="Batch time (ms)", axis=_AXIS)
    layers = [_marks(fit, points, y), _model(fit, points)]
    chart: alt.LayerChart = alt.LayerChart(layer=layers).properties(
        width=520, height=320, title=f"Batch time by token load: {fit.name}"
    )
    return on_grid(chart)


def relative_errors(fit: Fit) -> alt.LayerChart:
    """Predicted / measured - 1 over token load; the height is 1.2 times the 98% between."""
    points = _points(fit)
    limit = max(1.2 * max(abs(fit.quantiles[0.01]), abs(fit.quantiles[0.99])), 1e-3)
    y = alt.Y(
        "error:Q",
        title="Predicted / measured - 1",
        scale=alt.Scale(domain=[-limit, limit]),
        axis=alt.Axis(format="+%", tickCount=6),
    )
    errors = _marks(fit, points.with_columns(pl.col("error").clip(-limit, limit)), y)
    zero = alt.Chart(pl.DataFrame({"y": [0.0]})).mark_rule(color=_LINE, strokeWidth=1.5)
    chart: alt.LayerChart = alt.LayerChart(layer=[errors, zero.encode(y="y:Q")]).properties(
        width=520, height=220, title="Relative error of each batch; those beyond stand at the edge"
    )
    return on_grid(chart)


def _marks(fit: Fit, points: pl.DataFrame, y: alt.Y) -> alt.Chart:
    """Draw a mark for each batch over its token load."""
    marks = alt.Chart(points).mark_point(size=22, opacity=0.55, filled=False, strokeWidth=1.2)
    drawn: alt.Chart = marks.encode(x=_loads(fit), y=y, **_kinds(points))
    return drawn


_AXIS = alt.Axis(format=",.4~r", tickCount=6)


def _points(fit: Fit) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "tokens": fit.batches.tokens,
            "measured_ms": fit.batches.seconds * 1e3,
            "predicted_ms": fit.predicted * 1e3,
            "error": fit.errors,
            "batch": np.where(fit.outliers, "left out", "fitted"),
        }
    )
    parts = (frame.filter(batch=kind) for kind in ("fitted", "left out"))
    return pl.concat([part.gather_every(-(-part.height // _MOST) or 1) for part in parts])


def _loads(fit: Fit) -> alt.X:
    """Return the axis of token loads; logarithmic where most batches are small."""
    tokens = fit.batches.tokens
    log = float(tokens.max()) > 20 * float(np.median(tokens))
    scale = alt.Scale(type="log", nice=False, padding=8) if log else alt.Scale(zero=True)
    title = "Token load (tokens in the batch" + (", log scale)" if log else ")")
    return alt.X("tokens:Q", title=title, scale=scale, axis=alt.Axis(labelExpr=SHORT, tickCount=7))


def _kinds(points: pl.DataFrame) -> dict[str, Any]:
    """Colour and shape of batches fitted or left out; no legend where there is but one kind."""
    kinds = [kind for kind in _SHAPES if (points["batch"] == kind).any()]
    legend = alt.Legend(title="Measured", symbolSize=80) if len(kinds) > 1 else None
    colours, shapes = [_COLOURS[kind] for kind in kinds], [_SHAPES[kind] for kind in kinds]
    return {
        "color": alt.Color("batch:N", scale=alt.Scale(domain=kinds, range=colours), legend=legend),
        "shape": alt.Shape("batch:N", scale=alt.Scale(domain=kinds, range=shapes), legend=legend),
    }


def _model(fit: Fit, points: pl.DataFrame) -> alt.Chart:
    """Draw the model: a line by token load, or a bar per batch where load does not decide."""
    chart: alt.Chart
    y = alt.Y("predicted_ms:Q")
    if fit.name.startswith(COMPOSED):
        told = points.with_columns(model=pl.lit(_EACH))
        bars = alt.Chart(told).mark_point(shape="stroke", size=60, strokeWidth=1.5, opacity=0.7)
        chart = bars.encode(x=_loads(fit), y=y, stroke=_legend(_EACH))
        return chart
    low, high = float(fit.batches.tokens.min()), float(fit.batches.tokens.max())
    grids = (np.linspace(low, high, 1_000), np.geomspace(low, high, 200))
    loads = np.unique(np.concatenate(grids).round())
    loads = loads[(loads >= low) & (loads <= high)]
    gap = fit.parameters.get("gap", (0.0,))[0]  # no measured point has it
    milliseconds = (fit.model(loads) - gap) * 1e3
    line = pl.DataFrame({"tokens": loads, "predicted_ms": milliseconds, "model": _OF_ALL})
    drawn = alt.Chart(line).mark_line(
        strokeWidth=2, interpolate="step-before" if fit.name == "steps" else "linear"
    )
    chart = drawn.encode(x=_loads(fit), y=y, stroke=_legend(_OF_ALL))
    return chart


def _legend(name: str) -> alt.Stroke:
    """Name what is black."""
    legend = alt.Legend(title="Model", symbolType="stroke", symbolStrokeWidth=2, symbolSize=120)
    return alt.Stroke("model:N", scale=alt.Scale(domain=[name], range=[_LINE]), legend=legend)
