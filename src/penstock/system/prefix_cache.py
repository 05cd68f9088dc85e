"""Where a workload says what its prompts have in common: which servers cache that, by which names,
and what to tell where none does.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import InputError
from penstock.system.server import Server
from penstock.workload.prefixes import Prefixes
from penstock.workload.workload import IDS_LEFT_OUT, Workload

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.system.pool import Pool

HASH_IDS = "hash ids of the trace"


def as_serving(workload: Workload, server: Server) -> Server:
    """Return the server with the prefix cache that its engine has for such a workload."""
    return server.serving(workload.prefixes is not None)


def names_for(prefixes: Prefixes, servers: Iterable[Server]) -> Prefixes:
    """Return the names of blocks by which these servers look for what they have cached."""
    caching = [(s.memory.block_size, s) for s in servers if s.memory and s.caches_prefixes]
    sizes = {size for size, server in caching if not server.policy.memory.caches_in_tree}
    pages = {size for size, server in caching if server.policy.memory.caches_in_tree}
    size = min(sizes, default=prefixes.block_size)
    if not sizes and not _divides(size, pages):
        size = min(pages)
    if len(sizes) > 1 or not _divides(size, pages):
        several = " and ".join(f"{tokens:,}" for tokens in sorted(sizes | pages))
        raise InputError(
            f"prefixes are cached in blocks of {several} tokens, but hash ids name blocks of one "
            "size; give all servers that block_size, or set prefix_caching to false"
        )
    return prefixes.in_blocks(size)


def _divides(size: int, pages: set[int]) -> bool:
    """Whether each page holds whole blocks, or each block whole pages."""
    return all(max(size, page) % min(size, page) == 0 for page in pages)


def cache_notes(workload: Workload, server: Server) -> list[str]:
    """Say what of prompts in common is known to the trace and not to the server; a note or none."""
    if IDS_LEFT_OUT in workload.notices and server.serving(True).caches_prefixes:
        return [f"{IDS_LEFT_OUT}, so the prefix cache of {server.policy.name} finds nothing here."]
    if workload.prefixes is None or as_serving(workload, server).why_no_cache is None:
        return []
    return [_ignored(HASH_IDS, server)]


def front_notes(workload: Workload, server: Server) -> list[str]:
    """Return what to know before an answer is read: of a recording, the prefix cache, KV memory."""
    doubts = doubts_of(workload, server)
    return [*doubts, *cache_notes(workload, server), *server.kv_notes]


def doubts_of(workload: Workload, server: Server) -> list[str]:
    """Return what to doubt of what was recorded and of what was measured."""
    return [*workload.front, *server.time_doubts]


def unsaid(warnings: Iterable[str], front: Sequence[str]) -> list[str]:
    """Return the warnings that no note in front says already."""
    return [warning for warning in warnings if not any(warning in note for note in front)]


def network_notes(network: "Network") -> list[str]:
    """Say what to know of recorded jobs, and at which pools of a network that is so."""
    notes = network_doubts(network)
    for name, pool in network.pools.items():
        known = _in_common(network, name, pool)
        for server, _ in pool.servers:
            if known and server.why_no_cache is not None:
                notes.append(f"Pool {name}: {_ignored(known, server)}")
    return list(dict.fromkeys(notes))


def network_doubts(network: "Network") -> list[str]:
    """Return what to doubt of recorded jobs, and of the batch times of pools."""
    jobs = [doubt for workflow in network.workflows for doubt in workflow.front]
    servers = [server for pool in network.pools.values() for server, _ in pool.servers]
    return list(dict.fromkeys([*jobs, *(doubt for s in servers for doubt in s.time_doubts)]))


def _in_common(network: "Network", name: str, pool: "Pool") -> str:
    """Say by what it is known what a pool's prompts have in common; empty: by nothing."""
    # Jobs go on with the context, which policies of the paper count as it is asked for.
    visitors = network.visitors(name)
    if not pool.server.by_lines and any(workflow.goes_on for workflow in visitors):
        return "context of a job"
    return HASH_IDS if any(workflow.prefixes is not None for workflow in visitors) else ""


def _ignored(what: str, server: Server) -> str:
    """Say that what prompts have in common is not made use of, and what to do about it."""
    return f"The {what} is known and not made use of: {server.why_no_cache}."
