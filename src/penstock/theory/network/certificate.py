"""Certificates of networks: what a theorem says of pools and workflows, and whether its hypotheses
hold.

*Unstable*: more is asked of a limit of a pool than it carries under any policy: of its token
budget, its max batch size, its KV memory or its links (`penstock.theory.network.pool_limits`); or
the router sends some of its replicas more than they carry; or a static priority order has a virtual
station with a load above 1, or fluid paths that spiral out. From a large backlog of that kind every
cycle multiplies it, but for deviations that become ever less likely; so it returns to nothing with
a probability below 1. Replicas are as one server there if their router is random, since all get the
same shares; behind others some may run dry before the rest, and then nothing is said.

*Stable*, below load 1 at every pool with full batches, for work-conserving policies:

* thm:multi-class, thm:dag, thm:fork-join: where no job leaves a pool and comes back to it. The
  paper asks for K-FCFS, but any order between stages will do: the work of a pool depends on none,
  once the pools before it have drained, and what waits at a join has a sibling unfinished in some
  branch (`JoinBound`).
* the linear program of `penstock.theory.network.cycles`: where jobs go round. It needs jobs
  at a stage that are alike whichever way they came, and each stage to be served in order of
  arrival, as by every order between stages. A static order is looked at as such if all pools of
  cycles have one and serve the decodes of a stage before its prompts.
* pro:parallel and rem:jsq+ for pools of several replicas, and where they differ the shares that
  the router sends to each set of them (`penstock.theory.network.unequal_replicas`). Round robin
  gives each replica exactly its share of the only stage of a pool, but nothing is known of shares
  of several. Power of two choices: of what arrives, at most m (m - 1) / (R (R - 1)) <= m / R
  reaches the m replicas of R that hold fluid, so they drain as under random assignment. If requests
  come back to the pool, only the shortest of rem:jsq+ keeps them from busy replicas.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock.errors import InputError
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.prefix_cache import as_serving
from penstock.theory.certificate import Certificate, Verdict, certify
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis, if_trusted
from penstock.theory.kv_blocks import STANDARD_ERRORS, reuses, served
from penstock.theory.network.cycles import GlobalStability
from penstock.theory.network.cyclic_pools import CERTIFIED, Cycles
from penstock.theory.network.fluid_classes import components, fluid_classes
from penstock.theory.network.hypotheses import (
    BOUNDED,
    CARRIED,
    ROUTED,
    PoolRules,
    pool_hypotheses,
    pool_rules,
    workflow_hypotheses,
)
from penstock.theory.network.loads import (
    JoinBound,
    PoolLoad,
    join_bounds,
    pool_loads,
)
from penstock.theory.network.pool_limits import TOKENS, PoolLimit, pool_limits, with_limits
from penstock.theory.network.unequal_replicas import of_rates
from penstock.theory.network.unforeseen_ends import wasted_at_stages
from penstock.theory.network.virtual_stations import VirtualStation
from penstock.workload.sessions import Sessions

# As readers are told of the paper's thm:multi-class, thm:dag, thm:fork-join, pro:parallel and
# rem:jsq+.
MULTICLASS, DAG, FORK_JOIN = "multi-class theorem", "DAG theorem", "fork-join theorem"
PARALLEL, REMARK = "parallel-server proposition", "its remark on routers"
DIFFER = "parallel-server proposition for servers that differ"
CYCLE = "linear program (Dai and Vande Vate 2000)"
SPIRAL = "fluid path of a static priority"
VIRTUAL = "virtual station (Rybko and Stolyar 1992; Dai and Vande Vate 2000)"

_BACK_PRESSURE = (
    "back-pressure is throughput-optimal in networks without batches (Tassiulas and Ephremides "
    "1992)"
)
_KNOWN_ELSEWHERE = {
    "hlpps": "single-token fluid models under HLPPS are stable below load 1 (Bramson 1996)",
    "back-pressure": _BACK_PRESSURE,
    "back-pressure-phase": _BACK_PRESSURE,
}


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
        Factor on all rates up to which a theorem says stable under these policies; None where none
        does at any.
    any_policy
        What is certified for every work-conserving policy that treats phases as these do; None
        where nothing arrives in a cycle of pools.
    virtual_station
        Where a static priority order fails first; None if it has no virtual station, or if nothing
        is said of it.
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
    def trusted(self) -> list[str]:
        """Hypotheses that nobody checked, where the verdict rests on them."""
        if self.verdict != "stable":
            return []
        return [hypothesis.name for hypothesis in self.hypotheses if not hypothesis.checked]

    @property
    def bottleneck(self) -> PoolLoad:
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: pool.margin)

    @property
    def rho(self) -> float:
        """Load of the bottleneck."""
        return self.bottleneck.rho

    @property
    def margin(self) -> float:
        """Of the bottleneck; 1 - its load where no max batch size binds."""
        return self.bottleneck.margin

    @property
    def max_load(self) -> float:
        """Factor on all rates beyond which no policy is stable, at the bottleneck."""
        return self.bottleneck.max_load


def of_network(network: Network) -> NetworkCertificate:
    """Certify a network by its means; more is known of a server alone and of max batch sizes."""
    network.check_rates()
    model = network.model()
    wasted = np.array([least for least, _ in wasted_at_stages(network)])
    model = dataclasses.replace(model, decode=model.decode + wasted)
    limits = pool_limits(network, model)
    model = with_limits(model, limits)
    certificate = network_certificate(model, pool_rules(network), workflow_hypotheses(network))
    pools = tuple(pool.within(own) for pool, own in zip(certificate.pools, limits, strict=True))
    certificate = dataclasses.replace(certificate, pools=pools)

    # Of a server alone more is known.
    alone = _one_server(network)
    if alone is None:
        return _within_limits(certificate, network)
    return dataclasses.replace(
        certificate,
        verdict=alone.verdict,
        theorem=alone.theorem,
        reason=alone.reason,
        hypotheses=alone.hypotheses,
        pools=(_pool_of_one(pools[0], alone),),
        certified_load=None
        if alone.certified_rate is None
        else alone.certified_rate / alone.load.arrival_rate,
    )


def _pool_of_one(pool: PoolLoad, alone: Certificate) -> PoolLoad:
    """Return the load of the only pool by the certificate of its server."""
    load, name = alone.load, alone.binding.name
    by_memory = "KV memory" in (name, *pool.binding)
    return dataclasses.replace(
        pool,
        offered_tokens_per_s=load.offered_tokens_per_s,
        capacity_tokens_per_s=load.capacity_tokens_per_s,
        standard_error=0.0,
        max_load=alone.max_rate / load.arrival_rate,
        binding=(name,) if by_memory else pool.binding,
        limits=tuple(
            PoolLimit(bound.name, load.arrival_rate / bound.max_rate, 0.0, bound.theorem, bound.why)
            for bound in alone.bounds
        ),
    )


def _within_limits(certificate: NetworkCertificate, network: Network) -> NetworkCertificate:
    """Add what the limits of each pool say; the means know of the token budget only."""
    if certificate.verdict == "unstable":
        return certificate
    exceeded = [
        (limit.load, pool, limit)
        for pool in certificate.pools
        for limit in pool.limits
        if limit.exceeded
    ]
    if not exceeded:
        return certificate
    load, pool, limit = max(exceeded, key=lambda each: each[0])
    servers = network.pools[pool.name].servers
    what = f"the {limit.name}"
    if limit.name == "max batch size" and len(servers) == 1:
        what += f" of {servers[0][0].max_batch_size:,}"
    if limit.name == "transfers":
        what = "the time that transfers take its links"
    sampled = f", a load of {limit.in_words} by sampled jobs" if limit.standard_error else ""
    reason = (
        f"under any policy {what} lets pool {pool.name} carry at most {1 / load:.3f} times what "
        f"arrives{sampled}, so its backlog grows for ever"
    )
    return dataclasses.replace(
        certificate, verdict="unstable", theorem=limit.theorem, reason=reason, certified_load=None
    )


def _one_server(network: Network) -> Certificate | None:
    """Return what is certified of a server alone, where the network is one serving a workload."""
    # Not where a server knows less, as of hits in its cache, or drops what never fits.
    pool, *pools = network.pools.values()
    workflow, *workflows = network.workflows
    if (
        pools
        or workflows
        or pool.replicas > 1
        or isinstance(workflow, Sessions)
        or len(workflow.stages) > 1
    ):
        return None
    (stage,) = workflow.stages.values()
    plain = (stage.prompt, stage.output, stage.then) == (
        "job",
        "job",
        None,
    ) and not stage.transfer_ms_per_token
    if not plain or stage.delay_ms != 0:
        return None
    workload = workflow.arrivals
    server = as_serving(workload, pool.server)
    if reuses(workload, server) or served(workload, server).share < 1:
        return None
    return certify(workload, server)


def network_certificate(
    model: NetworkModel,
    rules: Sequence[PoolRules],  # shape (pools,)
    of_arrivals: Sequence[Hypothesis] = (),  # what the caller has looked at: arrivals, lengths
) -> NetworkCertificate:
    """Say by theorem whether a network is stable, where one can: see the head of this module."""
    if len(rules) != len(model.pools):
        raise InputError(f"{len(rules)} rules for {len(model.pools)} pools; give one per pool")
    stages = fluid_classes(model, False)
    sets = components(stages)
    cycles = Cycles(model, rules, [s for stations in sets for s in stations if len(stations) > 1])
    tried = [*of_arrivals, *pool_hypotheses(model, stages, sets, rules), *cycles.hypotheses]

    # Where the fluid model is not known to hold, an order that fails in it proves nothing.
    failed = {h.name for h in tried if not h.held} - {CARRIED, CERTIFIED}
    if not failed <= {BOUNDED, ROUTED} or model.least_prefill is not None:
        cycles.virtual = cycles.spiral = None
    fails = _why_the_order_fails(cycles.virtual, cycles.spiral)
    verdict, reason = _verdict(model, rules, tuple(tried), fails)
    overfed = None if verdict == "unstable" else _overfed(model, rules, ROUTED not in failed)
    if overfed is not None:
        verdict, reason = "unstable", overfed
    theorem = None
    if verdict == "stable":
        theorem = _theorem(model, sets, rules)
    elif verdict == "unstable":
        by_order = VIRTUAL if cycles.spiral is None else SPIRAL
        theorem = by_order if reason == fails else TOKENS
        if overfed is not None:
            theorem = DIFFER
    return NetworkCertificate(
        verdict=verdict,
        theorem=theorem,
        reason=reason,
        hypotheses=tuple(tried),
        pools=pool_loads(model, stages, sets),
        certified_load=None if failed else _certified_load(model, cycles, rules),
        any_policy=cycles.anyone,
        virtual_station=cycles.virtual,
        order=tuple(tuple(model.pools[s] for s in stations) for stations in sets),
        joins=join_bounds(model, rules),
    )


def _certified_load(
    model: NetworkModel, cycles: Cycles, rules: Sequence[PoolRules]
) -> float | None:
    """Return the factor on all rates up to which full batches and cycles are certified."""
    most_offered = model.offered + STANDARD_ERRORS * model.standard_error
    busy = model.offered > 0
    carried = float((model.full_batch[busy] / most_offered[busy]).min())
    for s in np.flatnonzero(busy).tolist():
        rates = model.replica_rates(s)
        loads = None if rates is None else of_rates(float(most_offered[s]), rates, rules[s].router)
        if loads is not None and loads.sufficient is not None:
            carried = min(carried, 1 / loads.sufficient)
    limits = [
        stability.max_load for stability in (cycles.anyone, cycles.fixed) if stability is not None
    ]
    return min(carried, max(limits, default=carried)) or None


def _theorem(model: NetworkModel, sets: list[tuple[int, ...]], rules: Sequence[PoolRules]) -> str:
    """Name what is used; every part of it is needed."""
    if any(len(stations) > 1 for stations in sets):
        name = CYCLE
    elif model.joins[model.visits > 0].any():
        name = FORK_JOIN
    else:
        name = MULTICLASS if len(sets) == 1 else DAG
    several = [
        rule.router for rule, replicas in zip(rules, model.replicas, strict=True) if replicas > 1
    ]
    if not several:
        return name
    stretched = any(router not in ("jsq", "random") for router in several)
    proposition = DIFFER if any(rates is not None for rates in model.unequal) else PARALLEL
    return f"{name}, {proposition}" + (f" with {REMARK}" if stretched else "")


def _overfed(model: NetworkModel, rules: Sequence[PoolRules], in_turns: bool) -> str | None:
    """Return why a router gives some replicas more than they carry under any policy."""
    # ``in_turns``: whether round robin gives each replica its share of the work.
    least_offered = model.least_offered - STANDARD_ERRORS * model.standard_error
    for s, rule in enumerate(rules):
        rates = model.replica_rates(s)
        if rates is None or (rule.router == "round-robin" and not in_turns):
            continue
        loads = of_rates(max(float(least_offered[s]), 0.0), rates, rule.router)
        if loads.verdict == "unstable":
            return (
                f"router {rule.router} sends some replicas of pool {model.pools[s]} "
                f"{loads.necessary:.3f} times what they carry under any policy ({loads.why}), so "
                "their backlog grows for ever"
            )
    return None


def _why_the_order_fails(
    virtual: VirtualStation | None, spiral: tuple[str, float] | None
) -> str | None:
    if spiral is not None:
        return (
            f"every cycle multiplies a backlog of {spiral[0]} by {spiral[1]:.4g}, in the fluid "
            "model of this order"
        )
    if virtual is None or virtual.max_load >= 1 - CRITICAL_BAND:
        return None
    return virtual.reason


def _verdict(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    tried: tuple[Hypothesis, ...],
    fails: str | None,
) -> tuple[Verdict, str]:
    # Loads first: sampled means are doubted by their error, on the side that makes the verdict
    # harder.
    rho, error = model.rho, STANDARD_ERRORS * model.standard_error / model.capacity
    highest = int(np.argmax(rho))
    least = model.least_offered / model.capacity
    worst = int(np.argmax(least - error))
    if least[worst] - error[worst] > 1 + CRITICAL_BAND:
        return "unstable", (
            f"tokens arrive at pool {model.pools[worst]} {least[worst]:.3f} times as fast as any "
            "policy can process them, so its backlog grows for ever"
        )
    worst = int(np.argmax(rho + error))
    name = model.pools[worst]
    if rho[worst] + error[worst] >= 1 - CRITICAL_BAND and least[worst] < rho[worst]:
        return "unknown", (
            f"if replicas reuse nothing, the load of pool {name} is {rho[worst]:.3f}, and if they "
            f"reuse all that they may {least[worst]:.3f}; how much they reuse depends on the run, "
            "so no theorem says anything"
        )
    if rho[worst] + error[worst] >= 1 - CRITICAL_BAND:
        if error[worst] > 0:
            jobs = f"{model.sampled:,} sampled jobs" if model.sampled else "sampled jobs"
            return "unknown", (
                f"the load of pool {name} is {rho[worst]:.4f} +- {error[worst]:.4f} by {jobs}, "
                "too near 1 to tell"
            )
        return "critical", (
            f"the load of pool {name} is exactly 1, where no theorem says anything: any "
            "randomness lets its queues "
            "wander without bound"
        )
    if fails is not None:
        return "unstable", fails
    # Below load 1 everywhere the hypotheses decide.
    most = f"{model.pools[highest]} the highest with {rho[highest]:.3f}"
    if all(h.held for h in tried):
        round_trips = "".join(f"; {h.why}" for h in tried if h.name == CERTIFIED)
        return "stable", (
            f"every pool has a load below 1, {most}{round_trips}; so the queues stay finite and "
            "have a steady state"
            f"{if_trusted(tried)}"
        )
    failed = "; ".join(f"'{h.name}' ({h.why})" for h in tried if not h.held)
    elsewhere = {_KNOWN_ELSEWHERE[rule.order] for rule in rules if rule.order in _KNOWN_ELSEWHERE}
    return "unknown", (
        f"no pool has a load above 1, {most}, but no theorem says stable, because these "
        f"hypotheses fail: {failed}"
        + "".join(f"; {what}, which is not shown here" for what in sorted(elsewhere))
    )
