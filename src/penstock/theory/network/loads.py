"""Loads of the pools of a network, how fast they drain, and how much can wait at its joins."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from penstock.inputs.arrays import Bools, Floats
from penstock.show.answers import AsData, Meaning, computed
from penstock.system.network_model import NetworkModel
from penstock.theory.hypotheses import Proof
from penstock.theory.limits import Limit, PoolLoad
from penstock.theory.load import Demand
from penstock.theory.network.fluid_classes import FluidClasses
from penstock.theory.network.hypotheses import PoolRules


@dataclasses.dataclass(frozen=True)
class JoinBound(AsData):
    """How many requests can wait at a join for others of their job.

    One that waits has an unfinished sibling in another branch, so with Q_l requests in branch l of
    n, those in a delay too, sum of J <= (n - 1) (sum of Q_l) in any order. If every pool on the way
    is K-FCFS and all jobs take the same way, without delays that vary, all but 2 K' of those that
    are unfinished in some branch are so in the fullest, and sum of J <= (n - 1) (max of Q_l + 2
    K'). (lem:join-bound-gen, which has no Q_l, is false: orders of completion stay close, times do
    not.) In the fluid model both vanish once the branches have drained.
    """

    stage: Annotated[str, Meaning("The join.")]
    branches: Annotated[int, Meaning("How many it joins, the most where they differ.")]
    # Jobs come to the join about in the order in which they began: all pools are single servers
    # that serve all stages in order of arrival, and no stage decodes only beside one with prompts,
    # which it would overtake.
    k_fcfs: bool

    @computed()
    def bound(self) -> str:
        """The bound in words."""
        where = "in any branch"
        if self.k_fcfs:
            where = "in the fullest branch, and a constant number more"
        most = f"at most {self.branches - 1} for each unfinished request"
        return f"done branches that wait: {most} {where}"


def with_limits(
    model: NetworkModel, limits: Sequence[tuple[Demand, tuple[Limit, ...]]]
) -> NetworkModel:
    """Return the means with what each pool carries beside the least that attention takes."""
    offered, capacity = model.least_offered, model.capacity.copy()
    errors = model.standard_error.copy()
    without: Floats = model.offered / capacity
    for s, (demand, of_pool) in enumerate(limits):
        if not of_pool:
            continue
        token_budget = of_pool[0]
        carried = offered[s] / token_budget.load
        if not math.isclose(carried, capacity[s], rel_tol=1e-5):
            capacity[s] = carried
        errors[s] = max(errors[s], token_budget.standard_error * capacity[s])
        without[s] = model.offered[s] / capacity[s]
        if demand.without_cache is not None:
            without[s] = demand.without_cache / demand.capacity
    model = dataclasses.replace(model, capacity=capacity, standard_error=errors)
    if all(demand.without_cache is None for demand, _ in limits):
        return model
    return dataclasses.replace(model, loads_without_cache=without)


def pool_loads(
    model: NetworkModel,
    stages: FluidClasses,
    sets: list[tuple[int, ...]],  # in topological order
    proofs: Sequence[Proof],
    limits: Sequence[tuple[Demand, tuple[Limit, ...]]],  # of all pools, or of none
) -> tuple[PoolLoad, ...]:
    """Return the load of each pool."""
    least = model.least_offered
    drain_s = _drain_s(model, stages, sets, proofs)
    pools = []
    for s, name in enumerate(model.pools):
        max_load = math.inf
        if least[s] > 0:
            max_load = float(model.capacity[s] / least[s])
        tokens_per_s = float(least[s]), float(model.capacity[s]), float(model.standard_error[s])
        pools.append(PoolLoad(name, *tokens_per_s, drain_s[s], max_load))
    if not limits:
        return tuple(pools)
    return tuple(
        pool.under(of_pool, demand) for pool, (demand, of_pool) in zip(pools, limits, strict=True)
    )


def _drain_s(
    model: NetworkModel,
    stages: FluidClasses,
    sets: list[tuple[int, ...]],
    proofs: Sequence[Proof],
) -> list[float | None]:
    """Return when each pool has drained, per second of work, where full batches drain it."""
    leads = stages.leads
    np.fill_diagonal(leads, False)
    full = model.offered / model.full_batch
    seconds = np.full(len(model.pools), np.inf)
    for stations in sets:
        s = stations[0]
        alike = len(stations) == 1 and model.replica_rates(s) is None
        if alike and full[s] < 1 and not proofs[s].by_drift:
            before = seconds[leads[:, s]].max(initial=0.0)
            seconds[s] = (1 + before) / (1 - full[s])
    return [float(of_pool) if np.isfinite(of_pool) else None for of_pool in seconds]


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
