"""Simulate a network: unfold jobs, turn them into integer ticks, run the kernel, hand back a
`NetworkRun`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.network_run import NetworkRecord, NetworkRun, RequestRows
from penstock.simulation.replica_run import first_replicas
from penstock.simulation.run import TICK_S
from penstock.simulation.running import Running
from penstock.simulation.session_network import NetworkSession, Passed, job_finish
from penstock.simulation.simulate import RunOptions, checked_record, cut, refuse_both
from penstock.system.network import Network
from penstock.system.outages import Outage, checked_outages
from penstock.workload.arrivals import MOST_ARRIVALS
from penstock.workload.jobs import Jobs

_RECORDS: tuple[NetworkRecord, ...] = ("jobs", "summary", "requests", "batches", "allocations")


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
    whole = level not in ("jobs", "summary")
    running = Running(session, whole, drain, jobs, options.progress, gap_sections)
    run = _run(running, session, _blocks(network.blocks(seed), jobs, options))
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
    whole = record not in ("jobs", "summary")
    return _run(Running(session, whole, True, jobs.count), session, iter([jobs]))


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


def _run(running: Running, session: NetworkSession, blocks: Iterator[Jobs]) -> NetworkRun:
    """Serve all blocks, and put what became of them into a run."""
    running.through(blocks)
    passed: list[Passed] = running.passed
    network = session.network
    servers = session.world.servers
    count = session.arrived_jobs + sum(part.jobs.count for part in passed[:-1])
    rows = None
    if running.whole:
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
        last_arrival=running.last_arrival if session.stop == NEVER else session.stop,
        workflow=_joined([part.jobs.workflow for part in passed])[:count],
        arrival=_joined([part.arrival for part in passed])[:count],
        finish=_joined([job_finish(part) for part in passed])[:count],
        replica_pool=session.pool_of_replica,
        n_batches=servers["batches"].copy(),
        busy=session.busy(),
        tokens=servers["processed"].copy(),
        recomputed_tokens=session.by_replica("lost"),
        reused_tokens=session.by_replica("reused"),
        series_rows=session.series_rows,
        rows=rows,
        folded=[(ttft.distribution, e2e.distribution) for ttft, e2e in session.folds] or None,
        gaps=session.gaps() if session.counts_gaps else None,
        batch_rows=batch_rows,
        allocation_rows=allocation_rows,
        gap_sections=running.sections,
    )


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Put columns after one another; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_COLUMNS = ("ready", "first_token", "finish", "cached")
