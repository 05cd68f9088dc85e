"""What each limit of a pool carries: necessary conditions, whatever policy, order and router.

The limits of one server (`penstock.theory.bounds`) hold for a pool of R replicas by conservation
over all of them: what arrives per second, of all stages, against what all replicas give together.

* **Token budget** (Theorem 1(a)): forward tokens/s against the sum over replicas of max over b of
  b / t_b, b up to the most tokens that a batch may have. Where batches take longer for what is in
  them, a request takes the least of its attention besides (`penstock.theory.attention`), in tokens
  that its replica would have processed meanwhile.
* **Max batch size** (Section 6): the prefill and decode tokens/s of all stages have to be in the
  sum of the replicas' regions (`penstock.theory.region`). For replicas that are alike this is the
  linear program of one with 1 / R of all; else the least over prices q of what all replicas
  together earn with their batches (a sum of convex sets is bounded by sums of what bounds them).
* **KV memory** (Nie, Si, Zhou): a request of a stage holds g blocks, summed over the iterations
  that serve it (`penstock.theory.kv_blocks.block_iterations_of`), each of at least t seconds, the
  least batch time. So with M blocks at a replica

      sum over stages of lambda E[g] t <= R M        (Little's law for blocks),

  the memory that requests need, in block-seconds per second, against what there is. Requests whose
  KV memory comes from elsewhere hold its blocks in all their decodes, and while it comes. Of
  replicas that differ each request is counted where it asks for the least share.
* **Transfers**: each takes the links of the replica that sends and of the one that gets it for some
  time, and a link carries one at a time. So per second no more link time is used than there are
  replicas, on either side.

Loads are what is asked over what is given: above 1 no policy is stable. E[g], attention and link
time are means of a sample of jobs, with their standard errors; those of constant lengths are exact.

What requests may find of their prompts is left out of all of them: a prompt counts the tokens that
are processed even if its replica has all that it has in common with others, one at least, and of
the blocks that it holds those that no other request can have.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.pool import Pool
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION
from penstock.theory.bounds import Limit, unhurried
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import (
    STANDARD_ERRORS,
    reserves,
)
from penstock.theory.network.pool_demand import (
    OfVisits,
    Sampled,
    attention_tokens,
    held_blocks,
    iteration_s,
    link_seconds,
    only_at,
    per_second,
)
from penstock.theory.region import linear_program, region
from penstock.workload.lengths import Geometric

TOKENS = "Theorem 1(a)"
SLOTS = "Section 6 (stability region under a max batch size)"
MEMORY = "KV memory (Nie, Si, Zhou; Little's law)"

LINKS = "conservation of link time"

LimitOfPool = Limit | Literal["transfers"]


@dataclasses.dataclass(frozen=True)
class PoolLimit:
    """A limit of a pool, and how much of it is asked for.

    Attributes
    ----------
    name
        ``token budget``, ``max batch size``, ``KV memory`` or ``transfers``.
    load
        What arrives over what the limit lets any policy carry.
    standard_error
        Of the load, where it is sampled; else 0.
    theorem
        Where it is proved.
    why
        The numbers that it comes from.
    """

    name: LimitOfPool
    load: float
    standard_error: float
    theorem: str
    why: str

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
class PoolLimits:
    """The limits of a pool."""

    limits: tuple[PoolLimit, ...]  # the token budget first
    # What sets the tightest; `batch time` where only faster batches would help.
    binding: tuple[str, ...]
    # Load on the token budget if requests find nothing of their prompts but what they surely do;
    # None: it is the same.
    without_cache: float | None = None

    @property
    def tightest(self) -> PoolLimit:
        """The limit with the highest load; of equal ones the first."""
        return max(self.limits, key=lambda limit: limit.load)


def pool_limits(network: Network, model: NetworkModel) -> tuple[PoolLimits, ...]:
    """Return what each limit of each pool carries, pool by pool."""
    pools = list(network.pools.values())
    asked: list[OfVisits] = []
    for index, pool in enumerate(pools):
        servers = [server for server, _ in pool.servers]
        asked += [
            only_at(index, attention_tokens(servers)),
            only_at(index, attention_tokens(servers, in_full=True)),
            only_at(index, held_blocks(servers)),
            link_seconds(index),
        ]
    # Whether a limit counts what is known of single requests only.
    sampled = network.sends_memory or any(
        server.memory is not None or not server.batch_time.by_load
        for pool in pools
        for server, _ in pool.servers
    )
    nothing = np.zeros(len(asked))
    mean, error = per_second(network, asked) if sampled else (nothing, nothing)
    of_pools = np.column_stack([mean, error]).reshape(len(pools), 4, 2)
    return tuple(
        _limits_of(pool, model, index, *(Sampled(*row) for row in of_pools[index].tolist()))
        for index, pool in enumerate(pools)
    )


def with_limits(model: NetworkModel, limits: Sequence[PoolLimits]) -> NetworkModel:
    """Return the means with each pool's limits beyond the token budget, and least attention."""
    offered = model.least_offered
    loads = np.array([pool.limits[0].load if pool.limits else 0.0 for pool in limits])
    errors = np.array([pool.limits[0].standard_error if pool.limits else 0.0 for pool in limits])
    busy = loads > 0
    capacity = model.capacity.copy()
    carried = offered[busy] / loads[busy]
    capacity[busy] = np.where(np.isclose(carried, capacity[busy]), capacity[busy], carried)
    without = None
    if any(pool.without_cache is not None for pool in limits):
        plain = model.offered / capacity
        without = np.array(
            [
                load if pool.without_cache is None else pool.without_cache
                for pool, load in zip(limits, plain, strict=True)
            ]
        )
    return dataclasses.replace(
        model,
        capacity=capacity,
        standard_error=np.maximum(model.standard_error, errors * capacity),
        loads_without_cache=without,
    )


def _limits_of(
    pool: Pool,
    model: NetworkModel,
    index: int,
    attention: Sampled,
    in_full: Sampled,
    held: Sampled,
    links: Sampled,
) -> PoolLimits:
    """Return a pool's limits, given attention's tokens/s, and what is held and sent per second."""
    # As `pool_demand` counts them. ``in_full``: tokens/s of attention if nothing is found.
    here = model.pool == index
    prefill = model.prefill if model.least_prefill is None else model.least_prefill
    visits, prefill, decode = model.visits[here], prefill[here], model.decode[here]
    rates = np.array([visits @ prefill, visits @ decode])
    if not rates.any():
        return PoolLimits((), ())
    capacity = _capacity(pool)
    offered = float(rates.sum())
    sampled = float(model.standard_error[index]) / max(float(model.least_offered[index]), 1e-300)
    beside = attention.times(1 / capacity)
    by_tokens = offered / capacity
    limits = [
        PoolLimit(
            "token budget",
            by_tokens + beside.mean,
            math.hypot(by_tokens * sampled, beside.error),
            TOKENS + (WITH_ATTENTION if beside.mean else ""),
            _by_tokens_in_words(pool, offered, beside.mean),
        )
    ]
    # Only the mean and the longest prompt count; the longest is not known of contexts that grow, so
    # there is none.
    prompts = float(visits[prefill > 0].sum())
    prompt = Geometric(max(float(visits @ prefill) / prompts, 1.0) if prompts else 1.0)
    by_slots, binding = _by_slots(pool, rates, prompt)
    if by_slots is not None:
        limits.append(_max_batch_size(pool, by_slots, by_slots * sampled, beside))
    if all(server.memory is not None for server, _ in pool.servers):
        limits.append(_kv_memory(pool, held))
    if links.mean:
        why = f"transfers take {links.mean:.4g} s of links a second, of {pool.replicas:,}"
        mean, error = links.mean / pool.replicas, links.error / pool.replicas
        limits.append(PoolLimit("transfers", mean, error, LINKS, why))
    without = None
    if model.least_offered[index] < model.offered[index]:
        without = (float(model.offered[index]) + in_full.mean) / capacity
    found = PoolLimits(tuple(limits), binding, without)
    tightest = found.tightest.name
    if tightest in ("KV memory", "transfers") or len(pool.servers) > 1:
        return dataclasses.replace(found, binding=(tightest,))
    return found


def _max_batch_size(pool: Pool, load: float, error: float, attention: Sampled) -> PoolLimit:
    """Return the limit of the requests in a batch, of its load and what attention adds."""
    # Tokens computed anew may ride along in batches short of requests.
    again = any(s.memory is not None and not reserves(s) for s, _ in pool.servers)
    counted = Sampled(0.0, 0.0) if again or len(pool.servers) > 1 else attention
    return PoolLimit(
        "max batch size",
        load + counted.mean,
        math.hypot(error, counted.error),
        SLOTS + (WITH_ATTENTION if counted.mean else ""),
        _by_slots_in_words(pool),
    )


def _capacity(pool: Pool) -> float:
    """Return the tokens/s that all replicas process in batches of any size."""
    return sum(
        count * server.batch_time.by_tokens.capacity(server.most_tokens)
        for server, count in pool.servers
    )


def _by_tokens_in_words(pool: Pool, offered: float, attention: float) -> str:
    beside = f", and {attention:.4g} s of attention a second at least" if attention else ""
    if len(pool.servers) > 1:
        return (
            f"{offered:,.0f} tokens/s arrive, the best batches of all replicas carry "
            f"{_capacity(pool):,.0f} together{beside}"
        )
    best, capacity = pool.server.batch_time.by_tokens.best_load(pool.server.most_tokens)
    return (
        f"a replica gets {offered / pool.replicas:,.0f} tokens/s, its best batch ({best:,} tokens) "
        f"carries {capacity:,.0f}{beside}"
    )


def _by_slots(pool: Pool, rates: Floats, prompt: Geometric) -> tuple[float | None, tuple[str, ...]]:
    """Return the load under max batch sizes (None: none binds) and what binds one replica."""
    binds = any((kind.max_batch_size or math.inf) < kind.most_tokens for kind, _ in pool.servers)
    outputs = max(server.policy.batching.outputs_per_decode for server, _ in pool.servers)
    if len(pool.servers) == 1:
        best = linear_program(unhurried(pool.server), rates / pool.replicas, prompt=prompt)
        return (1 / best.scale / outputs if binds else None), best.binding
    if not binds:
        return None, ()
    regions = [(region(unhurried(server), prompt=prompt), n) for server, n in pool.servers]
    prices = np.concatenate([each.normals for each, _ in regions])
    earned = sum(count * (prices @ each.vertices.T).max(axis=1) for each, count in regions)
    return float((prices @ rates / earned).max()) / outputs, ()


def _by_slots_in_words(pool: Pool) -> str:
    if len(pool.servers) > 1:
        return "the best mix of batches of all kinds of replicas, within their limits"
    server = pool.server
    return (
        f"the best mix of batches of at most {server.max_batch_size:,} requests and "
        f"{server.most_tokens:,} tokens"
    )


def _kv_memory(pool: Pool, held: Sampled) -> PoolLimit:
    """Return the limit that KV memory sets, for so much held per second, as `_held` counts it."""
    load = held.times(1 / sum(count * _token_rate(server) for server, count in pool.servers))
    server = pool.server
    if len(pool.servers) > 1 or server.memory is None:
        why = f"requests hold at least {load.mean:.4g} of the KV memory of all replicas on average"
    else:
        size, usable = server.memory.block_size, server.usable_blocks or 0
        of = "tokens" if size == 1 else f"blocks of {size:,} tokens"
        why = (
            f"a replica has {usable:,} {of}; requests hold at least {load.mean * usable:,.0f} on "
            f"average, with batches of {server.shortest_s:.4g} s, the least"
        )
    return PoolLimit("KV memory", load.mean, load.error, MEMORY, why)


def _token_rate(server: Server) -> float:
    """Return the token-iterations that the memory of a replica gives per second at most."""
    assert server.memory is not None
    return (server.usable_blocks or 0) * server.memory.block_size / iteration_s(server)
