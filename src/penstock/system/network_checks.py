"""What is asked of a network in vain: routers and affinity that look for what their pool never has,
and contexts kept for a time where none are.
"""

from typing import TYPE_CHECKING

from penstock.errors import InputError
from penstock.system.pool import Pool
from penstock.workload.sessions import Sessions

if TYPE_CHECKING:
    from penstock.system.network import Network


def refuse_in_vain(network: "Network") -> None:
    """Raise an `InputError` for the first pool that cannot do what it is for."""
    # Such a network runs, as one may want in Python: a router that looks for what nobody has is
    # another one. A scenario, a plan or a comparison that names it is mistaken.
    for name, pool in network.pools.items():
        if pool.replicas > 1:  # else no router is asked
            _check_router(network, name, pool)
    _check_retention(network)


def _check_router(network: "Network", name: str, pool: Pool) -> None:
    """Refuse a named router that would decide by what is the same at all replicas, always."""
    router, what = pool.router, f"router {pool.router.name} of pool {name!r}"
    settings = dict(router.settings)
    weighs = "cached" in settings  # prompts beside other things
    if weighs and not any(settings.values()):
        raise InputError(
            f"{what} weighs nothing ({', '.join(settings)} are 0), so all requests would go to the "
            "first replica; give one of them above 0"
        )
    if router.seeks == "prompts" and settings.get("match", 0) >= 1:
        raise InputError(
            f"{what} looks for replicas that have computed a share of {settings['match']:g} of a "
            "prompt, but none has all of one (the last token is always computed), so it would "
            "never find any; give a match below 1"
        )
    seeks_prompts = router.seeks == "prompts" and settings.get("cached", 1) > 0
    if seeks_prompts and not _finds(network, name, pool):
        remedy = "set its `cached` to 0" if weighs else "take jsq"
        raise InputError(
            f"{what} looks for prompts that replicas have computed, but they never have "
            f"any: {_why_nothing(pool)}; or {remedy}"
        )
    if router.seeks == "memory" and all(server.memory is None for server, _ in pool.servers):
        raise InputError(
            f"{what} looks at KV memory, but that of its servers has no limit, so all seem "
            "equally empty; give them `memory`, or take jsq"
        )
    keeps = router.seeks == "calls"
    if (keeps or pool.affinity) and _most_of_a_job(network, name) <= 1:
        who = f"{what} sends" if keeps else f"affinity of pool {name!r} sends"
        remedy = "take jsq" if keeps else "leave it out"
        raise InputError(
            f"{who} later requests of a job where its first one went, but no job "
            f"has more than one here; {remedy}"
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


def _finds(network: "Network", name: str, pool: Pool) -> bool:
    """Whether replicas may have computed the beginning of a prompt that comes to a pool."""
    caches = any(server.by_lines or server.caches_prefixes for server, _ in pool.servers)
    return caches and any(
        workflow.reuses or workflow.prefixes is not None for workflow in network.visitors(name)
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
