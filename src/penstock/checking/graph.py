"""The graph of a network: pools, the stages that each serves, and the ways of jobs between them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.checking import graph_layout as place
from penstock.checking.graph_layout import Layout, network_layout, pool_cycles
from penstock.show.plot import COLOURS, By, Chart
from penstock.system.network import Network
from penstock.theory.certificate import Certificate

LOADS = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Of a pool at load 0 to 1: lighter is idler, on a grey printer too."""
DARK = 0.71
"""Load above which words on the colour are white; either way the contrast is at least 4.5."""
CYCLE, PLAIN, UNKNOWN = COLOURS[1], "#444444", "#d9d9d9"
CYCLE_DASH = (6, 3)

_VIRTUAL = "stage of a virtual station"
_CORNERS = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def network_graph(
    network: Network,
    certificate: Certificate | None = None,
    loads: Mapping[str, float] | None = None,
) -> Chart:
    """Pools as lanes, coloured by load, their stages, and the ways of jobs between them."""
    # Forks and joins are bars, branches carry their probabilities; pools in cycles are marked, and
    # the certificate's virtual station. ``loads`` are as measured; None: with prompts in full.
    layout = network_layout(network)
    cycles = pool_cycles(network)
    layers = [
        *_lanes(network, layout, frozenset().union(*cycles), loads),
        *_routes(network, layout, cycles),
        *_stages(network, layout, certificate),
    ]
    apart = dict.fromkeys(("fill", "stroke", "strokeDash"), "independent")
    return {
        "layer": layers, "width": layout.width, "height": layout.height,
        "usermeta": {"wide": True},  # words fit their boxes
        "resolve": {"scale": apart},
        "config": {"view": {"stroke": None}, "legend": {"orient": "bottom"}},
    }  # fmt: skip


class _Canvas:
    """Marks at pixels."""

    def __init__(self, layout: Layout) -> None:
        self.places = {}
        for at, domain in {"x": [0, layout.width], "y": [layout.height, 0]}.items():
            scale = {"domain": domain, "nice": False}
            place = {"field": at, "type": "quantitative", "scale": scale, "axis": None}
            self.places[at] = place

    def draw(
        self, rows: Sequence[dict[str, Any]], mark: str, looks: dict[str, Any], **channels: Any
    ) -> list[Chart]:
        """Return a layer with a mark for each row; none where there are no rows."""
        if not rows:
            return []
        look = {"type": mark, **looks}
        return [{"data": {"values": list(rows)}, "mark": look, "encoding": self.places | channels}]

    def words(self, rows: Sequence[dict[str, Any]], **looks: Any) -> list[Chart]:
        """Return a layer with the text of each row."""
        looks = {"fontSize": 11, "baseline": "middle", "align": "center"} | looks
        return self.draw(rows, "text", looks, text={"field": "text"})


def pool_loads(
    network: Network, measured: Mapping[str, float] | None = None
) -> dict[str, float | None]:
    """Return each pool's load, measured or with prompts in full; None: its rate is not known."""
    if measured is not None:
        return dict(measured)
    return {
        pool: float(load) if np.isfinite(load) else None
        for pool, load in zip(network.pools, network.model().rho, strict=True)
    }


def load_in_words(load: float | None) -> str:
    """Return a load as text, in as many digits as tell it from 1."""
    if load is None:
        return "load not known"
    digits = 2 if abs(1 - load) >= 0.01 else 4
    return f"load {load:.{digits}f}" + (", overloaded" if load > 1 else "")


def _lanes(
    network: Network, layout: Layout, cyclic: frozenset[str], measured: Mapping[str, float] | None
) -> list[Chart]:
    """Draw a band for each pool, and on its left what it is."""
    canvas = _Canvas(layout)
    loads = pool_loads(network, measured)
    bands, heads, around, words = [], [], [], []
    for lane in layout.lanes:
        pool, load = network.pools[lane.pool], loads[lane.pool]
        box: dict[str, Any] = {"x": lane.left, "x2": lane.right, "y": 0.0}
        bands.append(box | {"y2": layout.height})
        heads.append(box | {"y2": place.HEADER, "load": None if load is None else min(load, 1.0)})
        if lane.pool in cyclic:
            inside = {"x": lane.left + 2, "x2": lane.right - 2}
            around.append(inside | {"y": 2.0, "y2": place.HEADER - 2})
        count = f"{pool.replicas:,} replicas, {pool.router.name}"
        lines = [lane.pool, "1 replica" if pool.replicas == 1 else count, load_in_words(load)]
        lines += ["in a cycle of pools"] * (lane.pool in cyclic)
        ink = "white" if load is not None and load > DARK else "black"
        for i, text in enumerate(lines):
            y = place.HEADER / 2 + (i - (len(lines) - 1) / 2) * 16
            x = (lane.left + lane.right) / 2
            words.append({"x": x, "y": y, "text": text, "ink": ink, "bold": i == 0})
    narrowest = min(lane.right - lane.left for lane in layout.lanes)
    with_load = [row for row in heads if row["load"] is not None]
    without_load = [row for row in heads if row["load"] is None]
    band = {"fill": "#f6f6f6", "stroke": "#bbbbbb", "strokeWidth": 0.8}
    head = {"stroke": "#333333", "strokeWidth": 0.8}
    frame: dict[str, Any] = {"fillOpacity": 0, "strokeWidth": 3}
    dashed = frame | {"stroke": CYCLE, "strokeDash": list(CYCLE_DASH)}
    layers = [
        *canvas.draw(bands, "rect", band, **_CORNERS),
        *canvas.draw(with_load, "rect", head, fill=_load_fill(), **_CORNERS),
        *canvas.draw(without_load, "rect", {"fill": UNKNOWN, "stroke": "#333333"}, **_CORNERS),
        *canvas.draw(around, "rect", frame | {"stroke": "white"}, **_CORNERS),  # seen on any blue
        *canvas.draw(around, "rect", dashed, **_CORNERS),
    ]
    for ink in ("white", "black"):
        for bold, size, weight in ((True, 13, "bold"), (False, 11, "normal")):
            rows = [row for row in words if row["ink"] == ink and row["bold"] is bold]
            looks = {"color": ink, "fontSize": size, "fontWeight": weight}
            layers += canvas.words(rows, **looks, limit=narrowest - 14)
    return layers


def _load_fill() -> dict[str, Any]:
    """Return the colours of loads, and their legend."""
    legend = {
        "title": "Load of a pool", "direction": "horizontal",
        "gradientLength": 180, "values": [0, 0.5, 1], "format": ".1f",
    }  # fmt: skip
    scale = {"domain": [0, 1], "range": list(LOADS), "clamp": True}
    return {"field": "load", "type": "quantitative", "scale": scale, "legend": legend}


def _routes(network: Network, layout: Layout, cycles: Sequence[frozenset[str]]) -> list[Chart]:
    """Draw the ways of jobs, with arrows, probabilities, and the bars of forks and joins."""
    canvas = _Canvas(layout)
    served = network.pool_of_stage
    points, arrows, rings, words = [], [], [], []
    # Ways end in an arrow at a stage, or in a ring where jobs leave; words are probabilities.
    for number, route in enumerate(layout.routes):
        ends = {served[stage] for stage in (route.source, route.target) if stage is not None}
        goes_round = len(ends) == 2 and any(ends <= of for of in cycles)
        kind = "route in a cycle of pools" if goes_round else "route"
        points += [
            {"x": x, "y": y, "route": number, "order": i, "kind": kind}
            for i, (x, y) in enumerate(route.path)
        ]
        x, y = route.path[-1]
        if route.kind == "end":
            rings.append({"x": x, "y": y + 4})
            words.append({"x": x, "y": y + 17, "text": _chance(route.chance) + "end"})
        else:
            arrows.append({"x": x, "y": y - 4, "kind": kind})
            if route.chance < 1 - 1e-9:
                at_x, at_y = _early(route.path)
                words.append({"x": at_x, "y": at_y, "text": _chance(route.chance).strip()})
    layers = _lines(canvas, points)
    for kind, (colour, _) in _LOOKS.items():
        head = {
            "shape": "triangle-down", "size": 70, "filled": True, "opacity": 1, "color": colour,
        }  # fmt: skip
        layers += canvas.draw([row for row in arrows if row["kind"] == kind], "point", head)
    ring = {
        "shape": "circle", "size": 60, "filled": True, "color": "white", "opacity": 1,
        "stroke": PLAIN, "strokeWidth": 2,
    }  # fmt: skip
    bar = {"strokeWidth": 5, "color": "black"}
    return [
        *layers,
        *canvas.draw(rings, "point", ring),
        *canvas.draw(_bars(layout), "rule", bar, **_CORNERS),
        *canvas.words(words, color="white", stroke="white", strokeWidth=4, opacity=0.9),
        *canvas.words(words, color="black"),
    ]


# colour and dash of each kind of route
_LOOKS = {"route": (PLAIN, [1, 0]), "route in a cycle of pools": (CYCLE, list(CYCLE_DASH))}


def _lines(canvas: _Canvas, points: list[dict[str, Any]]) -> list[Chart]:
    """Draw the ways; only a graph with a cycle needs a legend that tells its routes from others."""
    kinds = [kind for kind in _LOOKS if any(point["kind"] == kind for point in points)]
    looks = {kind: _LOOKS[kind] for kind in kinds}
    by = By("kind", looks, look="stroke strokeDash", legend=len(kinds) > 1)
    along = {"detail": {"field": "route"}, "order": {"field": "order"}}
    return canvas.draw(points, "line", {"strokeWidth": 1.6}, **along, **by.channels())


def _bars(layout: Layout) -> list[dict[str, float]]:
    """Return the bars of forks, below their stages, and of joins, above."""
    bars = []
    for stages, side in ((layout.forks, 1), (layout.joins, -1)):
        for stage in sorted(stages):
            x, y = layout.stages[stage]
            half, y = layout.stage_width / 2, y + side * (place.HEIGHT / 2 + place.BAR - 2)
            bars.append({"x": x - half, "x2": x + half, "y": y, "y2": y})
    return bars


def _chance(chance: float) -> str:
    return "" if chance >= 1 - 1e-9 else f"{chance:.3g} "


def _early(path: Any) -> tuple[float, float]:
    """Return a point a little way along a path."""
    length = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(path, axis=0).T))])
    at = min(0.3 * length[-1], 0.36 * place.GAP)
    return float(np.interp(at, length, path[:, 0])), float(np.interp(at, length, path[:, 1]))


def _stages(network: Network, layout: Layout, certificate: Certificate | None) -> list[Chart]:
    """Draw the stages with what is asked of them, and where jobs come from."""
    canvas, model = _Canvas(layout), network.model()
    several = len(network.workflows) > 1
    virtual = certificate.virtual_station if certificate is not None else None
    in_virtual = {name for of in (virtual.classes if virtual is not None else ()) for name in of}
    tokens = model.prefill + model.decode
    boxes, names, figures = [], [], []
    for k, stage in enumerate(network.stages):
        x, y = layout.stages[stage]
        half = layout.stage_width / 2
        tall = {"y": y - place.HEIGHT / 2, "y2": y + place.HEIGHT / 2}
        marked = any(name.startswith(stage) for name in in_virtual)
        boxes.append({"x": x - half, "x2": x + half, **tall, "marked": marked})
        lines = [f"{_short(model.visits[k])}/s, {_short(tokens[k])} tokens"]
        shape = ["join"] * (stage in layout.joins) + ["fork"] * (stage in layout.forks)
        if notes := [*shape, *_rank(network, k)]:
            lines.append(", ".join(notes))
        name = stage if several else stage.split(".", 1)[-1]
        first = y - 7 * len(lines)
        names.append({"x": x, "y": first, "text": name})
        figures += [
            {"x": x, "y": first + 14 * (i + 1), "text": line} for i, line in enumerate(lines)
        ]
    plain: dict[str, Any] = {"fill": "white", "cornerRadius": 5, "strokeWidth": 1.0}
    plain |= {"stroke": "#333333"}
    dashed = plain | {"strokeWidth": 2.4, "strokeDash": [3, 2]}
    legend = {"title": None, "symbolType": "square", "symbolDash": [3, 2], "labelLimit": 240}
    scale = {"domain": [_VIRTUAL], "range": [CYCLE]}
    stroke = {"field": "marked", "type": "nominal", "scale": scale, "legend": legend}
    unmarked = [row for row in boxes if not row["marked"]]
    in_station = [row | {"marked": _VIRTUAL} for row in boxes if row["marked"]]
    return [
        *canvas.draw(unmarked, "rect", plain, **_CORNERS),
        *canvas.draw(in_station, "rect", dashed, **_CORNERS, stroke=stroke),
        *canvas.words(names, fontSize=12, fontWeight="bold", limit=layout.stage_width - 8),
        *canvas.words(figures, color="#333333", fontSize=10.5, limit=layout.stage_width - 6),
        *_arrivals(canvas, network, layout),
    ]


def _arrivals(canvas: _Canvas, network: Network, layout: Layout) -> list[Chart]:
    """Write where jobs come from, and how many."""
    words = []
    begin = dict(zip(network.stages, network.model().external.tolist(), strict=True))
    for route in (route for route in layout.routes if route.kind == "arrival"):
        x, y = route.path[0]
        stage = str(route.target)
        rate = f"{_short(begin[stage])} jobs/s" if np.isfinite(begin[stage]) else "recorded jobs"
        words += [(x, y - 21, stage.partition(".")[0], "bold"), (x, y - 7, rate, "normal")]
    layers: list[Chart] = []
    for weight in ("bold", "normal"):
        rows = [{"x": x, "y": y, "text": text} for x, y, text, how in words if how == weight]
        layers += canvas.words(rows, fontWeight=weight, limit=layout.stage_width)
    return layers


def _rank(network: Network, stage: int) -> list[str]:
    """Return a stage's place in its pool's priority order, in words; none under other orders."""
    ranking = network.priorities[network.stage_pool[stage]]
    if ranking is None or len(ranking) < 2:
        return []
    rank = ranking.index(stage) + 1
    return [f"served {_ORDINALS.get(rank, f'{rank}th')}"]


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
