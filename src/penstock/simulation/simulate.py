"""Simulate: validate, turn into integer ticks, run the kernel, hand back a `Run`, or a
`NetworkRun`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.progress import Progress, part_of, silent
from penstock.simulation.run import TICK_S, Record, Run, checked_tick, stop_tick
from penstock.simulation.running import Running
from penstock.simulation.session_server import RECORDS, OneServer, open_session
from penstock.system.batch_time import Composition
from penstock.system.kinds import as_network, refuse
from penstock.system.outages import Outage, listed
from penstock.system.server import Server
from penstock.workload.arrivals import MOST_ARRIVALS
from penstock.workload.pairs import Independent
from penstock.workload.workload import ClosedLoop, Requests, Workload

if TYPE_CHECKING:
    from penstock.simulation.network_run import NetworkRecord, NetworkRun
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
    record: "NetworkRecord" = "requests",
    drain: bool | None = None,
    tick_s: float = TICK_S,
    compress: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
) -> "NetworkRun": ...
def simulate(
    workload: "Workload | Network",
    server: Server | None = None,
    *,
    requests: int | None = None,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    record: "Record | NetworkRecord" = "requests",
    drain: bool | None = None,
    tick_s: float = TICK_S,
    compress: bool = True,
    progress: Progress | None = None,
    outages: Sequence[Outage] = (),
) -> "Run | NetworkRun":
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
    from penstock.simulation.network_simulation import jobs_of_run, run_network

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
    level = checked_record(record, RECORDS)
    if isinstance(workload, ClosedLoop):
        return _closed(workload, server, requests, options, level)
    drain = options.drain
    if drain is None:
        drain = workload.rows is not None or not _overloads(workload, server)
    session = _session(workload, server, level, options)
    total = requests if options.stop == NEVER else None
    running = Running(session, level != "summary", drain, total, options.progress, gap_sections)
    blocks = cut(workload.blocks(), requests, options.stop, options.tick_s)
    running.through(map(session.keep, blocks))
    return _finished(session, running)


def _session(workload: Workload, server: Server, level: Record, options: RunOptions) -> OneServer:
    """Return the session of a run."""
    return open_session(
        server, level, options.tick_s, options.compress, options.stop, workload.prefixes
    )


def _finished(session: OneServer, running: Running) -> Run:
    """Return the run of a session that has come to its end."""
    last_arrival = running.last_arrival if session.stop == NEVER else session.stop
    run = session.finish(running.passed if running.whole else None, last_arrival)
    return dataclasses.replace(run, gap_sections=running.sections)


def checked_record(record: str, records: Sequence[_Level]) -> _Level:
    """Return what is to be kept of a run, if it is one of those that can be."""
    if checks.named(record, records):
        return records[records.index(record)]
    raise InputError(f"unknown record {checks.shown(record)}{nearest(str(record), records)}")


def _closed(
    workload: ClosedLoop, server: Server, requests: int | None, options: RunOptions, level: Record
) -> Run:
    """Run a closed loop: a client sends the first request left when its own has ended."""
    tick_s, count = options.tick_s, requests or workload.rows
    session = _session(workload, server, level, options)
    blocks = cut(workload.blocks(), count, NEVER, tick_s)
    session.add(Requests.joined([session.keep(block) for block in blocks]))
    session.close_loop(workload.clients, round(workload.pause_s / tick_s))
    running = Running(session, True, True, count, options.progress)
    running.through(iter(()))
    run = _finished(session, running)
    assert run.rows is not None
    sent = run.rows.where(run.rows.arrival < NEVER)
    if options.stop >= NEVER and run.finished + run.dropped < (count or 0):
        raise InputError(
            f"{count:,} requests of {workload.pace} take more ticks of {tick_s:g} s than can be "
            "counted; ask for fewer requests, a shorter pause, or a larger tick_s"
        )
    return dataclasses.replace(run, rows=sent, last_arrival=int(sent.arrival.max(initial=0)))


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


def refuse_both(unit: str, count: int | None, until: float | None) -> None:
    """Refuse a run that is to end in two ways: after so many arrivals, and at a time."""
    if count is not None and until is not None:
        raise InputError(f"{unit}={count} and until={until}: give one of them")


def length_of_run(workload: Workload, requests: int | None, until: float | None) -> int | None:
    """Check what was asked for; return the number of arrivals, None where `until` bounds it."""
    refuse_both("requests", requests, until)
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


def cut(blocks: Iterator[_Block], count: int | None, stop: int, tick_s: float) -> Iterator[_Block]:
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
