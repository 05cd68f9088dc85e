"""A linear program that looks for a piecewise-linear Lyapunov function of a fluid network.

    Phi(Q) = max over stations j of G_j(Q),    G_j(Q) = sum over k of v_k Q_k + sum over k at
    station j of e_k Q_k,

with v, e >= 0, such that every G_j falls whenever station j holds fluid (see
`penstock.theory.network.cycles`). It is looked for under a list of conditions, which together must
cover all that can happen while there is fluid. A condition says for each station which classes may
hold fluid and which pass on at once what reaches them.

Under one condition, the fastest growth of G_j is a linear program over the division of time. Its
dual: multipliers r_s, one per station, such that for each class k that station s may serve

    sum over l of P_kl u_l - u_k <= seconds_k r_s        (what a second for class k adds to G_j, at
    most r_s)

where u_k is the weight of class k in G_j, or any weight of at least 0 if the class passes on what
reaches it, since its level stays at 0. Then G_j grows by sum over k of alpha_k u_k + sum over s of
r_s at most, and that must be below -eps. A station with fluid gives away all its time, in full
batches, and r_s has any sign; else it may idle, and r_s >= 0, or serve in the batches that carry
the most. Since u >= 0, what is certified at one load is certified at all smaller ones.
"""

import dataclasses

import numpy as np

from penstock.inputs.arrays import Bools, Floats
from penstock.theory.network.fluid_classes import FluidClasses

Terms = list[tuple[int, float]]
"""A linear expression: columns of the program and their factors."""

_LEAST_FALL = 1e-8
"""Of the total work per second: falls below it are rounding of the linear program."""


@dataclasses.dataclass(frozen=True)
class Condition:
    """What a station may be like."""

    share: tuple[float, float]  # of its replicas that hold fluid: the least and the most, 0 to 1
    holds: Bools  # shape (classes,), those that may hold fluid and be served there
    # Shape (classes,), those that pass on at once what reaches them: all where some replica is
    # empty.
    passes: Bools
    open: bool = False  # nothing is said of it: it may serve what it likes, or idle


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
            for station, own in condition.items():
                if own.share[0] > 0 and not own.open:
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
        common, own = solved.x[:size] * self._unit, solved.x[size : 2 * size] * self._unit
        largest = (common + own).max()
        return (common + own) / largest, common / largest

    def _column(self, low: float | None) -> int:
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
            least, most = state.share
            holding = self._column(None if least > 0 and not state.open else 0.0)
            busy = self._fastest if state.open else self._seconds
            for k in np.flatnonzero(state.holds):
                self._row([*after[k], *((c, -f) for c, f in weight[k]), (holding, -busy[k])])
            passing, seconds = (
                (holding, self._seconds) if least == 1 else (self._column(0.0), self._fastest)
            )
            # At least what the station adds, which is linear in the share.
            total = self._column(None)
            growth.append((total, 1.0))
            for share in sorted({least, most}):
                self._row([(holding, share), (passing, 1 - share), (total, -1.0)])
            for k in np.flatnonzero(state.passes):
                self._row([*after[k], *((c, -f) for c, f in inflow[k]), (passing, -seconds[k])])
        self._row(growth, [(c, f * self._external[k]) for k in range(size) for c, f in inflow[k]])
