"""Certificates of networks: by tokens, other limits, routers and orders, then by hypotheses.

What the theorems say and ask for heads `penstock.theory.certificate`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock.errors import InputError
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.theory.attention import in_name
from penstock.theory.certificate import (
    CYCLE,
    DAG,
    DIFFER,
    DRIFT,
    FORK_JOIN,
    MULTICLASS,
    PARALLEL,
    REMARK,
    SPIRAL,
    VIRTUAL,
    Certificate,
    Statement,
    certified_load,
    of_server,
)
from penstock.theory.hypotheses import (
    BOUNDED,
    CRITICAL_BAND,
    Hypothesis,
    Proof,
    Verdict,
    if_trusted,
)
from penstock.theory.kv_blocks import STANDARD_ERRORS
from penstock.theory.limits import TOKENS, Limit, PoolLoad, limits_of
from penstock.theory.load import Demand, demand_of, load
from penstock.theory.network.cyclic_pools import CERTIFIED, Cycles, cycles_of
from penstock.theory.network.demand import is_one_server, network_demand
from penstock.theory.network.fluid_classes import components, fluid_classes
from penstock.theory.network.hypotheses import (
    CARRIED,
    ROUTED,
    PoolRules,
    of_all_pools,
    pool_proofs,
    pool_rules,
    workflow_hypotheses,
)
from penstock.theory.network.loads import join_bounds, pool_loads, with_limits
from penstock.theory.network.unequal_replicas import loads_at
from penstock.workload.workflow import Workflow

_BACK_PRESSURE = (
    "back-pressure is throughput-optimal in networks without batches (Tassiulas and Ephremides "
    "1992)"
)
_KNOWN_ELSEWHERE = {
    "hlpps": "single-token fluid models under HLPPS are stable below load 1 (Bramson 1996)",
    "back-pressure": _BACK_PRESSURE,
    "back-pressure-phase": _BACK_PRESSURE,
}

Limits = Sequence[tuple[Demand, tuple[Limit, ...]]]
"""What is asked of each pool, and of each of its limits."""


def of_network(network: Network) -> Certificate:
    """Certify a network; one server as a server."""
    network.check_rates()
    (workflow, *_), (name, pool) = network.workflows, next(iter(network.pools.items()))
    if is_one_server(network) and isinstance(workflow, Workflow):
        alone = load(workflow.arrivals, pool.server)
        (one,) = pool_rules(network, [demand_of(alone)])
        return of_server(alone, one.replica, by_arrival=one.order == "fcfs", name=name)
    return as_pools(network)


def as_pools(network: Network) -> Certificate:
    """Certify a network by its pools and how jobs go between them, were there but one."""
    model, demands = network_demand(network)
    limits = [(demand, limits_of(demand)) for demand in demands]
    rate = sum(workflow.rate for workflow in network.workflows)
    rules = pool_rules(network, demands)
    return of_pools(with_limits(model, limits), rules, workflow_hypotheses(network), limits, rate)


def of_pools(
    model: NetworkModel,
    rules: Sequence[PoolRules],  # shape (pools,)
    of_arrivals: Sequence[Hypothesis] = (),
    limits: Limits = (),  # of all pools, or of none
    rate: float = 1.0,
) -> Certificate:
    """Certify pools of which means, rules and limits are known."""
    if len(rules) != len(model.pools):
        raise InputError(f"{len(rules)} rules for {len(model.pools)} pools; give one per pool")
    stages = fluid_classes(model, False)
    sets = components(stages)
    cyclic = [s for stations in sets for s in stations if len(stations) > 1]
    cycles = Cycles()
    if cyclic:
        cycles = cycles_of(model, rules, cyclic)
    proofs = pool_proofs(model, stages, sets, rules, all(h.held for h in of_arrivals))
    pools = pool_loads(model, stages, sets, proofs, limits)
    hypotheses = (*of_arrivals, *of_all_pools(model, proofs), *cycles.hypotheses)
    # Where the fluid model is not known to hold, an order that fails in it proves nothing.
    failed = {h.name for h in hypotheses if not h.held} - {CARRIED, CERTIFIED}
    if not failed <= {BOUNDED, ROUTED} or model.least_prefill is not None:
        cycles = dataclasses.replace(cycles, virtual=None, spiral=None)
    return Certificate(
        *_statement_of_network(model, rules, pools, proofs, hypotheses, cycles, sets),
        pools=pools,
        certified_load=_certified_load(pools, proofs, cycles, of_arrivals),
        any_policy=cycles.anyone,
        virtual_station=cycles.virtual,
        order=tuple(tuple(model.pools[s] for s in stations) for stations in sets),
        joins=join_bounds(model, rules),
        rate=rate,
    )


def _certified_load(
    pools: Sequence[PoolLoad],
    proofs: Sequence[Proof],
    cycles: Cycles,
    of_arrivals: Sequence[Hypothesis],
) -> float | None:
    """Return the factor on all rates up to which pools and cycles are certified."""
    alike = all(h.held for h in cycles.hypotheses if h.name != CERTIFIED)
    carried = [proof.certified for proof in proofs if proof.certified is not None]
    if len(carried) < len(proofs) or not alike or not all(h.held for h in of_arrivals):
        return None
    return certified_load(pools, min(*carried, cycles.certified))


def _statement_of_network(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    pools: Sequence[PoolLoad],
    proofs: Sequence[Proof],
    hypotheses: tuple[Hypothesis, ...],
    cycles: Cycles,
    sets: list[tuple[int, ...]],
) -> Statement:
    """Say whether a network is stable: by tokens, other limits, order and routers, hypotheses."""
    by_tokens = _by_tokens(model)
    if by_tokens is not None and by_tokens[0] == "unstable":
        return Statement("unstable", TOKENS, by_tokens[1], hypotheses)
    if by_tokens is None and cycles.spiral is not None:
        stage, growth = cycles.spiral
        reason = (
            f"every cycle multiplies a backlog of {stage} by {growth:.4g}, in the fluid model of "
            "this order"
        )
        return Statement("unstable", SPIRAL, reason, hypotheses)
    virtual = cycles.virtual
    if by_tokens is None and virtual is not None and virtual.max_load < 1 - CRITICAL_BAND:
        return Statement("unstable", VIRTUAL, virtual.reason, hypotheses)
    in_turns = not any(h.name == ROUTED and not h.held for h in hypotheses)
    overfed = _overfed(model, rules, in_turns)
    if overfed is not None:
        return Statement("unstable", DIFFER, overfed, hypotheses)
    exceeded = [
        (limit.load, pool, limit) for pool in pools for limit in pool.limits if limit.exceeded
    ]
    if exceeded:
        _, pool, limit = max(exceeded, key=lambda limit: limit[0])
        return Statement("unstable", limit.theorem, _why_exceeded(pool, limit), hypotheses)
    if by_tokens is not None:
        verdict, reason = by_tokens
        return Statement(verdict, None, reason, hypotheses)
    # Below load 1 everywhere the hypotheses decide.
    highest = int(np.argmax(model.rho))
    most = f"{model.pools[highest]} the highest with {model.rho[highest]:.3f}"
    if all(h.held for h in hypotheses):
        round_trips = "".join(f"; {h.why}" for h in hypotheses if h.name == CERTIFIED)
        reason = (
            f"every pool has a load below 1, {most}{round_trips}; so the queues stay finite and "
            f"have a steady state{if_trusted(hypotheses)}"
        )
        return Statement("stable", _theorem(model, sets, rules, proofs), reason, hypotheses)
    failed = "; ".join(f"'{h.name}' ({h.why})" for h in hypotheses if not h.held)
    elsewhere = {_KNOWN_ELSEWHERE[rule.order] for rule in rules if rule.order in _KNOWN_ELSEWHERE}
    reason = (
        f"no pool has a load above 1, {most}, but no theorem says stable, because these "
        f"hypotheses fail: {failed}"
        + "".join(f"; {what}, which is not shown here" for what in sorted(elsewhere))
    )
    return Statement("unknown", None, reason, hypotheses)


def _by_tokens(model: NetworkModel) -> tuple[Verdict, str] | None:
    """Return what loads say by the tokens that arrive; None: they are below 1 everywhere."""
    # Sampled means are doubted by their error, on the side that makes the verdict harder.
    rho, error = model.rho, STANDARD_ERRORS * model.standard_error / model.capacity
    least = model.least_offered / model.capacity
    worst = int(np.argmax(least - error))
    if least[worst] - error[worst] > 1 + CRITICAL_BAND:
        return "unstable", (
            f"tokens arrive at pool {model.pools[worst]} {least[worst]:.3f} times as fast as any "
            "policy can process them, so its backlog grows for ever"
        )
    worst = int(np.argmax(rho + error))
    name = model.pools[worst]
    if rho[worst] + error[worst] < 1 - CRITICAL_BAND:
        return None
    if least[worst] < rho[worst]:
        return "unknown", (
            f"if replicas reuse nothing, the load of pool {name} is {rho[worst]:.3f}, and if they "
            f"reuse all that they may {least[worst]:.3f}; how much they reuse depends on the run, "
            "so no theorem says anything"
        )
    if error[worst] > 0:
        jobs = "sampled jobs"
        if model.sampled:
            jobs = f"{model.sampled:,} {jobs}"
        return "unknown", (
            f"the load of pool {name} is {rho[worst]:.4f} +- {error[worst]:.4f} by {jobs}, "
            "too near 1 to tell"
        )
    return "critical", (
        f"the load of pool {name} is exactly 1, where no theorem says anything: any randomness "
        "lets its queues wander without bound"
    )


def _why_exceeded(pool: PoolLoad, limit: Limit) -> str:
    """Say what a limit of a pool carries, beside the token budget."""
    assert pool.demand is not None
    kinds = pool.demand.kinds
    what = f"the {limit.name}"
    if limit.name == "max batch size" and len(kinds) == 1:
        what += f" of {kinds[0][0].max_batch_size:,}"
    if limit.name == "transfers":
        what = "the time that transfers take its links"
    arrives = "what arrives"
    if limit.standard_error:
        arrives += f", a load of {limit.in_words} by sampled jobs"
    return (
        f"under any policy {what} lets pool {pool.name} carry at most {limit.carried:.3f} times "
        f"{arrives}, so its backlog grows for ever"
    )


def _theorem(
    model: NetworkModel,
    sets: list[tuple[int, ...]],
    rules: Sequence[PoolRules],
    proofs: Sequence[Proof],
) -> str:
    """Name what is used; every part of it is needed."""
    if any(len(stations) > 1 for stations in sets):
        name = CYCLE
    elif model.joins[model.visits > 0].any():
        name = FORK_JOIN
    else:
        name = DAG
        if len(sets) == 1:
            name = MULTICLASS
    several = [
        rule.router for rule, replicas in zip(rules, model.replicas, strict=True) if replicas > 1
    ]
    if several and any(rates is not None for rates in model.unequal):
        name += f", {DIFFER}"
    elif several:
        name += f", {PARALLEL}"
    if any(router.name not in ("jsq", "random") for router in several):
        name += f" with {REMARK}"
    if any(proof.by_drift for proof in proofs):
        name += f", {DRIFT}"
    return name + in_name(sum(rule.load.attention_s[1] for rule in rules if rule.load))


def _overfed(model: NetworkModel, rules: Sequence[PoolRules], in_turns: bool) -> str | None:
    """Return why a router gives some replicas more than they carry under any policy."""
    # ``in_turns``: whether round robin gives each replica its share of the work.
    least_offered = model.least_offered - STANDARD_ERRORS * model.standard_error
    for s, rule in enumerate(rules):
        loads = loads_at(model, s, max(float(least_offered[s]), 0.0), rule.router)
        if loads is None or rule.router.is_own:  # how one of the user's own sends is not checked
            continue
        if rule.router.sends == "in turns" and not in_turns:
            continue
        if loads.verdict == "unstable":
            return (
                f"router {rule.router.name} sends some replicas of pool {model.pools[s]} "
                f"{loads.necessary:.3f} times what they carry under any policy ({loads.why}), so "
                "their backlog grows for ever"
            )
    return None
