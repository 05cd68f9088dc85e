"""KV blocks that requests hold: the most, the least over all their iterations, and which requests
can never fit.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Floats, Ints
from penstock.inputs.caching import cached
from penstock.system.memory import Memory
from penstock.system.server import Server
from penstock.workload.lengths import (
    Constant,
    Empirical,
    Geometric,
    Independent,
    Lengths,
    Recorded,
    pair_of,
)
from penstock.workload.workload import Workload

Longest = tuple[Ints, Ints]
"""(prompt, output) tokens of requests of which one is largest; shape (requests,) each."""

STANDARD_ERRORS = 4.0
"""What is sampled may be wrong by so many."""

SAMPLE = 2**17
"""Requests drawn where a mean has no closed form."""


@dataclasses.dataclass(frozen=True)
class Served:
    """The requests that a server serves."""

    lengths: Lengths
    share: float = 1.0  # of the requests that is served; the others never fit and are dropped
    sampled: bool = False  # as a sample of the lengths says
    cut: bool = False  # outputs are cut to the longest context, in a sample of the lengths


class AtOnce(NamedTuple):
    """Requests that may run at once, most blocks of each, blocks that stay free, blocks in all."""

    requests: int
    blocks: int
    free: int
    usable: int

    @property
    def fits(self) -> bool:
        """Whether there is room for all, however long they are."""
        return self.requests * self.blocks + self.free <= self.usable

    @property
    def fitting(self) -> int:
        """How many surely fit."""
        return (self.usable - self.free) // self.blocks


def served(workload: Workload, server: Server) -> Served:
    """Return what a server serves of a workload: all, unless memory drops what never fits."""
    lengths, memory = _cut(workload.lengths, server), server.memory
    cut = isinstance(lengths, Empirical) and not isinstance(workload.lengths, Empirical)
    everyone = Served(lengths, cut=cut)
    if memory is None or memory.too_long == "error":
        _refuse_what_never_fits(lengths, server)
        return everyone
    longest = largest(lengths)
    if longest is not None and fits(*longest, server).all():
        return everyone
    prompt, output = drawn(lengths)
    fitting = fits(prompt, output, server)
    if fitting.all():
        return everyone
    if not fitting.any():
        raise InputError(
            f"every request of {workload.name} is too long for the server, so all are dropped; "
            "raise its memory, or its token budget where the policy does not cut prompts"
        )
    return Served(
        _rows(lengths, prompt[fitting], output[fitting]),
        float(fitting.mean()),
        sampled=cut or not isinstance(lengths, Empirical),
        cut=cut,
    )


def _cut(lengths: Lengths, server: Server) -> Lengths:
    """Return lengths cut to the server's longest context: a sample's, unless all are alike."""
    context = server.policy.memory.longest_context
    longest = largest(lengths)
    if context == 0 or (longest is not None and (longest[0] + longest[1] <= context).all()):
        return lengths
    if longest is not None and _alike(lengths):
        left = server.policy.outputs_of(*longest)
        return Independent(Constant(int(longest[0][0])), Constant(int(left[0])))
    prompt, output = drawn(lengths)
    return _rows(lengths, prompt, server.policy.outputs_of(prompt, output))


def _rows(lengths: Lengths, prompt: Ints, output: Ints) -> Empirical:
    """Return rows that come in order if those of the lengths do."""
    if isinstance(lengths, Recorded):
        return Recorded(prompt, output)
    return Empirical(prompt, output)


def _alike(lengths: Lengths) -> bool:
    """Return whether all requests are of one length, drawn and not recorded."""
    alike = (lengths.min_prompt, lengths.min_output) == (lengths.max_prompt, lengths.max_output)
    return alike and not isinstance(lengths, Empirical)


def least(work: Served, workload: Workload, server: Server) -> Served:
    """Return the least that the requests that a server serves ask of it."""
    # Where prompts may begin alike (see `reuses`), a token of each is computed in any case.
    if not reuses(workload, server) or not isinstance(work.lengths, Empirical):
        return work
    output = work.lengths.output_tokens
    return dataclasses.replace(work, lengths=Recorded(np.ones_like(output), output))


def least_on_average(work: Served, workload: Workload, server: Server) -> Served:
    """Return lengths with the means of the least that is asked of a server, and no longest."""
    # Where prompts may begin alike (see `reuses`), what a recording names is computed once in all,
    # not known by whom; nor is what is found where some of the requests are dropped.
    if not reuses(workload, server) or work.share < 1:
        return least(work, workload, server)
    means = Geometric(workload.least_mean_prompt), Geometric(work.lengths.mean_output)
    return dataclasses.replace(work, lengths=pair_of(*means))


def reuses(workload: Workload, server: Server) -> bool:
    """Return whether prompts may be found in part: by prefix caching of recorded hash ids."""
    return server.caches_prefixes and workload.prefixes is not None


def drawn(lengths: Lengths) -> tuple[Ints, Ints]:
    """Return (prompt, output) tokens: a recording's rows, else a sample; shape (requests,) each."""
    if isinstance(lengths, Empirical):
        return lengths.prompt_tokens, lengths.output_tokens
    return lengths.sample(np.random.default_rng(0), SAMPLE)


def reserves(server: Server) -> bool:
    """Return whether requests have, once admitted, all the memory that they will ever need."""
    return server.holds == "completion"


def peak_blocks(prompt: Ints, output: Ints, server: Server, memory: Memory) -> Ints:
    """Return the blocks that requests hold in the end; shape (requests,)."""
    policy = server.policy
    beyond = policy.memory.drafted_tokens + policy.memory.reserves_last_token
    return -(-(_peak(prompt, output, server) + beyond) // memory.block_size)


def largest(lengths: Lengths) -> Longest | None:
    """Return (prompt, output) tokens, of which one is largest; None: lengths have no limit."""
    if isinstance(lengths, Empirical):
        return lengths.prompt_tokens, lengths.output_tokens
    if lengths.max_prompt is None or lengths.max_output is None:
        return None
    return np.array([lengths.max_prompt]), np.array([lengths.max_output])


def at_once(server: Server, longest: Longest | None) -> AtOnce | None:
    """Return the memory of all that may run at once; None: it, number or length is unlimited."""
    slots, usable, memory = server.most_requests, server.usable_blocks, server.memory
    if slots is None or server.scope == "batch" or longest is None:
        return None
    if usable is None or memory is None:
        return None
    spare = server.watermark_blocks
    # Longer ones are not served.
    most = min(int(peak_blocks(*longest, server, memory).max()), usable - spare)
    return AtOnce(slots, most, spare, usable)


def fits(prompt: Ints, output: Ints, server: Server) -> Bools:
    """Return which requests can ever be served; shape (requests,)."""
    policy, memory = server.policy, server.memory
    fitting = np.ones(prompt.size, bool)
    if policy.memory.longest_context:
        fitting &= prompt < policy.memory.longest_context
    if not policy.batching.cuts_prompts:
        longest = prompt
        if memory is not None and not reserves(server):  # what is preempted comes back longer
            longest = _peak(prompt, output, server)
        fitting &= longest <= server.token_budget
    if memory is not None and server.usable_blocks is not None:
        needed = peak_blocks(prompt, output, server, memory) + server.spare_blocks
        fitting &= needed <= server.usable_blocks
    return fitting


@cached(32)
def least_block_iterations(lengths: Lengths, server: Server, memory: Memory) -> tuple[float, bool]:
    """Return E[g] of `block_iterations`, or a lower bound, and whether a sample says so."""
    # Where the mean is not exact: four standard errors below a sample's, if that is more.
    bound = block_iterations(lengths, server, memory)
    if isinstance(lengths, Empirical) or _alike(lengths):
        return bound, False
    sample = block_iterations_of(*drawn(lengths), server, memory)
    low = float(sample.mean() - STANDARD_ERRORS * sample.std() / np.sqrt(sample.size))
    return max(bound, low), low > bound


def block_iterations(lengths: Lengths, server: Server, memory: Memory) -> float:
    """Return E[g], or a lower bound of it: blocks held by a request, summed over the iterations
    that serve it.

    A prompt takes at least ceil(prompt / b_max) iterations, and holds least with the short one
    first: after i iterations fewer than all of them it has prompt - i b_max tokens. The j-th of D
    decode iterations (output of them in convention ``paper``, output - 1 in ``engine``) holds
    prompt + j. With blocks of s tokens,

        g = sum over i >= 0 of ceil((prompt - i b_max)+ / s)  +  sum over j = 1 .. D of ceil((prompt
        + j) / s),

    and where memory is reserved to completion, g = (ceil(prompt / b_max) + D) ceil((prompt + D) /
    s).

    The mean is exact for recorded rows and for constants, but for rounding in all but the last
    prefill iteration. Else rounding is left out, g is convex in each length, and the means of the
    lengths give a lower bound (Jensen); under a negative or unknown dependence the shortest prompt,
    or output, stands in for one factor of D * prompt.
    """
    size, last, budget = memory.block_size, server.outputs_of_prefill, server.most_tokens
    longest = largest(lengths)
    same = (lengths.min_prompt, lengths.min_output) == (lengths.max_prompt, lengths.max_output)
    if longest is not None and (same or isinstance(lengths, Empirical)):
        return float(np.mean(block_iterations_of(*longest, server, memory)))
    prompt, decode = lengths.mean_prompt, lengths.mean_output - last
    product = prompt * decode
    if not isinstance(lengths, Independent) or lengths.correlation < 0:
        product = max(lengths.min_prompt * decode, prompt * (lengths.min_output - last))
    if reserves(server):
        tokens = product + prompt + decode + decode**2
    else:
        tokens = (
            float(_prefill_iterations(np.array([prompt]), budget)[0])
            + product
            + decode * (decode + 1) / 2
        )
    return tokens / size


def block_iterations_of(prompt: Ints, output: Ints, server: Server, memory: Memory) -> Floats:
    """Return g of `block_iterations` for each request; shape (requests,). 0: no such phase."""
    # Rounded up in the last prefill iteration and in decodes only.
    size, last, budget = memory.block_size, server.outputs_of_prefill, server.most_tokens
    decodes = np.maximum(output - last, 0)
    if reserves(server):
        blocks = peak_blocks(prompt, np.maximum(output, last), server, memory)
        return np.asarray((-(-prompt // budget) + decodes) * blocks, np.float64)
    later = _prefill_iterations(np.maximum(prompt - budget, 0.0), budget) / size
    return np.asarray(-(-prompt // size) + decode_blocks(prompt, decodes, size) + later)


def decode_blocks(prompt: Ints, decodes: Ints, size: int) -> Ints:
    """Return the sum over j = 1 .. decodes of ceil((prompt + j) / size)."""
    return _sum_of_blocks(prompt + decodes, size) - _sum_of_blocks(prompt, size)


def _sum_of_blocks(tokens: Ints, size: int) -> Ints:
    """Return the sum over i = 1 .. tokens of ceil(i / size)."""
    whole, rest = tokens // size, tokens % size
    return size * whole * (whole + 1) // 2 + rest * (whole + 1)


def _prefill_iterations(prompt: Floats, budget: int) -> Floats:
    """Return the sum over i >= 0 of (prompt - i budget)+."""
    iterations: Floats = np.ceil(prompt / budget)
    return iterations * prompt - budget * iterations * (iterations - 1) / 2


def _refuse_what_never_fits(lengths: Lengths, server: Server) -> None:
    """Name the largest request if it never fits, and is sure to come."""
    certain = isinstance(lengths, Empirical) or (
        isinstance(lengths, Independent) and lengths.correlation > -1
    )
    longest = largest(lengths)
    if not certain or longest is None:  # else the longest prompt and output may never meet
        return
    prompt, output = longest
    fitting = fits(prompt, output, server)
    if fitting.all():
        return
    worst = int(np.flatnonzero(~fitting)[0])
    p, o = int(prompt[worst]), int(output[worst])
    remedy = "raise the limit or cut the lengths with their `max`"
    if server.memory is not None:
        remedy += ", or drop such with `memory: {too_long: drop}`"
    raise InputError(
        f"a request with {p:,} prompt and {o:,} output tokens {_why_not(p, o, server)}, so it "
        f"never fits and blocks the server; {remedy}"
    )


def _why_not(prompt: int, output: int, server: Server) -> str:
    """Say which limit a request goes beyond."""
    usable, memory, policy = server.usable_blocks, server.memory, server.policy
    if 0 < policy.memory.longest_context <= prompt:
        return f"has no room for an output: its max_model_len is {policy.memory.longest_context:,}"
    if usable is not None and memory is not None:
        needed = int(peak_blocks(np.array([prompt]), np.array([output]), server, memory)[0])
        spare = server.spare_blocks
        if needed + spare > usable:
            blocks = f"{needed:,} blocks of {memory.block_size:,}"
            if spare:
                blocks += f" beside a watermark of {spare:,}"
            return f"needs {blocks}, but the KV memory has {usable:,}"
    whole = "prompts whole,"
    if memory is not None:
        whole = "prompts whole, with outputs lost by preemption,"
    budget = f"{server.token_budget:,} tokens"
    reason = f"is more than {policy.name} takes: {whole} in batches of {budget}"
    if policy.batching.cut_by:
        reason += f" ({policy.batching.cut_by}: true would cut them)"
    return reason


def _peak(prompt: Ints, output: Ints, server: Server) -> Ints:
    """Return the tokens that requests hold in their last iteration."""
    return prompt + output - server.outputs_of_prefill
