"""Figures of networks: floods, queues over time, and the graph (`penstock.checking.graph`)."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.checking.charts import cdf_panel
from penstock.checking.comparison import NetworkComparison
from penstock.checking.flood_test import FALLEN
from penstock.checking.graph import network_graph as network_graph
from penstock.checking.stability import Stability
from penstock.show.charts import GRID, SHORT, line_channels
from penstock.simulation.run import Run
from penstock.words import METRICS

_SERIES_POINTS = 500
_MOST_ROWS = 4_800  # of the data of one chart; Altair allows 5,000
_MOST_COLUMNS = 3


def _line_channels(column: str, names: Sequence[str], title: str) -> dict[str, Any]:
    legend = alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300, labelLimit=260)
    return line_channels(column, names, legend)


def flood_paths(stability: Stability) -> alt.LayerChart:
    """Work over that at the start, by time, a line per flooded stage, between the barriers."""
    names = [flood.name for flood in stability.floods]
    rose = [flood.barrier for flood in stability.floods if flood.outcome == "unstable"]
    high = rose[0] if rose else min(flood.barrier for flood in stability.floods)
    low = min(
        FALLEN / 1.25, max(0.05, min(float(flood.path[:, 1].min()) for flood in stability.floods))
    )
    parts = []
    for flood in stability.floods:
        time, work = _thinned(flood.path, _MOST_ROWS // len(names)).T
        parts.append(pl.DataFrame({"time": time, "work": work.clip(low), "stage": flood.name}))
    y = alt.Y(
        "work:Q",
        title="Work over that at the start",
        scale=alt.Scale(type="log", base=2, domain=[low, 1.5 * high], nice=False),
        axis=alt.Axis(values=[2.0**power for power in range(-4, 12)], format="~g"),
    )
    x = alt.X("time:Q", title="Time (s)", axis=alt.Axis(tickCount=6, labelExpr=SHORT))
    lines = alt.Chart(pl.concat(parts)).mark_line(strokeWidth=1.6)
    texts = ["stable: it fell to half", "unstable: it rose so far"]
    barriers = alt.Chart(pl.DataFrame({"work": [FALLEN, high], "text": texts})).encode(y=y)
    # On the left: paths start between the barriers.
    words = barriers.encode(x=alt.value(5), text="text:N")
    below = words.transform_filter(alt.datum.work < 1)
    above = words.transform_filter(alt.datum.work > 1)
    halo: dict[str, Any] = {"color": "white", "stroke": "white", "strokeWidth": 4}
    chart: alt.LayerChart = (
        alt.layer(
            barriers.mark_rule(strokeDash=[4, 3], color="black"),
            lines.encode(x=x, y=y, **_line_channels("stage", names, "Flooded stage")),
            *(below.mark_text(align="left", baseline="top", dy=4, **look) for look in (halo, {})),
            *(
                above.mark_text(align="left", baseline="bottom", dy=-4, **look)
                for look in (halo, {})
            ),
        )
        .properties(width=430, height=280)
        .configure_axis(gridColor=GRID)
    )
    return chart


def _thinned(path: Any, most: int) -> Any:
    """Return at most so many rows, the last among them."""
    return path if len(path) <= most else path[np.linspace(0, len(path) - 1, most).astype(int)]


def queue_lengths(run: Run) -> alt.ConcatChart:
    """Requests in each stage over time while jobs arrive, in both phases, a panel per pool."""
    grid: alt.ConcatChart = (
        alt.concat(*queue_panels(run).values(), columns=_MOST_COLUMNS)
        .resolve_scale(color="independent", strokeDash="independent")
        .configure_axis(gridColor=GRID)
    )
    return grid


def queue_panels(run: Run) -> dict[str, alt.Chart]:
    """Return the panels of `queue_lengths`, by pool."""
    served = run.network.pool_of_stage
    queues = stage_queues(run)
    times = queues["time_s"].unique().sort().to_numpy()
    panels = {}
    for pool in run.network.pools:
        stages = [stage for stage, at in served.items() if at == pool]
        shown = _thinned(times, min(_SERIES_POINTS, _MOST_ROWS // len(stages)))
        here = queues.filter(pl.col("stage").is_in(stages) & pl.col("time_s").is_in(shown.tolist()))
        panels[pool] = (
            alt.Chart(here, title=f"Requests at {pool}")
            .mark_line(strokeWidth=1.5, interpolate="step-after")
            .encode(
                x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
                y=alt.Y(
                    "requests:Q", title="Requests", axis=alt.Axis(labelExpr=SHORT, tickCount=6)
                ),
                **_line_channels("stage", stages, "Stage"),
            )
            .properties(width=330, height=240)
        )
    return panels


def stage_queues(run: Run) -> pl.DataFrame:
    """Return the requests at each stage while jobs arrive: time_s, stage, requests."""
    until = run.last_arrival * run.tick_s
    return (
        run.queues.filter(pl.col("what").is_in(["prefill", "decode"]) & (pl.col("time_s") <= until))
        .group_by("time_s", pl.col("name").alias("stage"), maintain_order=True)
        .agg(pl.col("value").sum().alias("requests"))
    )


def compared_latencies(comparison: NetworkComparison, what: str) -> alt.ConcatChart:
    """Cumulative distributions of TTFT and E2E, a line per network, panels by workflow."""
    panels = comparison_panels(comparison, what)
    grid: alt.ConcatChart = alt.concat(*panels.values(), columns=2).configure_axis(gridColor=GRID)
    return grid


def comparison_panels(comparison: NetworkComparison, what: str) -> dict[tuple[str, str], alt.Chart]:
    """Return the panels of `compared_latencies`, by workflow and metric."""
    panels = {}
    by_workflow = comparison.by_workflow()
    for workflow, rows in by_workflow.items():
        of = f" of {workflow}" if len(by_workflow) > 1 else ""
        for metric in rows[0].samples:
            samples = {row.network: (row.samples[metric], row.tick_s) for row in rows}
            panels[workflow, metric] = cdf_panel(
                f"{METRICS[metric]}{of}", samples, list(comparison.answers), what
            )
    return panels
