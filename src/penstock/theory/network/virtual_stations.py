"""Virtual stations: classes at two pools that a priority order never lets be served at the same
time.

Let S_1 and S_2 be classes at two stations, such that all that enters S_1 comes from S_1 or from
classes at station 2 that rank below all of S_2, and the other way round. While there is fluid in
S_2, nothing enters S_1; so, from a state where one of the two is empty, both are never served at
once, and together they get one second per second: they are one *virtual station*. If its load is
above 1 the order fails, whatever the loads of the real stations (Rybko and Stolyar 1992; Dai and
Vande Vate 2000). *Push starts* worsen it: classes ranked on top of S_i, fed from outside or by
their like only, take a share h_i of station i at every moment; so the condition for stability is

    s_1 / (1 - h_1) + s_2 / (1 - h_2) <= 1,      s_i the load of S_i.

It is the same to say that a backlog shrinks in the two halves of a cycle: with a_i = s_i / (1 -
h_i), the product of the half-cycle amplifications a_i / (1 - a_i) is below 1 where a_1 + a_2 is.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from penstock.errors import InputError, nearest
from penstock.inputs.arrays import Bools, Ints
from penstock.show.answers import AsData, Meaning, computed
from penstock.system.network_model import NetworkModel
from penstock.theory.network.fluid_classes import FluidClasses, components, fluid_classes

MOST_ORDERS = 20_000
"""Priority orders that a search for the worst tries; more are left untried."""


@dataclasses.dataclass(frozen=True)
class VirtualStation(AsData):
    """Classes that a priority order never lets be served at the same time."""

    pools: Annotated[
        tuple[str, str], Meaning("The two that are never busy with these stages at once.")
    ]
    classes: Annotated[
        tuple[tuple[str, ...], tuple[str, ...]],
        Meaning("Of each of the two, the stages in the virtual station.", key="stages"),
    ]
    pushes: Annotated[
        tuple[tuple[str, ...], tuple[str, ...]],
        Meaning("Of each, the stages ranked above them that take a constant share."),
    ]
    loads: Annotated[tuple[float, float], Meaning("Of each, at the load given.")]
    shares: tuple[float, float]  # h_i
    ranking: tuple[str, ...]  # the highest first

    @computed()
    def max_load(self) -> float:
        """Factor on all rates above which the order is unstable."""
        (s1, s2), (h1, h2) = self.loads, self.shares
        linear, square = s1 + s2 + h1 + h2, s1 * h2 + s2 * h1 + h1 * h2
        return 2 / (linear + math.sqrt(linear**2 - 4 * square))

    @property
    def reason(self) -> str:
        """Why the order fails above that load, in a sentence."""
        classes = " and ".join(", ".join(names) for names in self.classes)
        return (
            f"the order never serves {classes} at the same time, although they are at two pools "
            f"({', '.join(self.pools)}), and together they need more than all the time: it fails "
            "above "
            f"{self.max_load:.4f} times this load"
        )

    def amplification(self, load: float = 1.0) -> tuple[float, float]:
        """Return the factor by which each half of a cycle multiplies a backlog, a_i / (1 - a_i)."""
        # ``load`` is a factor on all rates.
        first, second = zip(self.loads, self.shares, strict=True)
        return _amplification(load, *first), _amplification(load, *second)


def _amplification(load: float, s: float, h: float) -> float:
    """Return a / (1 - a), with a = s / (1 - h), at a factor on all rates; inf from a = 1 on."""
    left = 1 - load * (s + h)
    if left <= 0:
        return math.inf
    return load * s / left


def priority_limit(
    model: NetworkModel, ranking: Sequence[str], phases: bool | Sequence[bool] = False
) -> VirtualStation | None:
    """Return the virtual station where a static priority order fails first, or None."""
    # The ranking, highest first, names classes (`fluid_classes`) or stages: then decodes before
    # prompts. Only the order within a pool matters. Without ``phases`` whole stages are ranked.
    classes = fluid_classes(model, phases)
    return _tightest(classes, ranks(classes, ranking))


def worst_priority(
    model: NetworkModel, phases: bool | Sequence[bool] = False
) -> VirtualStation | None:
    """Return the virtual station of least load limit of all orders, or None if none has one."""
    # Cycles with more than ``MOST_ORDERS`` orders are not searched.
    classes = fluid_classes(model, phases)
    best: VirtualStation | None = None
    for stations in components(classes):
        members = [np.flatnonzero(classes.station == s).tolist() for s in stations]
        if len(stations) == 1 or math.prod(math.factorial(len(of)) for of in members) > MOST_ORDERS:
            continue
        others = np.flatnonzero(~np.isin(classes.station, stations)).tolist()
        for order in itertools.product(*(itertools.permutations(of) for of in members)):
            rank = np.empty(classes.seconds.size, np.int64)
            rank[[*itertools.chain(*order), *others]] = np.arange(rank.size)
            station = _tightest(classes, rank)
            if station is not None and (best is None or station.max_load < best.max_load):
                best = station
    return best


def ranks(classes: FluidClasses, ranking: Sequence[str]) -> Ints:
    """Return the rank of each class, 0 the highest; shape (classes,)."""
    classes_of: dict[str, list[int]] = {name: [] for name in classes.left_out}
    classes_of |= {name: [k] for k, name in enumerate(classes.names)}
    for k in range(len(classes.names) - 1, -1, -1):  # decodes come last, so they are put first
        stage = classes.names[k].removesuffix(" prefill").removesuffix(" decode")
        if stage != classes.names[k]:
            classes_of.setdefault(stage, []).append(k)
    order: list[int] = []
    for name in ranking:
        if name not in classes_of:
            hint = nearest(str(name), classes_of)
            raise InputError(f"the ranking has {name!r}, which is no class of this network{hint}")
        order += classes_of[name]
    missing = [name for k, name in enumerate(classes.names) if k not in order]
    if missing:
        raise InputError(
            f"the ranking lacks {missing[0]}, so its priority is not known; rank all stages"
        )
    if len(order) > len(set(order)):
        twice = next(classes.names[k] for i, k in enumerate(order) if k in order[:i])
        raise InputError(
            f"the ranking has {twice} twice, so its priority is not known; name it once"
        )
    return np.argsort(order)


def _tightest(classes: FluidClasses, rank: Ints) -> VirtualStation | None:
    """Return the virtual station of least load limit under an order."""
    pushed = _pushes(classes, rank)
    best: VirtualStation | None = None
    for stations in components(classes):
        for i, j in itertools.combinations(stations, 2):
            at = [np.flatnonzero(classes.station == s) for s in (i, j)]
            for cuts in itertools.product(*(rank[of] for of in at)):
                above = [
                    (classes.station == s) & (rank <= cut) & ~pushed
                    for s, cut in zip((i, j), cuts, strict=True)
                ]
                exclusive = _exclusive(classes, rank, above)
                if exclusive is not None:
                    station = _station(classes, rank, (i, j), exclusive, pushed)
                    if best is None or station.max_load < best.max_load:
                        best = station
    return best


def _pushes(classes: FluidClasses, rank: Ints) -> Bools:
    """Classes that stay empty for ever: ranked on top, fed from outside or by their like only."""
    above = (classes.station[:, None] == classes.station) & (rank[:, None] < rank)
    pushed = np.zeros(rank.size, np.bool_)
    for _ in range(rank.size):
        pushed = ~(((classes.onward > 0) | above) & ~pushed[:, None]).any(axis=0) & ~classes.joins
    return pushed


def _exclusive(classes: FluidClasses, rank: Ints, above: list[Bools]) -> list[Bools] | None:
    """Return the largest parts of two sets of classes never served at once, or None."""
    sets = [of.copy() for of in above]
    lowest = [rank[of].max(initial=-1) for of in above]
    stations = [classes.station[of][:1] for of in above]
    while all(of.any() for of in sets):
        changed = False
        for one, other in ((0, 1), (1, 0)):
            below = (classes.station == stations[other]) & (rank > lowest[other])
            fed = ((classes.onward > 0) & ~(sets[one] | below)[:, None]).any(axis=0)
            left = sets[one] & ~fed & (classes.external <= 1e-12 * classes.rate) & ~classes.joins
            changed |= bool((left != sets[one]).any())
            sets[one] = left
        if not changed:
            return sets
    return None


def _station(
    classes: FluidClasses, rank: Ints, stations: tuple[int, int], sets: list[Bools], pushed: Bools
) -> VirtualStation:
    """Return the virtual station of two sets of classes, with the push starts above them."""

    def named(of: Bools) -> tuple[str, ...]:
        return tuple(
            classes.names[k] for k in sorted(np.flatnonzero(of), key=lambda k: int(rank[k]))
        )

    tops = [(classes.station == s) & pushed for s in stations]
    first, second = stations
    return VirtualStation(
        pools=(classes.pools[first], classes.pools[second]),
        classes=(named(sets[0]), named(sets[1])),
        pushes=(named(tops[0]), named(tops[1])),
        loads=(float(classes.load[sets[0]].sum()), float(classes.load[sets[1]].sum())),
        shares=(float(classes.load[tops[0]].sum()), float(classes.load[tops[1]].sum())),
        ranking=named(np.ones(rank.size, np.bool_)),
    )
