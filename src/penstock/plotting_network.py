"""Figures of networks: the graph of pools and stages, fluid paths, floods, and queues over time."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from penstock import network_layout as place
from penstock.analysis.network_stability import NetworkStability
from penstock.errors import InputError, nearest
from penstock.network_layout import Layout, network_layout, network_ways, pool_cycles
from penstock.network_run import NetworkRun
from penstock.plotting import COLOURS, DASHES, GRID
from penstock.system.network import Network
from penstock.theory.network import NetworkCertificate
from penstock.theory.network_fluid import NetworkPath

LOADS = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Of a pool at load 0 to 1: lighter is idler, on a grey printer too."""
CYCLE, PLAIN, UNKNOWN = COLOURS[1], "#444444", "#d9d9d9"
CYCLE_DASH = (6, 3)

BARRIERS = (0.5, 8.0)
"""Of the stability test, in units of the work at the start (`penstock.analysis.network_stability`)."""

_SERIES_POINTS = 500
_MOST_COLUMNS = 3
_FLOOD_WIDTH = 520  # px
_ORDINALS = {1: "first", 2: "second", 3: "third"}


def network_graph(
    network: Network, certificate: NetworkCertificate | None = None, about: str = ""
) -> alt.LayerChart:
    """Pools as lanes coloured by load, the stages that each serves, and the ways of jobs between them.

    Forks and joins are bars, branches carry their probabilities, and pools between which jobs can go round are marked.

    Parameters
    ----------
    network
        Pools and workflows.
    certificate
        Of that network: marks the stages of a virtual station besides.
    about
        One line under the figure.
    """
    layout, cycles = network_layout(network), pool_cycles(network)
    cyclic = frozenset().union(*cycles)
    layers = [
        *_lanes(network, layout, cyclic),
        *_routes(network, layout, cycles),
        *_stages(network, layout, certificate),
    ]
    chart: alt.LayerChart = (
        alt.LayerChart(layer=layers)
        .properties(width=layout.width, height=layout.height)
        .resolve_scale(fill="independent", stroke="independent", strokeDash="independent")
        .configure_view(stroke=None)
    )
    return _with_line_under(chart, about)


def _with_line_under(chart: Any, about: str) -> Any:
    title = alt.TitleParams(about, anchor="start", fontWeight="normal", fontSize=12, orient="bottom", offset=12)
    return chart.properties(title=title) if about else chart


class _Canvas:
    """Marks at pixels."""

    def __init__(self, layout: Layout) -> None:
        x = {"scale": alt.Scale(domain=[0, layout.width], nice=False), "axis": None}
        y = {"scale": alt.Scale(domain=[layout.height, 0], nice=False), "axis": None}
        self.x, self.y = alt.X("x:Q", **x), alt.Y("y:Q", **y)  # type: ignore[arg-type]

    def draw(self, rows: Sequence[dict[str, Any]], mark: str, looks: dict[str, Any], **channels: Any) -> alt.Chart:
        chart = alt.Chart(pl.DataFrame(rows, infer_schema_length=None))
        drawn: alt.Chart = getattr(chart, f"mark_{mark}")(**looks).encode(x=self.x, y=self.y, **channels)
        return drawn

    def words(self, rows: Sequence[dict[str, Any]], **looks: Any) -> alt.Chart:
        return self.draw(rows, "text", {"fontSize": 11, "baseline": "middle"} | looks, text="text:N")


def pool_loads(network: Network) -> dict[str, float | None]:
    """Return the load of each pool; None where the arrival rate is not known."""
    rho = network.model().rho
    return {pool: float(load) if np.isfinite(load) else None for pool, load in zip(network.pools, rho, strict=True)}


def load_in_words(load: float | None) -> str:
    """Return a load as text, in as many digits as tell it from 1."""
    if load is None:
        return "load not known"
    digits = 2 if abs(1 - load) >= 0.01 else 4
    return f"load {load:.{digits}f}" + (", overloaded" if load > 1 else "")


def _lanes(network: Network, layout: Layout, cyclic: frozenset[str]) -> list[alt.Chart]:
    """Draw a band for each pool, and on its left what it is."""
    canvas, loads = _Canvas(layout), pool_loads(network)
    bands, heads, words = [], [], []
    for lane in layout.lanes:
        pool, load = network.pools[lane.pool], loads[lane.pool]
        box = {"y": lane.top, "y2": lane.bottom, "pool": lane.pool}
        bands.append(box | {"x": 0.0, "x2": layout.width, "cycle": lane.pool in cyclic})
        shown = {} if load is None else {"load": min(load, 1.0)}
        heads.append(box | {"x": 0.0, "x2": place.HEADER, "load": None} | shown)
        several = "1 replica" if pool.replicas == 1 else f"{pool.replicas:,} replicas, {pool.router.name}"
        lines = [lane.pool, several, load_in_words(load)] + ["in a cycle"] * (lane.pool in cyclic)
        ink = "white" if load is not None and load > 0.62 else "black"
        for i, text in enumerate(lines):
            y = (lane.top + lane.bottom) / 2 + (i - (len(lines) - 1) / 2) * 15
            words.append({"x": 9.0, "y": y, "text": text, "ink": ink, "bold": i == 0})
    corners = {"x2": "x2:Q", "y2": "y2:Q"}
    look = {"fill": "#f6f6f6", "stroke": "#bbbbbb", "strokeWidth": 0.8}
    round_look = {"fill": "#f6f6f6", "stroke": CYCLE, "strokeWidth": 1.6, "strokeDash": list(CYCLE_DASH)}
    fill = alt.Fill(
        "load:Q",
        scale=alt.Scale(domain=[0, 1], range=list(LOADS), clamp=True),
        legend=alt.Legend(
            title="Load of a pool",
            orient="bottom",
            direction="horizontal",
            gradientLength=180,
            values=[0, 0.25, 0.5, 0.75, 1],
            format=".2f",
        ),
    )
    known = [row for row in heads if row["load"] is not None]
    unknown = [row for row in heads if row["load"] is None]
    layers = [
        canvas.draw([row for row in bands if row["cycle"] is on], "rect", with_look, **corners)
        for on, with_look in ((False, look), (True, round_look))
        if any(row["cycle"] is on for row in bands)
    ]
    if known:
        layers.append(canvas.draw(known, "rect", {"stroke": "#333333", "strokeWidth": 0.8}, fill=fill, **corners))
    if unknown:
        layers.append(canvas.draw(unknown, "rect", {"fill": UNKNOWN, "stroke": "#333333"}, **corners))
    limit = {"align": "left", "limit": place.HEADER - 14}
    for ink in ("white", "black"):
        for bold, size in ((True, 13), (False, 11)):
            rows = [row for row in words if row["ink"] == ink and row["bold"] is bold]
            weight = "bold" if bold else "normal"
            if rows:
                layers.append(canvas.words(rows, color=ink, fontSize=size, fontWeight=weight, **limit))
    return layers


def _routes(network: Network, layout: Layout, cycles: Sequence[frozenset[str]]) -> list[alt.Chart]:
    """Draw the ways of jobs, with arrows, probabilities, and the bars of forks and joins."""
    canvas = _Canvas(layout)
    names = list(network.pools)
    served = {stage: names[k] for stage, k in zip(network.stages, network.stage_pool, strict=True)}
    points, arrows, rings, words = [], [], [], []
    for number, route in enumerate(layout.routes):
        ends = {served[stage] for stage in (route.source, route.target) if stage is not None}
        kind = "route in a cycle of pools" if len(ends) == 2 and any(ends <= of for of in cycles) else "route"
        points += [{"x": x, "y": y, "route": number, "order": i, "kind": kind} for i, (x, y) in enumerate(route.path)]
        x, y = route.path[-1]
        if route.kind == "end":
            rings.append({"x": x + 4, "y": y})
            words.append({"x": x + 12, "y": y, "text": _chance(route.chance) + "end", "align": "left"})
        else:
            arrows.append({"x": x - 4, "y": y, "kind": kind})
            if route.chance < 1 - 1e-9:
                at_x, at_y = _early(route.path)
                words.append({"x": at_x, "y": at_y, "text": _chance(route.chance).strip(), "align": "center"})
    kinds = [kind for kind in ("route", "route in a cycle of pools") if any(p["kind"] == kind for p in points)]
    looks = {"route": (PLAIN, [1, 0]), "route in a cycle of pools": (CYCLE, list(CYCLE_DASH))}
    legend = alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolSize=400, symbolStrokeWidth=2)
    legend = legend if len(kinds) > 1 else None  # type: ignore[assignment]
    colours = alt.Scale(domain=kinds, range=[looks[kind][0] for kind in kinds])
    dashes = alt.Scale(domain=kinds, range=[looks[kind][1] for kind in kinds])
    layers = [
        canvas.draw(
            points,
            "line",
            {"strokeWidth": 1.6},
            detail="route:N",
            order="order:Q",
            stroke=alt.Stroke("kind:N", scale=colours, legend=legend),
            strokeDash=alt.StrokeDash("kind:N", scale=dashes, legend=legend),
        )
    ]
    for kind in kinds:
        heads = [row for row in arrows if row["kind"] == kind]
        if heads:
            look = {"shape": "triangle-right", "size": 70, "filled": True, "color": looks[kind][0], "opacity": 1}
            layers.append(canvas.draw(heads, "point", look))
    if rings:
        look = {"shape": "circle", "size": 60, "filled": True, "color": "white", "stroke": PLAIN, "strokeWidth": 2}
        layers.append(canvas.draw(rings, "point", look | {"opacity": 1}))
    bars = [
        {"x": layout.stages[stage][0] + side * (place.NODE / 2 + place.BAR - 2), "y": layout.stages[stage][1]}
        for side, of in ((1, layout.forks), (-1, layout.joins))
        for stage in sorted(of)
    ]
    if bars:
        half = place.NODE_HEIGHT / 2
        rows = [row | {"y": row["y"] - half, "y2": row["y"] + half, "x2": row["x"]} for row in bars]
        look = {"strokeWidth": 5, "color": "black"}
        layers.append(canvas.draw(rows, "rule", look, x2="x2:Q", y2="y2:Q"))
    for stages, side, word in ((layout.forks, 1, "fork"), (layout.joins, -1, "join")):
        for stage in sorted(stages):
            x, y = layout.stages[stage]
            half = side * (place.NODE / 2 + place.BAR + 2)
            row = {"x": x + half, "y": y - place.NODE_HEIGHT / 2 - 1, "text": word}
            words.append(row | {"align": "left" if side > 0 else "right"})
    for align in ("left", "center", "right"):
        rows = [row for row in words if row["align"] == align]
        if rows:
            layers.append(canvas.words(rows, align=align, color="white", stroke="white", strokeWidth=4, opacity=0.9))
            layers.append(canvas.words(rows, align=align, color="black"))
    return layers


def _chance(chance: float) -> str:
    return "" if chance >= 1 - 1e-9 else f"{chance:.3g} "


def _early(path: Any) -> tuple[float, float]:
    """Return a point a little way along a path."""
    length = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    at = min(0.3 * length[-1], 0.36 * place.GAP)
    return float(np.interp(at, length, path[:, 0])), float(np.interp(at, length, path[:, 1]))


def _stages(network: Network, layout: Layout, certificate: NetworkCertificate | None) -> list[alt.Chart]:
    """Draw the stages with what is asked of them, and where jobs come from."""
    canvas, model = _Canvas(layout), network.model()
    several = len(network.workflows) > 1
    virtual = certificate.virtual_station if certificate is not None else None
    in_virtual = {name for of in (virtual.classes if virtual is not None else ()) for name in of}
    tokens = model.prefill + model.decode
    boxes, names, figures = [], [], []
    for k, stage in enumerate(network.stages):
        x, y = layout.stages[stage]
        half = place.NODE / 2
        marked = any(name.startswith(stage) for name in in_virtual)
        corners = {"x": x - half, "x2": x + half, "y": y - place.NODE_HEIGHT / 2, "y2": y + place.NODE_HEIGHT / 2}
        boxes.append(corners | {"marked": marked})
        lines = [f"{_short(model.visits[k])}/s, {_short(tokens[k])} tokens"]
        rank = _rank(network, k)
        lines += [", ".join([rank] * bool(rank) + ["virtual station"] * marked)] if rank or marked else []
        name = stage if several else stage.split(".", 1)[-1]
        first = y - 7 * len(lines)
        names.append({"x": x, "y": first, "text": name})
        figures += [{"x": x, "y": first + 14 * (i + 1), "text": line} for i, line in enumerate(lines)]
    layers = []
    for marked, look in (
        (False, {"strokeWidth": 1.0, "stroke": "#333333"}),
        (True, {"strokeWidth": 2.4, "stroke": CYCLE, "strokeDash": [3, 2]}),
    ):
        rows = [row for row in boxes if row["marked"] is marked]
        if rows:
            look |= {"fill": "white", "cornerRadius": 5}
            layers.append(canvas.draw(rows, "rect", look, x2="x2:Q", y2="y2:Q"))
    layers.append(canvas.words(names, fontSize=12, fontWeight="bold", limit=place.NODE - 8))
    layers.append(canvas.words(figures, color="#333333", fontSize=10.5, limit=place.NODE - 6))
    arrivals = [route for route in layout.routes if route.kind == "arrival"]
    words = []
    for workflow, route in zip(network.workflows, arrivals, strict=True):
        x, y = route.path[0]
        rate = f"{_short(workflow.rate)} jobs/s" if np.isfinite(workflow.rate) else "recorded jobs"
        words += [(x - 4, y - 7, workflow.name, "bold"), (x - 4, y + 7, rate, "normal")]
    for weight in ("bold", "normal"):
        rows = [{"x": x, "y": y, "text": text} for x, y, text, how in words if how == weight]
        room = place.ARRIVALS - 36
        layers.append(canvas.words(rows, align="right", fontWeight=weight, limit=room))
    return layers


def _rank(network: Network, stage: int) -> str:
    """Return the place of a stage in its pool's priority order, in words; nothing under other orders."""
    ranking = network.priorities[network.stage_pool[stage]]
    if ranking is None or len(ranking) < 2:
        return ""
    rank = ranking.index(stage) + 1
    return f"served {_ORDINALS.get(rank, f'{rank}th')}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _line_channels(column: str, names: Sequence[str], title: str) -> dict[str, Any]:
    """Colour and dash by name, one legend for both; no two names look the same."""
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    dashes = [list(DASHES[(i + i // len(COLOURS)) % len(DASHES)]) for i in range(len(names))]
    legend = alt.Legend(title=title, symbolStrokeWidth=2.5, symbolSize=300, labelLimit=260)
    names = list(names)
    return {
        "color": alt.Color(f"{column}:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(f"{column}:N", scale=alt.Scale(domain=names, range=dashes), legend=legend),
    }


def fluid_path(
    path: NetworkPath, against: tuple[Sequence[str], Sequence[str]] | None = None, about: str = ""
) -> alt.HConcatChart:
    """Levels of a fluid path over time, and of some classes against others.

    Parameters
    ----------
    path
        From `penstock.theory.network_fluid.network_path`.
    against
        Classes across and classes upwards. Of each, the first counts as it is and the others are taken off: two pairs
        that take turns make the path go round the origin, outwards where it grows. None: the two classes, at different
        pools, between which it goes round most.
    about
        One line under the figure.

    Raises
    ------
    InputError
        If a class is not known.
    """
    panels = fluid_panels(path, against)
    row: alt.HConcatChart = alt.hconcat(*panels).configure_axis(grid=True, gridColor=GRID)
    return _with_line_under(row, about)  # type: ignore[no-any-return]


def fluid_panels(path: NetworkPath, against: tuple[Sequence[str], Sequence[str]] | None = None) -> list[Any]:
    """Return the panels of `fluid_path`."""
    sides = against or _widest(path)
    across, upwards = (_level(path, classes) for classes in sides)
    rows = pl.DataFrame({"time": path.time_s} | dict(zip(path.classes, path.requests.T, strict=True)))
    levels = rows.unpivot(index="time", variable_name="class", value_name="level")
    over_time = (
        alt.Chart(levels, title="Levels over time")
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X("time:Q", title="Time (s per request at the start)", scale=alt.Scale(nice=False)),
            y=alt.Y("level:Q", title="Requests per request at the start"),
            **_line_channels("class", path.classes, "Class"),
        )
        .properties(width=330, height=300)
    )
    turns = pl.DataFrame({"x": across, "y": upwards, "order": np.arange(across.size)})
    base = alt.Chart(turns, title="Level against level")
    x = alt.X("x:Q", title=" minus ".join(sides[0]), scale=alt.Scale(zero=True))
    y = alt.Y("y:Q", title=" minus ".join(sides[1]), scale=alt.Scale(zero=True))
    ends = pl.DataFrame({"x": across[[0, -1]], "y": upwards[[0, -1]], "at": ["start", "end"]})
    shape = alt.Shape(
        "at:N",
        scale=alt.Scale(domain=["start", "end"], range=["circle", "diamond"]),
        legend=alt.Legend(title="Path", symbolSize=110),
    )
    marks = alt.Chart(ends).mark_point(size=90, filled=True, color="black", opacity=1).encode(x=x, y=y, shape=shape)
    middles = _arrows(across, upwards)
    heads = alt.Chart(middles).mark_point(shape="triangle", size=60, filled=True, color=COLOURS[0], opacity=1)
    spiral = alt.layer(
        base.mark_line(strokeWidth=1.6, color=COLOURS[0]).encode(x=x, y=y, order="order:Q"),
        heads.encode(x=x, y=y, angle=alt.Angle("angle:Q", scale=None)),
        marks,
    ).properties(width=300, height=300)
    return [over_time, spiral]


def _level(path: NetworkPath, classes: Sequence[str]) -> Any:
    """Return the level of the first class less those of the others, at each breakpoint."""
    for name in classes:
        if name not in path.classes:
            raise InputError(f"the fluid path has no class {name!r}{nearest(str(name), path.classes)}")
    first, *others = (path.requests[:, path.classes.index(name)] for name in classes)
    return first - sum(others)


def _widest(path: NetworkPath) -> tuple[list[str], list[str]]:
    """Return the two classes, at different pools where there are several, round which a path encloses most."""
    best, found = -1.0, ([path.classes[0]], [path.classes[-1]])
    level = path.requests / np.maximum(path.requests.max(axis=0), 1e-300)
    for i in range(len(path.classes)):
        for j in range(i + 1, len(path.classes)):
            if path.pool[i] == path.pool[j] and len(set(path.pool.tolist())) > 1:
                continue
            x, y = level[:, i], level[:, j]
            area = abs(float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum()))
            if area > best:
                best, found = area, ([path.classes[i]], [path.classes[j]])
    return found


def _arrows(x: Any, y: Any) -> pl.DataFrame:
    """Return an arrow in the middle of each long stretch of a path, its angle clockwise from upwards on square axes."""
    reach = max(float(np.ptp(x)), 1e-300), max(float(np.ptp(y)), 1e-300)
    dx, dy = np.diff(x) / reach[0], np.diff(y) / reach[1]
    long = np.hypot(dx, dy) > 0.12
    middles = {"x": (x[:-1] + x[1:])[long] / 2, "y": (y[:-1] + y[1:])[long] / 2}
    return pl.DataFrame(middles | {"angle": np.degrees(np.arctan2(dx, dy))[long]})


def flood_paths(stability: NetworkStability, about: str = "") -> alt.LayerChart:
    """Work over that at the start, against time, a line per flooded stage, between the barriers of the test."""
    names = [flood.stage for flood in stability.floods]
    low = min(BARRIERS[0] / 1.25, max(0.05, min(float(flood.path[:, 1].min()) for flood in stability.floods)))
    parts = [
        pl.DataFrame({"time": flood.path[:, 0], "work": flood.path[:, 1].clip(low)}).with_columns(
            stage=pl.lit(flood.stage)
        )
        for flood in stability.floods
    ]
    y = alt.Y(
        "work:Q",
        title="Work over that at the start",
        scale=alt.Scale(type="log", base=2, domain=[low, 1.25 * BARRIERS[1]], nice=False),
        axis=alt.Axis(values=[0.125, 0.25, 0.5, 1, 2, 4, 8], format="~g"),
    )
    x = alt.X("time:Q", title="Time (s)", axis=alt.Axis(tickCount=6, format="~s"))
    lines = alt.Chart(pl.concat(parts)).mark_line(strokeWidth=1.6)
    said = ("stable: it fell to half", "unstable: it rose to eight times")
    barriers = alt.Chart(pl.DataFrame({"work": list(BARRIERS), "text": list(said)})).encode(y=y)
    words = barriers.mark_text(align="right", dx=-4, fontSize=11).encode(x=alt.value(_FLOOD_WIDTH), text="text:N")
    chart: alt.LayerChart = (
        alt.layer(
            barriers.mark_rule(strokeDash=[4, 3], color="black"),
            lines.encode(x=x, y=y, **_line_channels("stage", names, "Flooded stage")),
            words.transform_filter(alt.datum.work < 1).mark_text(align="right", baseline="top", dx=-4, dy=4),
            words.transform_filter(alt.datum.work > 1).mark_text(align="right", baseline="bottom", dx=-4, dy=-4),
        )
        .properties(width=_FLOOD_WIDTH, height=280)
        .configure_axis(gridColor=GRID)
    )
    return _with_line_under(chart, about)  # type: ignore[no-any-return]


def queue_lengths(run: NetworkRun, about: str = "") -> alt.ConcatChart:
    """Requests in each stage over time while jobs arrive, in prefill and decode together, a panel per pool."""
    panels = queue_panels(run).values()
    grid: alt.ConcatChart = (
        alt.concat(*panels, columns=_MOST_COLUMNS)
        .resolve_scale(color="independent", strokeDash="independent")
        .configure_axis(gridColor=GRID)
    )
    return _with_line_under(grid, about)  # type: ignore[no-any-return]


def queue_panels(run: NetworkRun) -> dict[str, alt.Chart]:
    """Return the panels of `queue_lengths`, by pool."""
    network, queues = run.network, stage_queues(run)
    queues = queues.filter(pl.col("time_s").rank("dense") % max(1, -(-queues["time_s"].n_unique() // _SERIES_POINTS)) == 0)
    panels = {}
    for k, pool in enumerate(network.pools):
        stages = [stage for stage, at in zip(network.stages, network.stage_pool, strict=True) if at == k]
        panels[pool] = (
            alt.Chart(queues.filter(pl.col("stage").is_in(stages)), title=f"Requests at {pool}")
            .mark_line(strokeWidth=1.5, interpolate="step-after")
            .encode(
                x=alt.X("time_s:Q", title="Time (s)", axis=alt.Axis(tickCount=5)),
                y=alt.Y("requests:Q", title="Requests", axis=alt.Axis(format="~s", tickCount=6)),
                **_line_channels("stage", stages, "Stage"),
            )
            .properties(width=330, height=240)
        )
    return panels


def stage_queues(run: NetworkRun) -> pl.DataFrame:
    """Return the requests at each stage while jobs arrive: time_s, stage, requests."""
    return (
        run.series.filter(pl.col("what").is_in(["prefill", "decode"]) & (pl.col("time_s") <= run.last_arrival * run.tick_s))
        .group_by("time_s", pl.col("name").alias("stage"), maintain_order=True)
        .agg(pl.col("value").sum().alias("requests"))
    )
