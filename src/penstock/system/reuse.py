"""What requests find of their prompts: of their context where all that a job computes in a pool
stays on one replica, and at most where that depends on the run.
"""

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.workload.jobs import Jobs


def shared_at_most(jobs: Jobs) -> Ints:
    """Return tokens of each prompt that others may have in a cache; shape (requests,)."""
    # Those of its context, and any of a prompt whose hash ids are recorded.
    recorded = jobs.column("prefix") >= 0
    shared = np.where(recorded, jobs.prompt, np.where(jobs.context < 0, jobs.reuse, 0))
    return np.minimum(shared, jobs.prompt).astype(np.int64)


def reused(jobs: Jobs, pool: Ints) -> Ints:
    """Return what each request finds of its context in the same pool; shape (requests,)."""
    # All of it that was computed there, or what came before. ``pool`` has the pool of each stage.
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


def computed_once(jobs: Jobs, pool: Ints) -> Ints:
    """Return the context tokens that each request computes itself; shape (requests,)."""
    # If no replica of a pool forgets, and each knows what others do. A token of a context comes
    # from the prompt or output of one request: the pool that served it has it. Else it counts at
    # the one there that goes on with the most of it. Nothing is counted of a recorded prompt, which
    # other jobs may share.
    here, pools = pool[jobs.stage], int(pool.max(initial=0)) + 1
    recorded = jobs.column("prefix") >= 0
    computed = np.zeros(jobs.requests, np.int64)
    request = np.flatnonzero(jobs.context < 0)
    source, shared = request + jobs.context[request], jobs.reuse[request].astype(np.int64)
    places, readers, lengths = [], [], []
    while request.size:
        begun = np.where(jobs.context[source] < 0, jobs.reuse[source], 0)
        foreign = (here[source] != here[request]) & ~recorded[source] & (shared > begun)
        places.append(source[foreign] * pools + here[request[foreign]])
        readers.append(request[foreign])
        lengths.append((shared - begun)[foreign])
        go = (here[source] != here[request]) & (jobs.context[source] < 0)
        request, source, shared = request[go], source[go], np.minimum(shared, begun)[go]
        source = source + jobs.context[source]
    if places:
        place, reader, length = (np.concatenate(part) for part in (places, readers, lengths))
        order = np.lexsort((length, place))
        last = np.append(place[order][1:] != place[order][:-1], True)[: order.size]
        np.add.at(computed, reader[order][last], length[order][last])
    return computed
