"""Ends that nobody foresees: what a batch composed a step ahead does for requests that are done.

Where a batch is composed when the one before it starts, a request that ends before the outputs that
it declares (`Workload.declared`) is in one more batch, for a token that nobody needs. A server that
fills its batches serves each such request exactly once more: decodes come first, and as a batch has
no more requests than tokens, all those that were in the one before are in the next, too. Memory
that runs out may throw some out before, and a server that leaves room in its batches may have left
them out, so there the least is none; the most is one token in any case without drafts, which no
theorem calls stable.

Such a token is work as a decode is: in the proofs of Theorem 1 a request brings it besides its own.
"""

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.server import Server
from penstock.theory.kv_blocks import Longest, Served, at_once, largest, reuses
from penstock.theory.moments import mean_of
from penstock.workload.lengths import Empirical, Independent, Length, Lengths, Tokens
from penstock.workload.workload import Workload

Share = tuple[float, float]
"""The least and the most that a share may be."""

NONE: Share = (0.0, 0.0)
_ANY: Share = (0.0, 1.0)


def wasted(workload: Workload, server: Server, work: Served) -> Share:
    """Return least and most mean tokens that a served request costs after its end."""
    if workload.declared is None or not server.policy.batching.ahead:
        return NONE
    low, high = share(work.lengths, workload.declared)
    if not wastes_each(server, work.lengths):
        return 0.0, high
    if server.memory is not None:  # which may throw some out, unless all fit that run at once
        running = at_once(server, with_wasted(largest(work.lengths), server, declares=True))
        if reuses(workload, server) or running is None or not running.fits:
            return 0.0, high
    return low, high


def with_wasted(longest: Longest | None, server: Server, *, declares: bool) -> Longest | None:
    """Return the longest requests as they hold memory: with a token more, where one is wasted."""
    if longest is None or not (declares and server.policy.batching.ahead):
        return longest
    return longest[0], longest[1] + 1


def wastes_each(server: Server, lengths: Lengths) -> bool:
    """Return whether every unforeseen end surely costs a token more, with ample memory."""
    context, longest = server.policy.memory.longest_context, largest(lengths)
    cut = context > 0 and (longest is None or bool((longest[0] + longest[1] >= context).any()))
    return (
        server.policy.batching.ahead and server.policy.batching.work_conserving is True and not cut
    )


def share(lengths: Lengths, declared: Tokens | Length) -> Share:
    """Return bounds of the share of the requests that declare more than they make."""
    if not isinstance(declared, Length):
        if isinstance(lengths, Empirical) and lengths.output_tokens.size == declared.size:
            declaring = float(np.mean(declared > lengths.output_tokens))
            return declaring, declaring
        return _ANY
    if declared.reaches(np.ones(1)) is None:
        return _ANY
    if isinstance(lengths, Empirical):
        declaring = float(_beyond(declared, lengths.output_tokens.astype(np.float64)).mean())
        return declaring, declaring
    if not isinstance(lengths, Independent):
        return _ANY
    means = mean_of(lambda output: _beyond(declared, output), lengths.output)
    if means is None:
        return _ANY
    return max(min(means), 0.0), min(max(means), 1.0)


def _beyond(declared: Length, output: Floats) -> Floats:
    """Return the chance that more is declared than an output; shape (n,)."""
    chance = declared.reaches(output + 1.0)
    assert chance is not None
    return chance
