"""KV memory that requests get from another replica, because they only decode."""

import numpy as np

from penstock.inputs.arrays import Bools, Ints
from penstock.workload.jobs import Jobs


def received_tokens(jobs: Jobs, pool: Ints, by_engines: Bools, engine_convention: Bools) -> Ints:
    """Return the tokens of KV memory that requests get which only decode at an engine, 0 for all
    others; shape (requests,).

    Parameters
    ----------
    jobs
        Requests.
    pool
        Shape (stages,), the pool of each stage.
    by_engines, engine_convention
        Shape (pools,), whether its servers are engines, and whether the end of a prefill yields the
        first output.
    """
    received = np.zeros(jobs.requests, np.int64)
    if jobs.sender is None or not by_engines.any():
        return received
    here = pool[jobs.stage]
    later = np.flatnonzero((jobs.sender < 0) & (jobs.prompt == 0) & (jobs.output > 0))
    earlier = later + jobs.sender[later]
    first = engine_convention[here] & (jobs.prompt > 0) & (jobs.output > 0)
    processed = jobs.prompt.astype(np.int64) + jobs.output - first
    before = None
    while before is None or (before != received).any():  # some pass on what they got
        before = received.copy()
        received[later] = (received + processed)[earlier]
    return np.where(by_engines[here], received, 0)
