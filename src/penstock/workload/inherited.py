"""What requests of a job have from the request that the job came with: its priority, the outputs
that it declares, the hash ids of its prompt.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.workload.draws import Tokens
from penstock.workload.jobs import Jobs, Requests


def inherited(
    jobs: Jobs,
    requests: Requests,
    prompt: Sequence[Tokens],
    output: Sequence[Tokens],
    priority: int,
    first_prefix: int | None,
) -> Jobs:
    """Return jobs with what their requests have from those that they came with."""
    # Stages that draw ``job`` have the requests' lengths, declared tokens and recorded prompt.
    # ``priority`` is of jobs whose request has none; ``first_prefix`` is the first recorded prompt,
    # None: none.
    declared = prefix = None
    ranks: npt.NDArray[np.int32] | None = None
    if requests.priority is not None:
        ranks = requests.priority[jobs.job].astype(np.int32)
    elif priority != 0:
        ranks = np.full(jobs.requests, priority, np.int32)
    if requests.declared is not None:
        more = requests.declared - requests.output_tokens
        spared = np.array([tokens in ("job", "rest") for tokens in output])[jobs.stage]
        declared = jobs.output + np.where(spared, more[jobs.job], 0).astype(np.int32)
    if first_prefix is not None:
        of_job = np.array([tokens == "job" for tokens in prompt])[jobs.stage]
        prefix = np.where(of_job & (jobs.reuse == 0), first_prefix + jobs.job, -1).astype(np.int32)
    return dataclasses.replace(jobs, priority=ranks, declared=declared, prefix=prefix)
