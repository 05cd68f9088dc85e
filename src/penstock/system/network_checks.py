"""What no network can be made of, and what is asked of one in vain: routers and affinity that look
for what their pool never has, contexts kept for a time where none are, and stages that only decode
where nothing was prefilled.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.system import router_functions
from penstock.system.pool import Pool
from penstock.system.routing import Router
from penstock.workload.sessions import Sessions
from penstock.workload.stage import released
from penstock.workload.workflow import Workflow

if TYPE_CHECKING:
    from penstock.system.network import Network


def checked_pools(pools: Any) -> dict[str, Pool]:
    """Return the pools of a network by name, if they are such."""
    if not isinstance(pools, Mapping) or not pools:
        raise InputError(
            f"pools are {checks.shown(pools)}, so nothing serves; give at least one, by name"
        )
    for name, pool in pools.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a pool is called {checks.shown(name)}; give it a name, as text")
        if not isinstance(pool, Pool):
            raise InputError(
                f"pool {name!r} is {checks.shown(pool)}; give a Pool, as Pool(server, replicas=2)"
            )
    return dict(pools)


def checked_workflows(workflows: Any) -> tuple[Workflow | Sessions, ...]:
    """Return the workflows of a network, if they are such, each with a name of its own."""
    if isinstance(workflows, str | Mapping) or not isinstance(workflows, Sequence) or not workflows:
        raise InputError(
            f"workflows are {checks.shown(workflows)}, so nothing arrives; give a list of at "
            "least one"
        )
    for workflow in workflows:
        if not isinstance(workflow, Workflow | Sessions):
            raise InputError(
                f"a workflow is {checks.shown(workflow)}; give a Workflow, or what read_sessions "
                "returns"
            )
    names = [workflow.name for workflow in workflows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"two workflows are called {twice!r}, so which is meant is unclear; rename one of them"
        )
    return tuple(workflows)


def refuse_unserved_stages(network: "Network") -> None:
    """Refuse stages at pools that there are not, and pools without a stage."""
    for name, pool in network.pool_of_stage.items():
        if pool not in network.pools:
            raise InputError(
                f"stage {name!r} is served by pool {checks.shown(pool)}, which there is not"
                f"{nearest(str(pool), network.pools)}"
            )
    for pool in network.pools:
        if pool not in network.pool_of_stage.values():
            raise InputError(
                f"pool {pool!r} serves no stage, so it would stand idle; send it a stage or drop it"
            )


def refuse_in_vain(network: "Network") -> None:
    """Raise an `InputError` for the first pool that cannot do what it is for."""
    # Such a network runs, as one may want in Python: a router that looks for what nobody has is
    # another one. A scenario, a plan or a comparison that names it is mistaken.
    for name, pool in network.pools.items():
        if pool.replicas > 1:  # else no router is asked
            _check_router(network, name, pool)
            _check_settings(name, pool.router)
    _check_retention(network)


def refuse_unfed_decodes(network: "Network") -> None:
    """Refuse the first stage that would wait at an engine for KV memory that nobody sends."""
    # It only decodes, and no prefill of another pool comes before.
    for workflow in network.workflows:
        if isinstance(workflow, Workflow):
            _check_decodes(network, workflow)


def _check_router(network: "Network", name: str, pool: Pool) -> None:
    """Refuse a named router that would decide by what is the same at all replicas, always."""
    router, what = pool.router, f"router {pool.router.name} of pool {name!r}"
    if _looks_for_prompts(router) and not _finds(network, name, pool):
        scores = router.function is router_functions.scored
        remedy = "set its `cached` to 0" if scores else "take jsq"
        raise InputError(
            f"{what} looks for prompts that replicas have computed, but they never have "
            f"any: {_why_nothing(pool)}; or {remedy}"
        )
    unlimited = all(server.memory is None for server, _ in pool.servers)
    if router.function is router_functions.memory and unlimited:
        raise InputError(
            f"{what} looks at KV memory, but that of its servers has no limit, so all seem "
            "equally empty; give them `memory`, or take jsq"
        )
    keeps = router.function is router_functions.session
    if (keeps or pool.affinity) and _most_of_a_job(network, name) <= 1:
        who = f"{what} sends" if keeps else f"affinity of pool {name!r} sends"
        remedy = "take jsq" if keeps else "leave it out"
        raise InputError(
            f"{who} later requests of a job where its first one went, but no job "
            f"has more than one here; {remedy}"
        )


def _check_settings(name: str, router: Router) -> None:
    """Refuse settings with which a named router never does what its name says."""
    settings = dict(router.settings)
    what = f"router {router.name} of pool {name!r}"
    if router.function is router_functions.prefix and settings["match"] >= 1:
        raise InputError(
            f"{what} looks for replicas that have computed a share of {settings['match']:g} of a "
            "prompt, but none has all of one (the last token is always computed), so it would "
            "never find any; give a match below 1"
        )
    if router.function is router_functions.scored and not any(settings.values()):
        raise InputError(
            f"{what} weighs nothing ({', '.join(settings)} are 0), so all requests would go to the "
            "first replica; give one of them above 0"
        )


def _check_retention(network: "Network") -> None:
    """Refuse to limit how long contexts are kept where only KV memory does."""
    if network.retention_s is None:
        return
    reusing = [workflow for workflow in network.workflows if workflow.reuses]
    visited = {stage.pool for workflow in reusing for stage in workflow.stages.values()}
    if not any(network.pools[pool].server.by_lines for pool in visited):
        raise InputError(
            f"retention_s is {network.retention_s:g}, but contexts are reused at engines only, "
            "which keep them for as long as their KV memory has room, so it would change nothing; "
            "leave it out"
        )


def _looks_for_prompts(router: Router) -> bool:
    """Whether a named router goes by what replicas have computed of a prompt."""
    if router.function is router_functions.scored:
        return dict(router.settings)["cached"] > 0
    return router.function is router_functions.prefix


def _finds(network: "Network", name: str, pool: Pool) -> bool:
    """Whether replicas may have computed the beginning of a prompt that comes to a pool."""
    caches = any(server.by_lines or server.caches_prefixes for server, _ in pool.servers)
    return caches and any(
        workflow.reuses or workflow.prefixes is not None
        for workflow in network.workflows
        if name in {stage.pool for stage in workflow.stages.values()}
    )


def _why_nothing(pool: Pool) -> str:
    """Say what is missing for replicas to find prompts computed."""
    if not any(server.by_lines or server.caches_prefixes for server, _ in pool.servers):
        return "no server caches prefixes; give them `memory: {prefix_caching: true}`"
    return (
        "no workflow has prompts in common; give one `context: reuse`, sessions, or a trace with "
        "hash ids"
    )


def _most_of_a_job(network: "Network", name: str) -> float:
    """Return the most requests of a job that come to a pool."""
    most = 0.0
    for workflow in network.workflows:
        if isinstance(workflow, Sessions):
            visits = [workflow.recorded.requests / max(workflow.recorded.count, 1)]
        else:
            visits = workflow.most_requests.tolist()
        here = [stage.pool == name for stage in workflow.stages.values()]
        most = max(most, sum(v for v, mine in zip(visits, here, strict=True) if mine))
    return most


def _check_decodes(network: "Network", workflow: Workflow) -> None:
    """Refuse stages that only decode, at an engine, with no prefill of another pool before."""
    for name, stage in workflow.stages.items():
        if stage.prompt != 0 or stage.output == 0 or network.pools[stage.pool].server.by_lines:
            continue
        before = [
            each
            for each in workflow.stages.values()
            if name in {target for target, _ in released(each)}
        ]
        feeds = [each for each in before if each.prompt != 0 and each.pool != stage.pool]
        if name in workflow.begins or stage.join or len(feeds) < len(before):
            raise InputError(
                f"stage '{workflow.name}.{name}' only decodes (its prompt is 0) at pool "
                f"{stage.pool!r}, but goes on with KV memory that no prefill of another pool sends "
                "it; give it a prompt, or let stages with a prompt at another pool go before it"
            )
