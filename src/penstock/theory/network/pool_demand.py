"""What requests ask of a pool beside tokens, in a sample of jobs: what their attention takes, the
KV memory that they hold, and the time that their transfers take.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.system.batch_time import Composition
from penstock.system.network import Network
from penstock.system.reuse import shared_at_most
from penstock.system.server import Server
from penstock.theory.attention import attention_of
from penstock.theory.kv_blocks import (
    block_iterations_of,
    decode_blocks,
    outputs_of_prefill,
    peak_blocks,
    reserves,
)
from penstock.workload.jobs import Jobs
from penstock.workload.means import Means, sampled_jobs
from penstock.workload.sample import sample
from penstock.workload.sessions import Sessions


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


class Sampled(NamedTuple):
    """A mean per second, and its standard error."""

    mean: float
    error: float

    def times(self, factor: float) -> "Sampled":
        """Return it in other units."""
        return Sampled(self.mean * factor, self.error * factor)


def only_at(pool: int, ask: OfVisits | None) -> OfVisits:
    """Return what asks of the requests that a pool serves only; None: nothing."""

    def asked(visits: Visits) -> Floats:
        of_all = np.zeros(visits.pool.size)
        if ask is not None:
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
    capacity = model.by_tokens.capacity(server.most_tokens)
    return np.where(prompt > 0, least + per_token * prompt, 0.0) * capacity


def per_second(network: Network, asked: Sequence[OfVisits]) -> tuple[Floats, Floats]:
    """Return means of what is asked of pools per second, and standard errors; shape (asked,)."""
    mean, variance = np.zeros(len(asked)), np.zeros(len(asked))
    for index, workflow in enumerate(network.workflows):
        of_job, error = _per_job(network, index, workflow.means(), asked)
        mean += workflow.rate * of_job
        variance += (workflow.rate * error) ** 2
    return mean, np.sqrt(variance)


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
