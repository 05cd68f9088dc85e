"""What requests find of their context where all that a job computes in a pool stays on one
replica.
"""

from collections.abc import Iterable

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.workload.jobs import Jobs


def mean_reused(blocks: Iterable[Jobs], pool: Ints, most_jobs: int) -> Floats:
    """Return the tokens that a request of each stage finds on average, over so many jobs, or all if
    there are fewer.

    ``pool`` has the pool of each stage; shape (stages,).
    """
    requests = np.zeros(pool.size)
    tokens = np.zeros(pool.size)
    left = most_jobs
    for block in blocks:
        jobs = block.first(left)
        requests += np.bincount(jobs.stage, minlength=pool.size)
        tokens += np.bincount(jobs.stage, reused(jobs, pool), pool.size)
        left -= jobs.count
        if not left:
            break
    return tokens / np.maximum(requests, 1)


def reused(jobs: Jobs, pool: Ints) -> Ints:
    """Return what each request finds: its context's tokens, if that was computed in the same pool,
    or what came before.

    ``pool`` has the pool of each stage; shape (requests,).
    """
    here, tokens = pool[jobs.stage], np.zeros(jobs.requests, np.int64)
    request = np.flatnonzero(jobs.context)
    source, shared = request + jobs.context[request], jobs.reuse[request].astype(np.int64)
    while request.size:
        same = here[source] == here[request]
        tokens[request[same]] = shared[same]
        go = ~same & (jobs.context[source] != 0)
        request, source, shared = (
            request[go],
            source[go],
            np.minimum(shared[go], jobs.reuse[source[go]]),
        )
        source = source + jobs.context[source]
    return np.minimum(tokens, np.maximum(jobs.prompt - 1, 0))
