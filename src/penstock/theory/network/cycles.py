"""Cycles between pools: up to which load every work-conserving policy, or one priority order, is
stable.

Where jobs can leave a pool and come back to it, work conservation is not enough (Rybko-Stolyar,
Lu-Kumar). What is: a Lyapunov function of the fluid levels, piecewise linear, found by a linear
program (Dai and Vande Vate 2000; Bertsimas, Gamarnik and Tsitsiklis 1996;
`penstock.theory.network.lyapunov`),

    Phi(Q) = max over stations j of G_j(Q),    G_j(Q) = sum over k of v_k Q_k + sum over k at
    station j of e_k Q_k,

with v, e >= 0. Every G_j must fall at a rate of eps > 0 whenever station j holds fluid, however the
stations divide their time between classes. Of the stations that hold fluid one attains the maximum,
since those that hold none add nothing to the common part; so Phi falls while there is any fluid,
and all is drained after Phi(Q(0)) / eps. Then every work-conserving policy is stable (as in
Proposition 2 of the paper). On two stations, where v and e are any two weights, and with fixed
routes the program certifies all that is true; else it is sound and may certify less. Added are:

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

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.system.network_model import NetworkModel
from penstock.theory.network.fluid_classes import FluidClasses, components, fluid_classes
from penstock.theory.network.lyapunov import Condition, LyapunovProgram
from penstock.theory.network.virtual_stations import ranks

Conditions = list[dict[int, Condition]]

MOST_CONDITIONS = 256
"""Combinations of conditions that a program may have; with more, each station is looked at alone,
the others open.
"""
_PRECISION = 1e-6
"""Of load factors found by bisection."""


@dataclasses.dataclass(frozen=True)
class Cycle:
    """What the linear program says of pools between which jobs can go round."""

    pools: tuple[str, ...]
    stable: bool  # at the load given
    # Factor on all rates up to which it is certified; 0 where no program could be set up.
    max_load: float
    overload: float  # factor at which one of the pools has a load of 1 with full batches
    # Of each class, in G of its own station and in that of others, (v + e, v), the largest 1: those
    # that certify the load given, or else `max_load`.
    weights: dict[str, tuple[float, float]]
    exact: bool  # beyond `max_load` some work-conserving policy is unstable for sure


@dataclasses.dataclass(frozen=True)
class GlobalStability:
    """Up to which load every work-conserving policy is stable, or every one with some order."""

    stable: bool  # at the load given
    max_load: float  # factor on all rates up to which it is certified
    overload: float  # factor at which the bottleneck has a load of 1 with full batches
    cycles: tuple[Cycle, ...]
    exact: bool  # beyond `max_load` some work-conserving policy is unstable for sure


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
        own = np.array([rank[name] for name in classes.names])
        return _combined(classes, {s: _static(classes, s, own) for s in stations})

    return _over_cycles(everything, conditions, None)


def _over_cycles(
    classes: FluidClasses,
    conditions: Callable[[FluidClasses, tuple[int, ...]], Conditions | None],
    replicas: Ints | None,
) -> GlobalStability:
    cycles = []
    for stations in components(classes):
        if len(stations) > 1:
            part = classes.at(stations)
            two = (
                replicas is not None
                and len(stations) == 2
                and all(replicas[s] == 1 for s in stations)
            )
            cycles.append(
                _cycle(part, stations, conditions(part, stations), two and _fixed_routes(part))
            )
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
    names = tuple(classes.pools[s] for s in stations)
    overload = 1 / float(classes.rho.max())
    if conditions is None:
        return Cycle(names, False, 0.0, overload, {}, False)
    program = LyapunovProgram(classes, conditions)
    low, best = _highest_load(program, overload)
    # Shown are the weights that certify the load given, or else the highest load.
    at_load = program.weights(1.0) if overload > 1 else None
    shown = best if at_load is None else at_load
    pairs = [] if shown is None else zip(shown[0].tolist(), shown[1].tolist(), strict=True)
    named = dict(zip(classes.names, pairs, strict=False))
    return Cycle(names, at_load is not None, low, overload, named, exact or low == overload)


def _highest_load(
    program: LyapunovProgram, overload: float
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
            {**others, s: own}
            for s, conditions in of_station.items()
            for own in conditions
            if own.share[0] > 0
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
    partly = [Condition((1 / replicas, 1 - 1 / replicas), here, here)] if replicas > 1 else []
    return [Condition((0.0, 0.0), none, here), *partly, Condition((1.0, 1.0), here, none)]


def _static(classes: FluidClasses, station: int, rank: Ints) -> list[Condition]:
    """A server under a static order: empty, or with one class as the highest that holds fluid."""
    here = classes.station == station
    none = np.zeros_like(here)
    tops = [
        Condition((1.0, 1.0), np.arange(here.size) == k, here & (rank < rank[k]))
        for k in np.flatnonzero(here)
    ]
    return [Condition((0.0, 0.0), none, here), *tops]
