"""What a run keeps, in columns: of requests, of jobs, of replicas."""

import dataclasses
from typing import Any, Literal, Self, TypeVar, get_args

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Columns, Ints, Ints32
from penstock.kernel.records import LEFT, LOST, REFUSED
from penstock.workload.jobs import Jobs

T = TypeVar("T")
Record = Literal["jobs", "summary", "requests", "batches", "allocations"]
RECORDS: tuple[Record, ...] = get_args(Record)
FAILED = {LOST: "lost", REFUSED: "refused", LEFT: "left"}
"""Why a request failed: with its replica, or because one before it did; it was refused on arrival;
its client left.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Columns):
    """What became of each request; ticks, -1 for what did not happen. Shape (requests,) each."""

    arrival: Ints  # when it first came to its pool
    prompt_tokens: Ints32
    output_tokens: Ints32
    first_token: Ints
    finish: Ints
    preemptions: Ints | None = None  # None where nothing can be preempted
    dropped: Bools | None = None  # those that could never fit; None where all could
    # Of a network: prompt tokens that the replica had from an earlier request, and the replica, at
    # its pool from 0.
    cached: Ints32 | None = None
    replica: Ints | None = None
    # How often it was sent again, or came again; and why it failed at last (`FAILED`; 0: it has
    # not). Of one that was sent again all but its arrival is of its last try. None where no replica
    # dies, none is refused and no client leaves.
    tries: Ints | None = None
    failed: Ints | None = None
    # How often it was refused, and tokens processed until its client left; None where none can be.
    refusals: Ints | None = None
    wasted: Ints | None = None
    of_jobs: Jobs | None = None

    @property
    def jobs(self) -> Jobs:
        """The jobs that the requests are of."""
        if self.of_jobs is None:
            raise InputError(
                "of some requests of several jobs, or of one replica, the jobs are not known; look "
                "at the rows of the whole run"
            )
        return self.of_jobs

    def where(self, chosen: Any) -> Self:
        """Return some of the requests; without jobs, where these have several requests each."""
        rows = Columns.where(dataclasses.replace(self, of_jobs=None), chosen)
        jobs = self.of_jobs
        if jobs is None or jobs.requests > jobs.count:
            return rows
        return dataclasses.replace(rows, of_jobs=jobs.taken(np.arange(jobs.count)[chosen]))

    @property
    def preempted(self) -> Ints:
        """How often each was preempted."""
        if self.preemptions is None:
            return np.zeros(self.arrival.size, np.int64)
        return self.preemptions

    @property
    def found(self) -> Ints32:
        """Prompt tokens that the replica had from an earlier request."""
        if self.cached is None:
            return np.zeros_like(self.prompt_tokens)
        return self.cached

    @property
    def tpot(self) -> Ints:
        """Times per output token, as benchmarks have them: from the first token to the last, over
        the tokens after the first; ticks, of the requests that finished with several.
        """
        several = (self.finish >= 0) & (self.output_tokens > 1)
        decoding = (self.finish - self.first_token)[several]
        return np.rint(decoding / (self.output_tokens[several] - 1)).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class JobEnds(Columns):
    """When jobs came and ended; shape (jobs,) each."""

    workflow: Ints32  # its place in the network
    arrival: Ints  # ticks
    finish: Ints  # ticks; -1: it did not end


@dataclasses.dataclass(frozen=True, eq=False)
class ReplicaCounts(Columns):
    """What each replica did; shape (replicas,) each, of all pools."""

    pool: Ints  # its place in the network
    batches: Ints  # that ended
    in_progress: Ints  # batches that have begun, and not ended
    busy: Ints  # ticks
    tokens: Ints  # in batches that ended
    started_tokens: Ints  # in batches that started
    preemptions: Ints
    recomputed_tokens: Ints
    reused_tokens: Ints

    @property
    def number(self) -> Ints:
        """Shape (replicas,), its number at its pool, from 0."""
        return np.arange(self.pool.size) - np.searchsorted(self.pool, self.pool)


def recorded(rows: T | None, level: Record) -> T:
    """Return what a run kept at this level of recording, or say how to have it kept."""
    if rows is None:
        raise InputError(f"this run did not keep its {level}; simulate with record={level!r}")
    return rows
