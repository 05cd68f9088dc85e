"""What an answer owes to KV memory that nobody gave: the tokens at which the verdict of an engine
would turn.
"""

import dataclasses
import math

from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.system.memory import Memory
from penstock.system.server import Server
from penstock.theory.kv_blocks import drawn
from penstock.workload.workload import Workload

# of these tests: nearer to the limit the tokens matter less than what is not known of them
_RESOLUTION = 0.05
_COARSE = 4.0  # from one size to the next, until the verdict turns
_CLOSE = 1.25  # of the two sizes between which it turns


def kv_notes(
    workload: Workload, server: Server, outcome: str, *, search: bool = True
) -> tuple[str, ...]:
    """Return what to know of the KV memory before the verdict on a server is read, in a sentence or
    none.

    Parameters
    ----------
    workload, server
        What arrives and what serves.
    outcome
        The verdict of the test.
    search
        Whether to say at how many tokens it would turn: up to a dozen more tests.
    """
    if server.kv_note is None:
        return ()
    note = server.kv_note
    if search and server.kv_estimate is not None:
        note += _between(workload, server, outcome)
    elif search and outcome == "stable":
        note += _below(workload, server)
    return (f"{note}.",)


def _between(workload: Workload, server: Server, outcome: str) -> str:
    """Say whether the verdict is the same at both ends of an estimate."""
    estimate = server.kv_estimate
    assert estimate is not None
    ends = {"stable": estimate.low, "unstable": estimate.high}
    if outcome not in ends:
        return ""
    there = _verdict(workload, server, ends[outcome])
    if there == outcome:
        return f". The verdict below ({outcome}) is the same at {ends[outcome]:,} tokens"
    return (
        f". The verdict below ({outcome}) is {there} at {ends[outcome]:,} tokens, so measure that "
        "number first"
    )


def _below(workload: Workload, server: Server) -> str:
    """Say between which sizes a verdict of stable turns, by simulation."""
    prompt, output = drawn(workload.lengths)
    slots = min(server.max_batch_size or server.token_budget, server.token_budget)
    stable = math.inf
    tokens = slots * float((prompt + output).mean())
    unstable = 1.0
    while stable / unstable > _CLOSE:
        if _verdict(workload, server, int(tokens)) == "stable":
            stable = tokens
        else:
            unstable = tokens
        if math.isinf(stable):
            return ""
        tokens = stable / _COARSE if unstable == 1.0 else math.sqrt(stable * unstable)
        if tokens < server.policy.block_size:
            break
    if unstable == 1.0:
        return f"; with {stable:,.0f} tokens it is stable too"
    return f"; with {stable:,.0f} tokens the verdict is stable too, with {unstable:,.0f} it is not"


def _verdict(workload: Workload, server: Server, tokens: int) -> str:
    """Return the verdict with so many KV tokens; ``unstable`` where a request never fits."""
    size = server.policy.block_size if server.memory is None else server.memory.block_size
    if tokens < size:
        return "unstable"
    memory = Memory.of_tokens(tokens, size)
    if server.memory is not None:
        memory = dataclasses.replace(server.memory, blocks=memory.blocks)
    try:
        limited = dataclasses.replace(server, memory=memory, gpu=None)
        return verdict(workload, limited, resolution=_RESOLUTION, seed=workload.seed).verdict
    except InputError:
        return "unstable"
