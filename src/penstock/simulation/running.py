"""A run on its way: blocks of arrivals go into a session, and what became of them comes out."""

import contextlib
import dataclasses
import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.compositions import compositions
from penstock.simulation.distribution import Distribution
from penstock.simulation.progress import Progress, silent
from penstock.simulation.rows import JobEnds, Rows
from penstock.simulation.run import Run
from penstock.system.server import Server

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.workload.workload import Workload

_Item = TypeVar("_Item")
_STEPS = 500_000  # batches between two reports of progress: a blink
_WINDOW = 2**18  # arrivals that go into the kernel at a time
_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass
class Running:
    """A run of a session, of a server or a network.

    A ``whole`` run keeps all that arrives in memory until the end; else latencies are folded, and
    only what has not finished stays.
    """

    session: Any
    whole: bool
    drain: bool
    total: int | None  # arrivals; None: the run stops at a tick
    progress: Progress = silent
    gap_sections: int = 0
    rows: list[Rows] = dataclasses.field(default_factory=list)
    ends: list[JobEnds] = dataclasses.field(default_factory=list)
    gaps: list[Distribution] = dataclasses.field(default_factory=list)
    last_arrival: int = 0  # tick

    def through(self, blocks: Iterator[Any]) -> None:
        """Run block after block; the last two together, as a batch may outlast a short last one."""
        full: list[Any] = []
        held: list[Any] = []
        if self.whole:
            self._serve(list(blocks), final=True)
            return
        with contextlib.closing(drawn_ahead(blocks)) as coming:
            for block in coming:
                if held and sum(map(_size, held)) < _WINDOW:
                    held.append(block)
                    continue
                if full:
                    self._serve(full, final=False)
                full, held = held, [block]
        self._serve(full + held, final=True)

    def _serve(self, blocks: Sequence[Any], final: bool) -> None:
        session = self.session
        if blocks:
            session.add(type(blocks[0]).joined(blocks))
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
        stops = final and not self.drain and session.stop == NEVER
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
        counts, raw = session.counts(), session.series_rows
        of_server = isinstance(system, Server)
        arrived, finished = session.arrived, session.finished
        ends = rows = None
        if self.ends:
            ends = JobEnds.joined(self.ends).where(slice(arrived))
            finished = int((ends.finish >= 0).sum())
        if self.whole:
            rows = Rows.joined(self.rows)
            if not of_server and rows.jobs.count > arrived:  # some came too late
                jobs = rows.jobs.first(arrived)
                rows = dataclasses.replace(rows.where(slice(jobs.requests)), of_jobs=jobs)
        mixes, mix_ticks = compositions(session.world) if of_server else ((_NONE, _NONE), _NONE)
        batch_rows, allocation_rows = session.recorded()
        sections = itertools.pairwise([Distribution.of(_NONE), *self.gaps])
        return Run(
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
            series_rows=_totals(raw, counts.pool.size),
            rows=rows,
            folded=tuple((ttft.distribution, e2e.distribution) for ttft, e2e in session.folds)
            if session.folds and not self.whole
            else None,
            batch_rows=batch_rows,
            allocation_rows=allocation_rows,
            preemptions=int(counts.preemptions.sum()),
            recomputed_tokens=int(counts.recomputed_tokens.sum()),
            reused_tokens=int(counts.reused_tokens.sum()),
            gap_sections=tuple(later.since(earlier) for earlier, later in sections),
            ends=ends,
            queue_rows=None if of_server else raw,
            by_replica=counts,
            workload=workload,
        )

    def _report(self) -> None:
        if self.total is None:
            self.progress(self.session.now / self.session.stop)
        else:
            self.progress(self.session.share_of(self.total))


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


def _size(block: Any) -> int:
    return int(block.arrival_s.size)


def drawn_ahead(items: Iterator[_Item]) -> Generator[_Item, None, None]:
    """Yield items while a thread draws the next: compiled code and NumPy let both go on."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
