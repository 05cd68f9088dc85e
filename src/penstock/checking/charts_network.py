"""Figures of networks: fluid paths, floods, queues over time, and the graph
(`penstock.checking.graph`).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock.checking.charts import cdf_panel
from penstock.checking.comparison import NetworkComparison
from penstock.checking.flood_test import FALLEN
from penstock.checking.graph import network_graph as network_graph
from penstock.checking.graph_layout import pool_of_stage
from penstock.checking.stability import NetworkStability
from penstock.errors import InputError, nearest
from penstock.show.charts import COLOURS, GRID, SHORT, line_channels, with_line_under
from penstock.simulation.network_run import NetworkRun
from penstock.theory.network.fluid import NetworkPath
from penstock.words import METRICS

_SERIES_POINTS = 500
_MOST_ROWS = 4_800  # of the data of one chart; Altair allows 5,000
_MOST_COLUMNS = 3


def _line_channels(column: str, names: Sequence[str], title: str) -> dict[str, Any]:
    legend = alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300, labelLimit=260)
    return line_channels(column, names, legend)


def fluid_path(
    path: NetworkPath, against: tuple[Sequence[str], Sequence[str]] | None = None, about: str = ""
) -> alt.HConcatChart:
    """Levels of a fluid path over time, and of some classes against others."""
    # ``against`` are classes across and upwards, of each the first less the others: two pairs that
    # take turns make the path go round the origin, outwards where it grows. None: where it goes
    # round most.
    row: alt.HConcatChart = alt.hconcat(*fluid_panels(path, against)).configure_axis(
        grid=True, gridColor=GRID
    )
    return with_line_under(row, about)


def fluid_panels(
    path: NetworkPath, against: tuple[Sequence[str], Sequence[str]] | None = None
) -> list[Any]:
    """Return the panels of `fluid_path`."""
    # What is small beside the rest is left out: late levels, or early ones.
    most = _MOST_ROWS // len(path.classes)
    part = slice(-most, None) if path.grows else slice(most)
    sides = against or _widest(path)
    across, upwards = (_level(path, classes)[part] for classes in sides)
    levels = pl.DataFrame(
        {"time": path.time_s[part]} | dict(zip(path.classes, path.requests[part].T, strict=True))
    ).unpivot(index="time", variable_name="class", value_name="level")
    axis = alt.Axis(labelExpr=SHORT, tickCount=6)
    over_time = (
        alt.Chart(levels, title="Levels over time")
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                "time:Q",
                title="Time (s per request at the start)",
                scale=alt.Scale(nice=False),
                axis=axis,
            ),
            y=alt.Y("level:Q", title="Requests per request at the start", axis=axis),
            **_line_channels("class", path.classes, "Class"),
        )
        .properties(width=330, height=300)
    )
    return [over_time, _turns(across, upwards, sides, axis)]


def _turns(
    across: Any, upwards: Any, sides: tuple[Sequence[str], Sequence[str]], axis: alt.Axis
) -> alt.LayerChart:
    """Draw some levels against others, with arrows along the way."""
    turns = pl.DataFrame({"x": across, "y": upwards, "order": np.arange(across.size)})
    x = alt.X("x:Q", title=f"{' minus '.join(sides[0])} (requests)", axis=axis)
    y = alt.Y("y:Q", title=f"{' minus '.join(sides[1])} (requests)", axis=axis)
    ends = pl.DataFrame({"x": across[[0, -1]], "y": upwards[[0, -1]], "at": ["start", "end"]})
    shape = alt.Shape(
        "at:N",
        scale=alt.Scale(domain=["start", "end"], range=["circle", "diamond"]),
        legend=alt.Legend(title="Path", symbolSize=110),
    )
    layers = [
        alt.Chart(turns, title="Level against level")
        .mark_line(strokeWidth=1.6, color=COLOURS[0])
        .encode(x=x, y=y, order="order:Q"),
        alt.Chart(_arrows(across, upwards))
        .mark_point(shape="triangle", size=60, filled=True, color=COLOURS[0], opacity=1)
        .encode(x=x, y=y, angle=alt.Angle("angle:Q", scale=None)),
        alt.Chart(ends)
        .mark_point(size=90, filled=True, color="black", opacity=1)
        .encode(x=x, y=y, shape=shape),
    ]
    return alt.LayerChart(layer=layers).properties(width=300, height=300)


def _level(path: NetworkPath, classes: Sequence[str]) -> Any:
    """Return the level of the first class less those of the others, at each breakpoint."""
    for name in classes:
        if name not in path.classes:
            raise InputError(
                f"the fluid path has no class {name!r}{nearest(str(name), path.classes)}"
            )
    first, *others = (path.requests[:, path.classes.index(name)] for name in classes)
    return first - sum(others)


def _widest(path: NetworkPath) -> tuple[list[str], list[str]]:
    """Return two classes, or differences across pools, whose path goes round the origin most."""
    # Where it does not go round: the two classes that rise highest.
    count = len(path.classes)
    pairs = itertools.combinations(range(count), 2)
    sides = [[i] for i in range(count)]
    sides += [[i, j] for i, j in pairs if path.pool[i] != path.pool[j]]
    level = {
        tuple(of): path.requests[:, of[0]] - path.requests[:, of[1:]].sum(axis=1) for of in sides
    }
    highest = np.argsort(-path.requests.max(axis=0), kind="stable")
    best, pair = np.pi, ([int(highest[0])], [int(highest[min(1, count - 1)])])
    for across, upwards in itertools.combinations(sides, 2):
        if set(across).isdisjoint(upwards):
            turned = _turned(level[tuple(across)], level[tuple(upwards)])
            if turned > best * (1 + 1e-9):
                best, pair = turned, (across, upwards)
    return [path.classes[k] for k in pair[0]], [path.classes[k] for k in pair[1]]


def _turned(x: Any, y: Any) -> float:
    """Return how far a path turns round the origin, radians; parts through it do not count."""
    path = x + 1j * y
    turn = np.angle(path[1:] * path[:-1].conj())
    return abs(float(turn[np.abs(np.abs(turn) - np.pi) > 1e-6].sum()))


def _arrows(x: Any, y: Any) -> pl.DataFrame:
    """Return an arrow amid each long stretch of a path, its angle clockwise from upwards."""
    # On square axes.
    reach = max(float(np.ptp(x)), 1e-300), max(float(np.ptp(y)), 1e-300)
    dx, dy = np.diff(x) / reach[0], np.diff(y) / reach[1]
    long = np.hypot(dx, dy) > 0.12
    return pl.DataFrame(
        {
            "x": (x[:-1] + x[1:])[long] / 2,
            "y": (y[:-1] + y[1:])[long] / 2,
            "angle": np.degrees(np.arctan2(dx, dy))[long],
        }
    )


def flood_paths(stability: NetworkStability, about: str = "") -> alt.LayerChart:
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
    return with_line_under(chart, about)


def _thinned(path: Any, most: int) -> Any:
    """Return at most so many rows, the last among them."""
    return path if len(path) <= most else path[np.linspace(0, len(path) - 1, most).astype(int)]


def queue_lengths(run: NetworkRun, about: str = "") -> alt.ConcatChart:
    """Requests in each stage over time while jobs arrive, in both phases, a panel per pool."""
    grid: alt.ConcatChart = (
        alt.concat(*queue_panels(run).values(), columns=_MOST_COLUMNS)
        .resolve_scale(color="independent", strokeDash="independent")
        .configure_axis(gridColor=GRID)
    )
    return with_line_under(grid, about)


def queue_panels(run: NetworkRun) -> dict[str, alt.Chart]:
    """Return the panels of `queue_lengths`, by pool."""
    served = pool_of_stage(run.network)
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


def stage_queues(run: NetworkRun) -> pl.DataFrame:
    """Return the requests at each stage while jobs arrive: time_s, stage, requests."""
    until = run.last_arrival * run.tick_s
    return (
        run.series.filter(pl.col("what").is_in(["prefill", "decode"]) & (pl.col("time_s") <= until))
        .group_by("time_s", pl.col("name").alias("stage"), maintain_order=True)
        .agg(pl.col("value").sum().alias("requests"))
    )


def compared_latencies(
    comparison: NetworkComparison, what: str = "Network", about: str = ""
) -> alt.ConcatChart:
    """Cumulative distributions of TTFT and E2E, a line per network, panels by workflow."""
    panels = comparison_panels(comparison, what)
    grid: alt.ConcatChart = alt.concat(*panels.values(), columns=2).configure_axis(gridColor=GRID)
    return with_line_under(grid, about)


def comparison_panels(
    comparison: NetworkComparison, what: str = "Network"
) -> dict[tuple[str, str], alt.Chart]:
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
