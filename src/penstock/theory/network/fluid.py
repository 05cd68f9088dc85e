"""Fluid paths of a network under static priorities: what a large backlog does when randomness
averages out.

Each pool is one station that gives all its time to its highest class that holds fluid, less what
the empty ones above it need to pass on what reaches them (eq:mf1 to eq:mf5 with a static order).
Between two events, a class that runs dry or one that starts to grow, all rates are constant and
solve one linear system; so a path is exact and in straight lines. Where the order is unstable its
turning points spiral out, each cycle the same but larger and longer; where it is stable they spiral
in, infinitely many before all is drained, and a path ends when next to nothing is left. At one
station each class runs dry once, so there a path has a stretch for each class and a last one.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Floats, Ints
from penstock.system.network_model import NetworkModel
from penstock.theory.network.fluid_classes import FluidClasses, fluid_classes
from penstock.theory.network.virtual_stations import ranks

_DRAINED = 1e-9
"""Of the largest level so far: with less than that a path is drained."""
_DRY = 1e-12
"""Of the largest level at this time: a class with less than that is empty."""
_EVEN = 1e-12
"""Flows that differ by less, relatively, are equal."""
_MOST_CHOICES = 5_000
_SAME = 1e-6
"""States whose shares of the total differ by less are the same but for size."""


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkPath:
    """A path of the fluid model, in straight lines between breakpoints."""

    classes: tuple[str, ...]  # as in `fluid_classes`
    pool: Ints  # shape (classes,), the pool of each
    time_s: Floats  # shape (n,), seconds, the first 0
    requests: Floats  # shape (n, classes), fluid of each class at each breakpoint
    slope: Floats  # shape (n, classes), requests/s from each breakpoint on
    served: Floats  # shape (n, classes), requests/s that leave each class from each breakpoint on
    # Shape (n,), seconds of all pools together for what is left, later stages included.
    work_s: Floats
    drained: bool  # at the last breakpoint; then the last slopes are 0
    # Factor by which one cycle multiplies all levels: above 1 the path spirals out for ever, below
    # 1 it spirals in; inf where levels rise without end and without a cycle; None where no cycle
    # was completed.
    growth: float | None

    @property
    def grows(self) -> bool:
        """Whether the backlog grows for ever."""
        return self.growth is not None and self.growth > 1 + _SAME

    def at(self, time_s: npt.ArrayLike) -> Floats:
        """Return each class's requests at some times: shape of ``time_s``, then (classes,)."""
        time = checks.array("a time on the fluid path", time_s).astype(np.float64)
        if not (time >= 0).all():
            raise InputError(
                "a time on the fluid path is before its start at 0 s; give a later one"
            )
        stretch = np.searchsorted(self.time_s, time, side="right") - 1
        since = (time - self.time_s[stretch])[..., None]
        return np.maximum(self.requests[stretch] + self.slope[stretch] * since, 0.0)


def network_path(
    model: NetworkModel,
    ranking: Sequence[str],
    start: str | Mapping[str, float],
    *,
    phases: bool | Sequence[bool] = False,
    most_events: int = 200,
) -> NetworkPath:
    """Return the fluid path of a network under a static priority order."""
    # Several replicas count as one server. Paths scale with ``start``: requests by class, or one
    # class with one request; a stage of two classes starts in its first. The path is cut off after
    # ``most_events`` breakpoints.
    classes = fluid_classes(model, phases)
    if classes.joins.any():
        name = classes.names[int(np.argmax(classes.joins))]
        raise InputError(
            f"{name} waits at a join, of which fluid paths know nothing; leave the join out, or "
            "simulate"
        )
    rank = ranks(classes, ranking)
    if isinstance(start, str):
        start = {start: 1.0}
    level = _start(classes, start)
    most_events = checks.whole("most_events", most_events, 1, 10**6, "events", "a path has some")
    return walk(classes, rank, level, most_events)


def _start(classes: FluidClasses, start: Mapping[str, float]) -> Floats:
    """Return the requests of each class at the start."""
    level = np.zeros(classes.seconds.size)
    for name, amount in start.items():
        # Of a stage of two classes the first.
        members = [f"{name}{phase}" for phase in ("", " prefill", " decode")]
        members = [member for member in members if member in classes.names]
        if not members:
            raise InputError(
                f"the fluid starts in {name!r}, which is no class of this "
                f"network{nearest(str(name), classes.names)}"
            )
        amount = checks.number(
            f"the fluid in {name}", amount, 0, 1e15, "requests", "levels are not negative"
        )
        level[classes.names.index(members[0])] += amount
    if not level.any():
        raise InputError(
            "the fluid starts with nothing, so nothing moves; give one class some requests"
        )
    return level


def walk(classes: FluidClasses, rank: Ints, level: Floats, most_events: int = 10**6) -> NetworkPath:
    """Follow fluid from some levels, requests of each class, until it is drained or goes on so."""
    ahead = np.linalg.solve(np.eye(level.size) - classes.onward, classes.seconds)
    order = [np.flatnonzero(classes.station == s) for s in range(len(classes.pools))]
    order = [members[np.argsort(rank[members])] for members in order]
    time = 0.0
    times, levels, slopes, served = [time], [level], [], []
    drained = False
    growth = None
    while True:
        slope, out = _slopes(classes, order, level)
        slopes.append(slope)
        served.append(out)
        if len(times) > most_events or drained:
            break
        # A stretch ends when the first class runs dry; where none does, the path goes on for ever.
        falling = np.flatnonzero((slope < 0) & (level > 0))
        if not falling.size:
            if (slope > 0).any():
                growth = float("inf")
            break
        step = float((level[falling] / -slope[falling]).min())
        level = np.maximum(level + step * slope, 0.0)
        level[level <= _DRY * level.max()] = 0.0
        drained = level.sum() <= _DRAINED * max(of.sum() for of in levels)
        if drained:
            level = np.zeros(level.size)
        time += step
        times.append(time)
        levels.append(level)
    requests = np.array(levels)
    if growth is None:
        growth = _growth(requests)
    return NetworkPath(
        classes=classes.names,
        pool=classes.station,
        time_s=np.array(times),
        requests=requests,
        slope=np.array(slopes),
        served=np.array(served),
        work_s=requests @ ahead,
        drained=bool(drained),
        growth=growth,
    )


def _growth(requests: Floats) -> float | None:
    """Return the factor between the last two breakpoints that are the same but for size."""
    total = requests.sum(axis=1)
    requests, total = requests[total > 0], total[total > 0]
    shape = requests / total[:, None]
    for last in range(total.size - 1, 0, -1):
        same = np.flatnonzero((np.abs(shape[:last] - shape[last]) < _SAME).all(axis=1))
        if same.size:
            return float(total[last] / total[same[-1]])
    return None


def _slopes(classes: FluidClasses, order: list[Ints], level: Floats) -> tuple[Floats, Floats]:
    """Return rates of change, and what leaves each class, requests/s."""
    # At each station at most one class takes what those above leave.
    # It is the first that holds fluid, or an empty one above it that gets more than is left. What
    # it gets depends on other stations, and on itself if requests come back, so choices are tried
    # until all fit: first those where classes above that need more than all the time move up, then
    # all there are, passing on as much as possible first.
    first = [
        next((i for i, k in enumerate(members) if level[k] > 0), len(members)) for members in order
    ]
    taker = tuple(first)
    for _ in range(level.size):
        inflow, out = _rates(classes, order, taker)
        if _fits(classes, order, first, taker, inflow, out):
            break
        over = [
            np.cumsum(inflow[of] * classes.seconds[of])[:top] > 1 + _EVEN
            for of, top in zip(order, first, strict=True)
        ]
        taker = tuple(
            next((int(i) for i in np.flatnonzero(too_much)), top)
            for too_much, top in zip(over, first, strict=True)
        )
    else:
        for taker in itertools.islice(
            itertools.product(*(range(top, -1, -1) for top in first)), _MOST_CHOICES
        ):
            inflow, out = _rates(classes, order, taker)
            if _fits(classes, order, first, taker, inflow, out):
                break
        else:
            raise InputError(
                "this order has no fluid path that could be found from here; start elsewhere, or "
                "simulate it instead"
            )
    slope = inflow - out
    slope[np.abs(slope) <= _EVEN * (inflow + out)] = 0.0
    return np.where(level > 0, slope, np.maximum(slope, 0.0)), out


def _fits(
    classes: FluidClasses,
    order: list[Ints],
    first: list[int],
    taker: tuple[int, ...],
    inflow: Floats,
    out: Floats,
) -> bool:
    """Whether classes above the takers leave some time, and an empty taker does grow."""
    for members, top, index in zip(order, first, taker, strict=True):
        above = members[:index]
        if (inflow[above] * classes.seconds[above]).sum() > 1 + _EVEN:
            return False
        if index < top and inflow[members[index]] < out[members[index]] * (1 - _EVEN):
            return False
    return bool((inflow > -_EVEN).all())


def _rates(
    classes: FluidClasses, order: list[Ints], taker: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """Return each class's inflow and outflow, requests/s, given the class that takes the rest."""
    size = classes.seconds.size
    keep = np.zeros((size, size))  # out = keep @ inflow + rest
    rest = np.zeros(size)
    for members, index in zip(order, taker, strict=True):
        above = members[:index]
        keep[above, above] = 1.0
        if index < len(members):
            k = members[index]
            rest[k] = 1 / classes.seconds[k]
            keep[k, above] = -classes.seconds[above] / classes.seconds[k]
    inflow = np.linalg.solve(
        np.eye(size) - classes.onward.T @ keep, classes.external + classes.onward.T @ rest
    )
    return np.asarray(inflow, np.float64), keep @ inflow + rest
