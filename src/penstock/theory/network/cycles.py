"""Cycles between pools: up to which load every work-conserving policy, or one priority order, is
stable.

Where jobs can leave a pool and come back to it, work conservation is not enough (Rybko-Stolyar,
Lu-Kumar). What is: a Lyapunov function of the fluid levels, piecewise linear, that a linear program
finds (Dai and Vande Vate 2000; Bertsimas, Gamarnik and Tsitsiklis 1996),

    Phi(Q) = max over stations j of G_j(Q),    G_j(Q) = sum over k of v_k Q_k + sum over k at
    station j of e_k Q_k,

with v, e >= 0. Every G_j must fall at a rate of eps > 0 whenever station j holds fluid, however the
stations divide their time between classes. Of the stations that hold fluid one attains the maximum,
since those that hold none add nothing to the common part; so Phi falls while there is any fluid,
and all is drained after Phi(Q(0)) / eps. Then every work-conserving policy is stable (as in
Proposition 2 of the paper). On two stations, where v and e are any two weights, and with fixed
routes the program certifies all that is true; else it is sound and may certify less.

**The program.** v and e are looked for under a list of conditions, which together must cover all
that can happen while there is fluid. A condition says for each station which classes may hold fluid
and which pass on at once what reaches them.

Under one condition, the fastest growth of G_j is a linear program over the division of time. Its
dual: multipliers r_s, one per station, such that for each class k that station s may serve

    sum over l of P_kl u_l - u_k <= seconds_k r_s        (what a second for class k adds to G_j, at
    most r_s)

where u_k is the weight of class k in G_j, or any weight of at least 0 if the class passes on what
reaches it, since its level stays at 0. Then G_j grows by sum over k of alpha_k u_k + sum over s of
r_s at most, and that must be below -eps. A station with fluid gives away all its time, in full
batches, and r_s has any sign; else it may idle, and r_s >= 0, or serve in the batches that carry
the most. Since u >= 0, what is certified at one load is certified at all smaller ones.

**What a station may be like.**

*Empty stations* pass on what arrives, and that makes the program exact on generalised Jackson
networks.

*Replicas*: of a pool behind join-the-shortest-queue of which some replicas hold fluid and some do
not, the former get none of what arrives (proof of Proposition pro:parallel) and process their share
of the pool's rate, and the others pass on what arrives: a third condition of a station, beside full
and empty.

*Joins*: requests that wait at a join of k branches have a sibling that is still served somewhere.
If one that waits counts 1/k of the class that follows, and that class has e = 0 and never another
weight, G_j changes as without joins.

The network is cut at its strongly connected components first. It is stable if each of them is,
alone, with what reaches it from the others arriving at its long-run rate: in topological order each
is drained a finite time after those before it, from when on they pass on what arrives, and until
then its levels grow by a bounded factor (proof of thm:dag). A component of one station needs no
more than a load of full batches below 1 (thm:multi-class).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np

from penstock.inputs.arrays import Bools, Floats, Ints
from penstock.show.answers import AsData, Meaning
from penstock.system.network_model import NetworkModel
from penstock.theory.network.fluid_classes import FluidClasses, components, fluid_classes
from penstock.theory.network.virtual_stations import ranks

MOST_CONDITIONS = 256
"""Combinations of conditions that a program may have; with more, each station is looked at alone,
the others open.
"""
_PRECISION = 1e-6
"""Of load factors that bisection yields."""
_LEAST_FALL = 1e-8
"""Of the total work per second: falls below it are rounding of the linear program."""

Terms = list[tuple[int, float]]
"""A linear expression: columns of the program and their factors."""


@dataclasses.dataclass(frozen=True)
class Condition:
    """What a station may be like."""

    share: tuple[float, float]  # of its replicas that hold fluid: the least and the most, 0 to 1
    holds: Bools  # shape (classes,), those that may hold fluid and be served there
    # Shape (classes,), those that pass on at once what reaches them: all where some replica is
    # empty.
    passes: Bools
    open: bool = False  # nothing is said of it: it may serve what it likes, or idle


Conditions = list[dict[int, Condition]]
"""Combinations that may hold while there is fluid: a condition for each station."""


@dataclasses.dataclass(frozen=True)
class Cycle(AsData):
    """What the linear program says of pools between which jobs can go round."""

    pools: Annotated[tuple[str, ...], Meaning("Between which jobs can go round.")]
    stable: bool  # at the load given
    max_load: Annotated[
        float,
        Meaning(
            "Factor on all rates up to which it is certified; 0 where no program could be set up."
        ),
    ]
    overload: float  # factor at which one of the pools has a load of 1 with full batches
    # Of each class, in G of its own station and in that of others, (v + e, v), the largest 1: those
    # that certify the load given, or else `max_load`.
    weights: dict[str, tuple[float, float]]
    exact: Annotated[
        bool, Meaning("Whether beyond `max_load` some work-conserving policy is unstable for sure.")
    ]


@dataclasses.dataclass(frozen=True)
class GlobalStability(AsData):
    """Up to which load every work-conserving policy is stable, or every one with some order."""

    stable: bool  # at the load given
    max_load: Annotated[float, Meaning("Factor on all rates up to which it is certified.")]
    overload: float  # factor at which the bottleneck has a load of 1 with full batches
    cycles: Annotated[
        tuple[Cycle, ...], Meaning("What the linear program says of each cycle of pools.")
    ]
    exact: Annotated[
        bool, Meaning("Whether beyond `max_load` some work-conserving policy is unstable for sure.")
    ]


def global_stability(
    model: NetworkModel,
    phases: bool | Sequence[bool] = True,
    balanced: Sequence[bool] | None = None,
) -> GlobalStability:
    """Say up to which load every work-conserving policy is stable.

    With ``phases`` policies may choose between phases of a stage; else decodes go first
    (`fluid_classes`). ``balanced``, shape (pools,): routers send nothing to replicas with fluid
    while others have none, as join-the-shortest-queue; None: all do. A cycle with a pool of several
    unbalanced replicas is not certified at any load.
    """
    even = [True] * len(model.pools) if balanced is None else balanced

    def conditions(classes: FluidClasses, stations: tuple[int, ...]) -> Conditions | None:
        if not all(model.replicas[s] == 1 or even[s] for s in stations):
            return None
        return _combined(
            classes, {s: _any_policy(classes, s, int(model.replicas[s])) for s in stations}
        )

    return _over_cycles(fluid_classes(model, phases), conditions, model.replicas)


def priority_stability(
    model: NetworkModel, ranking: Sequence[str], phases: bool | Sequence[bool] = False
) -> GlobalStability:
    """Say up to which load a static priority order is stable; see `virtual_stations`."""
    # A station serves its highest class that holds fluid; those above pass on what reaches them,
    # those below wait. A cycle with a pool of several replicas is not certified at any load.
    everything = fluid_classes(model, phases)
    rank = dict(zip(everything.names, ranks(everything, ranking).tolist(), strict=True))

    def conditions(classes: FluidClasses, stations: tuple[int, ...]) -> Conditions | None:
        if not all(model.replicas[s] == 1 for s in stations):
            return None
        ranked = np.array([rank[name] for name in classes.names])
        return _combined(classes, {s: _static(classes, s, ranked) for s in stations})

    return _over_cycles(everything, conditions, None)


def _over_cycles(
    classes: FluidClasses,
    conditions: Callable[[FluidClasses, tuple[int, ...]], Conditions | None],
    replicas: Ints | None,
) -> GlobalStability:
    """Put the programs of all cycles together; ``replicas`` of each pool, None under an order."""
    cycles = []
    for stations in components(classes):
        if len(stations) == 1:
            continue
        part = classes.at(stations)
        # What the program says of every policy is exact on two servers with fixed routes.
        exact = replicas is not None and all(replicas[s] == 1 for s in stations)
        exact = exact and len(stations) == 2 and _fixed_routes(part)
        cycles.append(_cycle(part, stations, conditions(part, stations), exact))
    overload = 1 / float(classes.rho.max())
    max_load = min([overload, *(cycle.max_load for cycle in cycles)])
    stable = overload > 1 and all(cycle.stable for cycle in cycles)
    exact = max_load == overload or any(
        cycle.exact for cycle in cycles if cycle.max_load == max_load
    )
    return GlobalStability(stable, max_load, overload, tuple(cycles), exact)


def _fixed_routes(classes: FluidClasses) -> bool:
    """Whether each class follows and is followed by one at most, as the proof of exactness asks."""
    ways, follows = classes.onward, classes.onward.any(axis=0)
    alone = (ways.sum(axis=0) <= 1).all() and (ways.sum(axis=1) <= 1).all()
    begins = classes.external > 1e-12 * classes.rate
    alone = alone and np.allclose(classes.fastest, classes.seconds)
    return bool(
        np.isin(ways, (0.0, 1.0)).all()
        and alone
        and not (begins & follows).any()
        and not classes.joins.any()
    )


def _cycle(
    classes: FluidClasses, stations: tuple[int, ...], conditions: Conditions | None, exact: bool
) -> Cycle:
    """Say up to which load weights certify a cycle, under conditions; None: nothing is known."""
    names = tuple(classes.pools[s] for s in stations)
    overload = 1 / float(classes.rho.max())
    if conditions is None:
        return Cycle(names, False, 0.0, overload, {}, False)
    program = LyapunovProgram(classes, conditions)
    low, best = _highest_load(program, overload)
    # Shown are the weights that certify the load given, or else the highest load.
    stable = False
    if overload > 1:
        at_load = program.weights(1.0)
        stable = at_load is not None
        best = at_load or best
    weights = {}
    if best is not None:
        pairs = zip(best[0].tolist(), best[1].tolist(), strict=True)
        weights = dict(zip(classes.names, pairs, strict=True))
    return Cycle(names, stable, low, overload, weights, exact or low == overload)


def _highest_load(
    program: "LyapunovProgram", overload: float
) -> tuple[float, tuple[Floats, Floats] | None]:
    """Return the highest load below overload that weights certify, by bisection, and those."""
    low, high = 0.0, overload
    best = program.weights(overload * (1 - _PRECISION))
    if best is not None:
        return overload, best
    while high - low > _PRECISION * high / 2:
        middle = (low + high) / 2
        weights = program.weights(middle)
        if weights is None:
            high = middle
        else:
            low, best = middle, weights
    return low, best


def _combined(classes: FluidClasses, of_station: dict[int, list[Condition]]) -> Conditions:
    """Return every combination of conditions with fluid somewhere; coarser ones if too many."""
    if math.prod(len(conditions) for conditions in of_station.values()) > MOST_CONDITIONS:
        none = np.zeros_like(classes.joins)
        others = {
            s: Condition((1.0, 1.0), classes.station == s, none, open=True) for s in of_station
        }
        return [
            {**others, s: condition}
            for s, conditions in of_station.items()
            for condition in conditions
            if condition.share[0] > 0
        ]
    combined = [
        dict(zip(of_station, states, strict=True))
        for states in itertools.product(*of_station.values())
    ]
    return [states for states in combined if any(state.share[0] > 0 for state in states.values())]


def _any_policy(classes: FluidClasses, station: int, replicas: int) -> list[Condition]:
    """A pool under any work-conserving policy: empty, full, or fluid at some replicas."""
    here = classes.station == station
    none = np.zeros_like(here)
    empty, full = Condition((0.0, 0.0), none, here), Condition((1.0, 1.0), here, none)
    if replicas == 1:
        return [empty, full]
    return [empty, Condition((1 / replicas, 1 - 1 / replicas), here, here), full]


def _static(classes: FluidClasses, station: int, rank: Ints) -> list[Condition]:
    """A server under a static order: empty, or with one class as the highest that holds fluid."""
    here = classes.station == station
    none = np.zeros_like(here)
    tops = [
        Condition((1.0, 1.0), np.arange(here.size) == k, here & (rank < rank[k]))
        for k in np.flatnonzero(here)
    ]
    return [Condition((0.0, 0.0), none, here), *tops]


class LyapunovProgram:
    """The linear program of some stations' classes; the load changes only the arrivals' part.

    Times are in units of the mean time between arrivals, weights of the work that a request still
    brings. A condition is a combination, one per station: all possible with fluid are given.
    """

    def __init__(self, classes: FluidClasses, conditions: list[dict[int, Condition]]) -> None:
        total = float(classes.external.sum())
        self._classes = classes
        self._external = classes.external / total
        self._seconds, self._fastest = classes.seconds * total, classes.fastest * total
        self._unit = np.linalg.solve(np.eye(classes.seconds.size) - classes.onward, self._seconds)
        size = classes.seconds.size
        most = [1.0] * size + [0.0 if join else 1.0 for join in classes.joins] + [1.0]
        # V, e, eps.
        self._bounds: list[tuple[float | None, float | None]] = [(0.0, one) for one in most]
        self._entries: list[
            tuple[int, int, float, bool]
        ] = []  # row, column, factor, whether times the load
        self._rows = 0
        for condition in conditions:
            for station, state in condition.items():
                if state.share[0] > 0 and not state.open:
                    self._falls(station, condition)

    def weights(self, load: float) -> tuple[Floats, Floats] | None:
        """Return (v + e, v), shape (classes,), largest 1, at a factor on all rates; or None."""
        row, column, factor, arriving = (
            np.array(part) for part in zip(*self._entries, strict=True)
        )
        from scipy.optimize import linprog  # takes a while to load, and few networks need it
        from scipy.sparse import csr_array

        matrix = csr_array(
            (np.where(arriving, load, 1.0) * factor, (row, column)), (self._rows, len(self._bounds))
        )
        size = self._seconds.size
        cost = np.zeros(len(self._bounds))
        cost[2 * size] = -1.0
        accuracy = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        solved = linprog(
            cost, A_ub=matrix, b_ub=np.zeros(self._rows), bounds=self._bounds, options=accuracy
        )
        if solved.status != 0 or -solved.fun < _LEAST_FALL:
            return None
        common = solved.x[:size] * self._unit
        at_own = common + solved.x[size : 2 * size] * self._unit
        return at_own / at_own.max(), common / at_own.max()

    def _column(self, low: float | None) -> int:
        """Add a variable with a lower bound, or none."""
        self._bounds.append((low, None))
        return len(self._bounds) - 1

    def _row(self, terms: Terms, arriving: Terms | None = None) -> None:
        """Add: the sum of these, and of those times the load, is at most 0."""
        self._entries += [(self._rows, c, f, False) for c, f in terms]
        self._entries += [(self._rows, c, f, True) for c, f in arriving or []]
        self._rows += 1

    def _falls(self, station: int, condition: dict[int, Condition]) -> None:
        """Add: G of the station falls under this condition."""
        classes, size, unit = self._classes, self._seconds.size, self._unit
        weight: list[Terms] = [[(k, unit[k])] for k in range(size)]
        for k in np.flatnonzero(classes.station == station):
            weight[k].append((size + int(k), unit[k]))
        passes = (
            np.logical_or.reduce([state.passes for state in condition.values()]) & ~classes.joins
        )
        inflow = [[(self._column(0.0), unit[k])] if passes[k] else weight[k] for k in range(size)]
        after = [
            [(c, f * row[i]) for i in np.flatnonzero(row) for c, f in inflow[i]]
            for row in classes.onward
        ]
        growth: Terms = [(2 * size, 1.0)]
        for state in condition.values():
            # Multipliers of what holds fluid, and of what passes on; a station without fluid may
            # idle, or serve in the batches that carry the most.
            least, most = state.share
            if least == 0 or state.open:
                holding = self._column(0.0)
            else:
                holding = self._column(None)
            busy = self._seconds
            if state.open:
                busy = self._fastest
            for k in np.flatnonzero(state.holds):
                self._row([*after[k], *((c, -f) for c, f in weight[k]), (holding, -busy[k])])
            passing, seconds = holding, self._seconds
            if least < 1:
                passing, seconds = self._column(0.0), self._fastest
            # At least what the station adds, which is linear in the share.
            total = self._column(None)
            growth.append((total, 1.0))
            for share in sorted({least, most}):
                self._row([(holding, share), (passing, 1 - share), (total, -1.0)])
            for k in np.flatnonzero(state.passes):
                self._row([*after[k], *((c, -f) for c, f in inflow[k]), (passing, -seconds[k])])
        self._row(growth, [(c, f * self._external[k]) for k in range(size) for c, f in inflow[k]])
