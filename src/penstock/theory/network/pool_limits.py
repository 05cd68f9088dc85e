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
  replicas, on either side (`transfer_loads` is the same in bytes).

Loads are what is asked over what is given: above 1 no policy is stable. E[g], attention and link
time are means of a sample of jobs, with their standard errors; those of constant lengths are exact.

What requests may find of their prompts is left out of all of them: a prompt counts the tokens that
are processed even if its replica has all that it has in common with others, one at least, and of
the blocks that it holds those that no other request can have.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.system.pool import Pool
from penstock.system.reuse import shared_at_most
from penstock.system.server import Server
from penstock.theory.attention import WITH_ATTENTION, attention_of
from penstock.theory.bounds import Limit, unhurried
from penstock.theory.hypotheses import CRITICAL_BAND
from penstock.theory.kv_blocks import (
    block_iterations_of,
    decode_blocks,
    outputs_of_prefill,
    peak_blocks,
    reserves,
)
from penstock.theory.network.hypotheses import STANDARD_ERRORS
from penstock.theory.region import linear_program, region
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Geometric
from penstock.workload.means import Means, sampled_jobs
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Workflow

TOKENS = "Theorem 1(a)"
SLOTS = "Section 6 (stability region under a max batch size)"
MEMORY = "KV memory (Nie, Si, Zhou; Little's law)"

LINKS = "conservation of link time"

LimitOfPool = Limit | Literal["transfers"]


class _Visits(NamedTuple):
    """What requests bring; shape (requests,) each.

    Pools that serve them, and that send them KV memory (-1: none); tokens of their prompts that
    are processed if they find none but those that they surely do; how many of these they may find,
    and share with others, where prefixes are cached; outputs; tokens of KV memory that come from
    elsewhere, seconds until they are there, and those of them that take the links.
    """

    pool: Ints
    sender: Ints
    prompt: Ints
    found: Ints
    shared: Ints
    output: Ints
    received: Ints
    transfer_s: Floats
    link_s: Floats

    def of(self, places: Ints) -> "_Visits":
        return _Visits._make(column[places] for column in self)


OfVisits = Callable[[_Visits], Floats]
"""What requests ask; shape (requests,)."""


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
    """The limits of a pool.

    Attributes
    ----------
    limits
        The token budget first.
    binding
        What sets the tightest: ``token budget``, ``max batch size``, ``KV memory``, ``transfers``,
        or ``batch time`` where only faster batches would help.
    """

    limits: tuple[PoolLimit, ...]
    binding: tuple[str, ...]

    @property
    def tightest(self) -> PoolLimit:
        """The limit with the highest load; of equal ones the first."""
        return max(self.limits, key=lambda limit: limit.load)


def pool_limits(network: Network, model: NetworkModel) -> tuple[PoolLimits, ...]:
    """Return what each limit of each pool carries, pool by pool.

    Parameters
    ----------
    network
        Pools and workflows.
    model
        Its means.
    """
    pools = list(network.pools.values())
    asked: list[OfVisits] = []
    for index, pool in enumerate(pools):
        servers = [server for server, _ in pool.servers]
        asked += [_at(index, _attention(servers)), _at(index, _held(servers)), _links(index)]
    sampled = any(_is_sampled(server) for pool in pools for server, _ in pool.servers)
    sampled = sampled or any(network.senders)
    nothing = np.zeros(len(asked))
    mean, error = _per_second(network, asked) if sampled else (nothing, nothing)
    of_pools = np.column_stack([mean, error]).reshape(len(pools), 3, 2)
    return tuple(
        _limits_of(pool, model, index, *(Sampled(*row) for row in of_pools[index].tolist()))
        for index, pool in enumerate(pools)
    )


class Sampled(NamedTuple):
    """A mean per second, and its standard error."""

    mean: float
    error: float

    def times(self, factor: float) -> "Sampled":
        """Return it in other units."""
        return Sampled(self.mean * factor, self.error * factor)


def with_limits(model: NetworkModel, limits: Sequence[PoolLimits]) -> NetworkModel:
    """Return the means with what batches of each pool carry at most of what arrives there: those
    beyond the token budget counted, and the least that attention takes.
    """
    offered = model.least_offered
    loads = np.array([pool.limits[0].load if pool.limits else 0.0 for pool in limits])
    errors = np.array([pool.limits[0].standard_error if pool.limits else 0.0 for pool in limits])
    busy = loads > 0
    capacity = model.capacity.copy()
    carried = offered[busy] / loads[busy]
    capacity[busy] = np.where(np.isclose(carried, capacity[busy]), capacity[busy], carried)
    return dataclasses.replace(
        model, capacity=capacity, standard_error=np.maximum(model.standard_error, errors * capacity)
    )


def _limits_of(
    pool: Pool,
    model: NetworkModel,
    index: int,
    attention: Sampled,
    held: Sampled,
    links: Sampled,
) -> PoolLimits:
    """Return the limits of one pool, given tokens/s that attention costs, and what is held and sent
    per second, as `_attention`, `_held` and `_links` count them.
    """
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
        limits.append(_transfers(pool, links))
    found = PoolLimits(tuple(limits), binding)
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


def _transfers(pool: Pool, links: Sampled) -> PoolLimit:
    """Return the limit of the links of a pool's replicas, of the seconds that transfers take."""
    return PoolLimit(
        "transfers",
        links.mean / pool.replicas,
        links.error / pool.replicas,
        LINKS,
        f"transfers take {links.mean:.4g} s of links a second, of {pool.replicas:,}",
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
    """Return the load under max batch sizes, None where none is below what a batch may have, and
    what binds one replica.
    """
    binds = any(_slots_are_few(server) for server, _ in pool.servers)
    outputs = max(server.policy.outputs_per_decode for server, _ in pool.servers)
    if len(pool.servers) == 1:
        best = linear_program(unhurried(pool.server), rates / pool.replicas, prompt=prompt)
        return (1 / best.scale / outputs if binds else None), best.binding
    if not binds:
        return None, ()
    corners = [region(unhurried(server), prompt=prompt).vertices for server, _ in pool.servers]
    prices = np.concatenate([_prices(vertices) for vertices in corners])
    earned = np.sum(
        [
            count * (prices @ vertices.T).max(axis=1)
            for (_, count), vertices in zip(pool.servers, corners, strict=True)
        ],
        axis=0,
    )
    return float((prices @ rates / earned).max()) / outputs, ()


def _prices(vertices: Floats) -> Floats:
    """Return the prices of a prefill and a decode token at which each edge of a region that is not
    on an axis earns the same all along; shape (edges, 2).
    """
    start, end = vertices[1:-1], vertices[2:]
    return np.column_stack([end[:, 1] - start[:, 1], start[:, 0] - end[:, 0]])


def _slots_are_few(server: Server) -> bool:
    """Whether its max batch size is below the tokens that a batch may have."""
    return server.max_batch_size is not None and server.max_batch_size < server.most_tokens


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
    given = sum(count * _token_rate(server) for server, count in pool.servers)
    load = held.times(1 / given)
    server = pool.server
    if len(pool.servers) > 1 or server.memory is None:
        why = f"requests hold at least {load.mean:.4g} of the KV memory of all replicas on average"
    else:
        size, usable = server.memory.block_size, server.usable_blocks or 0
        of = "tokens" if size == 1 else f"blocks of {size:,} tokens"
        why = (
            f"a replica has {usable:,} {of}; requests hold at least {load.mean * usable:,.0f} on "
            f"average, with batches of {_shortest(server):.4g} s, the least"
        )
    return PoolLimit("KV memory", load.mean, load.error, MEMORY, why)


def _shortest(server: Server) -> float:
    """Return the least time of a batch, s."""
    return float(server.batch_time.table(server.most_tokens)[1:].min())


def _iteration_s(server: Server) -> float:
    """Return the least time that an iteration of a request takes for each output, s."""
    return _shortest(server) / server.policy.outputs_per_decode


def _token_rate(server: Server) -> float:
    """Return the token-iterations that the memory of a replica gives per second at most."""
    assert server.memory is not None
    return (server.usable_blocks or 0) * server.memory.block_size / _iteration_s(server)


def _is_sampled(server: Server) -> bool:
    """Whether a limit of it counts what is known of single requests only."""
    return server.memory is not None or not server.batch_time.by_load


def _caches(server: Server) -> bool:
    """Whether requests may find parts of their prompts at it."""
    return server.memory is not None and server.memory.prefix_caching


def _at(pool: int, ask: OfVisits | None) -> OfVisits:
    """Return what asks of the requests that a pool serves only; None: nothing."""

    def asked(visits: _Visits) -> Floats:
        of_all = np.zeros(visits.pool.size)
        if ask is not None:
            mine = np.flatnonzero(visits.pool == pool)
            of_all[mine] = ask(visits.of(mine))
        return of_all

    return asked


def _links(pool: int) -> OfVisits:
    """Return what asks for the seconds that transfers take the links of a pool."""

    def asked(visits: _Visits) -> Floats:
        crosses = (visits.pool == pool) | (visits.sender == pool)
        return np.where(crosses, visits.link_s, 0.0)

    return asked


def _held(servers: Sequence[Server]) -> OfVisits | None:
    """Return what asks for the tokens that requests hold in blocks, summed over their iterations,
    at the kind of server where these are the fewest.
    """
    if any(server.memory is None for server in servers):
        return None
    return lambda visits: np.min([_held_at(server, visits) for server in servers], axis=0)


def _held_at(server: Server, visits: _Visits) -> Floats:
    """Return the same at one kind of server."""
    memory = server.memory
    assert memory is not None
    prompt = visits.prompt - (visits.shared if _caches(server) else 0)
    blocks = block_iterations_of(prompt, visits.output, server, memory)
    here = np.flatnonzero(visits.received)
    if here.size:
        received, output = visits.received[here], visits.output[here]
        came = -(-received // memory.block_size)
        blocks[here] = decode_blocks(received, output, memory.block_size)
        if reserves(server):
            last = outputs_of_prefill(server)
            blocks[here] = output * peak_blocks(received, output + last, server, memory)
        blocks[here] += came * visits.transfer_s[here] / _iteration_s(server)
    return np.asarray(blocks * memory.block_size, np.float64)


def _attention(servers: Sequence[Server]) -> OfVisits | None:
    """Return what asks for the tokens that a replica would process while it sees to the attention
    of a request, at least.
    """
    if any(not isinstance(server.batch_time, Composition) for server in servers):
        return None
    return lambda visits: np.min([_attention_at(server, visits) for server in servers], axis=0)


def _attention_at(server: Server, visits: _Visits) -> Floats:
    """Return the same at one kind of server."""
    model = server.batch_time
    assert isinstance(model, Composition)
    caches = _caches(server)
    # As in `penstock.theory.attention.attention`.
    lost = caches or (server.memory is not None and server.policy.loses_rest_of_prompt)
    per_token = 0.0 if lost else model.with_prefill / server.most_tokens
    prompt = visits.prompt - (visits.found if caches else 0)
    output = np.maximum(visits.output, outputs_of_prefill(server))
    least, _ = attention_of(np.maximum(prompt, 1), output, server, reused=lost)
    capacity = model.by_tokens.capacity(server.most_tokens)
    return np.where(prompt > 0, least + per_token * prompt, 0.0) * capacity


def _per_second(network: Network, asked: Sequence[OfVisits]) -> tuple[Floats, Floats]:
    """Return the mean of what is asked of pools per second, and its standard error; shape (asked,)
    each.
    """
    mean, variance = np.zeros(len(asked)), np.zeros(len(asked))
    for index, workflow in enumerate(network.workflows):
        of_job, error = _per_job(network, index, workflow.means(), asked)
        mean += workflow.rate * of_job
        variance += (workflow.rate * error) ** 2
    return mean, np.sqrt(variance)


def _per_job(
    network: Network, index: int, means: Means, asked: Sequence[OfVisits]
) -> tuple[Floats, Floats]:
    """Return the mean of what a job asks, and its standard error; shape (asked,) each.

    Where visits are known by formula, means are those of a request at each stage times its visits:
    so constant lengths have no error, however jobs branch.
    """
    workflow = network.workflows[index]
    stages = len(means.visits)
    visited, brought = [], []
    for jobs in _sampled(workflow, means):
        at = jobs.job * stages + jobs.stage
        visited.append(np.bincount(at, minlength=jobs.count * stages).reshape(-1, stages))
        brings = _visits(network, network.numbered(jobs, index))
        of_requests = [ask(brings) for ask in asked]
        brought.append(
            np.stack(
                [
                    np.bincount(at, values, jobs.count * stages).reshape(-1, stages)
                    for values in of_requests
                ],
                axis=1,
            )
        )
    visits, sums = np.concatenate(visited), np.concatenate(brought)  # (jobs, [asked,] stages)
    count = len(visits)
    if isinstance(workflow, Sessions):  # all of them
        return sums.sum(axis=2).mean(axis=0), np.zeros(len(asked))
    if means.sampled is not None:
        of_jobs = sums.sum(axis=2)
        return of_jobs.mean(axis=0), of_jobs.std(axis=0) / math.sqrt(count)
    seen = np.maximum(visits.mean(axis=0), 1e-300)
    of_request = sums.mean(axis=0) / seen  # (asked, stages)
    known = np.where(visits.any(axis=0), means.visits, 0.0)
    rest = (sums - visits[:, None, :] * of_request) @ (known / seen)
    return of_request @ known, rest.std(axis=0) / math.sqrt(count)


def _visits(network: Network, jobs: Jobs) -> _Visits:
    """Return what some jobs of a network bring."""
    jobs = network.within_context(jobs)
    pool = network.stage_pool[jobs.stage]
    surely = network.surely_found(jobs)
    received = network.received(jobs)
    sender = np.full(jobs.requests, -1)
    comes = np.flatnonzero(received)
    sender[comes] = pool[comes + jobs.column("sender")[comes]]
    return _Visits(
        pool=pool,
        sender=sender,
        prompt=jobs.prompt.astype(np.int64) - surely,
        found=network.found_at_most(jobs) - surely,
        shared=np.where(network.by_engines[pool], shared_at_most(jobs), 0),
        output=jobs.output.astype(np.int64),
        received=received,
        transfer_s=np.where(received > 0, jobs.wait_s, 0.0),
        link_s=np.where(received > 0, jobs.column("transfer_s"), 0.0),
    )


def _sampled(workflow: Workflow | Sessions, means: Means) -> Iterable[Jobs]:
    """Yield the jobs whose requests are looked at."""
    if isinstance(workflow, Sessions):
        yield workflow.recorded
        return
    left = sampled_jobs(max(float(means.visits.sum()), 1.0))
    for block in workflow.blocks():
        jobs = block.first(left)
        yield jobs
        left -= jobs.count
        if not left:
            return


@dataclasses.dataclass(frozen=True)
class TransferLoads:
    """How much of the links between two pools is asked for, on either side.

    Attributes
    ----------
    bytes_per_s
        That cross.
    sending, receiving
        Loads: those bytes over what all links of that side carry. Above 1 what waits for the
        transfer grows for ever.
    """

    bytes_per_s: float
    sending: float
    receiving: float

    @property
    def load(self) -> float:
        """The higher of the two."""
        return max(self.sending, self.receiving)

    @property
    def max_scale(self) -> float:
        """Factor on the rate above which no policy is stable."""
        return math.inf if self.load == 0 else 1 / self.load


def transfer_loads(
    rate: float,
    prompt_tokens: float,
    bytes_per_token: float,
    sending: npt.ArrayLike,
    receiving: npt.ArrayLike,
) -> TransferLoads:
    """Return the loads of the links over which a prefill pool hands KV entries to a decode pool.

    Each request moves ``prompt_tokens`` x ``bytes_per_token`` bytes on average, out of one replica
    and into another. A link carries at most its bandwidth, so by conservation of bytes a load
    above 1 on either side means that requests whose transfer is not done pile up without end,
    whatever the policy, the routers and the order of transfers. Below 1 on both sides nothing
    follows: routers may still send too much over one link.

    Parameters
    ----------
    rate
        Requests/s whose KV entries move; long-run averages suffice.
    prompt_tokens
        Tokens whose entries a request moves, on average.
    bytes_per_token
        Of KV entries in all layers.
    sending, receiving
        Shape (replicas,), bytes/s that the link of each replica of the prefill pool, and of the
        decode pool, carries; infinite: no limit.

    Raises
    ------
    InputError
        If a number cannot be used.

    >>> found = transfer_loads(10, 2_000, 131_072, [2e9, 2e9], [4e9])
    >>> found.bytes_per_s, found.sending, found.receiving
    (2621440000.0, 0.65536, 0.65536)
    """
    reason = "what moves per second follows from it"
    moved = (
        checks.number("the rate", rate, 0, 1e12, "requests/s", reason)
        * checks.number("prompt_tokens", prompt_tokens, 0, 1e12, "tokens", reason)
        * checks.number("bytes_per_token", bytes_per_token, 0, 1e15, "bytes", reason)
    )
    return TransferLoads(
        moved, moved / _bandwidth("sending", sending), moved / _bandwidth("receiving", receiving)
    )


def _bandwidth(side: str, links: npt.ArrayLike) -> float:
    """Return what all links of a side carry together, bytes/s."""
    carried = np.atleast_1d(np.asarray(links, np.float64))
    if carried.ndim != 1 or carried.size == 0 or not (carried > 0).all():
        raise InputError(
            f"the bandwidths of the {side} replicas are {checks.shown(links)}, but each is above 0 "
            "bytes/s; give one for every replica"
        )
    return float(carried.sum())
