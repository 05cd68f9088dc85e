"""Simulate: validate, turn into integer ticks, run the kernel, hand back a `Run`."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.progress import Progress, part_of, silent
from penstock.simulation.rows import RECORDS, Record
from penstock.simulation.run import TICK_S, Run, checked_tick, stop_tick
from penstock.simulation.running import Running
from penstock.simulation.session_server import OneServer, open_session
from penstock.system.batch_time import Composition
from penstock.system.kinds import as_network, refuse
from penstock.system.outages import Outage, checked_outages, listed
from penstock.system.server import Server
from penstock.workload.arrivals import MOST_ARRIVALS
from penstock.workload.pairs import Independent
from penstock.workload.workload import ClosedLoop, Requests, Workload

if TYPE_CHECKING:
    from penstock.system.network import Network
    from penstock.workload.jobs import Jobs

_Level = TypeVar("_Level", bound=str)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How to simulate: see `simulate`; ``stop`` is the tick of ``until``, or NEVER."""

    stop: int = NEVER
    drain: bool | None = None
    tick_s: float = TICK_S
    compress: bool = True
    progress: Progress = silent
    outages: Sequence[Outage] = ()


@overload
def simulate(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    until: float | None = None,
    record: Record = "requests",
    drain: bool | None = None,
    tick_s: float = TICK_S,
    compress: bool = True,
    progress: Progress | None = None,
) -> Run: ...
@overload
def simulate(
    network: "Network",
    /,
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    record: Record = "requests",
    drain: bool | None = None,
    tick_s: float = TICK_S,
    compress: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
) -> Run: ...
def simulate(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    record: Record = "requests",
    drain: bool | None = None,
    tick_s: float = TICK_S,
    compress: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
) -> Run:
    """Run a workload through a server, or the workflows of a network through its pools.

    Parameters
    ----------
    workload, server
        What arrives and what serves; or a network alone.
    requests, jobs
        Number of arrivals: requests at a server, jobs of a network. All of them leave before the
        run ends (see ``drain``). Default: whole recordings.
    until
        Simulated seconds since the first arrival at which to stop instead.
    seed
        Of a network, for everything random; None: the seeds of the workflows' workloads.
    record
        What to keep. Of a server: ``summary`` (memory for unfinished requests only), ``requests``
        (a row each), ``batches`` (also a row per batch), ``allocations`` (also a row per request
        and batch, for audits). Of a network also ``jobs`` (arrival and end of each; memory for
        unfinished requests only), to which ``summary`` adds the latency at each stage; times
        between tokens take time to count there, so ``jobs`` and ``requests`` leave them out.
    drain
        Whether to go on after the last arrival until everything has left. Default: yes, unless more
        is surely offered to the server, or to a pool, than its capacity: a backlog says nothing
        more by draining. (Where attention takes time, that is judged by mean lengths, which is the
        least that it may come to.)
    tick_s
        Seconds per tick. Arrivals, delays and batch times are rounded to the nearest tick once.
    compress
        Take equal batches in one step. The result is the same to the bit.
    progress
        Called now and then with the share that is done.
    outages
        Of a network: replicas that die and come back. Latencies go by the first arrival at a pool
        and the last try; tokens that a client had before its server died count as never sent, but
        for times between tokens.

    Raises
    ------
    InputError
        If a value cannot be used, or a policy forms an empty batch while a non-empty one is
        possible.
    """
    tick_s = checked_tick(tick_s)
    shown = part_of(progress, 0.0, 1.0)
    stop = stop_tick(until, tick_s)
    compress = checks.truth("compress", compress)
    drain = None if drain is None else checks.truth("drain", drain)
    options = RunOptions(stop, drain, tick_s, compress, shown, listed(outages))
    if isinstance(workload, Workload) and isinstance(server, Server):
        refuse(jobs=jobs, seed=seed, outages=options.outages or None)
        return run_server(
            workload, server, length_of_run(workload, requests, until), options, record
        )
    network = as_network("simulate", workload, server)
    refuse(requests=requests)
    return run_network(network, jobs_of_run(network, jobs, until), seed, options, record)


def run_server(
    workload: Workload,
    server: Server,
    requests: int | None,
    options: RunOptions,
    record: str = "requests",
    *,
    gap_sections: int = 0,
) -> Run:
    """Run so many requests through a server, or those that arrive until the run stops."""
    level = _checked_record(record, RECORDS[1:])
    session = open_session(
        server, level, options.tick_s, options.compress, options.stop, workload.prefixes
    )
    if isinstance(workload, ClosedLoop):
        return _closed(workload, requests or workload.rows, session, options)
    drain = options.drain
    if drain is None:
        drain = workload.rows is not None or not _overloads(workload, server)
    total = requests if options.stop == NEVER else None
    running = Running(session, level != "summary", drain, total, options.progress, gap_sections)
    blocks = _cut(workload.blocks(), requests, options.stop, options.tick_s)
    running.through(map(session.keep, blocks))
    return session.with_left_out(running.finish(session.server, workload))


def _closed(
    workload: ClosedLoop, count: int | None, session: OneServer, options: RunOptions
) -> Run:
    """Run a closed loop: a client sends the first request left when its own has ended."""
    blocks = _cut(workload.blocks(), count, NEVER, options.tick_s)
    session.add(Requests.joined([session.keep(block) for block in blocks]))
    session.close_loop(workload.clients, round(workload.pause_s / options.tick_s))
    running = Running(session, True, True, count, options.progress)
    running.through(iter(()))
    run = session.with_left_out(running.finish(session.server, workload))
    assert run.rows is not None
    sent = run.rows.where(run.rows.arrival < NEVER)
    if options.stop >= NEVER and run.finished + run.dropped < (count or 0):
        raise InputError(
            f"{count:,} requests of {workload.pace} take more ticks of {options.tick_s:g} s than "
            "can be counted; ask for fewer requests, a shorter pause, or a larger tick_s"
        )
    return dataclasses.replace(run, rows=sent, last_arrival=int(sent.arrival.max(initial=0)))


def run_network(
    network: "Network",
    jobs: int | None,
    seed: int | None,
    options: RunOptions,
    record: str = "requests",
    *,
    gap_sections: int = 0,
) -> Run:
    """Run so many jobs, those that arrive until the run stops, or whole recordings."""
    # With ``gap_sections`` times between tokens are counted in so many parts of the run, too.
    level = _checked_record(record, RECORDS)
    drain = options.drain
    if drain is None:
        # with prompts found in caches the load is at most what the model says
        drain = network.ends or not network.reuse_is_certain or not (network.model().rho > 1).any()
    blocks = _blocks(network, jobs, seed, options)
    run = _run_jobs(network, blocks, jobs, options, level, drain, gap_sections)
    _check_outages(run.last_arrival * run.tick_s, run.outages)
    return run


def simulate_jobs(
    network: "Network",
    jobs: "Jobs",
    *,
    tick_s: float = TICK_S,
    until: int | None = None,
    compress: bool = True,
    record: Record = "requests",
    outages: Sequence[Outage] = (),
) -> Run:
    """Run given jobs through a network, up to a tick if one is given."""
    stop = NEVER if until is None else until
    options = RunOptions(stop, tick_s=tick_s, compress=compress, outages=outages)
    return _run_jobs(network, iter([jobs]), jobs.count, options, record)


def _run_jobs(
    network: "Network",
    blocks: Iterator["Jobs"],
    count: int | None,
    options: RunOptions,
    record: Record,
    drain: bool = True,
    gap_sections: int = 0,
) -> Run:
    """Run blocks of jobs, and say what each outage hit."""
    # Imported here, as a paper server alone does without the loop of all others.
    from penstock.simulation.session_network import NetworkSession

    outages = checked_outages(options.outages, network.pools)
    session = NetworkSession(
        network,
        options.tick_s,
        options.compress,
        options.stop,
        "summary" if gap_sections else record,
        outages,
    )
    whole = record not in ("jobs", "summary")
    running = Running(session, whole, drain, count, options.progress, gap_sections)
    running.through(blocks)
    run = running.finish(network)
    return dataclasses.replace(run, outages=outages, hits=session.hits(outages))


def refuse_late_outages(
    network: "Network",
    jobs: int | None,
    seed: int | None,
    options: RunOptions,
    outages: Sequence[Outage],
) -> None:
    """Refuse outages that begin when nobody arrives any more, as the run would after it."""
    last_s = options.stop * options.tick_s
    if options.stop == NEVER and outages:
        *_, last = _blocks(network, jobs, seed, options)
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
    network: "Network",
    jobs: int | None,
    until: float | None,
    most: int = MOST_ARRIVALS,
    meaning: str = "it is the number of jobs that arrive",
) -> int | None:
    """Check what was asked for, up to ``most`` jobs; return None: `until` or recordings end it."""
    _refuse_both("jobs", jobs, until)
    if jobs is not None:
        return checks.whole("jobs", jobs, 1, most, "", meaning)
    if until is None and not network.ends:
        raise InputError("the workflows never end; say how much to simulate with `jobs` or `until`")
    return None


def _blocks(
    network: "Network", jobs: int | None, seed: int | None, options: RunOptions
) -> Iterator["Jobs"]:
    """Yield jobs up to so many, or up to the tick at which to stop."""
    arrived = 0
    for block in _cut(network.blocks(seed), jobs, options.stop, options.tick_s):
        arrived += block.count
        yield block
    if jobs is not None and arrived < jobs:
        raise InputError(
            f"jobs is {jobs:,}, but the recording has {arrived:,} and is replayed once; ask for "
            "fewer, or give it "
            "a rate"
        )


def _checked_record(record: str, records: Sequence[_Level]) -> _Level:
    """Return what is to be kept of a run, if it is one of those that can be."""
    if checks.named(record, records):
        return records[records.index(record)]
    raise InputError(f"unknown record {checks.shown(record)}{nearest(str(record), records)}")


def _overloads(workload: Workload, server: Server) -> bool:
    """Return whether more is offered than the best batches carry, attention beside."""
    # Beside `Composition.table` a prompt of v tokens takes at least min(self, cross / 2) (v^2 - v),
    # and D decodes d (D v + D (D - 1) / 2): least at the means where lengths are independent
    # (Jensen). Where memory is short, other work may stand in for some of it, so it counts none.
    prompt, model, lengths = workload.mean_prompt, server.batch_time, workload.lengths
    tokens = server.tokens_per_request(prompt, workload.mean_output)
    offered, capacity = workload.rate * tokens, server.capacity
    if (
        not isinstance(model, Composition)
        or server.memory is not None
        or not isinstance(lengths, Independent)
    ):
        return offered > capacity
    decodes = tokens - prompt
    before = decodes * (decodes - 1) / 2 + (decodes * prompt if lengths.correlation >= 0 else 0.0)
    attention = min(model.self_attention, model.cross_attention / 2) * prompt * (prompt - 1)
    attention += min(model.of_decodes) * max(before, 0.0)
    return offered / capacity + workload.rate * attention > 1


def _refuse_both(unit: str, count: int | None, until: float | None) -> None:
    """Refuse a run that is to end in two ways: after so many arrivals, and at a time."""
    if count is not None and until is not None:
        raise InputError(f"{unit}={count} and until={until}: give one of them")


def length_of_run(workload: Workload, requests: int | None, until: float | None) -> int | None:
    """Check what was asked for; return the number of arrivals, None where `until` bounds it."""
    _refuse_both("requests", requests, until)
    if until is not None:
        if workload.rows is None and isinstance(workload, ClosedLoop):
            raise InputError(
                f"{workload.name} is a closed loop, whose requests come when others end; say how "
                "many to simulate with `requests`, not `until`"
            )
        return None
    if requests is None:
        if workload.rows is None:
            ways = "`requests`" if isinstance(workload, ClosedLoop) else "`requests` or `until`"
            raise InputError(f"{workload.name} never ends; say how much to simulate with {ways}")
        return workload.rows
    tells = "more arrivals take days; give fewer, a million tells a mean well"
    requests = checks.whole("requests", requests, 1, MOST_ARRIVALS, "", tells)
    if workload.rows is not None and requests > workload.rows:
        seen = "".join(f". {doubt.removesuffix('.')}" for doubt in workload.front)
        raise InputError(
            f"requests is {requests:,}, but {workload.name} has {workload.rows:,} and is replayed "
            f"once; ask for fewer, or resample it with arrivals 'poisson'{seen}"
        )
    return requests


_Block = TypeVar("_Block", Requests, "Jobs")


def _cut(blocks: Iterator[_Block], count: int | None, stop: int, tick_s: float) -> Iterator[_Block]:
    """Yield blocks up to so many arrivals, or up to the tick ``stop``."""
    left = NEVER if count is None else count
    for block in blocks:
        part = block.first(min(left, block.arrival_s.size))
        left -= part.arrival_s.size
        within = part.arrival_s.size
        if stop < NEVER:
            within = int(np.searchsorted(np.rint(part.arrival_s / tick_s), stop, side="right"))
        if not within:
            return
        yield part.first(within)
        if left == 0 or within < part.arrival_s.size:
            return
