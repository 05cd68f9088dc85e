"""What requests ask of the pools of a network: tokens, time of attention, KV memory, time of links.

Where all that comes to a pool is of one kind whose lengths have a known law (`Load`), means are
those of the law; else they are means of a sample of jobs, with their standard errors.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel, StageTokens
from penstock.system.reuse import shared_at_most
from penstock.system.server import Server
from penstock.theory.attention import attention_of
from penstock.theory.kv_blocks import (
    block_iterations_of,
    decode_blocks,
    fits,
    largest,
    peak_blocks,
    reserves,
)
from penstock.theory.load import NOTHING, Demand, Estimate, Load, demand_of, iteration_s, load
from penstock.theory.unforeseen import NONE, Share, share, wastes_each
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Geometric, Independent, pair_of
from penstock.workload.means import Means, sampled_jobs
from penstock.workload.sessions import Sessions
from penstock.workload.stage import Stage
from penstock.workload.workflow import Workflow, sample
from penstock.workload.workload import Workload


class Beside(NamedTuple):
    """What is asked of a pool per second beside its tokens, as a sample of jobs says."""

    attention: Estimate = NOTHING  # tokens that its replicas would process meanwhile, at least
    in_full: Estimate = NOTHING  # the same if requests find nothing but what they surely do
    memory: Estimate = NOTHING  # tokens in blocks of KV memory over all iterations
    links: Estimate = NOTHING  # seconds that transfers take its links
    front: Estimate = NOTHING  # seconds that its front end works


def network_demand(network: Network) -> tuple[NetworkModel, tuple[Demand, ...]]:
    """Return the means of a network, and what is asked of each pool."""
    visits = network.visits
    pools = list(network.pools.values())
    loads = [_load_at(network, visits, index) for index in range(len(pools))]
    sampled = _per_second(network, loads)
    tokens = _tokens(network, loads)
    demands: list[Demand | None] = []
    for index, (law, pool, beside) in enumerate(zip(loads, pools, sampled, strict=True)):
        if law is None:
            demands.append(None)
            continue
        demand = demand_of(law, pool.replicas, beside.links)
        demands.append(demand)
        # The means of the law stand in for those of the stage.
        here = (network.stage_pool == index) & (visits > 0)
        decode = demand.decode / visits[here]
        tokens.prefill[here] = law.tokens_per_request - decode
        tokens.decode[here] = decode
        if tokens.least_prefill is not None:
            tokens.least_prefill[here] = demand.prefill / visits[here]
    model = network.model(tokens)
    for index, law in enumerate(loads):
        if law is not None and (law.extended or law.wasted[1] > law.wasted[0]):
            tokens_per_request = law.tokens_per_request * pools[index].replicas
            model.full_batch[index] = tokens_per_request * law.full_batch_rate
    return model, tuple(
        demand or _of_means(pool.servers, model, index, sampled[index])
        for index, (demand, pool) in enumerate(zip(demands, pools, strict=True))
    )


def _tokens(network: Network, loads: Sequence[Load | None]) -> StageTokens:
    """Return mean tokens of all stages, which the loads that are known may change."""
    if None in loads:
        prefill, decode, least = network.tokens()
        decode = decode + np.array([wasted for wasted, _ in wasted_at_stages(network)])
    else:
        prefill, decode, least = np.zeros((3, len(network.stages)))
    if least is None or network.reuse_is_certain:
        return StageTokens(prefill.copy(), decode, None)
    return StageTokens(prefill.copy(), decode, least.copy())


def _of_means(
    kinds: tuple[tuple[Server, int], ...],
    model: NetworkModel,
    index: int,
    beside: Beside,
) -> Demand:
    """Return what is asked of a pool of which only means are known."""
    here = model.pool == index
    visits, prefill, decode = model.visits[here], model.prefill[here], model.decode[here]
    if model.least_prefill is not None:
        prefill = model.least_prefill[here]
    offered, most = float(model.least_offered[index]), float(model.offered[index])
    without_cache = None
    if offered < most:
        without_cache = most + beside.in_full.mean
    # Only the mean and the longest prompt count; the longest is not known of contexts that grow, so
    # there is none.
    prompts = float(visits[prefill > 0].sum())
    mean = max(float(visits @ prefill) / max(prompts, 1e-300), 1.0)
    return Demand(
        kinds=kinds,
        load=None,
        capacity=sum(count * _capacity(server) for server, count in kinds),
        prefill=float(visits @ prefill),
        decode=float(visits @ decode),
        error=float(model.standard_error[index]) / max(offered, 1e-300),
        prompt=Geometric(mean),
        attention=beside.attention,
        memory=beside.memory,
        links=beside.links,
        front=beside.front,
        without_cache=without_cache,
    )


def _capacity(server: Server) -> float:
    """Return the tokens/s that a server processes in batches of any size."""
    return server.batch_time.by_tokens.capacity(server.most_tokens)


# The law of what comes to a pool


def _load_at(network: Network, visits: Floats, index: int) -> Load | None:
    """Return the load of each replica of a pool, where the law of all that comes is known."""
    # Requests of one stage, none of which comes back, at replicas that are alike.
    (server, replicas), *others = network.pool_list[index].servers
    visited = np.flatnonzero((network.stage_pool == index) & (visits > 0))
    if others or visited.size != 1 or network.onward[visited[0], visited[0]]:
        return None
    number = int(visited[0])
    of_workflow = int(np.searchsorted(network.first_stage, number, "right")) - 1
    workflow = network.workflows[of_workflow]
    if isinstance(workflow, Sessions):
        return None
    stage = list(workflow.stages.values())[number - int(network.first_stage[of_workflow])]
    workload = _law_of(workflow, stage)
    if workload is None or (workflow.means().sampled is not None):
        return None
    # Elsewhere what never fits blocks a replica or is dropped with its job, and outputs are cut as
    # a sample of jobs says.
    longest = largest(workload.lengths)
    fitting = longest is None or bool(fits(*longest, server).all())
    if not (is_one_server(network) or (fitting and not server.policy.memory.longest_context)):
        return None
    return load(workload, server, float(visits[number]) / replicas)


def _law_of(workflow: Workflow, stage: Stage) -> Workload | None:
    """Return a workload whose requests have the lengths of those of a stage; None: not known."""
    arrivals = workflow.arrivals
    if len(workflow.begins) > 1 or workflow.goes_on or stage.most_visits is not None:
        return None
    if (stage.prompt, stage.output) == ("job", "job"):
        if len(workflow.stages) > 1 and arrivals.prefixes is not None:
            return None
        return arrivals
    if stage.output == "job" and arrivals.declared is not None:
        return None
    # A length that comes with the job has its law alone where it does not depend on the other.
    apart = isinstance(arrivals.lengths, Independent) and not arrivals.lengths.correlation
    laws = []
    for part, law in (("prompt", stage.prompt), ("output", stage.output)):
        if law == "job" and apart:
            law = getattr(arrivals.lengths, part)
        if isinstance(law, str) or law == 0:
            return None
        laws.append(law)
    return Workload(None, pair_of(*laws), name=workflow.name)


def is_one_server(network: Network) -> bool:
    """Return whether a network is one server, and its jobs are the requests of a workload."""
    pool, *pools = network.pools.values()
    workflow, *workflows = network.workflows
    if pools or workflows or pool.replicas > 1 or isinstance(workflow, Sessions):
        return False
    stage, *stages = workflow.stages.values()
    once = stage.then is None and stage.most_visits is None
    at_once = stage.delay_ms == 0 and not stage.transfer_ms_per_token
    as_it_comes = (stage.prompt, stage.output) == ("job", "job") and not workflow.goes_on
    return not stages and once and at_once and as_it_comes


# Ends that nobody foresees (see `penstock.theory.unforeseen`)


def wasted_at_stages(network: Network) -> list[Share]:
    """Return least and most mean tokens a request costs after its end; shape (stages,)."""
    shares = []
    for workflow in network.workflows:
        for stage in workflow.stages.values():
            servers = [server for server, _ in network.pools[stage.pool].servers]
            shares.append(_at_stage(workflow, stage, servers))
    return shares


def declares(workflow: Workflow | Sessions) -> bool:
    """Return whether requests of a workflow may declare more outputs than they make."""
    if isinstance(workflow, Sessions):
        return workflow.recorded.declared is not None
    return workflow.arrivals.declared is not None


def _at_stage(workflow: Workflow | Sessions, stage: Stage, servers: list[Server]) -> Share:
    """Return least and most mean tokens that a request of one stage costs after its end."""
    ahead = any(server.policy.batching.ahead for server in servers)
    if not (ahead and declares(workflow)):
        return NONE
    if isinstance(workflow, Sessions):
        return 0.0, 1.0
    lengths, declared = workflow.arrivals.lengths, workflow.arrivals.declared
    if declared is None or stage.output not in ("job", "rest"):
        return NONE
    low, high = share(lengths, declared)
    surely = (stage.prompt, stage.output) == ("job", "job")
    if not (surely and all(wastes_each(s, lengths) and s.memory is None for s in servers)):
        low = 0.0
    return low, high


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


Ask = tuple[int, str]
"""A pool, and what is asked of it: a field of `Beside`."""


def _asks(network: Network, loads: Sequence[Load | None]) -> list[Ask]:
    """Return what a sample of jobs is to say of pools: what no law says, and links."""
    asks = []
    for index, (pool, law) in enumerate(zip(network.pools.values(), loads, strict=True)):
        servers = [server for server, _ in pool.servers]
        if law is None and all(isinstance(s.batch_time, Composition) for s in servers):
            asks += [(index, "attention"), (index, "in_full")]
        if law is None and all(server.memory is not None for server in servers):
            asks.append((index, "memory"))
        if law is None and servers[0].front_end is not None:
            asks.append((index, "front"))
        if network.sends_memory:
            asks.append((index, "links"))
    return asks


def _asked(network: Network, index: int, what: str, visits: Visits) -> Floats:
    """Return what requests ask of a pool, at the kind of server with the least there."""
    if what == "links":
        takes = (visits.pool == index) | (visits.sender == index)
        return np.where(takes, visits.link_s, 0.0)
    here = np.flatnonzero(visits.pool == index)
    mine = visits.of(here)
    at_server = _AT_SERVER[what]
    servers = [server for server, _ in network.pool_list[index].servers]
    asked = np.zeros(visits.pool.size)
    asked[here] = np.min([at_server(server, mine) for server in servers], axis=0)
    return asked


def _kv_tokens_at(server: Server, visits: Visits) -> Floats:
    """Return the tokens in blocks that requests hold, over all iterations."""
    memory = server.memory
    assert memory is not None
    prompt = visits.prompt
    if server.caches_prefixes:
        prompt = prompt - visits.shared
    blocks = block_iterations_of(prompt, visits.output, server, memory)
    here = np.flatnonzero(visits.received)
    if here.size:
        received, output = visits.received[here], visits.output[here]
        received_blocks = -(-received // memory.block_size)
        blocks[here] = decode_blocks(received, output, memory.block_size)
        if reserves(server):
            last = server.outputs_of_prefill
            blocks[here] = output * peak_blocks(received, output + last, server, memory)
        blocks[here] += received_blocks * visits.transfer_s[here] / iteration_s(server)
    return np.asarray(blocks * memory.block_size, np.float64)


def _in_full_at(server: Server, visits: Visits) -> Floats:
    """Return the same as `_attention_at` if requests find nothing but what they surely do."""
    return _attention_at(server.without_cache, visits)


def _attention_at(server: Server, visits: Visits) -> Floats:
    """Return the tokens that a server would process during the attention of requests, at least."""
    model = server.batch_time
    assert isinstance(model, Composition)
    # As in `penstock.theory.attention.attention`.
    prompt, per_token = visits.prompt, model.with_prefill / server.most_tokens
    if server.caches_prefixes:
        prompt, per_token = prompt - visits.found, 0.0
    output = np.maximum(visits.output, server.outputs_of_prefill)
    least, _ = attention_of(np.maximum(prompt, 1), output, server, reused=server.caches_prefixes)
    return np.where(prompt > 0, least + per_token * prompt, 0.0) * _capacity(server)


def _front_at(server: Server, visits: Visits) -> Floats:
    """Return the seconds that a front end works on requests."""
    assert server.front_end is not None
    outputs = visits.output.astype(np.float64)
    return np.where(visits.received > 0, 0.0, server.front_end.seconds(outputs))


_AT_SERVER = {
    "attention": _attention_at,
    "in_full": _in_full_at,
    "memory": _kv_tokens_at,
    "front": _front_at,
}


def _per_second(network: Network, loads: Sequence[Load | None]) -> list[Beside]:
    """Return what is asked of each pool per second beside its tokens."""
    asks = _asks(network, loads)
    if not asks:
        return [Beside()] * len(loads)
    mean, variance = np.zeros(len(asks)), np.zeros(len(asks))
    for index, workflow in enumerate(network.workflows):
        of_job, error = _per_job(network, index, workflow.means(), asks)
        mean += workflow.rate * of_job
        variance += (workflow.rate * error) ** 2
    estimates: list[dict[str, Estimate]] = [{} for _ in loads]
    errors = np.sqrt(variance)
    for (pool, what), estimate in zip(asks, zip(mean, errors, strict=True), strict=True):
        estimates[pool][what] = Estimate(*map(float, estimate))
    return [Beside(**of_pool) for of_pool in estimates]


def _per_job(
    network: Network, index: int, means: Means, asks: Sequence[Ask]
) -> tuple[Floats, Floats]:
    """Return means of what a job asks, and standard errors; shape (asks,) each."""
    # Where visits are known by formula, means are those of a request at each stage times its
    # visits: so constant lengths have no error, however jobs branch.
    workflow = network.workflows[index]
    stages = len(means.visits)
    visited, brought = [], []
    for jobs in sample(workflow, sampled_jobs(max(float(means.visits.sum()), 1.0))):
        at = jobs.job * stages + jobs.stage
        visited.append(np.bincount(at, minlength=jobs.count * stages).reshape(-1, stages))
        brings = _visits(network, network.numbered(jobs, index))
        of_requests = [_asked(network, *ask, brings) for ask in asks]
        of_jobs = [np.bincount(at, values, jobs.count * stages) for values in of_requests]
        brought.append(np.stack([sums.reshape(-1, stages) for sums in of_jobs], axis=1))
    visits, sums = np.concatenate(visited), np.concatenate(brought)  # (jobs, [asks,] stages)
    count = len(visits)
    if isinstance(workflow, Sessions):  # all of them
        return sums.sum(axis=2).mean(axis=0), np.zeros(len(asks))
    if means.sampled is not None:
        of_jobs = sums.sum(axis=2)
        return of_jobs.mean(axis=0), of_jobs.std(axis=0) / math.sqrt(count)
    sampled = np.maximum(visits.mean(axis=0), 1e-300)
    of_request = sums.mean(axis=0) / sampled  # (asks, stages)
    expected = np.where(visits.any(axis=0), means.visits, 0.0)
    rest = (sums - visits[:, None, :] * of_request) @ (expected / sampled)
    return of_request @ expected, rest.std(axis=0) / math.sqrt(count)


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
