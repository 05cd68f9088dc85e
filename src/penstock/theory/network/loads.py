"""Loads of the pools of a network, how fast they drain, and how much can wait at its joins."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock.inputs.arrays import Bools
from penstock.system.network_model import NetworkModel
from penstock.theory.network.fluid_classes import FluidClasses
from penstock.theory.network.hypotheses import PoolRules
from penstock.theory.network.pool_limits import PoolLimit, PoolLimits


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
    binding: tuple[str, ...] = ("token budget",)  # what sets it; `batch time` where no limit does
    # How much of each limit is asked for, the token budget first; none where only the means of the
    # pool are known, or nothing arrives.
    limits: tuple[PoolLimit, ...] = ()
    # The load if requests find nothing of their prompts but what they surely do; None: it is rho.
    rho_without_cache: float | None = None

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load-dag), at least."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def margin(self) -> float:
        """The share left before no policy is stable: 1 - rho where the token budget binds."""
        return 1 - 1 / self.max_load

    def within(self, limits: PoolLimits) -> "PoolLoad":
        """Return the load with all limits of the pool."""
        if not limits.limits:
            return dataclasses.replace(self, binding=())
        tightest = limits.tightest.load
        most = min(self.max_load, 1 / tightest) if tightest > 0 else self.max_load
        return dataclasses.replace(
            self,
            max_load=most,
            binding=limits.binding,
            limits=limits.limits,
            rho_without_cache=limits.without_cache,
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


def pool_loads(
    model: NetworkModel, stages: FluidClasses, sets: list[tuple[int, ...]]
) -> tuple[PoolLoad, ...]:
    """Return the load of each pool; the sets of pools are in topological order."""
    leads = stages.leads
    np.fill_diagonal(leads, False)
    seconds = np.zeros(len(model.pools))
    full = model.offered / model.full_batch
    least = model.least_offered
    for stations in sets:
        for s in stations:
            before = seconds[leads[:, s]].max(initial=0.0)
            drains = len(stations) == 1 and full[s] < 1 and model.replica_rates(s) is None
            seconds[s] = (1 + before) / (1 - full[s]) if drains else np.inf
    return tuple(
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


def join_bounds(model: NetworkModel, rules: Sequence[PoolRules]) -> tuple[JoinBound, ...]:
    """Return a bound for each stage that waits and is visited."""
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
