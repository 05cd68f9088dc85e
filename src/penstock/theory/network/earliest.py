"""The earliest that requests of jobs can end, whatever the policies, orders, routers and loads.

A request needs at least the time of its own batches on an idle replica
(`penstock.theory.latency_bounds.request_bounds`), and comes to its pool when all that it waits for
have ended, its delay is over, and its KV memory is there where that comes from another replica. Of
replicas that differ the fastest counts, and of a prompt what is left if all is found that may be.
So along every way through a job these times add up, and after a join the longest way counts. It
holds for each request in every run, hence for means and quantiles.
"""

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.system.network import Network
from penstock.system.server import Server
from penstock.theory.kv_blocks import outputs_of_prefill
from penstock.theory.latency_bounds import request_bounds
from penstock.workload.jobs import Jobs
from penstock.workload.means import released


def earliest_ends(network: Network, jobs: Jobs) -> Floats:
    """Return how long after the arrival of its job each request ends at the earliest, s; shape
    (requests,).

    Parameters
    ----------
    network
        What serves.
    jobs
        As drawn for it.
    """
    needed = np.zeros(jobs.requests)
    pool_of = network.stage_pool[jobs.stage]
    prompt = (jobs.prompt - network.found_at_most(jobs)).astype(np.int64)
    for index, pool in enumerate(network.pools.values()):
        here = np.flatnonzero((pool_of == index) & (jobs.prompt + jobs.output > 0))
        found = bool((prompt[here] < jobs.prompt[here]).any())
        needed[here] = np.min(
            [
                _alone(server, prompt[here], jobs.output[here].astype(np.int64), found)
                for server, _ in pool.servers
            ],
            axis=0,
        )
    parent, child = released(jobs)
    needed += jobs.wait_s
    ends = needed.copy()
    while True:  # once for each request on the longest way
        later = ends.copy()
        np.maximum.at(later, child, ends[parent] + needed[child])
        if (later == ends).all():
            return ends
        ends = later


def _alone(server: Server, prompt: Ints, output: Ints, found: bool) -> Floats:
    """Return each request's least seconds at an idle server; shape (requests,)."""
    # ``found``: whether prompts are what is left of them if all is found that may be.
    prefills = prompt > 0
    end = np.zeros(prompt.size)
    made = np.maximum(output[prefills], outputs_of_prefill(server))
    _, end[prefills] = request_bounds(prompt[prefills], made, server, reused=found)
    # The others decode all of their outputs here, of drafts that may all be right.
    shortest = float(server.batch_time.by_tokens.table(server.most_tokens)[1:].min())
    end[~prefills] = (
        np.ceil(output[~prefills] / (1 + server.policy.memory.drafted_tokens)) * shortest
    )
    return end


def earliest_of_jobs(network: Network, jobs: Jobs) -> Floats:
    """Return how long each job takes at least, s; shape (jobs,)."""
    if not jobs.count:
        return np.zeros(0)
    return np.maximum.reduceat(earliest_ends(network, jobs), jobs.first_request[:-1])
