"""Figures of a calibration: predicted over measured, and errors by load."""

import polars as pl

from penstock.measuring.calibration.calibration import METRICS, Calibration
from penstock.measuring.calibration.quantities import SHOWN
from penstock.show.page import Figure
from penstock.show.plot import COLOURS, Axis, By, Chart, limit, mark, plot

_LOOKS = {"used to fit": (COLOURS[1], "diamond"), "not used": (COLOURS[0], "circle")}
_KINDS = By("rows", _LOOKS, "Rows", "color shape")
_FARTHEST = 0.5  # relative error that the axis reaches


def calibration_figures(answer: Calibration) -> list[Figure]:
    """Draw predicted over measured times, and errors by load where it was measured."""
    charts = {
        f"{METRICS[metric]} of each row: predicted over measured.": _predicted(rows, metric)
        for metric in SHOWN
        if (rows := _rows(answer, metric).drop_nulls("predicted")).height
    }
    caption = "Points on the line are predicted exactly."
    title = "Predicted and measured"
    figures = [Figure("predicted_over_measured", title, charts, caption=caption)]
    if answer.rows["requests_per_s_measured"].count():
        charts = {
            f"{METRICS[metric]}: relative error of each row by its load.": _errors(answer, metric)
            for metric in ("ttft", "itl")
        }
        caption = "Errors beyond 50% stand at the edge; above a load of 1 requests queue."
        figures.append(Figure("errors_by_load", "Errors by load", charts, caption=caption))
    return figures


def _predicted(rows: pl.DataFrame, metric: str) -> Chart:
    """Draw each row as a point, log axes, and the line of no error."""
    unit, per = SHOWN[metric]
    rows = rows.with_columns(pl.col("measured", "predicted") * per)
    both = [*rows["measured"], *rows["predicted"]]
    ends = min(both) * 0.8, max(both) * 1.25
    exact = pl.DataFrame({"measured": ends, "predicted": ends})
    return plot(
        rows,
        mark("line", "measured", "predicted", table=exact, color="black", strokeWidth=1.2),
        mark("point", "measured", "predicted", _KINDS, size=34, opacity=0.75),
        x=Axis(f"Measured ({unit})", log=True, domain=ends, ticks=5),
        y=Axis(f"Predicted ({unit})", log=True, domain=ends, ticks=5),
        size=(260, 260),
        title=METRICS[metric],
    )


def _errors(answer: Calibration, metric: str) -> Chart:
    """Draw errors over the share of what the server carries that arrives."""
    share = pl.col("requests_per_s_measured") / pl.col("limit_per_s")
    rows = _rows(answer, metric).with_columns(
        share.alias("share"), pl.col("error").clip(-_FARTHEST, _FARTHEST)
    )
    return plot(
        rows.drop_nulls("share"),
        mark("point", "share", "error", _KINDS, size=34, opacity=0.75),
        *limit("y", 0.0, color="black", strokeDash=[1, 0]),
        x=Axis("Requests/s over what the server carries"),
        y=Axis("Predicted / measured - 1", kind="error"),
        size=(330, 260),
        title=f"{METRICS[metric]}: error by load",
    )


def _rows(answer: Calibration, metric: str) -> pl.DataFrame:
    columns = {name: f"{metric}_{name}" for name in ("measured", "predicted", "error")}
    kept = ("shape", "load", "requests_per_s_measured", "limit_per_s")
    used = pl.when("fitted").then(pl.lit("used to fit")).otherwise(pl.lit("not used")).alias("rows")
    return answer.rows.select(
        *kept, used, **{name: pl.col(column) for name, column in columns.items()}
    ).drop_nulls("error")
