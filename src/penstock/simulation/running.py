"""A run on its way: blocks of arrivals go into a session, and what became of them comes out."""

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.distribution import Distribution
from penstock.simulation.progress import Progress, silent
from penstock.simulation.rows import JobEnds, Rows
from penstock.simulation.run import Run
from penstock.simulation.session import Session
from penstock.simulation.ticks import in_ticks
from penstock.system.server import Server
from penstock.workload.jobs import Jobs

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.workload.workload import ClosedLoop, Workload

_Item = TypeVar("_Item")
_STEPS = 500_000  # batches between two reports of progress: a blink
_WINDOW = 2**18  # arrivals that go into the kernel at a time
_TIMES = ("first_token", "finish", "replica")  # of requests that were never served: -1


@dataclasses.dataclass
class Running:
    """A run of a session, of a server or a network.

    A ``whole`` run keeps all that arrives in memory until the end; else latencies are folded, and
    only what has not finished stays.
    """

    session: Session
    whole: bool
    drain: bool
    total: int | None  # arrivals; None: the run stops at a tick
    progress: Progress = silent
    gap_sections: int = 0
    loop: "ClosedLoop | None" = None  # where clients send what comes
    rows: list[Rows] = dataclasses.field(default_factory=list)
    ends: list[JobEnds] = dataclasses.field(default_factory=list)
    gaps: list[Distribution] = dataclasses.field(default_factory=list)
    last_arrival: int = 0  # tick

    def __post_init__(self) -> None:
        if self.loop is not None:  # who comes next is known to the kernel, of all that may come
            self.whole = True

    def through(self, blocks: Iterator[Jobs]) -> None:
        """Run block after block; the last two together, as a batch may outlast a short last one."""
        full: list[Jobs] = []
        waiting: list[Jobs] = []
        blocks = map(self.session.keep, blocks)
        if self.whole:
            self._serve(list(blocks), final=True)
            return
        with contextlib.closing(drawn_ahead(blocks)) as coming:
            for block in coming:
                if waiting and sum(jobs.count for jobs in waiting) < _WINDOW:
                    waiting.append(block)
                    continue
                if full:
                    self._serve(full, final=False)
                full, waiting = waiting, [block]
        self._serve(full + waiting, final=True)

    def _serve(self, blocks: Sequence[Jobs], final: bool) -> None:
        """Let these arrive, go on as far as they tell, and take what became of those who left."""
        session = self.session
        if blocks:
            session.add(Jobs.joined(blocks))
        if self.loop is not None:
            session.close_loop(self.loop.clients, self.loop.pause_s)
        known = session.arrivals.size
        if known:
            self.last_arrival = int(session.arrivals[-1])
        self.run(known, final)
        rows, ends = session.fold(everything=final)
        if ends is not None:
            self.ends.append(ends)
        if self.whole:
            self.rows.append(rows)
            return
        for (ttft, e2e), here in zip(session.folds, session.at_stages(rows), strict=True):
            arrival = rows.arrival[here]
            ttft.add(arrival, rows.first_token[here])
            e2e.add(arrival, rows.finish[here])

    def run(self, known: int, final: bool) -> None:
        """Go on until so many arrivals are used up; final ones to the end, or the last arrival."""
        session = self.session
        stops = final and not self.drain and session.stop == NEVER and self.loop is None
        until = self.last_arrival if stops else session.stop
        for count in [*self._section_ends(known), known]:
            while not session.run(final and count == known, until, _STEPS, count):
                self._report()
            if self.gap_sections:
                self.gaps.append(session.gaps())
        self._report()

    def _section_ends(self, known: int) -> Ints:
        """Return the arrivals up to which the sections go, but for the last."""
        ends = np.arange(1, self.gap_sections) * known // max(self.gap_sections, 1)
        return np.unique(ends[ends > 0])

    def finish(self, system: "Server | Network", workload: "Workload | None" = None) -> Run:
        """Put what is known at the end into a run."""
        session = self.session
        counts, series = session.counts(), session.series_rows
        arrived, finished = session.arrived, session.finished
        rows = ends = folded = None
        if self.ends:
            ends = JobEnds.joined(self.ends).where(slice(arrived))
            finished = int((ends.finish >= 0).sum())
        if self.whole:
            rows = Rows.joined(self.rows)
            if rows.of_jobs is not None and rows.jobs.count > arrived:  # some came too late
                jobs = rows.jobs.first(arrived)
                rows = dataclasses.replace(rows.where(slice(jobs.requests)), of_jobs=jobs)
        elif session.folds:
            folded = tuple((ttft.distribution, e2e.distribution) for ttft, e2e in session.folds)
        if self.loop is not None:
            self._end_loop(arrived, finished, self.loop)
        batch_rows, allocation_rows = session.recorded()
        queue_rows: Ints | None = series
        if isinstance(system, Server):
            # Each of its jobs is a request, and there is no stage or replica to be named but one.
            ends = queue_rows = None
            if batch_rows is not None:
                batch_rows = batch_rows[:, :5]
            if allocation_rows is not None:
                allocation_rows = allocation_rows[:, :4]
        mixes, mix_ticks = session.compositions()
        sections = itertools.pairwise([Distribution.of(np.zeros(0, np.int64)), *self.gaps])
        run = Run(
            system=system,
            tick_s=session.tick_s,
            arrived=arrived,
            finished=finished,
            n_batches=int((counts.batches + counts.in_progress).sum()),
            end=session.now,
            last_arrival=self.last_arrival if session.stop == NEVER else session.stop,
            busy=int(counts.busy.sum()),
            tokens=int(counts.tokens.sum()),
            started_tokens=int(counts.started_tokens.sum()),
            counted_gaps=session.gaps() if session.counts_gaps else None,
            mixes=mixes,
            mix_ticks=mix_ticks,
            series_rows=_totals(series, counts.pool.size),
            rows=rows,
            folded=folded,
            batch_rows=batch_rows,
            allocation_rows=allocation_rows,
            preemptions=int(counts.preemptions.sum()),
            recomputed_tokens=int(counts.recomputed_tokens.sum()),
            reused_tokens=int(counts.reused_tokens.sum()),
            gap_sections=tuple(later.since(earlier) for earlier, later in sections),
            ends=ends,
            queue_rows=queue_rows,
            by_replica=counts,
            workload=workload,
        )
        if session.left_out:
            run = _with_left_out(run, session.left_out)
        return run

    def _end_loop(self, arrived: int, finished: int, loop: "ClosedLoop") -> None:
        """Take note of when the last of a closed loop came; refuse one that cannot be counted."""
        session = self.session
        jobs = session.arrivals.size
        lost = sum(
            np.unique(rows.jobs.job[rows.failed < 0]).size
            for rows in self.rows
            if rows.failed is not None
        )
        if session.stop == NEVER and finished + lost < jobs:
            raise InputError(
                f"{jobs:,} requests of {loop.pace} take more ticks of {session.tick_s:g} s than "
                "can be counted; ask for fewer, a shorter pause, or a larger tick_s"
            )
        self.last_arrival = int(session.arrivals[:arrived].max(initial=0))

    def _report(self) -> None:
        """Report which share is done: of the time, or of jobs that come and requests that leave."""
        session = self.session
        if self.total is None:
            self.progress(session.now / session.stop)
        else:
            self.progress((session.arrived + min(session.finished, self.total)) / (2 * self.total))


def _with_left_out(run: Run, left_out: Sequence[tuple[Ints, Jobs]]) -> Run:
    """Put jobs that never fit back at their places, without times."""
    numbers = np.concatenate([numbers for numbers, _ in left_out])
    out = Jobs.joined([jobs for _, jobs in left_out])
    came = np.flatnonzero(numbers - np.arange(numbers.size) <= run.arrived)
    numbers, out = numbers[came], out.taken(came)
    run = dataclasses.replace(run, dropped=numbers.size)
    if run.rows is None:
        return run

    # Those served stand before those left out until all are put in order.
    jobs = Jobs.joined([run.rows.jobs, out])
    order = np.argsort(np.append(np.delete(np.arange(jobs.count), numbers), numbers))
    requests = jobs.requests_of(order)
    arrival = in_ticks("an arrival", out.arrival_s, run.tick_s)
    fitted = np.zeros(run.rows.finish.size, bool)
    served = dataclasses.replace(run.rows, of_jobs=None, dropped=fitted)
    rows = Rows.joined([served, _never_served(served, out, arrival)]).where(requests)
    run = dataclasses.replace(run, rows=dataclasses.replace(rows, of_jobs=jobs.taken(order)))
    if run.ends is not None:
        ends = JobEnds(out.workflow, arrival, np.full(out.count, -1))
        run = dataclasses.replace(run, ends=JobEnds.joined([run.ends, ends]).where(order))
    if run.allocation_rows is not None:
        run.allocation_rows[:, 1] = np.argsort(requests)[run.allocation_rows[:, 1]]
    return run


def _never_served(served: Rows, jobs: Jobs, arrival: Ints) -> Rows:
    """Return the rows of jobs that never fit, with the columns that those of others have."""
    came = np.full(jobs.requests, -1)
    came[jobs.first_request[:-1]] = arrival
    nothing = {
        name: np.full(jobs.requests, -1 if name in _TIMES else 0, column.dtype)
        for name, column in served.columns()
    }
    rows = {"arrival": came, "prompt_tokens": jobs.prompt, "output_tokens": jobs.output}
    dropped = {"dropped": np.ones(jobs.requests, bool)}
    return Rows(**nothing | rows | dropped)


def _totals(series: Ints, replicas: int) -> Ints:
    """Return tick, requests, unprocessed and uncompleted tokens, from the series of a kernel."""
    # It has requests in prefill and in decode for each stage, then tokens in no batch, and those in
    # one, for each replica, and what jobs still need.
    tick, of_stages = series[:, 0], series[:, 1 : -1 - 2 * replicas]
    unprocessed, inside = np.split(series[:, -1 - 2 * replicas : -1], 2, axis=1)
    unprocessed = unprocessed.sum(axis=1)
    return np.column_stack(
        [tick, of_stages.sum(axis=1), unprocessed, unprocessed + inside.sum(axis=1)]
    )


def drawn_ahead(items: Iterator[_Item]) -> Generator[_Item, None, None]:
    """Yield items while a thread draws the next: compiled code and NumPy let both go on."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
