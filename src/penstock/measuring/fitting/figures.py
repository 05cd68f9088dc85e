"""Figures of a fit: measured batches with the model, and its relative errors."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.fit import Fit
from penstock.show.page import Figure, Table
from penstock.show.plot import COLOURS, SPREAD, Axis, By, Chart, Look, Mark, limit, mark, plot

_MOST = 3_000  # batches drawn; more are thinned evenly
_CROSS = "M-1,-1L1,1M-1,1L1,-1"
_LOOKS = {"fitted": (COLOURS[0], "circle"), "left out": (COLOURS[1], _CROSS)}
_EACH, _OF_ALL = "for each batch", "the line"


def fit_figures(fit: Fit, tables: Sequence[Table] = ()) -> list[Figure]:
    """Draw batch times with the model, and relative errors."""
    return [
        Figure(
            "batch_time_fit",
            f"Batch time by token load: {fit.name}",
            {"Measured batch times over token load, with the model": fitted_line(fit)},
            tables,
            "Black: the model; of a composition, what it predicts for each batch. Crosses: batches "
            "left out of the fit.",
            wide=True,
        ),
        Figure(
            "batch_time_errors",
            "Relative error of each batch",
            {"Relative error of each batch over its token load": relative_errors(fit)},
            caption="Errors beyond the scale stand at its edge.",
            wide=True,
        ),
    ]


def fitted_line(fit: Fit) -> Chart:
    """Batch times over token load, with the model's line, or a composition's predictions."""
    points = _points(fit)
    marks = [_batches(points, "measured_ms"), _model(fit, points)]
    return plot(points, *marks, x=_loads(fit), y=Axis("Batch time (ms)"), size=(520, 320))


def relative_errors(fit: Fit) -> Chart:
    """Predicted / measured - 1 over token load; the height is 1.2 times the 98% between."""
    end = max(1.2 * max(abs(fit.quantiles[0.01]), abs(fit.quantiles[0.99])), 1e-3)
    points = _points(fit).with_columns(pl.col("error").clip(-end, end))
    return plot(
        points,
        _batches(points, "error"),
        *limit("y", 0.0, color="black", strokeDash=[1, 0]),
        x=_loads(fit),
        y=Axis("Predicted / measured - 1", kind="error", domain=(-end, end)),
        size=(520, 220),
    )


def _batches(points: pl.DataFrame, y: str) -> Mark:
    """Draw batches fitted or left out; no legend where there is but one kind."""
    kinds = {kind: look for kind, look in _LOOKS.items() if (points["batch"] == kind).any()}
    by = By("batch", kinds, "Measured", "color shape", legend=len(kinds) > 1)
    return mark("point", "tokens", y, by, size=22, opacity=0.55, filled=False, strokeWidth=1.2)


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
    parts = (frame.filter(batch=kind) for kind in _LOOKS)
    return pl.concat([part.gather_every(-(-part.height // _MOST) or 1) for part in parts])


def _loads(fit: Fit) -> Axis:
    """Return the axis of token loads; logarithmic where most batches are small."""
    tokens = fit.batches.tokens
    log = float(tokens.max()) > SPREAD * float(np.median(tokens))
    return Axis("Token load (tokens in the batch)", log=log)


def _model(fit: Fit, points: pl.DataFrame) -> Mark:
    """Draw the model: a line by token load, or a bar per batch where load does not decide."""
    composed = fit.name.startswith(COMPOSED)
    name = _EACH if composed else _OF_ALL
    by = By("model", {name: ["#000000"]}, "Model", "stroke")
    if composed:
        table = points.with_columns(model=pl.lit(name))
        bar: Look = {"shape": "stroke", "size": 60, "strokeWidth": 1.5, "opacity": 0.7}
        return mark("point", "tokens", "predicted_ms", by, table=table, **bar)
    low, high = float(fit.batches.tokens.min()), float(fit.batches.tokens.max())
    grids = (np.linspace(low, high, 1_000), np.geomspace(low, high, 200))
    loads = np.unique(np.concatenate(grids).round())
    loads = loads[(loads >= low) & (loads <= high)]
    gap = fit.parameters.get("gap", (0.0,))[0]  # no measured point has it
    milliseconds = (fit.model(loads) - gap) * 1e3
    line = pl.DataFrame({"tokens": loads, "predicted_ms": milliseconds, "model": name})
    steps = "step-before" if fit.name == "steps" else "linear"
    return mark("line", "tokens", "predicted_ms", by, table=line, interpolate=steps)
