"""Certificates of networks: what a theorem says of pools and workflows, and whether its hypotheses hold."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.theory.certificate import Verdict
from penstock.theory.cycles import GlobalStability, global_stability, priority_stability
from penstock.theory.fluid_classes import FluidClasses, components, fluid_classes
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis
from penstock.theory.network_hypotheses import (
    BOUNDED,
    CARRIED,
    SHORTEST,
    PoolRules,
    pool_hypotheses,
    pool_rules,
    workflow_hypotheses,
)
from penstock.theory.virtual_stations import VirtualStation, priority_limit

Floats = npt.NDArray[np.float64]

MULTICLASS, DAG, FORK_JOIN = "thm:multi-class", "thm:dag", "thm:fork-join"
PARALLEL, REMARK = "pro:parallel", "rem:jsq+"
CYCLE = "linear program (Dai and Vande Vate 2000)"
VIRTUAL = "virtual station (Rybko and Stolyar 1992; Dai and Vande Vate 2000)"
OVERLOAD = "Theorem 1(a)"

CERTIFIED = "cycles of pools are certified"
_STANDARD_ERRORS = 4.0
_KNOWN_ELSEWHERE = {
    "hlpps": "single-token fluid models under HLPPS are stable below load 1 (Bramson 1996)",
    "back-pressure": "back-pressure is throughput-optimal in networks without batches (Tassiulas and Ephremides 1992)",
    "back-pressure-phase": "back-pressure is throughput-optimal in networks without batches "
    "(Tassiulas and Ephremides 1992)",
}


@dataclasses.dataclass(frozen=True)
class PoolLoad:
    """Load of one pool.

    Attributes
    ----------
    name
        Of the pool.
    offered_tokens_per_s, capacity_tokens_per_s
        Forward tokens that arrive, and the most that its replicas can process.
    standard_error
        Of the offered tokens/s where means are sampled, else 0.
    drain_s
        Seconds after which the pool has drained, in the fluid model, per second of work: a backlog that brings no pool
        more than w seconds of work, in all its stages, has left pool s after w T_s seconds with T_s = (1 + the largest
        T of the pools before it) / (1 - rho_s). Until those have drained it may wait for work, and after that it works
        at its full rate until none is left (thm:dag). Fluid of a pool is spread evenly over its replicas. None: beside
        or behind a cycle, or overloaded.
    """

    name: str
    offered_tokens_per_s: float
    capacity_tokens_per_s: float
    standard_error: float
    drain_s: float | None

    @property
    def rho(self) -> float:
        """Offered token rate over the capacity (eq:load-dag)."""
        return self.offered_tokens_per_s / self.capacity_tokens_per_s

    @property
    def margin(self) -> float:
        """1 - rho."""
        return 1 - self.rho


@dataclasses.dataclass(frozen=True)
class JoinBound:
    """How many requests can wait at a join for others of their job.

    One that waits has a sibling that is unfinished in another branch, so with n branches and Q_l requests in branch l

        sum of J <= (n - 1) (sum of Q_l),

    whatever the order. If every pool on the way is K-FCFS, at most 2 K' of those that wait for branch l have overtaken,
    and sum of J <= (n - 1) (max of Q_l + 2 K'). (lem:join-bound-gen without Q_l is false: orders of completion stay
    close, times do not.) In the fluid model either vanishes once the branches have drained.

    Attributes
    ----------
    stage
        That waits.
    branches
        n.
    k_fcfs
        Whether all pools that feed the join are K-FCFS.
    """

    stage: str
    branches: int
    k_fcfs: bool

    @property
    def bound(self) -> str:
        """The bound as text."""
        most = "max of Q_l + 2 K'" if self.k_fcfs else "sum of Q_l"
        return f"sum of J <= {self.branches - 1} ({most})"


@dataclasses.dataclass(frozen=True)
class NetworkCertificate:
    """What a theorem says of a network.

    Attributes
    ----------
    verdict, theorem, reason, hypotheses
        As in `penstock.theory.certificate.Certificate`.
    pools
        Load of each pool.
    certified_load
        Factor on all rates up to which a theorem says stable under these policies; None where none does at any.
    any_policy
        What is certified for every work-conserving policy that treats phases as these do; None where nothing arrives
        in a cycle of pools.
    virtual_station
        Where a static priority order fails first; None if it has no virtual station.
    order
        Sets of pools in topological order; jobs can go round within a set of several.
    joins
        Bounds on what waits at joins.
    """

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]
    pools: tuple[PoolLoad, ...]
    certified_load: float | None
    any_policy: GlobalStability | None
    virtual_station: VirtualStation | None
    order: tuple[tuple[str, ...], ...]
    joins: tuple[JoinBound, ...]

    @property
    def bottleneck(self) -> PoolLoad:
        """The pool with the highest load."""
        return max(self.pools, key=lambda pool: pool.rho)

    @property
    def rho(self) -> float:
        """Load of the bottleneck."""
        return self.bottleneck.rho

    @property
    def margin(self) -> float:
        """1 - load of the bottleneck."""
        return self.bottleneck.margin

    @property
    def max_load(self) -> float:
        """Factor on all rates at which the bottleneck's load is 1: beyond it no policy is stable."""
        return 1 / self.rho


def certify_network(network: Network) -> NetworkCertificate:
    """Say by theorem whether a network is stable, where a theorem can; see `network_certificate`.

    Raises
    ------
    InputError
        If a workflow has no arrival rate.
    """
    given = workflow_hypotheses(network)
    return network_certificate(network.model(), pool_rules(network), given, at_most=not network.reuse_is_certain)


def network_certificate(
    model: NetworkModel, rules: Sequence[PoolRules], given: Sequence[Hypothesis] = (), *, at_most: bool = False
) -> NetworkCertificate:
    """Say by theorem whether a network is stable, where a theorem can.

    *Unstable*: a pool has a load above 1 (under any policy), or a static priority order has a virtual station with a
    load above 1.

    *Stable*, below load 1 at every pool with full batches, for work-conserving policies:

    * thm:multi-class, thm:dag, thm:fork-join: where no job leaves a pool and comes back to it. The paper asks for
      K-FCFS. Below a pool that has drained all that is needed of joins is that what waits there has a sibling in a
      branch (`JoinBound`), which holds under any order; that each stage is served in order of arrival is enough.
    * the linear program of `penstock.theory.cycles`: where jobs go round.
    * pro:parallel and rem:jsq+ for pools of several replicas. Round robin gives each replica exactly its share of the
      only stage of a pool, but nothing is known of shares of several. Power of two choices: of what arrives, at most
      m (m - 1) / (R (R - 1)) <= m / R reaches the m replicas of R that hold fluid, so they drain as under random
      assignment. If requests come back to the pool, only the shortest of rem:jsq+ keeps them from busy replicas.

    Parameters
    ----------
    model
        The network's means.
    rules
        Shape (pools,).
    given
        Hypotheses that the caller has looked at: arrivals, lengths.
    at_most
        Whether loads may be lower than in the model, since it counts what replicas might reuse.

    Raises
    ------
    InputError
        If there is not one rule per pool, nothing arrives, or a ranking is not one of its pool's stages.
    """
    if len(rules) != len(model.pools):
        raise InputError(f"{len(rules)} rules for {len(model.pools)} pools; give one per pool")
    stages = fluid_classes(model, False)
    sets = components(stages)
    phases = [rule.phases for rule in rules]
    anyone = fixed = virtual = None
    tried = [*given, *pool_hypotheses(model, stages, sets, rules)]
    theorem = _theorem(model, sets, rules)
    if cyclic := [s for stations in sets for s in stations if len(stations) > 1]:
        balanced = [rule.router in SHORTEST and not rule.affinity for rule in rules]
        anyone = global_stability(model, phases, balanced)
        if static := _ranking(model, rules, cyclic):
            fixed = priority_stability(model, static, phases)
            virtual = priority_limit(model, static, phases)
        tried += _cycle_hypotheses(model, anyone, fixed)
    failed = {h.name for h in tried if not h.held} - {CARRIED, CERTIFIED}
    fails = virtual if failed <= {BOUNDED} else None  # it fails whether lengths are bounded or not
    verdict, reason = _verdict(model, rules, tuple(tried), fails, at_most)
    if verdict == "unstable":
        theorem = VIRTUAL if (model.offered <= model.capacity * (1 + CRITICAL_BAND)).all() else OVERLOAD
    limits = [found.max_load for found in (anyone, fixed) if found is not None]
    carried = float((model.full_batch[model.offered > 0] / model.offered[model.offered > 0]).min())
    return NetworkCertificate(
        verdict=verdict,
        theorem=theorem if verdict in ("stable", "unstable") else None,
        reason=reason,
        hypotheses=tuple(tried),
        pools=_loads(model, stages, sets),
        certified_load=min(carried, max(limits, default=carried)) or None if not failed else None,
        any_policy=anyone,
        virtual_station=virtual,
        order=tuple(tuple(model.pools[s] for s in stations) for stations in sets),
        joins=_joins(model, rules),
    )


def _theorem(model: NetworkModel, sets: list[tuple[int, ...]], rules: Sequence[PoolRules]) -> str:
    """Name what is used; every part of it is needed."""
    if any(len(stations) > 1 for stations in sets):
        name = CYCLE
    elif model.joins[model.visits > 0].any():
        name = FORK_JOIN
    else:
        name = MULTICLASS if len(sets) == 1 else DAG
    several = [rule.router for rule, replicas in zip(rules, model.replicas, strict=True) if replicas > 1]
    if not several:
        return name
    stretched = any(router not in ("jsq", "random") for router in several)
    return f"{name}, {PARALLEL}" + (f" ({REMARK})" if stretched else "")


def _ranking(model: NetworkModel, rules: Sequence[PoolRules], cyclic: list[int]) -> list[str] | None:
    """Return a ranking of all stages if every pool that is part of a cycle has a static one, of whole stages."""
    ranking: list[str] = []
    visited = [name for name, rate in zip(model.stages, model.visits, strict=True) if rate > 0]
    for s, rule in enumerate(rules):
        here = [name for name, pool in zip(model.stages, model.pool, strict=True) if pool == s]
        own = rule.ranking if rule.order == "priority" else None
        if own is not None and sorted(own) != sorted(here):
            raise InputError(
                f"the ranking of pool {model.pools[s]!r} has the stages {', '.join(own)}, but it serves "
                f"{', '.join(here)}; rank these"
            )
        if s in cyclic and (rule.phases or (own is None and rule.order != "decode-first")):
            return None
        ranking += here if own is None else own
    tokens = dict(zip(model.stages, model.prefill + model.decode, strict=True))
    return [name for name in ranking if name in visited and tokens[name] > 0]


def _cycle_hypotheses(
    model: NetworkModel, anyone: GlobalStability, fixed: GlobalStability | None
) -> tuple[Hypothesis, ...]:
    forgets = model.sampled is None
    why = (
        "lengths and routes are drawn anew at each stage"
        if forgets
        else ("caps on visits or growing contexts make later visits unlike earlier ones, and only their mean is known")
    )
    best = max((found for found in (fixed, anyone) if found is not None), key=lambda found: found.max_load)
    pools = "; ".join(" - ".join(cycle.pools) for cycle in best.cycles)
    whose = "this priority order" if best is fixed else "every work-conserving policy"
    held = best.max_load > 1 or best.stable
    if best.max_load == 0:
        limit = "nothing is known of such a cycle with its routers or its number of classes"
    else:
        limit = f"the linear program certifies {whose} up to {best.max_load:.4g} times this load"
    return (
        Hypothesis("stages forget the way to them", forgets, why),
        Hypothesis(CERTIFIED, held, f"jobs go round between {pools}; {limit}"),
    )


def _verdict(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    tried: tuple[Hypothesis, ...],
    virtual: VirtualStation | None,
    at_most: bool,
) -> tuple[Verdict, str]:
    rho, error = model.rho, _STANDARD_ERRORS * model.standard_error / model.capacity
    worst = int(np.argmax(rho - error))
    name = model.pools[worst]
    if at_most and rho.max() >= 1 - CRITICAL_BAND:
        return "unknown", (
            f"if replicas reuse nothing, the load of pool {model.pools[int(np.argmax(rho))]} is {rho.max():.3f}; how "
            "much they reuse depends on the run, so no theorem says anything"
        )
    if rho[worst] - error[worst] > 1 + CRITICAL_BAND:
        return "unstable", (
            f"tokens arrive at pool {name} {rho[worst]:.3f} times as fast as any policy can process them, so its "
            "backlog grows for ever"
        )
    worst = int(np.argmax(rho))
    name = model.pools[worst]
    if rho[worst] + error[worst] >= 1 - CRITICAL_BAND:
        if error[worst] > 0:
            return "unknown", (
                f"the load of pool {name} is {rho[worst]:.4f} +- {error[worst]:.4f} by {model.sampled:,} sampled jobs, "
                "too near 1 to tell"
            )
        return "critical", (
            f"the load of pool {name} is exactly 1, where no theorem says anything: any randomness lets its queues "
            "wander without bound"
        )
    if virtual is not None and virtual.max_load < 1 - CRITICAL_BAND:
        first, second = virtual.pools
        classes = " and ".join(", ".join(of) for of in virtual.classes)
        return "unstable", (
            f"the order never serves {classes} at the same time, although they are at two pools ({first}, {second}), "
            f"and together they need more than all the time: it fails above {virtual.max_load:.4f} times this load"
        )
    if all(h.held for h in tried):
        trusted = [h.name for h in tried if not h.checked]
        trust = f", if what is taken on trust holds: {', '.join(trusted)}" if trusted else ""
        round_trips = "".join(f"; {h.why}" for h in tried if h.name == CERTIFIED)
        return "stable", (
            f"every pool has a load below 1, {name} the highest with {rho[worst]:.3f}{round_trips}; so the queues stay "
            f"finite and have a steady state{trust}"
        )
    failed = "; ".join(f"{h.name} ({h.why})" for h in tried if not h.held)
    known = {_KNOWN_ELSEWHERE[rule.order] for rule in rules if rule.order in _KNOWN_ELSEWHERE}
    return "unknown", (
        f"no pool has a load above 1, {name} the highest with {rho[worst]:.3f}, but no theorem says stable, because "
        f"these hypotheses fail: {failed}" + "".join(f"; {what}, which is not shown here" for what in sorted(known))
    )


def _loads(model: NetworkModel, stages: FluidClasses, sets: list[tuple[int, ...]]) -> tuple[PoolLoad, ...]:
    leads = np.zeros((len(model.pools),) * 2, np.bool_)
    for i, j in np.argwhere(stages.onward > 0):
        leads[stages.station[i], stages.station[j]] = True
    seconds = np.zeros(len(model.pools))
    full = model.offered / model.full_batch
    for stations in sets:
        for s in stations:
            before = seconds[leads[:, s] & (np.arange(len(leads)) != s)].max(initial=0.0)
            drains = len(stations) == 1 and full[s] < 1
            seconds[s] = (1 + before) / (1 - full[s]) if drains else np.inf
    return tuple(
        PoolLoad(
            name,
            float(model.offered[s]),
            float(model.capacity[s]),
            float(model.standard_error[s]),
            float(seconds[s]) if np.isfinite(seconds[s]) else None,
        )
        for s, name in enumerate(model.pools)
    )


def _joins(model: NetworkModel, rules: Sequence[PoolRules]) -> tuple[JoinBound, ...]:
    found = []
    for stage in np.flatnonzero(model.joins & (model.visits > 0)):
        into = model.onward[:, stage]
        feeding = np.flatnonzero(into > 0)
        branches = round(1 / float(into[feeding].max()))
        in_order = all(rules[model.pool[i]].k_fcfs for i in feeding)
        found.append(JoinBound(model.stages[stage], branches, in_order))
    return tuple(found)
