"""Routes of a workflow: which stages the end of a request releases, and whether that ends well.

A *fork* releases several requests; a *join* waits for all branches of the innermost fork that is
open. So every branch of a fork must come to the same join whatever path it takes, or all of them
must end without one. And no job may go on for ever, nor for ever on average.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats


def reached(after: Mapping[str, Collection[str]], first: str) -> set[str]:
    """Return all to which paths lead from one, and that one."""
    places, left = {first}, [first]
    while left:
        new = set(after[left.pop()]) - places
        places |= new
        left += new
    return places


def closed_loop(chances: Floats, leaves: Bools, forks: Bools | None = None) -> list[int]:
    """Return a loop without a way out, as places visited, ending with the first; [] if none."""
    # ``chances``, shape (places, places), are above 0 where a path leads on; ``leaves``, shape
    # (places,), where one leads out. Where ``forks`` all paths are taken, so all must; None:
    # nowhere.
    paths = chances > 0
    every = np.zeros(leaves.size, np.bool_)
    if forks is not None:
        every = forks
    for _ in range(leaves.size):
        out = np.where(every, ~(paths & ~leaves).any(axis=1), (paths & leaves).any(axis=1))
        leaves = leaves | out
    if leaves.all():
        return []
    inside = chances * ~leaves
    path = [int(np.argmin(leaves))]
    while path[-1] not in path[:-1]:
        path.append(int(np.argmax(inside[path[-1]])))
    return path[path.index(path[-1]) :]


END = "end"
NO_LIMIT = 2**31 - 1
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Routes:
    """Where jobs go, by places of stages."""

    workflow: str
    names: tuple[str, ...]
    firsts: tuple[int, ...]  # the stages at which jobs begin
    # Of the jobs, that begin at each of those; all 1 where nobody asks for `visits`.
    shares: tuple[float, ...]
    targets: tuple[tuple[int, ...], ...]  # of each stage, the stages that its end may release
    # Of each stage, the probability of each target; what is missing to 1 is that of the end. Ones
    # at a fork.
    chances: tuple[tuple[float, ...], ...]
    forks: tuple[bool, ...]  # all targets are released
    joins: tuple[bool, ...]  # waits for all branches of a fork
    most_visits: tuple[int | None, ...]  # of each stage

    def check(self) -> None:
        """Raise an `InputError` unless stages are reached, joins close a fork, and jobs end."""
        self._check_reached()
        self._check_forks_before_joins()
        self._check_ends()
        self._check_branches()
        self._check_finite()

    @functools.cached_property
    def limited(self) -> bool:
        """Whether a stage may be visited only so often."""
        return any(most is not None for most in self.most_visits)

    @functools.cached_property
    def limits(self) -> npt.NDArray[np.int64]:
        """Shape (stages,), visits of a job to each stage at most."""
        return np.array([NO_LIMIT if most is None else most for most in self.most_visits])

    @functools.cached_property
    def reach(self) -> tuple[Floats, ...]:
        """Of each stage, running sums of chances; the last is exactly 1 where no branch can end."""
        sums = []
        for chances in self.chances:
            running = np.cumsum(np.array(chances, np.float64))
            sums.append(np.where(running > 1 - _ROUNDING, 1.0, running))
        return tuple(sums)

    def ends(self, stage: int) -> bool:
        """Whether a branch may end after a stage, limits apart."""
        return not self.targets[stage] or (not self.forks[stage] and self.reach[stage][-1] < 1)

    def edges(self, stage: int) -> list[int]:
        """Return the targets that have a chance."""
        return [
            t
            for t, chance in zip(self.targets[stage], self.chances[stage], strict=True)
            if chance > 0
        ]

    def _matrix(self, *, limits: bool = False) -> Floats:
        """Return mean requests of each stage that the end of one releases, joins not divided."""
        # With ``limits`` as it is when no limited stage may be visited: other chances are scaled
        # up.
        size = len(self.names)
        matrix = np.zeros((size, size))
        back = self._paths() if limits else None
        for stage in range(size):
            edges = zip(self.targets[stage], self.chances[stage], strict=True)
            for target, chance in edges:
                used_up = (
                    back is not None
                    and self.most_visits[target] is not None
                    and back[target, stage]
                )
                matrix[stage, target] += 0 if used_up else chance
            total = matrix[stage].sum() + (1 - self.reach[stage][-1] if self.targets[stage] else 1)
            if not self.forks[stage] and total > 0:
                matrix[stage] /= total
        return matrix

    def _paths(self) -> Bools:
        """Return from where paths lead where, shape (stages, stages), from each to itself, too."""
        size = len(self.names)
        paths = np.eye(size, dtype=np.bool_)
        for stage, targets in enumerate(self.targets):
            paths[stage, list(targets)] = True
        for _ in range(size.bit_length()):  # each time twice as long
            steps = paths.astype(np.float64)
            paths = steps @ steps > 0
        return paths

    def _fault(self, stage: int, message: str) -> InputError:
        return InputError(f"stage {self.names[stage]!r} of {self.workflow} {message}")

    def _check_reached(self) -> None:
        reached = self._paths()[list(self.firsts)].any(axis=0)
        for stage in np.flatnonzero(~reached).tolist():
            if self.joins[stage]:
                raise self._fault(
                    stage,
                    "is a join that nothing reaches; name it in `then` of the forks' branches",
                )
            self._check_copies(stage)
            begin = " or ".join(repr(self.names[first]) for first in self.firsts)
            raise self._fault(
                stage, f"is reached by no path from {begin}; name it in `then`, or leave it out"
            )

    def _check_copies(self, left_out: int) -> None:
        """Blame a fork that names a stage twice for one not reached; else that means copies."""
        for fork, targets in enumerate(self.targets):
            again = next((target for target in targets if targets.count(target) > 1), None)
            if again is not None:
                twice = "twice" if targets.count(again) == 2 else f"{targets.count(again)} times"
                raise self._fault(
                    fork,
                    f"forks to {self.names[again]!r} {twice}, and no path leads to "
                    f"{self.names[left_out]!r}; put {self.names[left_out]!r} in place of one, name "
                    "it in another `then`, or leave it out",
                )

    def _check_forks_before_joins(self) -> None:
        for stage, targets in enumerate(self.targets):
            joins = [target for target in targets if self.joins[target]]
            if self.forks[stage] and joins:
                raise self._fault(
                    stage,
                    f"forks straight to the join {self.names[joins[0]]!r}, so that branch has no "
                    "request to wait for; leave it out, as the join waits for the other branches",
                )
        for stage, most in enumerate(self.most_visits):
            if self.joins[stage] and most is not None:
                closes = dataclasses.replace(self, most_visits=(None,) * len(self.names)).closes
                again = [
                    fork
                    for fork, join in closes.items()
                    if join == stage and self._paths()[join, fork]
                ]
                remedy = (
                    "let a loop come back to a stage of its own that is no join, and limit that one"
                )
                if again:
                    remedy = f"limit the fork {self.names[again[0]]!r} instead"
                raise self._fault(
                    stage,
                    f"is a join with most_visits, and past it branches would never join; {remedy}",
                )
        for first in (each for each in self.firsts if self.joins[each]):
            raise self._fault(
                first, "is a join, and jobs begin there, where no fork is open; begin elsewhere"
            )

    def _check_ends(self) -> None:
        matrix = self._matrix(limits=True)
        leaves = np.array([self.ends(stage) for stage in range(len(self.names))]) | ~matrix.any(
            axis=1
        )
        loop = closed_loop(matrix, leaves, np.array(self.forks))
        if loop:
            raise InputError(
                f"{self.workflow} never ends: no path leads out of the loop {self._path(loop)}; "
                "let one of its stages end with some probability, or limit one with most_visits"
            )

    def _check_finite(self) -> None:
        states, matrix = self._releases(limits=True)
        if not (matrix > 0).any():  # a job is one request
            return
        from scipy.sparse import csgraph  # takes a while to load

        _, component = csgraph.connected_components(matrix > 0, connection="strong")
        for members in (np.flatnonzero(component == which) for which in range(component.max() + 1)):
            growth, vectors = np.linalg.eig(matrix[np.ix_(members, members)])
            largest = int(np.argmax(growth.real))
            if growth[largest].real < 1 - _ROUNDING:
                continue
            share = np.zeros(len(states))
            share[members] = np.abs(vectors[:, largest])  # Perron's: what each leads to in the end
            path = [int(np.argmax(share))]
            while path[-1] not in path[:-1]:
                path.append(int(np.argmax(matrix[path[-1]] * share)))
            loop = [states[state][0] for state in path[path.index(path[-1]) :]]
            follows = f"one more, or so nearly that a job has over {1 / _ROUNDING:,.0f} of them"
            if growth[largest].real > 1 + _ROUNDING:
                follows = f"{growth[largest].real:.4g} more, so they multiply"
            raise InputError(
                f"{self.workflow} never ends on average: in the loop {self._path(loop)} each "
                "request is followed by "
                f"{follows}; lower a probability, or limit a stage with most_visits"
            )

    def _path(self, loop: Sequence[int]) -> str:
        return " -> ".join(self.names[stage] for stage in loop)

    @functools.cached_property
    def _exits(self) -> tuple[frozenset[int], ...]:
        """Of each stage, the joins at which a branch there may leave it, and -1 if it may end."""
        exits: list[frozenset[int]] = [frozenset()] * len(self.names)
        while True:
            before = list(exits)
            for stage, targets in enumerate(self.targets):
                edges = self.edges(stage)
                of = [
                    frozenset({t}) if self.joins[t] and not self.forks[stage] else exits[t]
                    for t in edges
                ]
                leaving = frozenset().union(*of)
                if self.forks[stage] and len(leaving) == 1 and -1 not in leaving:
                    leaving = exits[next(iter(leaving))]  # past the join that closes it
                if self.ends(stage) or all(
                    self.most_visits[target] is not None for target in targets
                ):
                    leaving |= {-1}
                exits[stage] |= leaving
            if exits == before:
                return tuple(exits)

    @functools.cached_property
    def closes(self) -> dict[int, int]:
        """Of each fork that has one, the join that closes it."""
        closes = {}
        for fork, targets in enumerate(self.targets):
            exits = frozenset().union(*(self._exits[target] for target in targets))
            if self.forks[fork] and len(exits) == 1 and -1 not in exits:
                closes[fork] = next(iter(exits))
        return closes

    def _check_branches(self) -> None:
        for fork, targets in enumerate(self.targets):
            ends = [
                (branch, leaving) for branch in targets for leaving in sorted(self._exits[branch])
            ]
            if not self.forks[fork] or len({leaving for _, leaving in ends}) <= 1:
                continue
            (one, first), (other, second) = (
                ends[0],
                next(end for end in ends if end[1] != ends[0][1]),
            )
            instead = "or" if one == other else f"while its branch {self.names[other]!r} may"
            raise self._fault(
                fork,
                f"forks, and its branch {self.names[one]!r} may {self._leaving(first)} {instead} "
                f"{self._leaving(second)}, so a join would wait for ever; let "
                "all branches come to the same join on every path, or none to any",
            )
        paths, closing = self._paths(), set(self.closes.values())
        for stage, targets in enumerate(self.targets):
            for target in targets:
                if self.joins[target] and None in self._inside[stage]:
                    comes = "reaches"
                    remedy = "make it no join, or fork before it"
                    if target in closing and paths[target, stage]:
                        comes = "comes back to"
                        remedy = (
                            "let the loop come back to the fork, or to a stage of its own that is "
                            "no join"
                        )
                    raise self._fault(
                        stage,
                        f"{comes} the join {self.names[target]!r} outside of a fork, so there is "
                        f"nothing to wait for; {remedy}",
                    )

    def _leaving(self, exit_: int) -> str:
        if exit_ < 0:
            return "end"
        return f"come to the join {self.names[exit_]!r}"

    @functools.cached_property
    def _inside(self) -> tuple[frozenset[int | None], ...]:
        """Of each stage, the forks that may be the innermost open one there; None: none is open."""
        inside: list[frozenset[int | None]] = [frozenset()] * len(self.names)
        for first in self.firsts:
            inside[first] = frozenset({None})
        while True:
            before = list(inside)
            for stage, targets in enumerate(self.targets):
                for target in targets:
                    if self.forks[stage] and inside[stage]:
                        inside[target] |= {stage}
                    elif not self.joins[target]:
                        inside[target] |= inside[stage]
                if stage in self.closes:
                    inside[self.closes[stage]] |= inside[stage]
            if inside == before:
                return tuple(inside)

    def _releases(self, *, limits: bool = False) -> tuple[list[tuple[int, int | None]], Floats]:
        """Return states (stage, innermost open fork), and how many one leads to on average."""
        # A fork leads to its branches and once to the join that closes it; the branches no more.
        ways = self._matrix(limits=limits)
        states = [
            (stage, fork)
            for stage, forks in enumerate(self._inside)
            for fork in sorted(forks, key=str)
        ]
        index = {state: number for number, state in enumerate(states)}
        matrix = np.zeros((len(states), len(states)))
        for (stage, fork), row in index.items():
            for target in np.flatnonzero(ways[stage]).tolist():
                if not self.joins[target]:
                    matrix[row, index[target, stage if self.forks[stage] else fork]] = ways[
                        stage, target
                    ]
            if stage in self.closes and ways[stage].any():
                matrix[row, index[self.closes[stage], fork]] = 1
        return states, matrix

    @functools.cached_property
    def _visits(self) -> dict[tuple[int, int | None], float]:
        """Mean requests of a job at each state, limits apart."""
        states, matrix = self._releases()
        share = dict(zip(self.firsts, self.shares, strict=True))
        begin = np.array([0.0 if fork is not None else share.get(s, 0.0) for s, fork in states])
        return dict(
            zip(
                states, np.linalg.solve(np.eye(len(states)) - matrix.T, begin).tolist(), strict=True
            )
        )

    @functools.cached_property
    def visits(self) -> Floats:
        """A job's mean requests at each stage, shape (stages,); exact if none is limited."""
        visits = np.zeros(len(self.names))
        for (stage, _), mean in self._visits.items():
            visits[stage] += mean
        visits.flags.writeable = False
        return visits

    @functools.cached_property
    def onward(self) -> Floats:
        """Mean requests of each stage that one's end releases; shape (stages, stages)."""
        # An edge into a join of k branches counts 1/k. Exact where no stage is limited.
        matrix, visits = self._matrix(), self.visits
        for stage, targets in enumerate(self.targets):
            shares = [
                self._visits[stage, f] / len(self.targets[f])
                for f in self._inside[stage]
                if f is not None
            ]
            for target in targets:
                if self.joins[target] and visits[stage] > 0:
                    matrix[stage, target] *= sum(shares) / visits[stage]
        matrix.flags.writeable = False
        return matrix

    def branches(self) -> npt.NDArray[np.int64]:
        """Return how many branches a stage waits for at most, shape (stages,); 0: it is no join."""
        most = np.zeros(len(self.names), np.int64)
        for fork, join in self.closes.items():
            most[join] = max(most[join], len(self.targets[fork]))
        return most

    def most_requests(self) -> Floats:
        """Return a job's most requests at each stage, or a little more; free loops: infinite."""
        size = len(self.names)
        ways, limited = (
            np.zeros((size, size)),
            np.array([most is not None for most in self.most_visits]),
        )
        for stage, targets in enumerate(self.targets):
            np.add.at(ways[stage], list(targets), 1)
        ways[:, limited] = 0
        begin = np.where(limited, self.limits, np.eye(size)[list(self.firsts)].sum(axis=0))
        if ways.any() and _loops(ways):
            return np.full(size, np.inf)
        return np.asarray(np.linalg.solve(np.eye(size) - ways.T, begin), np.float64)


def _loops(ways: Floats) -> bool:
    """Return whether some stage comes again."""
    from scipy.sparse import csgraph  # takes a while to load

    together, _ = csgraph.connected_components(ways > 0, connection="strong")
    return bool(together < len(ways) or ways.diagonal().any())


@functools.lru_cache(maxsize=64)
def checked(routes: Routes) -> Routes:
    """Return routes that are checked: the first of those that are alike, with what it knows."""
    routes.check()
    return routes


def forgotten_joins(routes: Routes) -> list[str]:
    """Say which stages, no joins, different branches of a fork reach, and so run again."""
    # Only the first on each path: what follows runs again because they do.
    sentences: dict[int, str] = {}
    for fork, targets in enumerate(routes.targets):
        if not routes.forks[fork]:
            continue
        branches = {target: _branch(routes, fork, target) for target in targets}
        reached = frozenset().union(*branches.values())
        # a join among them closes a fork within each branch
        shared = {
            s
            for s in reached
            if not routes.joins[s] and sum(s in branch for branch in branches.values()) > 1
        }
        after = {target for stage in reached - shared for target in routes.edges(stage)}
        for stage in shared & (after | set(targets)):
            count = sum(stage in branches[target] for target in targets)
            sentences.setdefault(
                stage,
                f"stage {routes.names[stage]!r} of {routes.workflow} is reached by {count} "
                f"branches of {routes.names[fork]!r} and is no join, so it runs once for each that "
                "comes; give it join: true if it is to wait for them",
            )
    return [sentences[stage] for stage in sorted(sentences)]


def _branch(routes: Routes, fork: int, first: int) -> frozenset[int]:
    """Return the stages that a fork's branch comes to before it joins, or is at the fork again."""
    reached, left = {first}, [first]
    while left:
        stage = left.pop()
        if stage == fork:
            continue
        ways = {target for target in routes.edges(stage) if not routes.joins[target]}
        if stage in routes.closes:
            ways.add(routes.closes[stage])
        left.extend(ways - reached)
        reached |= ways
    return frozenset(reached)
