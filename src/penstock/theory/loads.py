"""Loads of the pools of a network, how fast they drain, and how much can wait at its joins."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from penstock.inputs.arrays import Bools, Floats
from penstock.system.network_model import NetworkModel
from penstock.theory.demand import Asked
from penstock.theory.limits import Limit, binding, tightest
from penstock.theory.load import Load
from penstock.theory.network.fluid_classes import FluidClasses
from penstock.theory.network.rules import PoolProof, PoolRules


@dataclasses.dataclass(frozen=True)
class PoolLoad:
    """Load of one pool."""

    name: str
    # Forward tokens that arrive, without those that requests may find of their prompts, and the
    # most that its replicas can process.
    offered_tokens_per_s: float
    capacity_tokens_per_s: float
    standard_error: float  # of the offered tokens/s where means are sampled, else 0
    # Seconds after which the pool has drained, in the fluid model, per second of work: a backlog
    # that brings no pool more than w seconds of work, in all its stages, has left pool s after w
    # T_s seconds with T_s = (1 + the largest T of the pools before it) / (1 - rho_s). Until those
    # have drained it may wait for work, and after that it works at its full rate until none is left
    # (thm:dag). Fluid of a pool is spread evenly over its replicas. None: beside or behind a cycle
    # or replicas that differ, or overloaded.
    drain_s: float | None
    # Factor on all rates above which no policy is stable at this pool, under all of its limits,
    # even if requests find all of their prompts that they may.
    max_load: float
    # How much of each limit is asked for, the token budget first; none where only the means of the
    # pool are known, or nothing arrives.
    limits: tuple[Limit, ...] = ()
    # The load if requests find nothing of their prompts but what they surely do; None: it is rho.
    rho_without_cache: float | None = None
    # What is asked of it; None where only the means of the pool are known.
    asked: Asked | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load-dag), at least."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def margin(self) -> float:
        """The share left before no policy is stable: 1 - rho where the token budget binds."""
        return 1 - 1 / self.max_load

    @property
    def load(self) -> Load | None:
        """The load of each replica, where the law of all that comes is known."""
        return None if self.asked is None else self.asked.load

    @functools.cached_property
    def binding(self) -> tuple[str, ...]:
        """What sets the max load; `batch time` where no limit does."""
        return ("token budget",) if self.asked is None else binding(self.asked, self.limits)

    def of(self, asked: Asked, limits: tuple[Limit, ...]) -> "PoolLoad":
        """Return the load with what is asked of the pool, and all of its limits."""
        if not limits:
            return dataclasses.replace(self, asked=asked)
        without = None if asked.in_full is None else asked.in_full / asked.capacity
        return dataclasses.replace(
            self,
            max_load=tightest(limits).carried,
            limits=limits,
            rho_without_cache=without,
            asked=asked,
        )


@dataclasses.dataclass(frozen=True)
class JoinBound:
    """How many requests can wait at a join for others of their job.

    One that waits has an unfinished sibling in another branch, so with Q_l requests in branch l of
    n, those in a delay too, sum of J <= (n - 1) (sum of Q_l) in any order. If every pool on the way
    is K-FCFS and all jobs take the same way, without delays that vary, all but 2 K' of those that
    are unfinished in some branch are so in the fullest, and sum of J <= (n - 1) (max of Q_l + 2
    K'). (lem:join-bound-gen, which has no Q_l, is false: orders of completion stay close, times do
    not.) In the fluid model both vanish once the branches have drained.
    """

    stage: str
    branches: int  # n, the most where they differ
    # Jobs come to the join about in the order in which they began: all pools are single servers
    # that serve all stages in order of arrival, and no stage decodes only beside one with prompts,
    # which it would overtake.
    k_fcfs: bool

    @property
    def bound(self) -> str:
        """The bound in words."""
        whose = (
            "in the fullest branch, and a constant number more" if self.k_fcfs else "in any branch"
        )
        return (
            f"done branches that wait: at most {self.branches - 1} for each unfinished request "
            f"{whose}"
        )


def with_limits(
    model: NetworkModel, asked: Sequence[tuple[Asked, tuple[Limit, ...]]]
) -> NetworkModel:
    """Return the means with what each pool carries beside the least that attention takes."""
    offered, capacity = model.least_offered, model.capacity.copy()
    errors = model.standard_error.copy()
    without: Floats = model.offered / capacity
    for s, (of, limits) in enumerate(asked):
        if not limits:
            continue
        carried = offered[s] / limits[0].load
        if not math.isclose(carried, capacity[s], rel_tol=1e-5):
            capacity[s] = carried
        errors[s] = max(errors[s], limits[0].standard_error * capacity[s])
        without[s] = model.offered[s] / capacity[s]
        if of.in_full is not None:
            without[s] = of.in_full / of.capacity
    known = any(of.in_full is not None for of, _ in asked)
    return dataclasses.replace(
        model,
        capacity=capacity,
        standard_error=errors,
        loads_without_cache=without if known else None,
    )


def pool_loads(
    model: NetworkModel,
    stages: FluidClasses,
    sets: list[tuple[int, ...]],  # in topological order
    proofs: Sequence[PoolProof],
    asked: Sequence[tuple[Asked, tuple[Limit, ...]]],  # of all pools, or of none
) -> tuple[PoolLoad, ...]:
    """Return the load of each pool."""
    leads = stages.leads
    np.fill_diagonal(leads, False)
    seconds = np.zeros(len(model.pools))
    full = model.offered / model.full_batch
    least = model.least_offered
    for stations in sets:
        for s in stations:
            before = seconds[leads[:, s]].max(initial=0.0)
            drains = len(stations) == 1 and full[s] < 1 and model.replica_rates(s) is None
            drains = drains and not proofs[s].by_drift
            seconds[s] = (1 + before) / (1 - full[s]) if drains else np.inf
    loads = tuple(
        PoolLoad(
            name,
            float(least[s]),
            float(model.capacity[s]),
            float(model.standard_error[s]),
            float(seconds[s]) if np.isfinite(seconds[s]) else None,
            float(model.capacity[s] / least[s]) if least[s] > 0 else np.inf,
        )
        for s, name in enumerate(model.pools)
    )
    if not asked:
        return loads
    return tuple(load.of(*known) for load, known in zip(loads, asked, strict=True))


def join_bounds(model: NetworkModel, rules: Sequence[PoolRules]) -> tuple[JoinBound, ...]:
    """Return a bound for each stage that waits and is visited."""
    if not model.joins.any():
        return ()
    visited, prompts = model.visits > 0, model.prefill > 0
    decode_only = set(model.pool[visited & ~prompts & (model.decode > 0)].tolist())
    overtaken = decode_only & set(model.pool[visited & prompts].tolist())
    in_order = (
        all(rule.k_fcfs for rule in rules) and not (model.replicas > 1).any() and not overtaken
    )
    chance = model.onward * np.maximum(model.branches, 1)  # an edge into a join counts 1 / branches
    branching = np.abs(chance * (1 - chance)).max(axis=1) > 1e-9
    leads: Bools = np.linalg.inv(np.eye(len(visited)) - model.onward) > 1e-12
    np.fill_diagonal(leads, False)
    varies = leads[branching].any(axis=0)
    return tuple(
        JoinBound(
            model.stages[stage], int(model.branches[stage]), in_order and not bool(varies[stage])
        )
        for stage in np.flatnonzero(model.joins & visited)
    )
