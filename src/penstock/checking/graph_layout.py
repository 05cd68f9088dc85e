"""Where things are in the drawing of a network: a lane for each pool, side by side, and in them
stages from above down.

A stage stands as far down as the longest way to it from where its workflow begins (topological
generations of the graph without the routes that lead back). A route that passes others' rows runs
where these are free, and one that leads back goes round what is between. Inside, places are (down,
across); they are handed out as (x, y).
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.network import Network
from penstock.workload.routes import END, reached
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage

Ways = Mapping[str, tuple[bool, Mapping[str, float]]]
"""Of each stage, whether it forks, and the probabilities of what may follow."""

# Down: of lanes, of arrivals, of a stage, below it; px.
HEADER, ARRIVALS, HEIGHT, GAP = (80.0, 66.0, 46.0, 62.0)
NARROWEST, WIDEST, LETTER = 124.0, 190.0, 7.2  # across: of a stage, and of a letter of its name
BAR = 7.0  # from a stage to the bar of its fork or join
STUB = 24.0  # an arrow from or to nowhere
_STRAIGHT = 9.0  # the end of a route, under its arrow
_BESIDE, _PAD, _BETWEEN = 20.0, 14.0, 10.0  # across: between stages, round them, between lanes
_CLEAR, _APART = 8.0, 9.0  # between a route and a stage, and between two routes
_SWEEPS = 4


@dataclasses.dataclass(frozen=True)
class Lane:
    """A pool: its name and how far it reaches, px from the left."""

    pool: str
    left: float
    right: float


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """A way that jobs take."""

    # Stages; None: from outside, and out.
    source: str | None
    target: str | None
    chance: float  # 1 at a fork, for each branch
    kind: str  # `route`, `fork` for a branch of a fork, `arrival` or `end`
    path: Floats  # shape (n, 2), px


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """A drawing without its ink, px from the upper left corner."""

    width: float
    height: float
    lanes: tuple[Lane, ...]  # of the pools, from the left
    stages: Mapping[str, tuple[float, float]]  # the middle of each
    stage_width: float
    routes: tuple[Route, ...]
    # Stages below, or above, which there is a bar.
    forks: frozenset[str]
    joins: frozenset[str]


def network_layout(network: Network) -> Layout:
    """Return where everything is drawn."""
    ways = network_ways(network)
    several = len(network.workflows) > 1
    letters = max(len(stage if several else stage.split(".", 1)[-1]) for stage in network.stages)
    width = min(max(NARROWEST, 16 + LETTER * letters), WIDEST)
    row, back = _rows(network, ways)
    lanes, across = _lanes(network, row, ways, width)
    down = {
        stage: HEADER + ARRIVALS + HEIGHT / 2 + row[stage] * (HEIGHT + GAP)
        for stage in network.stages
    }
    middle = {stage: (down[stage], across[stage]) for stage in network.stages}
    routes = _Router(middle, row, width, lanes[-1].right).routes(network, ways, back)
    reach = max(float(route.path[:, 0].max()) for route in routes)
    return Layout(
        width=max(lanes[-1].right, reach + 4),
        height=HEADER + ARRIVALS + (max(row.values()) + 1) * (HEIGHT + GAP) - GAP + STUB + 28,
        lanes=lanes,
        stages={stage: (x, y) for stage, (y, x) in middle.items()},
        stage_width=width,
        routes=routes,
        forks=frozenset(source for source, (fork, _) in ways.items() if fork),
        joins=frozenset(stage for stage, spec in _stages(network).items() if spec.join),
    )


def network_ways(network: Network) -> dict[str, tuple[bool, dict[str, float]]]:
    """Return of each stage whether it forks, and which may follow with what probability."""
    # What is missing to 1 is that of the end; at a fork each is 1.
    ways: dict[str, tuple[bool, dict[str, float]]] = {}
    for workflow in network.workflows:
        for name, stage in workflow.stages.items():
            fork, targets = _then(stage)
            if isinstance(workflow, Sessions):
                calls = workflow.recorded.requests / workflow.recorded.count
                targets = {name: 1 - 1 / calls} if calls > 1 else {}
            ways[f"{workflow.name}.{name}"] = (
                fork,
                {f"{workflow.name}.{to}": c for to, c in targets.items()},
            )
    return ways


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
    served = network.pool_of_stage
    after: dict[str, set[str]] = {pool: set() for pool in network.pools}
    for source, (_, targets) in network_ways(network).items():
        after[served[source]] |= {served[target] for target in targets}
    reach = {pool: reached(after, pool) for pool in after}
    rounds = {pool: frozenset(to for to in reach[pool] if pool in reach[to]) for pool in reach}
    return [members for members in dict.fromkeys(rounds.values()) if len(members) > 1]


def _stages(network: Network) -> dict[str, Stage]:
    return {
        f"{w.name}.{name}": stage for w in network.workflows for name, stage in w.stages.items()
    }


def _firsts(network: Network) -> list[str]:
    """Return where the jobs of each workflow begin."""
    return [
        f"{workflow.name}.{stage}"
        for workflow in network.workflows
        for stage in getattr(workflow, "begins", (next(iter(workflow.stages)),))
    ]


def _rows(network: Network, ways: Ways) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Return the row of each stage, from above, and the routes that lead back."""
    back: set[tuple[str, str]] = set()
    left: list[str] = []  # stages, each after all that follow it
    for first in _firsts(network):
        way = {first: iter(ways[first][1])} if first not in left else {}
        while way:
            source, targets = next(reversed(way.items()))
            target = next(targets, None)
            if target is None:
                left.append(source)
                del way[source]
            elif target in way:
                back.add((source, target))
            elif target not in left:
                way[target] = iter(ways[target][1])
    row = dict.fromkeys(network.stages, 0)
    for source in reversed(left):
        for target in ways[source][1]:
            if (source, target) not in back:
                row[target] = max(row[target], row[source] + 1)
    return row, back


def _lanes(
    network: Network, row: Mapping[str, int], ways: Ways, width: float
) -> tuple[tuple[Lane, ...], dict[str, float]]:
    """Return the lanes, and where across each stage stands: if possible near those it links to."""
    members: dict[str, list[str]] = {pool: [] for pool in network.pools}
    for stage, pool in network.pool_of_stage.items():
        members[pool].append(stage)
    rows = {pool: [row[stage] for stage in of] for pool, of in members.items()}
    ranked = sorted(members, key=lambda pool: (min(rows[pool]), np.mean(rows[pool])))
    # Stages of one pool and one row share a cell; a lane is as wide as its fullest one.
    cells: dict[tuple[str, int], list[str]] = {}
    lanes, middle = [], {}
    left = 0.0
    pitch = width + _BESIDE
    for pool in ranked:
        for stage in members[pool]:
            cells.setdefault((pool, row[stage]), []).append(stage)
        most = max(len(of) for (at, _), of in cells.items() if at == pool)
        right = left + most * pitch - _BESIDE + 2 * _PAD
        lanes.append(Lane(pool, left, right))
        middle[pool] = (left + right) / 2
        left = right + _BETWEEN
    # Inside a cell stages move towards those that they are linked to, a few times over.
    near: dict[str, list[str]] = {stage: [] for stage in network.stages}
    for source, (_, targets) in ways.items():
        for target in targets:
            near[source].append(target)
            near[target].append(source)
    across: dict[str, float] = {}
    for sweep in range(_SWEEPS):
        for (pool, _), stages in cells.items():
            if sweep:
                stages.sort(key=lambda s: float(np.mean([across[n] for n in near[s] or [s]])))
            across |= {
                s: middle[pool] + (i - (len(stages) - 1) / 2) * pitch for i, s in enumerate(stages)
            }
    return tuple(lanes), across


class _Router:
    """Finds ways for routes between stages that have their places."""

    def __init__(
        self,
        middle: Mapping[str, tuple[float, float]],
        row: Mapping[str, int],
        width: float,
        right: float,
    ) -> None:
        self.middle = middle
        self.row = row
        self.width = width
        self.right = right
        # In each row: where what is there has its middle, its reach.
        self.taken: dict[int, list[tuple[float, float]]] = {}
        for stage, (_, across) in middle.items():
            self.taken.setdefault(row[stage], []).append((across, width / 2 + _CLEAR))

    def routes(self, network: Network, ways: Ways, back: set[tuple[str, str]]) -> tuple[Route, ...]:
        """Return all routes; those that pass few rows choose their way first."""
        edges = [(source, target) for source, (_, targets) in ways.items() for target in targets]
        edges.sort(key=lambda e: abs(self.row[e[1]] - self.row[e[0]]))
        passing = {e: self._track(*e) if e in back else self._passing(*e) for e in edges}
        ends = [s for s, (fork, to) in ways.items() if not fork and sum(to.values()) < 1 - 1e-9]
        leaving = self._ports(edges, passing, 0, ends)
        reaching = self._ports(edges, passing, 1, _firsts(network))
        joins = {name for name, stage in _stages(network).items() if stage.join}
        routes = []
        for source, target in edges:
            fork, targets = ways[source]
            start = (self.middle[source][0] + HEIGHT / 2 + BAR * fork, leaving[source, target])
            stop = (
                self.middle[target][0] - HEIGHT / 2 - BAR * (target in joins),
                reaching[source, target],
            )
            if (source, target) in back:
                path = _round(start, stop, passing[source, target][0])
            else:
                path = self._down(start, stop, source, passing[source, target])
            routes.append(
                Route(source, target, targets[target], "fork" if fork else "route", path[:, ::-1])
            )
        for stage in ends:
            x, y = leaving[stage, ""], self.middle[stage][0] + HEIGHT / 2
            chance = 1 - sum(ways[stage][1].values())
            routes.append(Route(stage, None, chance, "end", np.array([(x, y), (x, y + STUB)])))
        for stage in _firsts(network):
            x, y = reaching["", stage], self.middle[stage][0] - HEIGHT / 2
            routes.append(Route(None, stage, 1.0, "arrival", np.array([(x, y - STUB), (x, y)])))
        return tuple(routes)

    def _passing(self, source: str, target: str) -> list[float]:
        """Return where a route passes the rows between its ends, and take that place."""
        ends = (self.row[source], self.row[target])
        across = (self.middle[source][1], self.middle[target][1])
        between = range(ends[0] + 1, ends[1])
        return [self._free([row], float(np.interp(row, ends, across))) for row in between]

    def _track(self, source: str, target: str) -> list[float]:
        """Return where a route back goes up, and take that place."""
        rows = list(range(self.row[target], self.row[source] + 1))
        return [self._free(rows, self.middle[source][1], self.middle[target][1])]

    def _free(self, rows: list[int], *near: float) -> float:
        """Return the place nearest to some, above all the last, where nothing is in some rows."""
        positions = np.arange(_PAD / 2, self.right + 300.0, 2.0)
        taken = [place for row in rows for place in self.taken.get(row, [])]
        clear = np.all([np.abs(positions - across) >= reach for across, reach in taken], axis=0)
        outside = np.where(positions > self.right, 40.0, 0.0)
        cost = (
            np.abs(positions[:, None] - np.array(near)) @ np.linspace(1.0, 1.2, len(near)) + outside
        )
        best = float(positions[np.argmin(np.where(clear, cost, np.inf))])
        for row in rows:
            self.taken.setdefault(row, []).append((best, _APART))
        return best

    def _ports(
        self,
        edges: list[tuple[str, str]],
        passing: Mapping[tuple[str, str], list[float]],
        side: int,
        open: list[str],
    ) -> dict[tuple[str, str], float]:
        """Return where across each route leaves its source (side 0) or reaches its target (1)."""
        ports: dict[tuple[str, str], float] = {}
        for stage, (_, middle) in self.middle.items():
            leads = {
                e: passing[e][-side] if passing[e] else self.middle[e[1 - side]][1]
                for e in edges
                if e[side] == stage
            }
            if stage in open:  # on the side to which the others do not lead
                right = leads and np.mean(list(leads.values())) > middle
                leads[(stage, "") if side == 0 else ("", stage)] = -np.inf if right else np.inf
            mine = sorted(leads, key=lambda e: leads[e])
            step = min(36.0, (self.width - 28) / max(len(mine) - 1, 1))
            ports |= {e: middle + (i - (len(mine) - 1) / 2) * step for i, e in enumerate(mine)}
        return ports

    def _down(
        self,
        start: tuple[float, float],
        stop: tuple[float, float],
        source: str,
        passing: list[float],
    ) -> Floats:
        """Return a path through the gaps between rows, straight down where it passes one."""
        below = self.middle[source][0] + HEIGHT / 2 + GAP
        points = [start]
        for i, across in enumerate(passing):
            down = below + i * (HEIGHT + GAP)
            points += [(down, across), (down + HEIGHT, across)]
        points.append((stop[0] - _STRAIGHT, stop[1]))
        parts = [np.array([start])]
        for i in range(0, len(points) - 1, 2):
            (down0, across0), (down1, across1) = points[i], points[i + 1]
            bend = 0.68 * (down1 - down0)
            bent = (down0 + bend, across0), (down1 - bend, across1)
            parts.append(_cubic(points[i], *bent, points[i + 1]))
            parts.append(np.array(points[i + 2 : i + 3]).reshape(-1, 2))
        return np.concatenate([*parts, np.array([stop])])


def _round(start: tuple[float, float], stop: tuple[float, float], track: float) -> Floats:
    """Return a path that leaves downwards, runs up along a track, and comes in from above."""
    reach = 0.46 * GAP
    (down0, across0), (down1, across1) = start, stop
    out = _cubic(start, (down0 + reach, across0), (down0 + reach, track), (down0, track))
    back = _cubic((down1, track), (down1 - reach, track), (down1 - reach, across1), stop)
    return np.concatenate([[start], out, [(down1, track)], back])


def _cubic(*points: tuple[float, float]) -> Floats:
    """Return points on a cubic Bezier curve, the first left out."""
    t = np.linspace(0, 1, 33)[1:, None]
    a, b, c, d = (np.array(p) for p in points)
    return np.asarray(
        (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b + 3 * (1 - t) * t**2 * c + t**3 * d
    )
