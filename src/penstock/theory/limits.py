"""Necessary conditions: what each limit of a pool carries, whatever policy, order and router.

Each follows from conservation of what it limits: what arrives per second, of all stages, against
what all replicas give together. A load is what is asked over what is given: above 1 no policy is
stable.

* **Token budget** (Theorem 1(a)): forward tokens/s against the sum over replicas of max over b of
  b / t_b, b up to the most tokens that a batch may have. Where batches take longer for what is in
  them, a request takes the least of its attention besides (`penstock.theory.attention`), in tokens
  that its replica would have processed meanwhile.
* **Max batch size** (paper, Section 6, Condition stable_condition): the prefill and decode tokens/s
  of all stages have to be in the sum of the replicas' regions (`penstock.theory.region`): at no
  prices of the two do they come to more than all replicas together earn with their batches (a sum
  of convex sets is bounded by sums of what bounds them).
* **KV memory** (after Nie, Si, Zhou): a request holds g blocks, summed over the iterations that
  serve it (`penstock.theory.kv_blocks.block_iterations`), each of at least t seconds, the least
  batch time. So with M blocks at each of R replicas

      sum over stages of lambda E[g] t <= R M        (Little's law for blocks).

  Each forward token leaves one KV entry, which is held from its own iteration on. Iterations that
  leave a request out while it holds memory, blocks taken ahead, and tokens processed anew after a
  preemption only add to it. An admission that reserves memory to completion holds more, and that is
  counted: no policy helps, another admission may. Requests whose KV memory comes from elsewhere
  hold its blocks in all their decodes, and while it comes. Of replicas that differ each request is
  counted where it asks for the least share.
* **Transfers**: each takes the links of the replica that sends and of the one that gets it for some
  time, and a link carries one at a time. So per second no more link time is used than there are
  replicas, on either side.

Where a decode verifies drafts it brings up to y outputs on average, so the decodes of a request are
1 / y of its outputs at least (Wald), and it holds its blocks in so many iterations less: max batch
size and KV memory carry y times as much. What drafts cost is left out.

What a server drops is not counted. Where prompts may share their beginnings, a prompt counts the
tokens that are processed even if its replica has all that it has in common with others, one at
least: what a recording names is counted once in all (`Prefixes.computed_once`). Of the blocks that
it holds only those count that no other request can have. If the recording goes on, it is with other
prompts.
"""

import dataclasses
import math
from typing import Literal

import numpy as np

from penstock.inputs.caching import cached
from penstock.system.measured_times import Measured
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION
from penstock.theory.demand import Asked, Sampled, iteration_s, of_load
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import SAMPLE, STANDARD_ERRORS, reserves
from penstock.theory.load import Load
from penstock.theory.region import Region, linear_program, region
from penstock.workload.lengths import Length
from penstock.workload.pairs import Lengths

TOKENS = "Theorem 1(a)"
SLOTS = "Section 6 (stability region under a max batch size)"
MEMORY = "KV memory (Nie, Si, Zhou; Little's law)"
LINKS = "conservation of link time"

LimitName = Literal["token budget", "max batch size", "KV memory", "transfers"]


@dataclasses.dataclass(frozen=True)
class Limit:
    """A limit of a pool, and how much of it is asked for.

    Attributes
    ----------
    name
        ``token budget``, ``max batch size``, ``KV memory`` or ``transfers``.
    load
        What arrives over what the limit lets any policy carry.
    standard_error
        Of the load, where it is the mean of a sample of jobs; else 0.
    theorem
        Where it is proved.
    why
        The numbers that it comes from.
    sampled
        Whether the load is that of a sample of the lengths, four standard errors on the safe side.
    """

    name: LimitName
    load: float
    standard_error: float
    theorem: str
    why: str
    sampled: bool = False

    @property
    def carried(self) -> float:
        """How many times what arrives it lets any policy carry."""
        return 1 / self.load

    @property
    def margin(self) -> float:
        """What is left, as a share of what the limit carries; negative where it is exceeded."""
        return 1 - self.load

    @property
    def exceeded(self) -> bool:
        """Whether no policy is stable: above 1, by more than what sampling may be wrong by."""
        return self.load - STANDARD_ERRORS * self.standard_error > 1 + CRITICAL_BAND

    @property
    def in_words(self) -> str:
        """The load with its error."""
        error = f" +- {self.standard_error:.4f}" if self.standard_error else ""
        return f"{self.load:.4f}{error}"


@dataclasses.dataclass(frozen=True)
class Bound:
    """A request rate that no policy can exceed."""

    name: LimitName
    max_rate: float  # requests/s above which the backlog grows for ever
    theorem: str
    why: str  # the numbers that it comes from
    sampled: bool = False  # by a sample of the lengths, with four standard errors on the safe side


def bounds(demand: Load) -> tuple[Bound, ...]:
    """Return what each limit of a server can carry, the token budget first."""
    return as_bounds(limits_of(of_load(demand)), demand.arrival_rate)


def as_bounds(limits: tuple[Limit, ...], rate: float) -> tuple[Bound, ...]:
    """Return the request rates that limits carry, of which so many requests/s ask so much."""
    return tuple(Bound(of.name, rate * of.carried, of.theorem, of.why, of.sampled) for of in limits)


def tightest(limits: tuple[Limit, ...]) -> Limit:
    """Return the limit with the highest load; of equal ones the first."""
    most = max(limit.load for limit in limits)
    return next(limit for limit in limits if limit.load * (1 + CRITICAL_BAND) >= most)


def limits_of(asked: Asked) -> tuple[Limit, ...]:
    """Return how much of each limit of a pool is asked for, the token budget first."""
    if not asked.tokens:
        return ()
    beside = asked.attention.times(1 / asked.capacity)
    by_tokens = asked.tokens / asked.capacity
    limits = [
        Limit(
            "token budget",
            by_tokens + beside.mean,
            math.hypot(by_tokens * asked.error, beside.error),
            TOKENS + (WITH_ATTENTION if beside.mean else ""),
            _of_a_request(asked) or _of_a_replica(asked, beside.mean),
        )
    ]
    kinds = asked.kinds
    if any((server.max_batch_size or math.inf) < server.most_tokens for server, _ in kinds):
        limits.append(_max_batch_size(asked, beside))
    if asked.held.mean:
        limits.append(_kv_memory(asked))
    if asked.links.mean:
        links = asked.links.times(1 / asked.replicas)
        why = f"transfers take {asked.links.mean:.4g} s of links a second, of {asked.replicas:,}"
        limits.append(Limit("transfers", *links, LINKS, why))
    return tuple(limits)


def binding(asked: Asked, limits: tuple[Limit, ...]) -> tuple[str, ...]:
    """Return what sets the tightest limit; `batch time` where only faster batches would help."""
    if not limits:
        return ()
    name = tightest(limits).name
    if name in ("KV memory", "transfers") or len(asked.kinds) > 1:
        return (name,)
    server, replicas = asked.kinds[0]
    rates = np.array([asked.prefill, asked.decode]) / replicas
    return linear_program(unhurried(server), rates, prompt=asked.prompt).binding


def _of_a_request(asked: Asked) -> str | None:
    """Return the numbers of the token budget where one server gets requests of one kind."""
    demand = asked.load
    if demand is None or asked.replicas > 1:
        return None
    tokens = asked.tokens / demand.arrival_rate
    seconds = asked.attention.mean / asked.capacity / demand.arrival_rate
    if seconds and not demand.reused:  # one capacity on a page: that with attention
        capacity = f"the capacity of {demand.capacity_tokens_per_s:,.0f} tokens/s"
        return f"{capacity} over the {tokens:,.6g} tokens of a request"
    beside = f", and at least {seconds:.4g} s of attention" if seconds else ""
    return (
        f"the best batch ({demand.best_token_load:,} tokens) carries "
        f"{demand.best_batch_tokens_per_s:,.0f} tokens/s, and a request has "
        f"{'at least ' if demand.reused else ''}{tokens:,.6g} of them{beside}"
    )


def _of_a_replica(asked: Asked, attention: float) -> str:
    beside = f", and {attention:.4g} s of attention a second at least" if attention else ""
    if len(asked.kinds) > 1:
        return (
            f"{asked.tokens:,.0f} tokens/s arrive, the best batches of all replicas carry "
            f"{asked.capacity:,.0f} together{beside}"
        )
    server, replicas = asked.kinds[0]
    best, capacity = server.batch_time.by_tokens.best_load(server.most_tokens)
    return (
        f"a replica gets {asked.tokens / replicas:,.0f} tokens/s, its best batch ({best:,} tokens) "
        f"carries {capacity:,.0f}{beside}"
    )


def _max_batch_size(asked: Asked, attention: Sampled) -> Limit:
    """Return the limit of the requests in a batch, given what attention adds."""
    kinds = asked.kinds
    # Tokens computed anew may ride along in batches short of requests.
    again = any(server.memory is not None and not reserves(server) for server, _ in kinds)
    counted = Sampled(0.0, 0.0) if again or len(kinds) > 1 else attention
    rates = np.array([asked.prefill, asked.decode])
    regions = [(_region_of(server, asked.prompt), count) for server, count in kinds]
    prices = np.concatenate([each.normals for each, _ in regions])
    earned = sum(count * (prices @ each.vertices.T).max(axis=1) for each, count in regions)
    outputs = max(server.policy.batching.outputs_per_decode for server, _ in kinds)
    load = float((prices @ rates / earned).max()) / outputs
    why = "the best mix of batches of all kinds of replicas, within their limits"
    if len(kinds) == 1:
        server = kinds[0][0]
        why = (
            f"the best mix of batches of at most {server.max_batch_size:,} requests and "
            f"{server.most_tokens:,} tokens"
        )
        if asked.load is not None and asked.replicas == 1 and counted.mean:
            why += f", and at least {counted.mean / asked.load.arrival_rate:.4g} s of attention"
    if outputs > 1 and len(kinds) == 1:
        why += f", with {outputs:.3g} outputs from a decode"
    return Limit(
        "max batch size",
        load + counted.mean,
        math.hypot(load * asked.error, counted.error),
        SLOTS + (WITH_ATTENTION if counted.mean else ""),
        why,
    )


@cached(32)
def _region_of(server: Server, prompt: Length | Lengths) -> Region:
    return region(unhurried(server), prompt=prompt)


def _kv_memory(asked: Asked) -> Limit:
    """Return the limit that KV memory sets."""
    load = asked.held.times(1 / sum(count * _token_rate(server) for server, count in asked.kinds))
    server, replicas = asked.kinds[0]
    memory, demand = server.memory, asked.load
    if len(asked.kinds) > 1 or memory is None:
        why = f"requests hold at least {load.mean:.4g} of the KV memory of all replicas on average"
        return Limit("KV memory", *load, MEMORY, why)
    size, usable = memory.block_size, server.usable_blocks or 0
    of = "tokens" if size == 1 else f"blocks of {size:,} tokens"
    if demand is not None and replicas == 1:
        held = asked.held.mean / size / demand.arrival_rate / demand.work.share
        held /= server.policy.batching.outputs_per_decode
        why = (
            f"{usable:,} {of}, of which a request holds at least {held:,.6g} summed over its "
            f"iterations, each of at least {server.shortest_s:.4g} s"
        )
        if asked.held_by_sample:
            why += f", by {SAMPLE:,} draws of lengths"
    else:
        why = (
            f"a replica has {usable:,} {of}; requests hold at least {load.mean * usable:,.0f} on "
            f"average, with batches of {server.shortest_s:.4g} s, the least"
        )
    return Limit("KV memory", *load, MEMORY, why, asked.held_by_sample)


def _token_rate(server: Server) -> float:
    """Return the token-iterations that the memory of a replica gives per second at most."""
    assert server.memory is not None
    return (server.usable_blocks or 0) * server.memory.block_size / iteration_s(server)


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
