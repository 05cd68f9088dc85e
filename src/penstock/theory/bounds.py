"""Necessary conditions: request rates above which no policy is stable, whichever limit sets them.

Three limits, each with a rate that follows from conservation of what it limits.

* **Token budget** (Theorem 1(a)): no batch carries more than max over b of b / t_b tokens per
  second.
* **Max batch size** (paper, Section 6, Condition stable_condition): see `penstock.theory.region`.
  Both say how many seconds a request takes at least by token load, 1 / rate. Where batches take
  longer for what is in them, a request takes its attention besides (`penstock.theory.attention`):
  together these seconds are the bound.
* **KV memory** (after Nie, Si, Zhou): with M blocks of memory, t the least batch time and g the
  blocks that a request holds, summed over the iterations that serve it, rate * E[g] * t <= M
  (Little's law for blocks). Each forward token leaves one KV entry, which is held from its own
  iteration on; `penstock.theory.kv_blocks.least_held` counts the least that this comes to.
  Iterations that leave a request out while it holds memory, blocks taken ahead, and tokens
  processed anew after a preemption only add to it. An admission that reserves memory to completion
  holds more, and that is counted: no policy helps, another admission may.

Where a decode verifies drafts it brings up to y outputs on average, so the decodes of a request are
1 / y of its outputs at least (Wald), and it holds its blocks in so many iterations less: the last
two limits carry y times as much. What drafts cost is left out.

What a server drops is not counted. Where prompts may share their beginnings, what a recording names
is counted once in all, since so much is computed whatever a cache keeps and whoever comes first
(`Prefixes.computed_once`), and the KV memory has no bound. If the recording goes on, it is with
other prompts.
"""

import dataclasses
from typing import Literal

import numpy as np

from penstock.system.measured_times import Measured
from penstock.system.memory import Memory
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION, attention, beside
from penstock.theory.kv_blocks import SAMPLE, Served, least_held, least_on_average, reserves, reuses
from penstock.theory.load import Load
from penstock.theory.region import region
from penstock.workload.workload import Workload

Limit = Literal["token budget", "max batch size", "KV memory"]


@dataclasses.dataclass(frozen=True)
class Bound:
    """A request rate that no policy can exceed."""

    name: Limit
    max_rate: float  # requests/s above which the backlog grows for ever
    theorem: str
    why: str  # the numbers that it comes from
    sampled: bool = False  # by a sample of the lengths, with four standard errors on the safe side


def bounds(workload: Workload, server: Server, demand: Load) -> tuple[Bound, ...]:
    """Return what each limit can carry, the token budget first."""
    work = least_on_average(demand.work, workload, server)
    reused = reuses(workload, server)
    tokens = (
        server.tokens_per_request(work.lengths.mean_prompt, work.lengths.mean_output) * work.share
        + demand.wasted[0]
    )
    seconds = demand.attention_s[0]
    if reused:
        seconds = attention(demand.work.lengths, server, reused=True).least * work.share
    by_tokens = demand.best_batch_tokens_per_s / tokens
    more = f", and at least {seconds:.4g} s of attention" if seconds else ""
    extended = WITH_ATTENTION if seconds else ""
    reason = (
        f"the best batch ({demand.best_token_load:,} tokens) carries "
        f"{demand.best_batch_tokens_per_s:,.0f} tokens/s, "
        f"and a request has {'at least ' if reused else ''}{tokens:,.6g} of them{more}"
    )
    if seconds and not reused:  # one capacity on a page: that with attention
        capacity = f"the capacity of {demand.capacity_tokens_per_s:,.0f} tokens/s"
        reason = f"{capacity} over the {tokens:,.6g} tokens of a request"
    limits = [Bound("token budget", beside(by_tokens, seconds), f"Theorem 1(a){extended}", reason)]

    # A max batch size below the token budget may bind before it.
    slots = server.max_batch_size
    if server.memory is not None and not reserves(server):
        # Tokens computed anew may ride along in batches short of requests.
        seconds, more, extended = (
            0.0,
            "",
            "",
        )
    if slots is not None and slots < server.most_tokens:
        edges = region(unhurried(server), prompt=work.lengths)
        prefill, decode = edges.request or (0.0, 0.0)
        by_slots = edges.scale((prefill * work.share, decode * work.share + demand.wasted[0]))
        if server.policy.batching.outputs_per_decode > 1:
            by_slots *= server.policy.batching.outputs_per_decode
            more += f", with {server.policy.batching.outputs_per_decode:.3g} outputs from a decode"
        theorem = f"Section 6 (stability region under a max batch size){extended}"
        reason = (
            f"the best mix of batches of at most {slots:,} requests and {server.most_tokens:,} "
            f"tokens{more}"
        )
        limits.append(Bound("max batch size", beside(by_slots, seconds), theorem, reason))
    if server.memory is not None and not reused:
        limits.append(_kv_memory(work, server, server.memory))
    return tuple(limits)


def _kv_memory(work: Served, server: Server, memory: Memory) -> Bound:
    blocks = server.usable_blocks or 0
    held, sampled = least_held(work.lengths, server, memory)
    held /= server.policy.batching.outputs_per_decode
    shortest = server.shortest_s
    of = "tokens" if memory.block_size == 1 else f"blocks of {memory.block_size:,} tokens"
    return Bound(
        "KV memory",
        blocks / (shortest * held * work.share),
        "KV memory (Nie, Si, Zhou; Little's law)",
        f"{blocks:,} {of}, of which a request holds at least {held:,.6g} summed over its "
        "iterations, each of at least "
        f"{shortest:.4g} s" + (f", by {SAMPLE:,} draws of lengths" if sampled else ""),
        sampled,
    )


def unhurried(server: Server) -> Server:
    """Return a server by token load on which no batch takes longer than one with more tokens."""
    # Tokens processed anew fill batches: where larger ones are faster, they must not seem a loss.
    if not server.batch_time.by_load:
        server = dataclasses.replace(server, batch_time=server.batch_time.by_tokens)
    if server.memory is None:
        return server
    seconds = server.batch_time.table(server.most_tokens)[1:]
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    if (seconds == least).all():
        return server
    return dataclasses.replace(
        server, batch_time=Measured(range(1, least.size + 1), least.tolist())
    )
