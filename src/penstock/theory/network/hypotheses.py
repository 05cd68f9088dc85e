"""Hypotheses of the theorems on networks: how each pool chooses, what is asked of each of its
replicas, and of all pools and workflows together.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.orders import ORDERS
from penstock.system.pool import Pool
from penstock.system.routing import ROUTERS, Router
from penstock.system.server import Server
from penstock.theory import hypotheses as conditions
from penstock.theory.hypotheses import (
    AMPLE,
    BOUNDED,
    CARRIES,
    CRITICAL_BAND,
    DRAINS,
    FILLS,
    SLOTS,
    Hypothesis,
    Proof,
    others_hold,
    proof_of,
)
from penstock.theory.kv_blocks import STANDARD_ERRORS, fits
from penstock.theory.load import Demand, Load
from penstock.theory.network.demand import declares, wasted_at_stages
from penstock.theory.network.fluid_classes import FluidClasses
from penstock.theory.network.unequal_replicas import loads_at
from penstock.theory.unforeseen import with_wasted
from penstock.workload.arrivals import Arrivals
from penstock.workload.lengths import Length
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage

CARRIED = "full batches carry the load of every pool"
ROUTED = "replicas drain as one server would"
BY_TOKENS = "batch times go by the token load"
FORESEEN = "what is served after ends that nobody foresees is known"
LINKS_FREE = "no transfer of KV memory waits for a link"
UNEQUAL = "what replicas that differ get is known"

_OF_ALL = {
    FILLS: (f"{FILLS} at every pool", "batches are filled whenever what waits allows"),
    SLOTS: (SLOTS, "there is none below the token budget"),
    CARRIES: (CARRIED, "each has less than its full batches can process"),
    UNEQUAL: (UNEQUAL, "by the shares that their routers send to each set of them"),
    AMPLE: (AMPLE, "all requests that may run at once fit"),
    BY_TOKENS: (BY_TOKENS, ""),
    FORESEEN: (FORESEEN, ""),
    LINKS_FREE: (LINKS_FREE, ""),
    DRAINS: (DRAINS, "at every pool whose batches may have room"),
    ROUTED: (ROUTED, "their routers keep requests from busy ones, or share them out"),
}
"""Names of hypotheses of single pools for all of them, and what is said where none fails."""

_ATTENTION = "attention takes time besides, which the theorems on networks do not know"
_UNFORESEEN = (
    "it composes batches a step ahead, and requests may end before the outputs that they declare, "
    "which costs each a token at most"
)
_LINKS = "a link carries one transfer at a time, which the theorems on networks do not know"


@dataclasses.dataclass(frozen=True)
class PoolRules:
    """How a pool chooses, and what is asked of its replicas."""

    decode_first: bool = True  # decodes of a stage go before its prompts: it is one class of fluid
    order: str = "fcfs"  # between stages, of `penstock.system.orders`; any other: an unknown order
    # The pool's stages, the highest first, for a static order.
    ranking: tuple[str, ...] | None = None
    router: Router = ROUTERS["jsq"]
    affinity: bool = False  # a job stays with its replica
    # Stages with lengths of the job: its later requests are like its earlier.
    of_job: tuple[str, ...] = ()
    delays_vary: bool = False  # requests may overtake one another on their way to the pool
    load: Load | None = None  # of each replica, where the law of all that comes is known
    replica: tuple[Hypothesis, ...] = ()  # what is asked of each; what is not named holds

    @property
    def phases(self) -> bool:
        """Whether the two phases of a stage are two classes of fluid."""
        if self.order == "decode-first":
            return False
        known = ORDERS.get(self.order)
        return not (self.decode_first and known is not None and known.whole_stages)

    @property
    def k_fcfs(self) -> bool:
        """Whether requests leave about in order of release to the pool, if all have a prompt."""
        # Else one without decodes may leave before any number of older ones that decode.
        return self.order == "fcfs" and self.decode_first and not self.delays_vary


def pool_rules(network: Network, demands: Sequence[Demand]) -> tuple[PoolRules, ...]:
    """Return how each pool of a network chooses, and what is asked of its replicas."""
    wasted = zip(network.pool_names, wasted_at_stages(network), strict=True)
    unforeseen = {name for name, (least, most) in wasted if least < most}
    stages = {
        f"{workflow.name}.{name}": stage
        for workflow in network.workflows
        for name, stage in workflow.stages.items()
    }
    rules = []
    for (name, pool), priorities, demand in zip(
        network.pools.items(), network.priorities, demands, strict=True
    ):
        here = {full: stage for full, stage in stages.items() if stage.pool == name}
        ranking = None
        if priorities is not None:
            ranking = tuple(network.stages[stage] for stage in priorities)
        rules.append(
            PoolRules(
                decode_first=all(server.policy.decode_first for server, _ in pool.servers),
                order=_order(pool),
                ranking=ranking,
                router=pool.router,
                affinity=pool.affinity,
                of_job=tuple(full for full, stage in here.items() if _of_job(stage)),
                delays_vary=any(
                    isinstance(stage.delay_ms, Length) or stage.transfer_ms_per_token > 0
                    for stage in here.values()
                ),
                load=demand.load,
                replica=_of_replicas(network, name, demand.load, name not in unforeseen),
            )
        )
    return tuple(rules)


def _of_replicas(
    network: Network, name: str, load: Load | None, foreseen: bool
) -> tuple[Hypothesis, ...]:
    """Return what is asked of each replica of a pool, of the kind of server where it fails."""
    pool = network.pools[name]
    servers = [server for server, _ in pool.servers]
    gets, sends, takes_time = handed_over(network, name)
    # What memory may prevent is a hypothesis of its own.
    fills = _worst([conditions.work_conserving(server) for server in servers])
    if pool.order.fills:
        fills = Hypothesis(FILLS, True, f"order {pool.order.name} fills batches")
    memory = None
    if (gets or sends) and any(server.memory is not None for server in servers):
        where = "is sent to another pool"
        if gets:
            where = "comes from another pool"
        memory = Hypothesis(AMPLE, False, f"requests hold memory while theirs {where}")
    if load is not None:
        *hypotheses, carries = conditions.of_replica(load, fills, memory)
        if pool.replicas > 1:
            carries = dataclasses.replace(carries, why=f"at each replica {carries.why}")
        hypotheses.append(carries)
    else:
        slots = _worst([conditions.batch_size(server) for server in servers])
        memory = memory or _ample_memory(network, name)
        hypotheses = [hypothesis for hypothesis in (memory, fills, slots) if hypothesis is not None]
        if not all(server.batch_time.by_load for server in servers):
            hypotheses.append(Hypothesis(BY_TOKENS, False, _ATTENTION))
        if not foreseen:
            hypotheses.append(Hypothesis(FORESEEN, False, _UNFORESEEN))
    if takes_time:
        hypotheses.append(Hypothesis(LINKS_FREE, False, _LINKS))
    return tuple(hypotheses)


def _worst(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return the first that fails, else the first on trust, else the first."""
    return min(hypotheses, key=lambda hypothesis: (hypothesis.held, hypothesis.checked))


def _ample_memory(network: Network, name: str) -> Hypothesis | None:
    """Return whether the longest requests of a pool fit its memory at once; None: it has none."""
    servers = [server for server, _ in network.pools[name].servers if server.memory is not None]
    if not servers:
        return None
    longest_at = []
    for workflow in network.workflows:
        means = workflow.means()
        longest_at += [
            (means.max_prompt[place], means.max_output[place])
            for place, stage in enumerate(workflow.stages.values())
            if stage.pool == name
        ]
    prompt, output = np.array(longest_at).T
    longest = None
    if np.isfinite(prompt).all() and np.isfinite(output).all():
        longest = prompt.astype(np.int64), np.maximum(output, 1).astype(np.int64)
    reused = bool(network.reuse_depends[list(network.pools).index(name)])
    ahead = any(map(declares, network.workflows))
    return _worst(
        [
            _never_fits(server, longest)
            or conditions.kv_memory(
                server,
                with_wasted(longest, server, declares=ahead),
                reused=reused and server.caches_prefixes,
            )
            for server in servers
        ]
    )


def _never_fits(server: Server, longest: tuple[Ints, Ints] | None) -> Hypothesis | None:
    """Say that a request may come which no max batch size lets in; None: none may."""
    # In a network it is part of a job: it waits, and so do those behind, or its job is dropped.
    if longest is None or fits(*longest, server).all():
        return None
    prompt, output = (int(tokens[~fits(*longest, server)][0]) for tokens in longest)
    what = "would block a replica for ever"
    if server.memory is not None and server.memory.too_long == "drop":
        what = "is dropped with its job, of which no theorem here speaks"
    why = (
        f"a prompt of {prompt:,} tokens with an output of {output:,} never fits, and {what}; raise "
        "the limit, or cut the lengths"
    )
    return Hypothesis(AMPLE, False, why)


def handed_over(network: Network, name: str) -> tuple[bool, bool, bool]:
    """Return whether KV memory comes to a pool, leaves it, and whether links take time for it."""
    if not network.sends_memory:
        return False, False, False
    pool = list(network.pools).index(name)
    stages = [stage for workflow in network.workflows for stage in workflow.stages.values()]
    gets = sends = takes_time = False
    for stage, here, senders in zip(stages, network.stage_pool, network.senders, strict=True):
        gets_here = bool(senders) and here == pool
        sends_here = pool in network.stage_pool[list(senders)]
        gets, sends = gets or gets_here, sends or sends_here
        takes_time |= (gets_here or sends_here) and stage.transfer_ms_per_token > 0
    return gets, sends, takes_time


def _order(pool: Pool) -> str:
    """Return the name by which theorems know an order; another one where it is the user's own."""
    namesake = ORDERS.get(pool.order.name)
    theirs = namesake is not None and namesake.function is pool.order.function
    by_arrival = all(server.order == "fcfs" for server, _ in pool.servers)
    if theirs and by_arrival:
        return pool.order.name
    return f"of the user's own, {pool.order.name}"


def workflow_hypotheses(network: Network) -> tuple[Hypothesis, ...]:
    """Return what every theorem asks of the workflows, each hypothesis for all of them."""
    renewals, drawn, bounded = [], [], []
    for workflow in network.workflows:
        process: Arrivals | None
        if isinstance(workflow, Sessions):
            process = workflow.arrivals
        else:
            process = workflow.arrivals.arrivals
        if process is None or not process.iid:
            renewals.append(f"those of {workflow.name} are not i.i.d.; try arrivals 'poisson'")
        uses = any(_of_job(stage) for stage in workflow.stages.values())
        if uses and not isinstance(workflow, Sessions) and not workflow.arrivals.lengths.iid:
            drawn.append(
                f"those of {workflow.name} are recorded in order; resample them with arrivals "
                "'poisson'"
            )
        if not workflow.means().bounded:
            remedy = "give their distributions a `max`"
            if not isinstance(workflow, Sessions) and workflow.grows_without_end:
                remedy = "contexts grow with every round of a loop, so limit it by `most_visits`"
            bounded.append(f"those of {workflow.name} have no upper limit; {remedy}")
    return (
        _of_all("i.i.d. arrivals", renewals, "those of all workflows are renewals"),
        _of_all("i.i.d. jobs", drawn, "lengths and paths are drawn anew for each job"),
        _of_all(BOUNDED, bounded, "all prompts and outputs have upper limits"),
    )


def _of_job(stage: Stage) -> bool:
    """Whether its lengths come with the job."""
    return stage.prompt == "job" or stage.output in ("job", "rest")


def _of_all(name: str, failed: list[str], words: str) -> Hypothesis:
    """Return a hypothesis of all pools or workflows: what fails, or else these words."""
    return Hypothesis(name, not failed, "; ".join(failed) or words)


def pool_proofs(
    model: NetworkModel,
    stages: FluidClasses,
    sets: list[tuple[int, ...]],  # cut at strongly connected components
    rules: Sequence[PoolRules],  # shape (pools,)
    sound: bool,  # what is asked of all workflows holds
) -> tuple[Proof, ...]:
    """Return what is proved of each pool."""
    cyclic = {s for stations in sets if len(stations) > 1 for s in stations}
    return tuple(_proof(model, stages, s, rules[s], s in cyclic, sound) for s in range(len(rules)))


def _proof(
    model: NetworkModel, stages: FluidClasses, s: int, rules: PoolRules, cyclic: bool, sound: bool
) -> Proof:
    """Prove that a pool drains: each replica by the law of what comes, or all by their means."""
    hypotheses = [*rules.replica, *_of_pool(model, stages, s, rules, cyclic)]
    if rules.load is not None:
        by_arrival = rules.order == "fcfs" and not cyclic
        return proof_of(rules.load, hypotheses, sound=sound, by_arrival=by_arrival)
    by_name = {hypothesis.name: hypothesis for hypothesis in hypotheses}
    most_offered = float(model.offered[s] + STANDARD_ERRORS * model.standard_error[s])
    if CARRIES not in by_name:
        failure = _not_carried(model, s, most_offered, rules.router)
        by_name[CARRIES] = Hypothesis.unless(CARRIES, failure)
    fills = all(by_name[name].held for name in (FILLS, SLOTS) if name in by_name)
    if not (sound and fills and others_hold(by_name)):
        return Proof(by_name, None)
    return Proof(by_name, _carried(model, s, most_offered, rules) or None)


def _carried(model: NetworkModel, s: int, most_offered: float, rules: PoolRules) -> float:
    """Return the factor on all rates up to which full batches carry the load of a pool."""
    if not most_offered:
        return np.inf
    carried = float(model.full_batch[s]) / most_offered
    loads = loads_at(model, s, most_offered, rules.router)
    if loads is not None and loads.sufficient is not None:
        carried = min(carried, 1 / loads.sufficient)
    return carried


def _of_pool(
    model: NetworkModel, stages: FluidClasses, s: int, rules: PoolRules, cyclic: bool
) -> list[Hypothesis]:
    """Return what is asked of a pool beside its replicas."""
    hypotheses = []
    if model.replica_rates(s) is not None:
        hypotheses.append(_of_router(UNEQUAL, rules, _not_known(model, s, rules, cyclic)))
    if cyclic and rules.load is not None:
        least, most = rules.load.wasted
        if rules.load.extended:
            hypotheses.append(Hypothesis(BY_TOKENS, False, _ATTENTION))
        if least < most:
            hypotheses.append(Hypothesis(FORESEEN, False, _UNFORESEEN))
    if model.replicas[s] > 1:
        here = (model.pool == s) & (model.visits > 0)  # those without a token, too
        comes_back = bool(stages.leads[s, s])
        sampled = model.sampled is not None
        failure = _not_routed(rules, int(here.sum()), comes_back, cyclic, sampled)
        hypotheses.append(_of_router(ROUTED, rules, failure))
    return hypotheses


def _of_router(name: str, rules: PoolRules, failure: str | None) -> Hypothesis:
    """Return a hypothesis on how a router sends, which nobody checks of one of the user's own."""
    hypothesis = Hypothesis.unless(name, failure)
    return dataclasses.replace(hypothesis, checked=not (hypothesis.held and rules.router.is_own))


def of_all_pools(model: NetworkModel, proofs: Sequence[Proof]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of all pools, each of them for all."""
    names = dict.fromkeys([*_OF_ALL, *(name for proof in proofs for name in proof.hypotheses)])
    merged = []
    for name in names:
        of_pools = {
            pool: proof.hypotheses[name]
            for pool, proof in zip(model.pools, proofs, strict=True)
            if name in proof.hypotheses
        }
        if not of_pools and (name not in (FILLS, SLOTS) or all(proof.by_drift for proof in proofs)):
            continue
        whys = "; ".join(hypothesis.why for hypothesis in of_pools.values())
        title, words = _OF_ALL.get(name, (name, whys))
        failed = [f"{pool}: {h.why}" for pool, h in of_pools.items() if not h.held]
        checked = bool(failed) or all(h.checked for h in of_pools.values())
        if name in (FILLS, UNEQUAL, ROUTED) and not checked:
            words += ", as the author of one claims"
        merged.append(dataclasses.replace(_of_all(title, failed, words), checked=checked))
    return tuple(merged)


def _not_carried(model: NetworkModel, pool: int, most_offered: float, router: Router) -> str | None:
    """Return why full batches of a pool may not carry what is offered, or None if they do."""
    if most_offered < model.full_batch[pool] * (1 - CRITICAL_BAND):
        loads = loads_at(model, pool, most_offered, router)
        if loads is None or loads.sufficient is None or loads.sufficient < 1 - CRITICAL_BAND:
            return None
        return (
            f"{router.name} sends some replicas {loads.sufficient:.3f} times what their full "
            f"batches carry: {loads.why}; take jsq, or shares by capacity"
        )
    why = (
        f"{model.offered[pool]:,.0f} tokens/s arrive, full batches carry "
        f"{model.full_batch[pool]:,.0f}"
    )
    if model.capacity[pool] > model.full_batch[pool] * (1 + CRITICAL_BAND):
        why += "; smaller ones carry more"
    return why


def _not_known(model: NetworkModel, pool: int, rules: PoolRules, cyclic: bool) -> str | None:
    """Return why it is not known what replicas that differ get, or None."""
    if cyclic:
        return "in a cycle of pools nothing is shown of replicas that differ"
    loads = loads_at(model, pool, 0.0, rules.router)
    if loads is None or loads.sufficient is not None:
        return None
    return f"{loads.why}; take jsq"


def _not_routed(
    rules: PoolRules, stages: int, comes_back: bool, cyclic: bool, sampled: bool
) -> str | None:
    """Return why several replicas may not drain as one server would; None: they do."""
    # Requests that come back to random replicas that are alike do no harm: a generalised Jackson
    # network.
    name, sends = rules.router.in_words, rules.router.sends
    if sends == "to the least":
        if cyclic and rules.affinity:
            return "affinity sends requests back to busy replicas in a cycle of pools"
        return None
    if cyclic:
        return f"{name} may send requests to busy replicas, in a cycle of pools; take jsq"
    if sends == "at random":
        if comes_back and not rules.affinity and (stages > 1 or sampled or rules.of_job):
            return (
                f"{name} sends requests that come back to other replicas, which makes a cycle of "
                "them; take jsq"
            )
        return None
    if sends == "in turns":
        if stages > 1 or comes_back:
            return f"{name} need not give each replica its share of every stage; take jsq or random"
        if sampled or rules.of_job:
            return (
                f"{name} may give one replica all the long requests, since their lengths depend; "
                "take jsq"
            )
        return None
    if sends == "to the less of two":
        if comes_back or rules.affinity:
            return f"{name} may send requests that come back to busy replicas; take jsq"
        return None
    return f"nothing is known of the router {name}; take jsq"
