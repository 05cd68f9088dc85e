"""The jobs at which means are taken where no formula gives them."""

import functools

from penstock.workload.jobs import Jobs
from penstock.workload.sessions import Sessions
from penstock.workload.workflow import Workflow


@functools.lru_cache(maxsize=4)  # each mean of one answer is taken over the same
def sample(workflow: Workflow | Sessions, most: int) -> tuple[Jobs, ...]:
    """Return a workflow's first jobs, at most so many, block by block; of sessions all."""
    if isinstance(workflow, Sessions):
        return (workflow.recorded,)
    jobs: list[Jobs] = []
    for block in workflow.blocks():
        jobs.append(block.first(most))
        most -= jobs[-1].count
        if not most:
            break
    return tuple(jobs)
