"""Certificates: what a theorem says of pools and workflows, and whether its hypotheses hold.

A server is a network of one pool of one replica, and its requests are jobs of one stage.

*Unstable*: more is asked of a limit of a pool than it carries under any policy
(`penstock.theory.limits`); or the router sends some of its replicas more than they carry; or a
static priority order has a virtual station with a load above 1, or fluid paths that spiral out.
From a large backlog of that kind every cycle multiplies it, but for deviations that become ever
less likely; so it returns to nothing with a probability below 1. Replicas are as one server there
if their router is random, since all get the same shares; behind others some may run dry before the
rest, and then nothing is said.

*Stable*, below load 1 at every pool with full batches, for work-conserving policies:

* Theorem 1(b) of a server: a max batch size that is absent or at least the token budget, and less
  load than b_max / t_bmax. On one server with bounded lengths the total of unprocessed tokens is
  itself a Foster function (Appendix C, corrected), so the K-FCFS condition is not needed.
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

*Stable* by other means at pools outside cycles that serve one stage whose lengths have a known law
(`penstock.theory.demand`):

* the drift certificate, where batches may have room: every batch that a backlog leads to drains it
  (see `penstock.theory.drift`), for any policy and any limits. Weighted tokens of a replica then
  fall wherever it has fluid, once the pools before it have drained, as its tokens do where batches
  are full; so the theorems on networks hold as they stand.
* Theorem 1(b), with attention (`penstock.theory.attention`), in which the seconds that full batches
  take for what is left stand in for its tokens, likewise. Necessary conditions count attention at
  its least, sufficient ones at its most, with ``unknown`` in the band between.

None of them knows KV memory, so with one all requests that may run at once have to fit into it.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from penstock.errors import InputError
from penstock.system.kinds import as_network
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION, prefill_at_least
from penstock.theory.demand import Asked, is_one_server, of_network
from penstock.theory.hypotheses import (
    BOUNDED,
    CRITICAL_BAND,
    Hypothesis,
    Verdict,
    if_trusted,
    of_requests,
    of_sample,
    sampled_limit,
)
from penstock.theory.kv_blocks import STANDARD_ERRORS, drawn
from penstock.theory.limits import (
    TOKENS,
    Bound,
    Limit,
    as_bounds,
    limits_of,
    tightest,
)
from penstock.theory.load import Load, refuse_no_rate
from penstock.theory.loads import JoinBound, PoolLoad, join_bounds, pool_loads, with_limits
from penstock.theory.mean_backlog import MeanBacklog, mean_backlog
from penstock.theory.network.cyclic_pools import CERTIFIED, Cycles
from penstock.theory.network.fluid_classes import components, fluid_classes
from penstock.theory.network.rules import (
    CARRIED,
    ROUTED,
    PoolProof,
    PoolRules,
    of_all_pools,
    pool_proofs,
    pool_rules,
    workflow_hypotheses,
)
from penstock.theory.network.unequal_replicas import of_rates
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.theory.network.cycles import GlobalStability
    from penstock.theory.network.virtual_stations import VirtualStation

__all__ = ["CRITICAL_BAND", "Bound", "Certificate", "Hypothesis", "Verdict", "certify"]

# As readers are told of the paper's theorems: thm:main (b), thm:multi-class, thm:dag,
# thm:fork-join, pro:parallel and rem:jsq+.
WORK_CONSERVING = "Theorem 1(b)"
DRIFT = "Foster's theorem (every batch shrinks a backlog)"
MULTICLASS, DAG, FORK_JOIN = "multi-class theorem", "DAG theorem", "fork-join theorem"
PARALLEL, REMARK = "parallel-server proposition", "its remark on routers"
DIFFER = "parallel-server proposition for servers that differ"
CYCLE = "linear program (Dai and Vande Vate 2000)"
SPIRAL = "fluid path of a static priority"
VIRTUAL = "virtual station (Rybko and Stolyar 1992; Dai and Vande Vate 2000)"

_ROUNDING = 1e-12
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
class Certificate:
    """What a theorem says of a server or a network.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable``, ``critical`` (at a limit, where the theorems are silent) or
        ``unknown``.
    theorem
        The theorem used, or None.
    reason
        One sentence.
    hypotheses
        Every hypothesis of the conditions that were tried.
    pools
        Load and limits of each pool.
    certified_load
        Factor on all rates below which a theorem says stable under these policies, for jobs as they
        come at that rate; None where none does at any.
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
    rate
        Jobs that arrive per second, of a server its requests.
    measured
        Of a server beside a prefix cache, the load with what a run found there; None: not measured.
    of_server
        Whether it is that of one server.
    """

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]
    pools: tuple[PoolLoad, ...]
    certified_load: float | None
    any_policy: "GlobalStability | None"
    virtual_station: "VirtualStation | None"
    order: tuple[tuple[str, ...], ...]
    joins: tuple[JoinBound, ...]
    rate: float = 1.0
    measured: float | None = None
    of_server: bool = False

    @property
    def trusted(self) -> list[str]:
        """Hypotheses that nobody checked, where the verdict rests on them."""
        # An unstable network is so whatever the hypotheses that were tried.
        if not self.of_server and self.verdict != "stable":
            return []
        return [hypothesis.name for hypothesis in self.hypotheses if not hypothesis.checked]

    @property
    def bottleneck(self) -> PoolLoad:
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: pool.margin)

    @property
    def load(self) -> Load:
        """Load and capacity of a server."""
        load = self.pools[0].load
        if not self.of_server or load is None:
            raise InputError(
                "a network has no load of its own; read the loads of its `pools`, or `bottleneck`"
            )
        return load

    @property
    def rho(self) -> float:
        """Load of the bottleneck: offered token rate over the capacity.

        Beside a prefix cache it counts the tokens that are computed: with what a run found there
        (`measured`), else `rho_at_least`. No verdict here goes by what was measured.
        """
        return self.bottleneck.rho if self.measured is None else self.measured

    @property
    def rho_at_least(self) -> float | None:
        """Beside a prefix cache, the load of the bottleneck if it kept everything; else None."""
        return None if self.rho_without_cache is None else self.bottleneck.rho

    @property
    def rho_without_cache(self) -> float | None:
        """Beside a prefix cache, the load of the bottleneck if it found nothing; else None."""
        return self.bottleneck.rho_without_cache

    @property
    def margin(self) -> float:
        """What is left of the bottleneck, as a share: 1 - its load where the token budget binds,
        negative when overloaded. Where the load is `measured`, no more than that leaves.
        """
        margin = self.bottleneck.margin
        return margin if self.measured is None else min(margin, 1 - self.measured)

    @property
    def max_load(self) -> float:
        """Factor on all rates beyond which no policy is stable, at the bottleneck."""
        return self.bottleneck.max_load

    @property
    def max_rate(self) -> float:
        """Jobs/s above which no policy is stable, by the tightest necessary condition."""
        return self.rate * self.max_load

    @property
    def certified_rate(self) -> float | None:
        """Jobs/s below which a theorem says stable; None where none does at any rate."""
        return None if self.certified_load is None else self.rate * self.certified_load

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Necessary conditions: jobs/s that each limit of the bottleneck can carry, the token
        budget first.
        """
        return as_bounds(self.bottleneck.limits, self.rate)

    @property
    def binding(self) -> Bound:
        """The tightest necessary condition; of equal ones the first."""
        (bound,) = as_bounds((tightest(self.bottleneck.limits),), self.rate)
        return bound

    @functools.cached_property
    def mean_backlog(self) -> MeanBacklog:
        """Bounds of the long-run mean of the work that a server has left, tokens (Appendix C,
        corrected).
        """
        return mean_backlog(self.load)

    def with_found(self, share: float, server: Server) -> "Certificate":
        """Return the certificate of a server beside a run in which a prefix cache had a share of
        the prompt tokens: with the load that this leaves.
        """
        if self.rho_without_cache is None:
            return self
        work = self.load.work
        prompt, _ = drawn(work.lengths)
        spared = prefill_at_least(share * prompt.astype(np.float64), server).mean() * work.share
        measured = self.load.rho - self.load.arrival_rate * float(spared)
        return dataclasses.replace(self, measured=max(measured, self.bottleneck.rho))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the certificate of a server."""
        return {
            "verdict": self.verdict,
            "theorem": self.theorem,
            "reason": self.reason,
            "margin": self.margin,
            "hypotheses": [
                {"name": h.name, "held": h.held, "checked": h.checked, "why": h.why}
                for h in self.hypotheses
            ],
            "bounds": [dataclasses.asdict(bound) for bound in self.bounds],
            "certified_rate": self.certified_rate,
            "mean_backlog": self.mean_backlog.as_dict(),
        }


@overload
def certify(workload: Workload, server: Server) -> Certificate: ...
@overload
def certify(network: Network, /) -> Certificate: ...
def certify(workload: Workload | Network, server: Server | None = None) -> Certificate:
    """Say by theorem whether a workload on a server, or a network, is stable, where a theorem can.

    A server is a network of one pool of one replica. Which theorems say *stable* and *unstable*,
    and what they ask for, heads `penstock.theory.certificate`.

    Parameters
    ----------
    workload, server
        What arrives and what serves; or a network alone.

    Returns
    -------
    Certificate
        ``unknown`` where hypotheses fail, naming them, with the margin of the necessary condition.

    Raises
    ------
    InputError
        If something has no arrival rate, or a request of a server can never be served.
    """
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse_no_rate(workload)
        network = Network.single(workload, server)
    else:
        network = as_network("certify", workload, server)
        network.check_rates()
    model, asked = of_network(network)
    limits = [(one, limits_of(one)) for one in asked]
    model = with_limits(model, limits)
    alone = asked[0].load if is_one_server(network) else None
    requests = workflow_hypotheses(network) if alone is None else of_requests(alone.workload)
    certificate = _certificate(model, pool_rules(network, asked), requests, limits, alone)
    rate = sum(workflow.rate for workflow in network.workflows)
    return dataclasses.replace(certificate, rate=rate)


def network_certificate(
    model: NetworkModel,
    rules: Sequence[PoolRules],  # shape (pools,)
    of_arrivals: Sequence[Hypothesis] = (),  # what the caller has looked at: arrivals, lengths
) -> Certificate:
    """Say by theorem whether a network of which only the means are known is stable."""
    return _certificate(model, rules, of_arrivals, (), None)


def _certificate(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    of_arrivals: Sequence[Hypothesis],
    limits: Sequence[tuple[Asked, tuple[Limit, ...]]],  # of all pools, or of none
    alone: Load | None,  # of one server
) -> Certificate:
    """Certify pools of which means, rules and limits are known."""
    if len(rules) != len(model.pools):
        raise InputError(f"{len(rules)} rules for {len(model.pools)} pools; give one per pool")
    stages = fluid_classes(model, False)
    sets = components(stages)
    cycles = Cycles(model, rules, [s for stations in sets for s in stations if len(stations) > 1])
    proofs = pool_proofs(model, stages, sets, rules, all(h.held for h in of_arrivals))
    pools = pool_loads(model, stages, sets, proofs, limits)
    if alone is not None:
        asked = (*of_arrivals, *proofs[0].hypotheses.values())
        answer = _of_server(alone, pools[0], proofs[0], asked)
    else:
        asked = (*of_arrivals, *of_all_pools(model, proofs), *cycles.hypotheses)
        # Where the fluid model is not known to hold, an order that fails in it proves nothing.
        failed = {h.name for h in asked if not h.held} - {CARRIED, CERTIFIED}
        if not failed <= {BOUNDED, ROUTED} or model.least_prefill is not None:
            cycles.virtual = cycles.spiral = None
        answer = _of_network(model, rules, pools, proofs, asked, cycles, sets)
    return Certificate(
        *answer,
        pools=pools,
        certified_load=_certified_load(pools, proofs, cycles, of_arrivals),
        any_policy=cycles.anyone,
        virtual_station=cycles.virtual,
        order=tuple(tuple(model.pools[s] for s in stations) for stations in sets),
        joins=join_bounds(model, rules),
        of_server=alone is not None,
    )


def _certified_load(
    pools: Sequence[PoolLoad],
    proofs: Sequence[PoolProof],
    cycles: Cycles,
    of_arrivals: Sequence[Hypothesis],
) -> float | None:
    """Return the factor on all rates up to which pools and cycles are certified."""
    alike = all(h.held for h in cycles.hypotheses if h.name != CERTIFIED)
    carried = [proof.certified for proof in proofs if proof.certified is not None]
    if len(carried) < len(proofs) or not alike or not all(h.held for h in of_arrivals):
        return None
    limits = [
        stability.max_load for stability in (cycles.anyone, cycles.fixed) if stability is not None
    ]
    certified = min([*carried, max(limits)] if limits else carried)
    most = min(pool.max_load for pool in pools)  # the same, up to rounding, where theorems meet
    return most if math.isclose(certified, most, rel_tol=_ROUNDING) else certified or None


class _Answer(NamedTuple):
    """The first four fields of a certificate."""

    verdict: Verdict
    theorem: str | None
    reason: str
    hypotheses: tuple[Hypothesis, ...]


# Of a server


def _of_server(
    demand: Load, pool: PoolLoad, proof: PoolProof, asked: tuple[Hypothesis, ...]
) -> _Answer:
    """Say whether a server is stable: by its limits first, above which no hypothesis matters."""
    binds = tightest(pool.limits)
    exceeded = [limit for limit in pool.limits if limit.exceeded]
    if exceeded:
        overload = _overload(demand, exceeded[0])
        return _Answer("unstable", exceeded[0].theorem, _why_unstable(demand, exceeded), overload)
    if binds.load >= 1 - CRITICAL_BAND:
        what = f"the arrival rate is exactly what the {binds.name} can carry, where no theorem"
        what = f"{what} applies"
        if binds.name == "token budget":
            what = "the load is exactly 1, where Theorem 1 says nothing"
        reason = f"{what}: any randomness lets the queues wander without bound"
        return _Answer("critical", None, reason, ())
    most = demand.arrival_rate / binds.load
    failed = ", ".join(f"'{h.name}' ({h.why})" for h in asked if not h.held)
    if failed:
        reason = (
            f"the arrival rate is {1 - binds.load:.1%} below what the {binds.name} can carry, "
            f"{most:,.4g} requests/s, but no theorem says stable, because these hypotheses fail: "
            f"{failed}"
        )
        return _Answer("unknown", None, reason, asked)
    policy = demand.server.policy.name
    if proof.by_drift:
        up_to = (proof.certified or 0.0) * demand.arrival_rate
        theorem = DRIFT
        reason = (
            f"every batch that {policy} forms under a backlog drains it, at up to {up_to:,.4g} "
            "requests/s"
        )
    else:
        theorem = WORK_CONSERVING
        reason = f"the load is {demand.rho:.3f} and {policy} is work-conserving"
    reason = f"{reason}, so the queues stay finite and have a steady state{if_trusted(asked)}"
    return _Answer("stable", theorem + demand.extended, reason, asked)


def _overload(demand: Load, limit: Limit) -> tuple[Hypothesis, ...]:
    recorded = demand.workload.rows is not None
    most = demand.arrival_rate / limit.load
    if limit.name == "token budget" and math.isclose(most, demand.max_rate):
        name = "load above 1"
        reason = (
            f"{demand.offered_tokens_per_s:,.0f} tokens/s arrive, the best batch "
            f"({demand.best_token_load:,} tokens) carries {demand.capacity_tokens_per_s:,.0f}"
        )
        if demand.attention_s[0]:
            reason += (
                f" of such requests, each with {demand.attention_s[0]:.4g} s of attention at least"
            )
    else:
        name = f"arrival rate above the {limit.name}'s"
        reason = (
            f"{demand.arrival_rate:,.4g} requests/s arrive, at most {most:,.4g} are carried: "
            f"{limit.why}"
        )
    average = (
        "the recording, gone on with at this pattern"
        if recorded
        else "the arrival process has a rate"
    )
    return (
        Hypothesis(name, True, reason),
        Hypothesis("long-run averages exist", True, average, checked=not recorded),
        *of_sample(demand),
        *sampled_limit(limit.name, sampled=limit.sampled),
    )


def _why_unstable(demand: Load, exceeded: list[Limit]) -> str:
    first, *others = exceeded
    rate = demand.arrival_rate
    if first.name == "token budget":
        reason = f"tokens arrive {first.load:.3f} times as fast as any policy can process them"
    else:
        reason = (
            f"{rate:,.4g} requests/s arrive, but the {first.name} lets no policy carry more than "
            f"{rate / first.load:,.4g}"
        )
    reason += "".join(
        f" (the {limit.name} allows {rate / limit.load:,.4g} requests/s at most)"
        for limit in others
    )
    return f"{reason}, so the backlog grows for ever"


# Of a network


def _of_network(
    model: NetworkModel,
    rules: Sequence[PoolRules],
    pools: Sequence[PoolLoad],
    proofs: Sequence[PoolProof],
    asked: tuple[Hypothesis, ...],
    cycles: Cycles,
    sets: list[tuple[int, ...]],
) -> _Answer:
    """Say whether a network is stable: by tokens, other limits, order and routers, hypotheses."""
    by_tokens = _by_tokens(model)
    if by_tokens is not None and by_tokens[0] == "unstable":
        return _Answer("unstable", TOKENS, by_tokens[1], asked)
    if by_tokens is None and (reason := _why_the_order_fails(cycles)):
        theorem = VIRTUAL if cycles.spiral is None else SPIRAL
        return _Answer("unstable", theorem, reason, asked)
    in_turns = not any(h.name == ROUTED and not h.held for h in asked)
    if reason := _overfed(model, rules, in_turns):
        return _Answer("unstable", DIFFER, reason, asked)
    exceeded = [
        (limit.load, pool, limit) for pool in pools for limit in pool.limits if limit.exceeded
    ]
    if exceeded:
        _, pool, limit = max(exceeded, key=lambda each: each[0])
        return _Answer("unstable", limit.theorem, _why_exceeded(pool, limit), asked)
    if by_tokens is not None:
        verdict, reason = by_tokens
        return _Answer(verdict, None, reason, asked)
    # Below load 1 everywhere the hypotheses decide.
    highest = int(np.argmax(model.rho))
    most = f"{model.pools[highest]} the highest with {model.rho[highest]:.3f}"
    if all(h.held for h in asked):
        round_trips = "".join(f"; {h.why}" for h in asked if h.name == CERTIFIED)
        reason = (
            f"every pool has a load below 1, {most}{round_trips}; so the queues stay finite and "
            f"have a steady state{if_trusted(asked)}"
        )
        return _Answer("stable", _theorem(model, sets, rules, proofs), reason, asked)
    failed = "; ".join(f"'{h.name}' ({h.why})" for h in asked if not h.held)
    elsewhere = {_KNOWN_ELSEWHERE[rule.order] for rule in rules if rule.order in _KNOWN_ELSEWHERE}
    reason = (
        f"no pool has a load above 1, {most}, but no theorem says stable, because these "
        f"hypotheses fail: {failed}"
        + "".join(f"; {what}, which is not shown here" for what in sorted(elsewhere))
    )
    return _Answer("unknown", None, reason, asked)


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
        jobs = f"{model.sampled:,} sampled jobs" if model.sampled else "sampled jobs"
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
    assert pool.asked is not None
    kinds = pool.asked.kinds
    what = f"the {limit.name}"
    if limit.name == "max batch size" and len(kinds) == 1:
        what += f" of {kinds[0][0].max_batch_size:,}"
    if limit.name == "transfers":
        what = "the time that transfers take its links"
    sampled = f", a load of {limit.in_words} by sampled jobs" if limit.standard_error else ""
    return (
        f"under any policy {what} lets pool {pool.name} carry at most {1 / limit.load:.3f} times "
        f"what arrives{sampled}, so its backlog grows for ever"
    )


def _why_the_order_fails(cycles: Cycles) -> str | None:
    """Return why a static priority order makes a network unstable, or None."""
    virtual, spiral = cycles.virtual, cycles.spiral
    if spiral is not None:
        return (
            f"every cycle multiplies a backlog of {spiral[0]} by {spiral[1]:.4g}, in the fluid "
            "model of this order"
        )
    if virtual is None or virtual.max_load >= 1 - CRITICAL_BAND:
        return None
    return virtual.reason


def _theorem(
    model: NetworkModel,
    sets: list[tuple[int, ...]],
    rules: Sequence[PoolRules],
    proofs: Sequence[PoolProof],
) -> str:
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
    if several:
        stretched = any(router not in ("jsq", "random") for router in several)
        proposition = DIFFER if any(rates is not None for rates in model.unequal) else PARALLEL
        name += f", {proposition}" + (f" with {REMARK}" if stretched else "")
    if any(proof.by_drift for proof in proofs):
        name += f", {DRIFT}"
    extended = any(rule.load is not None and rule.load.extended for rule in rules)
    return name + (WITH_ATTENTION if extended else "")


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
