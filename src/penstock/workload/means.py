"""Means of a workflow: what load, traffic equations and certificates need to know of it."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from penstock.inputs.arrays import Floats, Ints
from penstock.workload.jobs import Jobs

MOST_SAMPLED, FEWEST_SAMPLED = 65_536, 256
"""Jobs from which means are sampled where no formula gives them; fewer where they are long."""

_SAMPLED_REQUESTS = 2**21


def sampled_jobs(requests: float) -> int:
    """Return from how many jobs means are sampled, where a job has so many requests on average."""
    return int(np.clip(_SAMPLED_REQUESTS / requests, FEWEST_SAMPLED, MOST_SAMPLED))


@dataclasses.dataclass(frozen=True, eq=False)
class Means:
    """Means over the jobs of a workflow, by stage."""

    external: Floats  # shape (stages,), share of the jobs that begin there; adds up to 1
    # Shape (stages, stages), requests of the second stage that the end of one of the first
    # releases, on average; an edge into a join of k branches counts 1/k.
    onward: Floats
    # Shape (stages,), requests of a job: the solution of visits = external + onward^T visits
    # (eq:traffic).
    visits: Floats
    prompt: Floats  # shape (stages,), tokens of a request, context included
    output: Floats  # shape (stages,), tokens of a request, context included
    # Shape (stages,), share of the requests that have a prompt and an output. Convention `engine`:
    # the end of their prefill yields the first output token, so a mean request has output - both
    # decode iterations.
    both: Floats
    max_prompt: Floats  # shape (stages,), upper limits; infinite where there is none
    max_output: Floats  # shape (stages,), upper limits; infinite where there is none
    sampled: int | None  # jobs from which some of these are sampled; None: all are exact
    # Shape (stages, stages), of the mean tokens (prompt and output) of a job at each stage; zeros
    # where exact.
    covariance: Floats

    @property
    def tokens(self) -> Floats:
        """Shape (stages,), prompt and output tokens of a job, on average."""
        return self.visits * (self.prompt + self.output)

    @property
    def standard_error(self) -> Floats:
        """Shape (stages,), of `tokens`; zeros where they are exact."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def bounded(self) -> bool:
        """Whether lengths have an upper limit."""
        return bool(np.isfinite(self.max_prompt).all() and np.isfinite(self.max_output).all())


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Means of a sample of jobs; as in `Means`."""

    external: Floats
    onward: Floats
    prompt: Floats
    output: Floats
    both: Floats
    covariance: Floats

    @classmethod
    def of(cls, blocks: Iterable[Jobs], stages: int) -> "Sample":
        """Take the means of these jobs; a stage that none of them visits has zeros."""
        jobs = 0
        per_stage = np.zeros((4, stages))  # requests, prompt, output, both
        external = np.zeros(stages)
        edges = np.zeros((stages, stages))
        total = np.zeros(stages)
        squares = np.zeros((stages, stages))
        for block in blocks:
            jobs += block.count
            both = (block.prompt > 0) & (block.output > 0)
            external += np.bincount(block.stage[block.first_request[:-1]], minlength=stages)
            for row, weights in enumerate((None, block.prompt, block.output, both)):
                per_stage[row] += np.bincount(block.stage, weights, stages)
            parent, child = released(block)
            which = block.stage[parent].astype(np.int64) * stages + block.stage[child]
            edges += np.bincount(which, 1 / block.pending[child], stages * stages).reshape(
                stages, stages
            )
            tokens = np.bincount(
                block.job * stages + block.stage,
                block.prompt.astype(np.float64) + block.output,
                block.count * stages,
            ).reshape(-1, stages)
            total += tokens.sum(axis=0)
            squares += tokens.T @ tokens
        requests = np.maximum(per_stage[0], 1)
        _, prompt, output, both = per_stage / requests
        mean = total / jobs
        covariance = (squares / jobs - np.outer(mean, mean)) / jobs
        return cls(external / jobs, edges / requests[:, None], prompt, output, both, covariance)


def released(jobs: Jobs) -> tuple[Ints, Ints]:
    """Return pairs of a request and one that its end releases or counts down, by place."""
    parent = np.flatnonzero(jobs.child)
    child = parent + jobs.child[parent]
    pairs = [(parent, child)]
    while (more := jobs.sibling[child] > 0).any():
        parent, child = parent[more], child[more] + jobs.sibling[child[more]]
        pairs.append((parent, child))
    return np.concatenate([p for p, _ in pairs]), np.concatenate([c for _, c in pairs])
