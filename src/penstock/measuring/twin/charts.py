"""Charts of twins: tokens in the system, measured and simulated, and their latencies."""

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from penstock.checking.charts import latency_cdfs
from penstock.show.charts import COLOURS, DASHES, SHORT, on_grid
from penstock.simulation.run import Run

if TYPE_CHECKING:
    from penstock.measuring.twin.records import Trial, Twin

SIDES = ("measured", "simulated")
_POINTS = 400
_MOST_ROUNDS = 6  # rounds that are drawn


def charts(found: "Twin") -> dict[str, Any]:
    """Return the charts of a twin by file name: the tokens in the system, and the latencies of the
    first round.
    """
    drawn: dict[str, Any] = {"twin_tokens": tokens(found)}
    for rho, (trial, *_) in found.by_load.items():
        drawn[f"twin_latency_{100 * rho:g}"] = latency_cdfs(
            runs_of(trial), f"rho {rho:g}, seed {trial.seed}", legend=None
        )
    return drawn


def runs_of(trial: "Trial") -> dict[str, Run]:
    """Return the two runs by name."""
    return dict(zip(SIDES, (trial.measured, trial.simulated), strict=True))


def tokens(found: "Twin") -> alt.HConcatChart:
    """Draw uncompleted tokens over time, a panel per load; rounds in one panel, both sides of
    each.
    """
    return on_grid(alt.hconcat(*token_panels(found).values()))


def token_panels(found: "Twin") -> dict[float, alt.Chart]:
    """Return the panels of `tokens`, by load."""
    return {rho: _panel(rho, trials) for rho, trials in found.by_load.items()}


def _panel(rho: float, trials: "list[Trial]") -> alt.Chart:
    parts = []
    for trial in trials[:_MOST_ROUNDS]:
        for side, run in runs_of(trial).items():
            series = run.series.filter(pl.col("time_s") <= run.last_arrival * run.tick_s)
            series = series.gather_every(
                max(-(-series.height * len(trials) * 2 // (_POINTS * 10)), 1)
            )
            parts.append(
                series.select(
                    "time_s",
                    "uncompleted_tokens",
                    side=pl.lit(side),
                    line=pl.lit(f"{side} {trial.seed}"),
                )
            )
    legend = alt.Legend(title=None, symbolStrokeWidth=2.5, symbolSize=300)
    word = trials[0].prediction.direction
    title = f"rho {rho:g}" + (f": a backlog {word}, as predicted" if trials[0].backlog else "")
    if any(trial.drift and trial.drift.direction != word for trial in trials):
        title = f"rho {rho:g}: predicted that a backlog {word}"
    panel: alt.Chart = (
        alt.Chart(pl.concat(parts), title=title)
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
            y=alt.Y(
                "uncompleted_tokens:Q",
                title="Uncompleted tokens",
                axis=alt.Axis(labelExpr=SHORT, tickCount=6),
            ),
            detail="line:N",
            color=alt.Color(
                "side:N", scale=alt.Scale(domain=SIDES, range=COLOURS[:2]), legend=legend
            ),
            strokeDash=alt.StrokeDash(
                "side:N",
                scale=alt.Scale(domain=SIDES, range=[list(DASHES[0]), list(DASHES[1])]),
                legend=legend,
            ),
        )
        .properties(width=270, height=240)
    )
    return panel
