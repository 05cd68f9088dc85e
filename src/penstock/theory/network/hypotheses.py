"""Hypotheses of the theorems on networks: how each pool chooses, and what was looked at."""

import dataclasses
from collections.abc import Callable, Sequence, Set

import numpy as np

from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.orders import ORDERS
from penstock.system.routing import ROUTERS, Router
from penstock.system.server import Server
from penstock.theory import hypotheses as conditions
from penstock.theory.hypotheses import CRITICAL_BAND, Hypothesis
from penstock.theory.kv_blocks import STANDARD_ERRORS
from penstock.theory.network.ample_memory import ample_memory, handed_over
from penstock.theory.network.fluid_classes import FluidClasses
from penstock.theory.network.unequal_replicas import OF_TWO, SHORTEST, of_rates
from penstock.theory.network.unforeseen_ends import wasted_at_stages
from penstock.workload.lengths import Length
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage

BOUNDED = "bounded lengths"
CARRIED = "full batches carry the load of every pool"
ROUTED = "replicas drain as one server would"
BY_TOKENS = "batch times go by the token load"
FORESEEN = "what is served after ends that nobody foresees is known"
LINKS_FREE = "no transfer of KV memory waits for a link"
UNEQUAL = "what replicas that differ get is known"


@dataclasses.dataclass(frozen=True)
class PoolRules:
    """How a pool chooses: its policy, the order between its stages, and its router."""

    policy: str = "sarathi"  # inside a line
    work_conserving: bool | None = True  # fills the token budget whenever what waits allows it
    decode_first: bool = True  # decodes of a stage go before its prompts: it is one class of fluid
    # A max batch size below the token budget may keep batches from filling.
    slots_bind: bool = False
    order: str = "fcfs"  # between stages, of `penstock.system.orders`; any other: an unknown order
    # The pool's stages, the highest first, for a static order.
    ranking: tuple[str, ...] | None = None
    router: str = "jsq"  # of `penstock.system.routing`
    affinity: bool = False  # a job stays with its replica
    # Stages with lengths of the job: its later requests are like its earlier.
    of_job: tuple[str, ...] = ()
    delays_vary: bool = False  # requests may overtake one another on their way to the pool
    checked: bool = True  # `work_conserving` is known; False: the user's word
    # All that may run at once fit its KV memory; None: it has none.
    ample_memory: Hypothesis | None = None
    by_tokens: bool = True  # the token load alone decides how long a batch takes
    links_bind: bool = False  # transfers of KV memory to it or from it may wait for a link
    wasted_is_known: bool = True  # how many tokens requests are served after unforeseen ends

    @property
    def phases(self) -> bool:
        """Whether the two phases of a stage are two classes of fluid."""
        served_by_stage = ("fcfs", "priority", "back-pressure", "hlpps", "round-robin")
        return self.order != "decode-first" and not (
            self.decode_first and self.order in served_by_stage
        )

    @property
    def k_fcfs(self) -> bool:
        """Whether requests leave about in order of release to the pool, if all have a prompt."""
        # Else one without decodes may leave before any number of older ones that decode.
        return self.order == "fcfs" and self.decode_first and not self.delays_vary


def pool_rules(network: Network) -> tuple[PoolRules, ...]:
    """Return how each pool of a network chooses."""
    rules = []
    unknown = {
        name
        for name, (least, most) in zip(network.pool_names, wasted_at_stages(network), strict=True)
        if least < most
    }
    for (name, pool), priorities in zip(network.pools.items(), network.priorities, strict=True):
        servers = [server for server, _ in pool.servers]
        stages = [
            (f"{w.name}.{n}", s)
            for w in network.workflows
            for n, s in w.stages.items()
            if s.pool == name
        ]
        namesake = ORDERS.get(pool.order.name)
        named = namesake is not None and namesake.function is pool.order.function
        by_arrival = all(server.order == "fcfs" for server in servers)
        conserves = [conditions.work_conserving(server) for server in servers]
        known = {server.work_conserving for server in servers}
        rules.append(
            PoolRules(
                policy=" and ".join(dict.fromkeys(server.policy.name for server in servers)),
                # What memory may prevent is a hypothesis of its own.
                work_conserving=True if pool.order.fills else _of_each(known),
                decode_first=all(server.policy.decode_first for server in servers),
                slots_bind=any(_slots_bind(server) for server in servers),
                order=pool.order.name if named and by_arrival else f"order {name}",
                ranking=None
                if priorities is None
                else tuple(network.stages[stage] for stage in priorities),
                router=_router(pool.router),
                affinity=pool.affinity,
                of_job=tuple(full for full, stage in stages if _of_job(stage)),
                delays_vary=any(
                    isinstance(s.delay_ms, Length) or s.transfer_ms_per_token > 0 for _, s in stages
                ),
                checked=pool.order.fills or all(each.checked for each in conserves),
                ample_memory=ample_memory(network, name),
                by_tokens=all(server.batch_time.by_load for server in servers),
                links_bind=handed_over(network, name)[2],
                wasted_is_known=name not in unknown,
            )
        )
    return tuple(rules)


def _of_each(known: Set[bool | None]) -> bool | None:
    """Return whether something holds of all kinds of servers; None: not known of some."""
    if False in known:
        return False
    return None if None in known else True


def _slots_bind(server: Server) -> bool:
    limit = server.max_batch_size
    return limit is not None and limit < server.filling_requests


def _router(router: Router) -> str:
    """Return the name by which theorems know a router; another one where it is the user's own."""
    namesake = ROUTERS.get(router.name)
    if router.function is None or (namesake and namesake.function is router.function):
        return router.name
    return f"of the user's own, {router.name}"


def workflow_hypotheses(network: Network) -> tuple[Hypothesis, ...]:
    """Return what every theorem asks of the workflows, each hypothesis for all of them."""
    renewals, drawn, bounded = [], [], []
    for workflow in network.workflows:
        process = (
            workflow.arrivals if isinstance(workflow, Sessions) else workflow.arrivals.arrivals
        )
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


def _of_all(name: str, failed: list[str], held: str) -> Hypothesis:
    return Hypothesis(name, not failed, "; ".join(failed) or held)


def pool_hypotheses(
    model: NetworkModel,
    stages: FluidClasses,
    sets: list[tuple[int, ...]],  # cut at strongly connected components
    rules: Sequence[PoolRules],  # shape (pools,)
) -> tuple[Hypothesis, ...]:
    """Return what every theorem asks of the pools, each hypothesis for all of them."""
    cyclic = {s for stations in sets if len(stations) > 1 for s in stations}
    # Those without a token, too.
    visited = np.bincount(model.pool[model.visits > 0], minlength=len(model.pools))
    most_offered = model.offered + STANDARD_ERRORS * model.standard_error
    comes_back = stages.leads.diagonal()

    def fills(s: int) -> str | None:
        return _not_filled(rules[s])

    def slots(s: int) -> str | None:
        return (
            "it is below the token budget, so it can keep batches from filling"
            if rules[s].slots_bind
            else None
        )

    def carried(s: int) -> str | None:
        return _not_carried(model, s, most_offered[s], rules[s].router)

    def routed(s: int) -> str | None:
        if model.replicas[s] == 1:
            return None
        return _not_routed(
            rules[s], int(visited[s]), bool(comes_back[s]), s in cyclic, model.sampled is not None
        )

    hypotheses = [
        _everywhere(
            model,
            "work-conserving policy at every pool",
            fills,
            "batches are filled whenever what waits allows",
        ),
        _everywhere(
            model, "max batch size never binds", slots, "there is none below the token budget"
        ),
        _everywhere(model, CARRIED, carried, "each has less than its full batches can process"),
    ]
    if any(rates is not None for rates in model.unequal):

        def known(s: int) -> str | None:
            return _not_known(model, s, rules[s], s in cyclic)

        held = "by the shares that their routers send to each set of them"
        hypotheses.append(_everywhere(model, UNEQUAL, known, held))
    hypotheses += _of_engines(model, rules)
    if any(rule.work_conserving and not rule.checked for rule in rules):
        reason = hypotheses[0].why + ", as the author of one claims"
        hypotheses[0] = dataclasses.replace(hypotheses[0], checked=False, why=reason)
    if (model.replicas > 1).any():
        held = "their routers keep requests from busy ones, or share them out"
        hypotheses.append(_everywhere(model, ROUTED, routed, held))
    return tuple(hypotheses)


def _of_engines(model: NetworkModel, rules: Sequence[PoolRules]) -> list[Hypothesis]:
    """Return what is asked of KV memory, batch times and links, where pools have such."""
    hypotheses = []
    memories = [rule.ample_memory for rule in rules]
    if any(memory is not None for memory in memories):

        def ample(s: int) -> str | None:
            memory = memories[s]
            return None if memory is None or memory.held else memory.why

        held = "all requests that may run at once fit"
        hypotheses.append(_everywhere(model, conditions.AMPLE, ample, held))
    if not all(rule.by_tokens for rule in rules):
        why = "attention takes time besides, which the theorems on networks do not know"
        hypotheses.append(
            _everywhere(model, BY_TOKENS, lambda s: None if rules[s].by_tokens else why, "")
        )
    if not all(rule.wasted_is_known for rule in rules):
        why = (
            "it composes batches a step ahead, and requests may end before the outputs that they "
            "declare, which costs each a token at most"
        )
        hypotheses.append(
            _everywhere(model, FORESEEN, lambda s: None if rules[s].wasted_is_known else why, "")
        )
    if any(rule.links_bind for rule in rules):
        why = "a link carries one transfer at a time, which the theorems on networks do not know"
        hypotheses.append(
            _everywhere(model, LINKS_FREE, lambda s: why if rules[s].links_bind else None, "")
        )
    return hypotheses


def _everywhere(
    model: NetworkModel, name: str, fails: Callable[[int], str | None], held: str
) -> Hypothesis:
    """Put the pools at which a hypothesis fails into one."""
    failed = [f"{pool}: {reason}" for s, pool in enumerate(model.pools) if (reason := fails(s))]
    return _of_all(name, failed, held)


def _not_filled(rules: PoolRules) -> str | None:
    """Return why batches may not be filled, or None if they are whenever what waits allows."""
    if rules.work_conserving:
        return None
    if rules.work_conserving is None:
        return (
            f"nothing is known of {rules.policy}; if it is, say so with "
            "@policy(work_conserving=True)"
        )
    return f"{rules.policy} leaves room in batches while requests wait"


def _not_carried(model: NetworkModel, pool: int, most_offered: float, router: str) -> str | None:
    """Return why full batches of a pool may not carry what is offered, or None if they do."""
    if most_offered < model.full_batch[pool] * (1 - CRITICAL_BAND):
        rates = model.replica_rates(pool)
        loads = None if rates is None else of_rates(most_offered, rates, router)
        if loads is None or loads.sufficient is None or loads.sufficient < 1 - CRITICAL_BAND:
            return None
        return (
            f"{router} sends some replicas {loads.sufficient:.3f} times what their full batches "
            f"carry: {loads.why}; take jsq, or shares by capacity"
        )
    better = (
        ""
        if model.capacity[pool] <= model.full_batch[pool] * (1 + CRITICAL_BAND)
        else "; smaller ones carry more"
    )
    return (
        f"{model.offered[pool]:,.0f} tokens/s arrive, full batches carry "
        f"{model.full_batch[pool]:,.0f}{better}"
    )


def _not_known(model: NetworkModel, pool: int, rules: PoolRules, cyclic: bool) -> str | None:
    """Return why it is not known what replicas that differ get, or None."""
    rates = model.replica_rates(pool)
    if rates is None:
        return None
    if cyclic:
        return "in a cycle of pools nothing is shown of replicas that differ"
    loads = of_rates(0.0, rates, rules.router)
    return None if loads.sufficient is not None else f"{loads.why}; take jsq"


def _not_routed(
    rules: PoolRules, stages: int, comes_back: bool, cyclic: bool, sampled: bool
) -> str | None:
    """Return why several replicas may not drain as one server would; None: they do."""
    # Requests that come back to random replicas that are alike do no harm: a generalised Jackson
    # network.
    if rules.router in SHORTEST:
        if cyclic and rules.affinity:
            return "affinity sends requests back to busy replicas in a cycle of pools"
        return None
    if cyclic:
        return f"{rules.router} may send requests to busy replicas, in a cycle of pools; take jsq"
    if rules.router == "random":
        if comes_back and not rules.affinity and (stages > 1 or sampled or rules.of_job):
            return (
                "random sends requests that come back to other replicas, which makes a cycle of "
                "them; take jsq"
            )
        return None
    if rules.router == "round-robin":
        if stages > 1 or comes_back:
            return (
                "round-robin need not give each replica its share of every stage; take jsq or "
                "random"
            )
        if sampled or rules.of_job:
            return (
                "round-robin may give one replica all the long requests, since their lengths "
                "depend; take jsq"
            )
        return None
    if rules.router in OF_TWO:
        if comes_back or rules.affinity:
            return f"{rules.router} may send requests that come back to busy replicas; take jsq"
        return None
    return f"nothing is known of the router {rules.router}; take jsq"
