"""Where things are in the drawing of a network: a lane for each pool, its stages from left to right as jobs go.

A stage stands in the column of the longest way to it from where its workflow begins (topological generations of the
graph without the routes that lead back). A route that passes columns runs where these are free, and one that leads back
goes round what is between.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import networkx as nx
import numpy as np
import numpy.typing as npt

from penstock.system.network import Network
from penstock.workload.routes import END
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Stage

Floats = npt.NDArray[np.float64]

HEADER, ARRIVALS, NODE, GAP = 148.0, 104.0, 128.0, 76.0  # widths, px
NODE_HEIGHT, ROW, PAD, BETWEEN = 46.0, 60.0, 12.0, 12.0  # heights, px
BAR = 7.0  # from a stage to the bar of its fork or join
_STUB, _MARGIN = 26.0, 64.0
_CLEAR, _APART = 8.0, 9.0  # between a route and a stage, and between two routes
_SWEEPS = 4


@dataclasses.dataclass(frozen=True)
class Lane:
    """A pool: its name and how far it reaches, px from the top."""

    pool: str
    top: float
    bottom: float


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """A way that jobs take.

    Attributes
    ----------
    source, target
        Stages; None: from outside, and out.
    chance
        Probability; 1 at a fork, for each branch.
    kind
        ``route``, ``fork`` for a branch of a fork, ``arrival`` or ``end``.
    path
        Shape (n, 2), px.
    """

    source: str | None
    target: str | None
    chance: float
    kind: str
    path: Floats


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """A drawing without its ink, px from the upper left corner.

    Attributes
    ----------
    width, height
        Of all of it.
    lanes
        Of the pools, from above.
    stages
        The middle of each, by name.
    routes
        All of them.
    forks, joins
        Stages after, or before, which there is a bar.
    """

    width: float
    height: float
    lanes: tuple[Lane, ...]
    stages: Mapping[str, tuple[float, float]]
    routes: tuple[Route, ...]
    forks: frozenset[str]
    joins: frozenset[str]


def network_layout(network: Network) -> Layout:
    """Return where everything is drawn."""
    ways = network_ways(network)
    column, back = _columns(network, ways)
    lanes, rows = _lanes(network, column, ways)
    x = {stage: HEADER + ARRIVALS + NODE / 2 + column[stage] * (NODE + GAP) for stage in network.stages}
    middle = {stage: (x[stage], rows[stage]) for stage in network.stages}
    height = lanes[-1].bottom
    routes = _Router(middle, column, height).routes(network, ways, back)
    lowest = max(float(route.path[:, 1].max()) for route in routes)
    return Layout(
        width=HEADER + ARRIVALS + (max(column.values()) + 1) * (NODE + GAP) - GAP + _MARGIN,
        height=max(height, lowest) + 8,
        lanes=lanes,
        stages=middle,
        routes=routes,
        forks=frozenset(source for source, (fork, _) in ways.items() if fork),
        joins=frozenset(stage for stage, given in _stages(network).items() if given.join),
    )


def network_ways(network: Network) -> dict[str, tuple[bool, dict[str, float]]]:
    """Return of each stage whether it forks, and the stages that may follow with their probabilities.

    What is missing to 1 is that of the end; at a fork each is 1.
    """
    found: dict[str, tuple[bool, dict[str, float]]] = {}
    for workflow in network.workflows:
        for name, stage in workflow.stages.items():
            fork, targets = _then(stage)
            if isinstance(workflow, Sessions):
                calls = workflow.recorded.requests / workflow.recorded.count
                targets = {name: 1 - 1 / calls} if calls > 1 else {}
            found[f"{workflow.name}.{name}"] = (fork, {f"{workflow.name}.{to}": c for to, c in targets.items()})
    return found


def _then(stage: Stage) -> tuple[bool, dict[str, float]]:
    """Return whether a stage forks, and what may follow it."""
    then = stage.then
    if then is None or then == END:
        return False, {}
    if isinstance(then, str):
        return False, {then: 1.0}
    if isinstance(then, Mapping):
        return False, {to: float(chance) for to, chance in then.items() if to != END and chance > 0}
    return len(then) > 1, dict.fromkeys(then, 1.0)


def pool_cycles(network: Network) -> list[frozenset[str]]:
    """Return the sets of pools between which jobs can go round."""
    pools, graph = list(network.pools), nx.DiGraph()
    served = {stage: pools[place] for stage, place in zip(network.stages, network.stage_pool, strict=True)}
    for source, (_, targets) in network_ways(network).items():
        graph.add_edges_from((served[source], served[target]) for target in targets)
    return [frozenset(members) for members in nx.strongly_connected_components(graph) if len(members) > 1]


def _stages(network: Network) -> dict[str, Stage]:
    return {f"{w.name}.{name}": stage for w in network.workflows for name, stage in w.stages.items()}


def _firsts(network: Network) -> list[str]:
    """Return where each workflow begins."""
    return [f"{w.name}.{getattr(w, 'begins', next(iter(w.stages)))}" for w in network.workflows]


def _columns(
    network: Network, ways: Mapping[str, tuple[bool, Mapping[str, float]]]
) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Return the column of each stage, and the routes that lead back."""
    graph = nx.DiGraph()
    graph.add_nodes_from(network.stages)
    graph.add_edges_from((source, target) for source, (_, targets) in ways.items() for target in targets)
    back: set[tuple[str, str]] = set()
    for first in _firsts(network):
        on_the_way: list[str] = []
        for source, target, kind in nx.dfs_labeled_edges(graph, first):
            if kind == "forward":
                on_the_way.append(target)
            elif kind == "reverse":
                on_the_way.pop()
            elif target in on_the_way:
                back.add((source, target))
    graph.remove_edges_from(back)
    column = {stage: place for place, of in enumerate(nx.topological_generations(graph)) for stage in of}
    return column, back


def _lanes(
    network: Network, column: Mapping[str, int], ways: Mapping[str, tuple[bool, Mapping[str, float]]]
) -> tuple[tuple[Lane, ...], dict[str, float]]:
    """Return the lanes, and how far down each stage stands: beside those that it follows, where there is a choice."""
    pools = list(network.pools)
    members = [[s for s, p in zip(network.stages, network.stage_pool, strict=True) if p == k] for k in range(len(pools))]
    ranked = sorted(range(len(pools)), key=lambda k: (np.mean([column[s] for s in members[k]]), k))
    cells: dict[tuple[int, int], list[str]] = {}
    for k in ranked:
        for stage in members[k]:
            cells.setdefault((k, column[stage]), []).append(stage)
    lanes, top, edges = [], 0.0, {}
    for k in ranked:
        most = max(len(of) for (pool, _), of in cells.items() if pool == k)
        bottom = top + max(most * ROW - (ROW - NODE_HEIGHT) + 2 * PAD, NODE_HEIGHT + 2 * PAD)
        lanes.append(Lane(pools[k], top, bottom))
        edges[k] = (top, bottom)
        top = bottom + BETWEEN
    near: dict[str, list[str]] = {stage: [] for stage in network.stages}
    for source, (_, targets) in ways.items():
        for target in targets:
            near[source].append(target)
            near[target].append(source)
    row: dict[str, float] = {}
    for sweep in range(_SWEEPS):
        for (k, _), stages in cells.items():
            if sweep:
                stages.sort(key=lambda s: np.mean([row[n] for n in near[s]]) if near[s] else row[s])
            middle = sum(edges[k]) / 2
            row |= {s: middle + (i - (len(stages) - 1) / 2) * ROW for i, s in enumerate(stages)}
    return tuple(lanes), row


class _Router:
    """Finds ways for routes between stages that have their places."""

    def __init__(self, middle: Mapping[str, tuple[float, float]], column: Mapping[str, int], height: float) -> None:
        self.middle, self.column, self.height = middle, column, height
        self.taken: dict[int, list[tuple[float, float]]] = {}  # of each column, the middle of what is there, its reach
        for stage, (_, y) in middle.items():
            self.taken.setdefault(column[stage], []).append((y, NODE_HEIGHT / 2 + _CLEAR))

    def routes(
        self,
        network: Network,
        ways: Mapping[str, tuple[bool, Mapping[str, float]]],
        back: set[tuple[str, str]],
    ) -> tuple[Route, ...]:
        """Return all routes, those that pass few columns first."""
        edges = [(source, target) for source, (_, targets) in ways.items() for target in targets]
        edges.sort(key=lambda e: abs(self.column[e[1]] - self.column[e[0]]))
        passing = {e: self._track(*e) if e in back else self._passing(*e) for e in edges}
        ends = [s for s, (fork, to) in ways.items() if not fork and sum(to.values()) < 1 - 1e-9]
        leaving = self._ports(edges, passing, 0, {s: [(s, "")] for s in ends})
        reaching = self._ports(edges, passing, 1, {s: [("", s)] for s in _firsts(network)})
        joins = {name for name, stage in _stages(network).items() if stage.join}
        found = []
        for source, target in edges:
            fork, targets = ways[source]
            start = (self.middle[source][0] + NODE / 2 + BAR * fork, leaving[source, target])
            stop = (self.middle[target][0] - NODE / 2 - BAR * (target in joins), reaching[source, target])
            if (source, target) in back:
                path = _round(start, stop, passing[source, target][0])
            else:
                path = self._forward(start, stop, source, passing[source, target])
            found.append(Route(source, target, targets[target], "fork" if fork else "route", path))
        for stage in ends:
            x, y = self.middle[stage][0] + NODE / 2, leaving[stage, ""]
            chance = 1 - sum(ways[stage][1].values())
            found.append(Route(stage, None, chance, "end", np.array([(x, y), (x + _STUB, y)])))
        for stage in _firsts(network):
            x, y = self.middle[stage][0] - NODE / 2, reaching["", stage]
            found.append(Route(None, stage, 1.0, "arrival", np.array([(x - _STUB, y), (x, y)])))
        return tuple(found)

    def _passing(self, source: str, target: str) -> list[float]:
        """Return how far down a route runs in the columns between its ends, and take that place."""
        first, last = self.column[source], self.column[target]
        rows = []
        for column in range(first + 1, last):
            share = (column - first) / (last - first)
            straight = (1 - share) * self.middle[source][1] + share * self.middle[target][1]
            rows.append(self._free([column], [straight]))
        return rows

    def _track(self, source: str, target: str) -> list[float]:
        """Return how far down a route back runs, and take that place."""
        columns = list(range(self.column[target], self.column[source] + 1))
        return [self._free(columns, [self.middle[source][1], self.middle[target][1]])]

    def _free(self, columns: Iterable[int], near: list[float]) -> float:
        """Return the place nearest to some where no stage and no other route is, in some columns."""
        columns = list(columns)
        places = np.arange(PAD / 2, self.height + 300.0, 2.0)
        clear = np.ones(places.size, np.bool_)
        for column in columns:
            for y, reach in self.taken.get(column, []):
                clear &= np.abs(places - y) >= reach
        cost = np.abs(places[:, None] - np.array(near)).sum(axis=1) + np.where(places > self.height, 40.0, 0.0)
        best = float(places[np.argmin(np.where(clear, cost, np.inf))])
        for column in columns:
            self.taken.setdefault(column, []).append((best, _APART))
        return best

    def _ports(
        self,
        edges: list[tuple[str, str]],
        passing: Mapping[tuple[str, str], list[float]],
        side: int,
        others: Mapping[str, list[tuple[str, str]]],
    ) -> dict[tuple[str, str], float]:
        """Return how far down each route leaves its source (side 0), or reaches its target (side 1)."""
        found = {}
        for stage, (_, y) in self.middle.items():
            mine = [e for e in edges if e[side] == stage] + others.get(stage, [])
            leads = {
                e: y if "" in e else passing[e][0 if side == 0 else -1] if passing[e] else self.middle[e[1 - side]][1]
                for e in mine
            }
            mine.sort(key=lambda e: leads[e])
            step = min(14.0, (NODE_HEIGHT - 12) / max(len(mine) - 1, 1))
            found |= {e: y + (i - (len(mine) - 1) / 2) * step for i, e in enumerate(mine)}
        return found

    def _forward(
        self, start: tuple[float, float], stop: tuple[float, float], source: str, rows: list[float]
    ) -> Floats:
        left = self.middle[source][0] + NODE / 2 + GAP
        points = [start]
        for place, y in enumerate(rows):
            points += [(left + place * (NODE + GAP), y), (left + place * (NODE + GAP) + NODE, y)]
        points.append(stop)
        parts = [np.array([start])]
        for i in range(0, len(points) - 1, 2):
            (x0, y0), (x1, y1) = points[i], points[i + 1]
            half = (x0 + x1) / 2
            parts.append(_cubic((x0, y0), (half, y0), (half, y1), (x1, y1)))
            parts.append(np.array(points[i + 2 : i + 3]).reshape(-1, 2))
        return np.concatenate(parts)


def _round(start: tuple[float, float], stop: tuple[float, float], track: float) -> Floats:
    """Return a path that leaves to the right, runs back along a track, and comes in from the left."""
    reach = 0.6 * GAP
    (x0, y0), (x1, y1) = start, stop
    return np.concatenate(
        [
            np.array([start]),
            _cubic(start, (x0 + reach, y0), (x0 + reach, track), (x0, track)),
            np.array([(x1, track)]),
            _cubic((x1, track), (x1 - reach, track), (x1 - reach, y1), stop),
        ]
    )


def _cubic(*points: tuple[float, float]) -> Floats:
    """Return points on a cubic Bezier curve, the first left out."""
    t = np.linspace(0, 1, 17)[1:, None]
    a, b, c, d = (np.array(p) for p in points)
    curve: Floats = (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t**2 * c + t**3 * d
    return curve
