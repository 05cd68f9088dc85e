"""Simulate: validate, turn into integer ticks, run the kernel, hand back a `Run`."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.paper_session import PaperSession
from penstock.simulation.progress import Progress, part_of, silent
from penstock.simulation.rows import RECORDS, Record
from penstock.simulation.run import TICK_S, Run, checked_tick, stop_tick
from penstock.simulation.running import Running
from penstock.simulation.session import Session
from penstock.system.batch_time import Composition
from penstock.system.kinds import as_network, is_guarded, refuse
from penstock.system.outages import Outage, checked_outages
from penstock.system.server import Server
from penstock.workload.arrivals import MOST_ARRIVALS
from penstock.workload.jobs import Jobs
from penstock.workload.lengths import Independent
from penstock.workload.workload import Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

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
    requests
        Of a server: arrivals to simulate. Default: the whole recording. All of them leave before
        the run ends (see ``drain``).
    jobs
        Of a network: jobs to simulate. Default: whole recordings. They leave likewise.
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
    options = RunOptions(stop, drain, tick_s, compress, shown, outages)
    if isinstance(workload, Workload) and isinstance(server, Server):
        if jobs is not None or seed is not None or outages:
            refuse(jobs=jobs, seed=seed, outages=outages or None)
        return run_server(
            workload, server, length_of_run(workload, requests, until), options, record
        )
    network = as_network("simulate", workload, server)
    refuse(requests=requests)
    return run_network(network, jobs_of_run(network, jobs, until), seed, options, record)


def open_session(
    workload: Workload,
    server: Server,
    record: Record,
    tick_s: float = TICK_S,
    compress: bool = True,
    stop: int = NEVER,
    renewals: int = 1,
) -> Session:
    """Return a session on a server: the faster loop where nothing but a paper's policy decides."""
    if server.by_phase and server.front_end is None and not is_guarded((workload, server)):
        return PaperSession(server, record, tick_s, compress, stop)
    # Imported here, as a paper server alone does without the loop of all others.
    from penstock.simulation.event_session import EventSession
    from penstock.system.network import Network, with_queue

    # A session of one server records a queue, not lines.
    network = Network.single(workload, with_queue(server))
    return EventSession(network, tick_s, compress, stop, record, of_server=True, renewals=renewals)


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
    server = server.serving(workload.prefixes is not None)
    session = open_session(workload, server, level, options.tick_s, options.compress, options.stop)
    loop, drain, whole = workload.loop, options.drain, level != "summary"
    if drain is None:
        ends = workload.rows is not None or loop is not None or is_guarded((workload, server))
        drain = ends or not _overloads(workload, server)
    running = Running(session, whole, drain, requests, options.progress, gap_sections, loop)
    running.through(_cut(workload.jobs(), requests, options.stop, options.tick_s))
    return running.finish(server, workload)


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
    level = _checked_record(record, RECORDS)
    if network.loop is not None and options.outages:
        raise InputError(
            f"outages of a network that {network.loop.pace} send jobs to are not modelled, as a "
            "client whose request is lost would wait for ever; leave them out, or give its jobs a "
            "rate"
        )
    if options.drain is None:
        # with prompts found in caches the load is at most what the model says
        drain = (
            network.ends
            or network.guarded
            or network.loop is not None
            or not network.reuse_is_certain
            or not (network.model().rho > 1).any()
        )
        options = dataclasses.replace(options, drain=drain)
    blocks = _blocks(network, jobs, seed, options)
    run = _run_jobs(network, blocks, jobs, options, level, gap_sections)
    _check_outages(run.last_arrival * run.tick_s, run.outages)
    return run


def simulate_jobs(
    network: "Network",
    jobs: Jobs,
    *,
    tick_s: float = TICK_S,
    until: int | None = None,
    compress: bool = True,
    record: Record = "requests",
    outages: Sequence[Outage] = (),
) -> Run:
    """Run these jobs through a network, up to a tick."""
    stop = NEVER if until is None else until
    options = RunOptions(stop, True, tick_s, compress, outages=outages)
    return _run_jobs(network, iter([jobs]), jobs.count, options, record)


def _run_jobs(
    network: "Network",
    blocks: Iterator[Jobs],
    count: int | None,
    options: RunOptions,
    record: Record,
    gap_sections: int = 0,
) -> Run:
    """Run blocks of jobs, and say what each outage hit."""
    from penstock.simulation.event_session import EventSession

    outages = checked_outages(options.outages, network.pools)
    if outages and network.guarded:
        raise InputError(
            "outages beside limits on queues or the patience of clients are not modelled; leave "
            "out one of them"
        )
    # Summaries count times between tokens, of which other rows may have none.
    level: Record = "summary" if gap_sections else record
    session = EventSession(network, options.tick_s, options.compress, options.stop, level, outages)
    whole = record not in ("jobs", "summary")
    running = Running(
        session, whole, bool(options.drain), count, options.progress, gap_sections, network.loop
    )
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


def length_of_run(workload: Workload, requests: int | None, until: float | None) -> int | None:
    """Check what was asked for; return the number of arrivals, None where `until` bounds it."""
    tells = "more arrivals take days; give fewer, a million tells a mean well"
    closed, rows = workload.loop is not None, workload.rows
    length = _checked_length(
        "requests", requests, until, workload.name, closed, rows is not None, MOST_ARRIVALS, tells
    )
    if length is None and until is None:
        return rows
    if length is None or rows is None or length <= rows:
        return length
    doubts = "".join(f". {doubt.removesuffix('.')}" for doubt in workload.front)
    raise InputError(
        f"requests is {length:,}, but {workload.name} has {rows:,} and is replayed once; ask for "
        f"fewer, or resample it with arrivals 'poisson'{doubts}"
    )


def jobs_of_run(
    network: "Network",
    jobs: int | None,
    until: float | None,
    most: int = MOST_ARRIVALS,
    tells: str = "it is the number of jobs that arrive",
) -> int | None:
    """Check what was asked for, up to ``most`` jobs; return None: `until` or recordings end it."""
    closed = network.loop is not None
    ends = jobs is None and (closed or until is None) and network.ends
    return _checked_length("jobs", jobs, until, "the network", closed, ends, most, tells)


def _checked_length(
    unit: str,
    count: int | None,
    until: float | None,
    name: str,
    closed: bool,
    ends: bool,
    most: int,
    tells: str,
) -> int | None:
    """Return how many were asked for, if that can be simulated; None: `until` or its end tells."""
    if count is not None and until is not None:
        raise InputError(f"{unit}={count} and until={until}: give one of them")
    if count is not None:
        return checks.whole(unit, count, 1, most, "", tells)
    if ends:
        return None
    if closed and until is not None:
        raise InputError(
            f"{name} is a closed loop, whose {unit} come when others end; say how many to simulate "
            f"with `{unit}`, not `until`"
        )
    if until is None:
        ways = f"`{unit}`"
        if not closed:
            ways += " or `until`"
        raise InputError(f"{name} never ends; say how much to simulate with {ways}")
    return None


def _blocks(
    network: "Network", jobs: int | None, seed: int | None, options: RunOptions
) -> Iterator[Jobs]:
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
    before = decodes * (decodes - 1) / 2
    if lengths.correlation >= 0:
        before += decodes * prompt
    attention = min(model.self_attention, model.cross_attention / 2) * prompt * (prompt - 1)
    attention += min(model.of_decodes) * max(before, 0.0)
    return offered / capacity + workload.rate * attention > 1


def _cut(blocks: Iterator[Jobs], count: int | None, stop: int, tick_s: float) -> Iterator[Jobs]:
    """Yield blocks up to so many arrivals, or up to the tick ``stop``."""
    left = count or NEVER
    for block in blocks:
        part = block.first(left)
        left -= part.count
        within = part.count
        if stop < NEVER:
            within = int(np.searchsorted(np.rint(part.arrival_s / tick_s), stop, side="right"))
        if not within:
            return
        yield part.first(within)
        if left == 0 or within < block.count:
            return
