"""Simulate a network: unfold jobs, turn them into integer ticks, run the kernel, hand back a
`NetworkRun`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.distribution import Distribution, Fold
from penstock.simulation.network_run import NetworkRecord, NetworkRun, RequestRows
from penstock.simulation.progress import Progress, silent
from penstock.simulation.replica_run import first_replicas
from penstock.simulation.run import TICK_S
from penstock.simulation.session_network import NetworkSession, Passed
from penstock.simulation.simulate import RunOptions, checked_record, cut, refuse_both
from penstock.system.network import Network
from penstock.system.outages import Outage, checked_outages
from penstock.workload.arrivals import MOST_ARRIVALS
from penstock.workload.jobs import Jobs

_RECORDS: tuple[NetworkRecord, ...] = ("jobs", "summary", "requests", "batches", "allocations")
_STEPS = 500_000  # batches between two reports of progress: a blink
_WINDOW = 2**18  # requests that go into the kernel at a time
_NONE = np.zeros(0, np.int64)


def run_network(
    network: Network,
    jobs: int | None,
    seed: int | None,
    options: RunOptions,
    record: str = "requests",
    *,
    gap_sections: int = 0,
) -> NetworkRun:
    """Run so many jobs, those that arrive until the run stops, or whole recordings."""
    # With ``gap_sections`` times between tokens are counted in so many parts of the run, too.
    level = checked_record(record, _RECORDS)
    drain = options.drain
    if drain is None:
        # with prompts found in caches the load is at most what the model says
        drain = network.ends or not network.reuse_is_certain or not (network.model().rho > 1).any()
    counted = "summary" if gap_sections else level
    outages = checked_outages(options.outages, network.pools)
    session = NetworkSession(
        network, options.tick_s, options.compress, options.stop, counted, outages
    )
    running = _Running(session, level, drain, jobs, options.progress, gap_sections)
    run = running.through(_blocks(network.blocks(seed), jobs, options))
    _check_outages(run.last_arrival * run.tick_s, outages)
    return dataclasses.replace(run, outages=outages, hits=session.hits(outages))


def refuse_late_outages(
    network: Network,
    jobs: int | None,
    seed: int | None,
    options: RunOptions,
    outages: Sequence[Outage],
) -> None:
    """Refuse outages that begin when nobody arrives any more, as the run would after it."""
    last_s = options.stop * options.tick_s
    if options.stop == NEVER and outages:
        *_, last = _blocks(network.blocks(seed), jobs, options)
        last_s = float(last.arrival_s[-1])
    _check_outages(last_s, outages)


def _check_outages(last_s: float, outages: Sequence[Outage]) -> None:
    """Refuse outages that begin when nobody arrives any more."""
    for outage in outages:
        if outage.start_s >= last_s:
            raise InputError(
                f"an outage of {outage.name} begins at {outage.start_s:g} s, but the last job of "
                f"the run arrives at {last_s:.6g} s; simulate more, or let it begin earlier"
            )


def jobs_of_run(
    network: Network,
    jobs: int | None,
    until: float | None,
    most: int = MOST_ARRIVALS,
    meaning: str = "it is the number of jobs that arrive",
) -> int | None:
    """Check what was asked for, up to ``most`` jobs; return None: `until` or recordings end it."""
    refuse_both("jobs", jobs, until)
    if jobs is not None:
        return checks.whole("jobs", jobs, 1, most, "", meaning)
    if until is None and not network.ends:
        raise InputError("the workflows never end; say how much to simulate with `jobs` or `until`")
    return None


def simulate_jobs(
    network: Network,
    jobs: Jobs,
    *,
    tick_s: float = TICK_S,
    until: int | None = None,
    compress: bool = True,
    record: NetworkRecord = "requests",
    outages: Sequence[Outage] = (),
) -> NetworkRun:
    """Run given jobs through a network, up to a tick if one is given."""
    stop = NEVER if until is None else until
    session = NetworkSession(network, tick_s, compress, stop, record, outages)
    return _Running(session, record, True, None, silent).through(iter([jobs]))


def _blocks(blocks: Iterator[Jobs], jobs: int | None, options: RunOptions) -> Iterator[Jobs]:
    """Yield jobs up to so many, or up to the tick at which to stop."""
    arrived = 0
    for block in cut(blocks, jobs, options.stop, options.tick_s):
        arrived += block.count
        yield block
    if jobs is not None and arrived < jobs:
        raise InputError(
            f"jobs is {jobs:,}, but the recording has {arrived:,} and is replayed once; ask for "
            "fewer, or give it "
            "a rate"
        )


@dataclasses.dataclass
class _Running:
    """A run on its way: what has been kept of it so far."""

    session: NetworkSession
    record: NetworkRecord
    drain: bool
    jobs: int | None
    progress: Progress
    gap_sections: int = 0
    gaps: list[Distribution] = dataclasses.field(default_factory=list)
    passed: list[Passed] = dataclasses.field(default_factory=list)
    last_arrival: int = 0
    arrived: int = 0

    def __post_init__(self) -> None:
        """Take note of what is kept of requests: all, their latencies in sum, or their ends."""
        self.keeps_requests = self.record not in ("jobs", "summary")
        stages = self.session.network.stages if self.record == "summary" else ()
        self.folds = [(Fold(), Fold()) for _ in stages]

    def through(self, blocks: Iterator[Jobs]) -> NetworkRun:
        """Run block after block; the last two together, as a batch may outlast a short last one."""
        full: list[Jobs] = []
        held: list[Jobs] = []
        for block in blocks:
            if held and (self.keeps_requests or sum(part.requests for part in held) < _WINDOW):
                held.append(block)
                continue
            if full:
                self._serve(full, final=False)
            full, held = held, [block]
        self._serve(full + held, final=True)
        return self._finished()

    def _serve(self, blocks: list[Jobs], final: bool) -> None:
        session = self.session
        if blocks:
            jobs = Jobs.joined(blocks)
            session.add(jobs)
            self.arrived += jobs.count
            if jobs.count:
                self.last_arrival = int(session.world.job_arrival[-1])
        stops = final and not self.drain and session.stop == NEVER
        end = self.last_arrival if stops else session.stop
        for until in [*self._section_ends(end), end]:
            while not session.run(final, until, _STEPS):
                self._report()
            if self.gap_sections:
                self.gaps.append(session.gaps())
        self._report()
        passed = session.fold(everything=final)
        for stage, (ttft, e2e) in enumerate(self.folds):
            here = passed.jobs.stage == stage
            ttft.add(passed.ready[here], passed.first_token[here])
            e2e.add(passed.ready[here], passed.finish[here])
        self.passed.append(passed if self.keeps_requests else _ends_only(passed))

    def _section_ends(self, end: int) -> Ints:
        """Return the ticks before the end at which a section of as many arrivals as each ends."""
        arrival: Ints = self.session.world.job_arrival
        if not self.gap_sections or not arrival.size:
            return arrival[:0]
        last = np.arange(1, self.gap_sections) * arrival.size // self.gap_sections
        return np.asarray(np.minimum(arrival[last], end))

    def _report(self) -> None:
        session = self.session
        if session.stop < NEVER:
            self.progress(session.now / session.stop)
        elif self.jobs:
            waiting = session.jobs.count - session.arrived_jobs
            self.progress((self.arrived - waiting) / self.jobs)

    def _finished(self) -> NetworkRun:
        session = self.session
        passed = self.passed
        network = session.network
        servers = session.world.servers
        count = session.arrived_jobs + sum(part.jobs.count for part in passed[:-1])
        rows = None
        if self.keeps_requests:
            jobs = Jobs.joined([part.jobs for part in passed]).first(count)

            def column(name: str) -> npt.NDArray[Any]:
                return _joined([getattr(part, name) for part in passed])[: jobs.requests]

            replica = column("server") - first_replicas(network)[network.stage_pool[jobs.stage]]
            names: tuple[str, ...] = _COLUMNS
            if session.has_engines:
                names += ("preemptions",)
            if session.has_outages:
                names += ("tries", "lost")
            rows = RequestRows(jobs, replica, **{name: column(name) for name in names})
        batch_rows, allocation_rows = session.recorded()
        return NetworkRun(
            network=network,
            tick_s=session.tick_s,
            end=session.now,
            last_arrival=self.last_arrival if session.stop == NEVER else session.stop,
            workflow=_joined([part.jobs.workflow for part in passed])[:count],
            arrival=_joined([part.arrival for part in passed])[:count],
            finish=_joined([_job_finish(part) for part in passed])[:count],
            replica_pool=session.pool_of_replica,
            n_batches=servers["batches"].copy(),
            busy=session.busy(),
            tokens=servers["processed"].copy(),
            recomputed_tokens=session.by_replica("lost"),
            reused_tokens=session.by_replica("reused"),
            series_rows=session.series_rows,
            rows=rows,
            folded=[(ttft.distribution, e2e.distribution) for ttft, e2e in self.folds] or None,
            gaps=session.gaps() if session.counts_gaps else None,
            batch_rows=batch_rows,
            allocation_rows=allocation_rows,
            gap_sections=tuple(
                later.since(earlier)
                for earlier, later in itertools.pairwise([Distribution.of(_NONE), *self.gaps])
            ),
        )


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Put columns after one another; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_COLUMNS = ("ready", "first_token", "finish", "cached")


def _job_finish(passed: Passed) -> Ints:
    """Return when the last request of each job finished, -1 while one has not."""
    if not passed.jobs.count:
        return np.zeros(0, np.int64)
    if (
        passed.finish.size == passed.jobs.count
    ):  # one left of each: see `_ends_only`, or one request per job
        return passed.finish
    first = passed.jobs.first_request[:-1]
    last = np.maximum.reduceat(passed.finish, first)
    return np.where(np.minimum.reduceat(passed.finish, first) < 0, -1, last)


def _ends_only(passed: Passed) -> Passed:
    """Keep of each job its arrival and its end."""
    jobs = passed.jobs.without_requests()
    unknown = passed.ready[:0]
    return Passed(
        jobs,
        passed.arrival,
        passed.server[:0],
        unknown,
        unknown,
        _job_finish(passed),
        passed.cached[:0],
    )
