"""What is asked of a network in vain: routers that look for what their pool never has,
and stages that only decode where nothing was prefilled.
"""

from penstock.errors import InputError
from penstock.system import router_functions
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.system.routing import Router
from penstock.system.server import Server
from penstock.workload.sessions import Sessions
from penstock.workload.stage import released
from penstock.workload.workflow import Workflow


def refuse_in_vain(network: Network) -> None:
    """Raise an `InputError` for the first pool or stage that cannot do what it is for."""
    for name, pool in network.pools.items():
        if pool.replicas > 1:  # else no router is asked
            _check_router(network, name, pool)
    for workflow in network.workflows:
        if isinstance(workflow, Workflow):
            _check_decodes(network, workflow)


def _check_router(network: Network, name: str, pool: Pool) -> None:
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
    if router.function is router_functions.session and _most_of_a_job(network, name) <= 1:
        raise InputError(
            f"{what} sends later requests of a job where its first one went, but no job "
            "has more than one here; take jsq"
        )


def _looks_for_prompts(router: Router) -> bool:
    """Whether a named router goes by what replicas have computed of a prompt."""
    if router.function is router_functions.scored:
        return dict(router.settings)["cached"] > 0
    return router.function is router_functions.prefix


def _finds(network: Network, name: str, pool: Pool) -> bool:
    """Whether replicas may have computed the beginning of a prompt that comes to a pool."""
    caches = any(server.by_lines or _caches(server) for server, _ in pool.servers)
    return caches and any(
        _recurs(workflow)
        for workflow in network.workflows
        if name in {stage.pool for stage in workflow.stages.values()}
    )


def _caches(server: Server) -> bool:
    return server.memory is not None and server.memory.prefix_caching


def _recurs(workflow: Workflow | Sessions) -> bool:
    """Whether prompts of a workflow begin as earlier ones do."""
    if isinstance(workflow, Sessions):
        return bool(workflow.recorded.reuse.any())
    return workflow.context == "reuse" or workflow.arrivals.prefixes is not None


def _why_nothing(pool: Pool) -> str:
    """Say what is missing for replicas to find prompts computed."""
    if not any(server.by_lines or _caches(server) for server, _ in pool.servers):
        return "no server caches prefixes; give them `memory: {prefix_caching: true}`"
    return (
        "no workflow has prompts in common; give one `context: reuse`, sessions, or a trace with "
        "hash ids"
    )


def _most_of_a_job(network: Network, name: str) -> float:
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


def _check_decodes(network: Network, workflow: Workflow) -> None:
    """Refuse stages that only decode, at an engine, where no prefill of another pool comes
    before.
    """
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
                f"stage '{workflow.name}.{name}' only decodes (its prompt is 0) "
                f"at pool {stage.pool!r}, but goes on with KV memory that no prefill of another "
                "pool sends it; give it a prompt, or let stages with a prompt at another pool go "
                "before it"
            )
