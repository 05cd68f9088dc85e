"""Whether the KV memory of a pool surely holds all that may run there at once."""

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.system.network import Network
from penstock.system.server import Server
from penstock.theory import hypotheses as conditions
from penstock.theory.hypotheses import Hypothesis
from penstock.theory.kv_blocks import fits
from penstock.theory.network.unforeseen_ends import declares
from penstock.theory.unforeseen import with_wasted


def ample_memory(network: Network, name: str) -> Hypothesis | None:
    """Return whether the longest requests of a pool fit its memory at once.

    It is said of the kind of server where they do not. None: no kind has a limit.
    """
    most = [
        (means.max_prompt[place], means.max_output[place])
        for workflow in network.workflows
        for means in (workflow.means(),)
        for place, stage in enumerate(workflow.stages.values())
        if stage.pool == name
    ]
    prompt, output = np.array(most).T
    longest = None
    if np.isfinite(prompt).all() and np.isfinite(output).all():
        longest = prompt.astype(np.int64), np.maximum(output, 1).astype(np.int64)
    gets, sends, _ = handed_over(network, name)
    why = "requests hold memory while theirs is sent to another pool" if sends else ""
    why = "requests hold memory while theirs comes from another pool" if gets else why
    reused = bool(network.reuse_depends[list(network.pools).index(name)])
    looked_at = [
        Hypothesis(conditions.AMPLE, False, why or _never_fits(server, longest))
        if why or _never_fits(server, longest)
        else conditions.kv_memory(
            server,
            with_wasted(longest, server, declares=any(map(declares, network.workflows))),
            reused=reused and server.caches_prefixes,
        )
        for server, _ in network.pools[name].servers
        if server.memory is not None
    ]
    return min(looked_at, key=lambda hypothesis: hypothesis.held, default=None)


def _never_fits(server: Server, longest: tuple[Ints, Ints] | None) -> str:
    """Say that a request may come which no max batch size lets in; empty: none may."""
    # One server drops it. In a network it is part of a job, so it waits, and so do those behind.
    if longest is None or fits(*longest, server).all():
        return ""
    prompt, output = (int(tokens[~fits(*longest, server)][0]) for tokens in longest)
    return (
        f"a prompt of {prompt:,} tokens with an output of {output:,} never fits, and would block a "
        "replica for ever; raise the limit, or cut the lengths"
    )


def handed_over(network: Network, name: str) -> tuple[bool, bool, bool]:
    """Return whether KV memory comes to a pool, leaves it, and whether links take time for it."""
    pool = list(network.pools).index(name)
    stages = [stage for workflow in network.workflows for stage in workflow.stages.values()]
    gets = sends = takes_time = False
    for stage, here, senders in zip(stages, network.stage_pool, network.senders, strict=True):
        gets_here = bool(senders) and here == pool
        sends_here = pool in network.stage_pool[list(senders)]
        gets, sends = gets or gets_here, sends or sends_here
        takes_time |= (gets_here or sends_here) and stage.transfer_ms_per_token > 0
    return gets, sends, takes_time
