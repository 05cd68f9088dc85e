"""The earliest that requests of jobs can end, whatever the policies, orders, routers and loads.

A request needs at least the time of its own batches on an idle replica
(`penstock.theory.latency_bounds.request_bounds`), and comes to its pool when all that it waits for
have ended, and its delay is over. So along every way through a job these times add up, and after a
join the longest way counts. It holds for each request in every run, hence for means and quantiles.
"""

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.system.network import Network
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
    for index, pool in enumerate(network.pools.values()):
        here = np.flatnonzero((pool_of == index) & (jobs.prompt + jobs.output > 0))
        reuse = np.minimum(jobs.reuse[here], np.maximum(jobs.prompt[here] - 1, 0))
        output = np.maximum(jobs.output[here], outputs_of_prefill(pool.server))
        _, needed[here] = request_bounds(
            (jobs.prompt[here] - reuse).astype(np.int64),
            output.astype(np.int64),
            pool.server,
            reused=bool(reuse.any()),
        )
    parent, child = released(jobs)
    ends = jobs.delay_s + needed
    while True:  # once for each request on the longest way
        later = ends.copy()
        np.maximum.at(later, child, ends[parent] + (jobs.delay_s + needed)[child])
        if (later == ends).all():
            return ends
        ends = later


def earliest_of_jobs(network: Network, jobs: Jobs) -> Floats:
    """Return how long each job takes at least, s; shape (jobs,)."""
    if not jobs.count:
        return np.zeros(0)
    return np.maximum.reduceat(earliest_ends(network, jobs), jobs.first_request[:-1])
