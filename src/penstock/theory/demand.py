"""What requests ask of a pool: tokens, the time of their attention, KV memory, time of links.

Where all that comes to a pool is of one kind whose lengths have a known law (`Load`), means are
those of the law; else they are means of a sample of jobs, with their standard errors.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel, StageTokens
from penstock.system.reuse import shared_at_most
from penstock.system.server import Server
from penstock.theory.attention import attention, attention_of
from penstock.theory.kv_blocks import (
    block_iterations_of,
    decode_blocks,
    fits,
    largest,
    least_held,
    least_on_average,
    outputs_of_prefill,
    peak_blocks,
    reserves,
)
from penstock.theory.load import Load, load
from penstock.theory.unforeseen import wasted_at_stages
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Geometric, Length
from penstock.workload.means import Means, sampled_jobs
from penstock.workload.pairs import Empirical, Independent, Lengths
from penstock.workload.recorded import pair_of
from penstock.workload.sample import sample
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload


class Sampled(NamedTuple):
    """A mean per second, and its standard error."""

    mean: float
    error: float

    def times(self, factor: float) -> "Sampled":
        """Return it in other units."""
        return Sampled(self.mean * factor, self.error * factor)


NOTHING = Sampled(0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What comes to a pool per second, and the least that it takes there."""

    kinds: tuple[tuple[Server, int], ...]  # each kind of replica, and how many there are
    load: Load | None  # of each replica, where the law of all that comes is known
    capacity: float  # tokens/s that all replicas process in batches of any size
    prefill: float  # tokens/s
    decode: float  # tokens/s
    error: float  # standard error of these tokens/s, as a share of them
    prompt: Length | Lengths  # what is known of prompts, for what batches can be made of
    attention: Sampled  # tokens/s that replicas would process meanwhile
    held: Sampled  # tokens in blocks of KV memory over all iterations; nothing without memory
    links: Sampled  # seconds of links that transfers take
    # Tokens/s with attention if requests find nothing of their prompts; None: it is the same.
    in_full: float | None = None
    held_by_sample: bool = False  # a sample of the law, four standard errors on the safe side

    @property
    def tokens(self) -> float:
        """Forward tokens/s."""
        return self.prefill + self.decode

    @property
    def replicas(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.kinds)


def capacity_of(server: Server) -> float:
    """Return the tokens/s that a server processes in batches of any size."""
    return server.batch_time.by_tokens.capacity(server.most_tokens)


def of_load(demand: Load, replicas: int = 1, links: Sampled = NOTHING) -> Asked:
    """Return what is asked of replicas that have such a load each."""
    server, lengths, share = demand.server, demand.work.lengths, demand.work.share
    work = least_on_average(demand.work, demand.workload, server)
    prompt, reused = work.lengths.mean_prompt, demand.reused
    tokens = server.tokens_per_request(prompt, work.lengths.mean_output) * share
    tokens += demand.wasted[0]
    seconds = demand.attention_s[0]
    in_full = None
    rate, capacity = demand.arrival_rate * replicas, demand.best_batch_tokens_per_s
    if reused:
        in_full = rate * (demand.tokens_per_request + seconds * capacity)
        seconds = attention(lengths, server, reused=True).least * share
    held, by_sample = 0.0, False
    if server.memory is not None and reused and isinstance(lengths, Empirical):
        # Blocks of a prompt may be those of others; those of its outputs are its own.
        output = lengths.output_tokens
        blocks = block_iterations_of(np.zeros_like(output), output, server, server.memory)
        held = float(blocks.mean())
    elif server.memory is not None and not reused:
        held, by_sample = least_held(lengths, server, server.memory)
    size = server.memory.block_size if server.memory is not None else 0
    return Asked(
        kinds=((server, replicas),),
        load=demand,
        capacity=capacity * replicas,
        prefill=rate * prompt * share,
        decode=rate * (tokens - prompt * share),
        error=0.0,
        prompt=work.lengths,
        attention=Sampled(rate * seconds * capacity, 0.0),
        held=Sampled(rate * share * held * size, 0.0),
        links=links,
        in_full=in_full,
        held_by_sample=by_sample,
    )


def of_network(network: Network) -> tuple[NetworkModel, tuple[Asked, ...]]:
    """Return the means of a network, and what is asked of each pool."""
    visits = network.visits
    pools = list(network.pools.values())
    loads = [_load_at(network, visits, index) for index in range(len(pools))]
    means = _per_second(network, _beside_tokens(network, loads))
    tokens = _tokens(network, loads)
    known = [
        None if own is None else of_load(own, pool.replicas, links)
        for own, pool, (*_, links) in zip(loads, pools, means, strict=True)
    ]
    for index, asked in enumerate(known):
        here = (network.stage_pool == index) & (visits > 0)
        if asked is not None and asked.load is not None:
            decode = asked.decode / visits[here]
            tokens.prefill[here] = asked.load.tokens_per_request - decode
            tokens.decode[here] = decode
            if tokens.least_prefill is not None:
                tokens.least_prefill[here] = asked.prefill / visits[here]
    model = network.model(tokens)
    for index, own in enumerate(loads):
        if own is not None and (own.extended or own.wasted[1] > own.wasted[0]):
            tokens_per_request = own.tokens_per_request * pools[index].replicas
            model.full_batch[index] = tokens_per_request * own.full_batch_rate
    return model, tuple(
        asked or _of_means(pool.servers, model, index, means[index])
        for index, (asked, pool) in enumerate(zip(known, pools, strict=True))
    )


def _tokens(network: Network, loads: Sequence[Load | None]) -> StageTokens:
    """Return mean tokens of all stages, which the loads that are known may change."""
    if None not in loads:
        none = np.zeros(len(network.stages))
        least = None if network.reuse_is_certain else none.copy()
        return StageTokens(none, none.copy(), least)
    prefill, decode, least = network.tokens()
    wasted = np.array([least for least, _ in wasted_at_stages(network)])
    return StageTokens(prefill.copy(), decode + wasted, None if least is None else least.copy())


def _of_means(
    kinds: tuple[tuple[Server, int], ...],
    model: NetworkModel,
    index: int,
    sampled: Sequence[Sampled],
) -> Asked:
    """Return what is asked of a pool of which only means are known."""
    beside, in_full, held, links = sampled
    here = model.pool == index
    least = model.prefill if model.least_prefill is None else model.least_prefill
    visits, prefill = model.visits[here], least[here]
    offered, most = float(model.least_offered[index]), float(model.offered[index])
    # Only the mean and the longest prompt count; the longest is not known of contexts that grow, so
    # there is none.
    prompts = float(visits[prefill > 0].sum())
    mean = max(float(visits @ prefill) / prompts, 1.0) if prompts else 1.0
    return Asked(
        kinds=kinds,
        load=None,
        capacity=sum(count * capacity_of(server) for server, count in kinds),
        prefill=float(visits @ prefill),
        decode=float(visits @ model.decode[here]),
        error=float(model.standard_error[index]) / max(offered, 1e-300),
        prompt=Geometric(mean),
        attention=beside,
        held=held,
        links=links,
        in_full=most + in_full.mean if offered < most else None,
    )


# The law of what comes to a pool


def _load_at(network: Network, visits: Floats, index: int) -> Load | None:
    """Return the load of each replica of a pool, where the law of all that comes is known."""
    # Requests of one stage, none of which comes back, at replicas that are alike.
    (server, replicas), *others = list(network.pools.values())[index].servers
    visited = np.flatnonzero((network.stage_pool == index) & (visits > 0))
    if others or visited.size != 1 or network.onward[visited[0], visited[0]]:
        return None
    number = int(visited[0])
    place = int(np.searchsorted(network.first_stage, number, "right")) - 1
    workflow = network.workflows[place]
    if isinstance(workflow, Sessions):
        return None
    stage = list(workflow.stages.values())[number - int(network.first_stage[place])]
    workload = _law_of(workflow, stage)
    if workload is None or (workflow.means().sampled is not None):
        return None
    # Elsewhere what never fits blocks a replica, and outputs are cut as a sample of jobs says.
    longest = largest(workload.lengths)
    fitting = longest is None or bool(fits(*longest, server).all())
    if not (is_one_server(network) or (fitting and not server.policy.memory.longest_context)):
        return None
    return load(workload, server, float(visits[number]) / replicas)


def _law_of(workflow: Workflow, stage: Stage) -> Workload | None:
    """Return a workload whose requests have the lengths of those of a stage; None: not known."""
    arrivals = workflow.arrivals
    single = len(workflow.stages) == 1
    if len(workflow.begins) > 1 or workflow.goes_on or stage.most_visits is not None:
        return None
    if (stage.prompt, stage.output) == ("job", "job"):
        return arrivals if single or arrivals.prefixes is None else None
    own = isinstance(arrivals.lengths, Independent) and not arrivals.lengths.correlation
    if stage.output == "job" and arrivals.declared is not None:
        return None
    lengths = []
    for part, whole in (("prompt", stage.prompt), ("output", stage.output)):
        if whole == "job":
            whole = getattr(arrivals.lengths, part) if own else 0
        if isinstance(whole, str) or whole == 0:
            return None
        lengths.append(whole)
    return Workload(None, pair_of(*lengths), name=workflow.name)


def is_one_server(network: Network) -> bool:
    """Return whether a network is one server, and its jobs are the requests of a workload."""
    pool, *pools = network.pools.values()
    workflow, *workflows = network.workflows
    if pools or workflows or pool.replicas > 1 or isinstance(workflow, Sessions):
        return False
    stage, *stages = workflow.stages.values()
    plain = (stage.prompt, stage.output, stage.then) == ("job", "job", None)
    at_once = stage.delay_ms == 0 and not stage.transfer_ms_per_token
    return not stages and plain and at_once and not workflow.goes_on


# What a sample of jobs says


class Visits(NamedTuple):
    """What requests bring; shape (requests,) each.

    Pools that serve them, and that send KV memory (-1: none); prompt tokens processed if they find
    only what they surely do; those they may find and share where prefixes are cached; outputs; KV
    tokens from elsewhere, seconds until they are there, and those that take the links.
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

    def of(self, places: Ints) -> "Visits":
        """Return those of some requests."""
        return Visits._make(column[places] for column in self)


OfVisits = Callable[[Visits], Floats]
"""What requests ask; shape (requests,)."""


def only_at(pool: int, ask: OfVisits) -> OfVisits:
    """Return what asks of the requests that a pool serves only."""

    def asked(visits: Visits) -> Floats:
        of_all = np.zeros(visits.pool.size)
        mine = np.flatnonzero(visits.pool == pool)
        of_all[mine] = ask(visits.of(mine))
        return of_all

    return asked


def link_seconds(pool: int) -> OfVisits:
    """Return what asks for the seconds that transfers take the links of a pool."""

    def asked(visits: Visits) -> Floats:
        return np.where((visits.pool == pool) | (visits.sender == pool), visits.link_s, 0.0)

    return asked


def held_blocks(servers: Sequence[Server]) -> OfVisits | None:
    """Return what asks for tokens in blocks over all iterations.

    At the kind of server with the fewest.
    """
    if any(server.memory is None for server in servers):
        return None
    return lambda visits: np.min([_held_at(server, visits) for server in servers], axis=0)


def _held_at(server: Server, visits: Visits) -> Floats:
    """Return the same at one kind of server."""
    memory = server.memory
    assert memory is not None
    prompt = visits.prompt - (visits.shared if server.caches_prefixes else 0)
    blocks = block_iterations_of(prompt, visits.output, server, memory)
    here = np.flatnonzero(visits.received)
    if here.size:
        received, output = visits.received[here], visits.output[here]
        came = -(-received // memory.block_size)
        blocks[here] = decode_blocks(received, output, memory.block_size)
        if reserves(server):
            last = outputs_of_prefill(server)
            blocks[here] = output * peak_blocks(received, output + last, server, memory)
        blocks[here] += came * visits.transfer_s[here] / iteration_s(server)
    return np.asarray(blocks * memory.block_size, np.float64)


def attention_tokens(servers: Sequence[Server], *, in_full: bool = False) -> OfVisits | None:
    """Return what asks for the tokens that a replica would process meanwhile, at least.

    That is, while it sees to a request's attention.
    """
    # ``in_full``: if a request finds nothing but what it surely does.
    if any(not isinstance(server.batch_time, Composition) for server in servers):
        return None
    if in_full:
        servers = [server.without_cache for server in servers]
    return lambda visits: np.min([_attention_at(server, visits) for server in servers], axis=0)


def _attention_at(server: Server, visits: Visits) -> Floats:
    """Return the same at one kind of server."""
    model = server.batch_time
    assert isinstance(model, Composition)
    caches = server.caches_prefixes
    # As in `penstock.theory.attention.attention`.
    per_token = 0.0 if caches else model.with_prefill / server.most_tokens
    prompt = visits.prompt - (visits.found if caches else 0)
    output = np.maximum(visits.output, outputs_of_prefill(server))
    least, _ = attention_of(np.maximum(prompt, 1), output, server, reused=caches)
    return np.where(prompt > 0, least + per_token * prompt, 0.0) * capacity_of(server)


def _beside_tokens(network: Network, loads: Sequence[Load | None]) -> list[OfVisits | None]:
    """Return what a sample of jobs is to say of each pool: attention, in full, memory, links."""
    asks: list[OfVisits | None] = []
    for index, (pool, known) in enumerate(zip(network.pools.values(), loads, strict=True)):
        kinds = [server for server, _ in pool.servers]
        attention, in_full = attention_tokens(kinds), attention_tokens(kinds, in_full=True)
        for ask in (attention, in_full, held_blocks(kinds)):
            asks.append(None if ask is None or known is not None else only_at(index, ask))
        asks.append(link_seconds(index) if network.sends_memory else None)
    return asks


def _per_second(network: Network, asks: Sequence[OfVisits | None]) -> list[list[Sampled]]:
    """Return means of what is asked of each pool per second; None asks for nothing."""
    asked = [ask for ask in asks if ask is not None]
    mean, variance = np.zeros(len(asked)), np.zeros(len(asked))
    for index, workflow in enumerate(network.workflows if asked else ()):
        of_job, error = _per_job(network, index, workflow.means(), asked)
        mean += workflow.rate * of_job
        variance += (workflow.rate * error) ** 2
    sampled = iter(zip(mean.tolist(), np.sqrt(variance).tolist(), strict=True))
    every = [NOTHING if ask is None else Sampled(*next(sampled)) for ask in asks]
    each = len(every) // len(network.pools)
    return [every[first : first + each] for first in range(0, len(every), each)]


def _per_job(
    network: Network, index: int, means: Means, asked: Sequence[OfVisits]
) -> tuple[Floats, Floats]:
    """Return means of what a job asks, and standard errors; shape (asked,) each."""
    # Where visits are known by formula, means are those of a request at each stage times its
    # visits: so constant lengths have no error, however jobs branch.
    workflow = network.workflows[index]
    stages = len(means.visits)
    visited, brought = [], []
    for jobs in sample(workflow, sampled_jobs(max(float(means.visits.sum()), 1.0))):
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


def _visits(network: Network, jobs: Jobs) -> Visits:
    """Return what some jobs of a network bring."""
    jobs = network.within_context(jobs)
    pool = network.stage_pool[jobs.stage]
    surely = network.surely_found(jobs)
    received = network.received(jobs)
    sender = np.full(jobs.requests, -1)
    comes = np.flatnonzero(received)
    sender[comes] = pool[comes + jobs.column("sender")[comes]]
    return Visits(
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


def iteration_s(server: Server) -> float:
    """Return the least time that an iteration of a request takes for each output, s."""
    return server.shortest_s / server.policy.batching.outputs_per_decode
