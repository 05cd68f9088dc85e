"""The event loop: replicas of any kind behind routers, event by event, in integer ticks.

Jobs come unfolded (`penstock.workload.jobs`): which requests they make, how long, after which
delays is settled before anything is served. Left to do are routing to replicas, order, batches and
time. At a tick: batches end, requests arrive in order of their rows, replicas that are free form
batches. One engine is one replica whose jobs are one request each.

How it is fast, and still exact:

* A tournament tree holds the ends of the batches in progress, so the next event of 64 replicas is
  its root.
* Requests that decode count nothing down (`due_epochs`), and a backlog is a linked list.
* Equal batches without prefill are one step. Who will join the replica is not known in advance, so
  a step is as long as it can be, and an arrival cuts it at the end of the batch then in progress (a
  step ahead: of the one after that).
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from penstock.kernel.admission import let_in
from penstock.kernel.by_reference import reference_at
from penstock.kernel.clients import cut_runs, let_leave, next_leaving
from penstock.kernel.compiled_code import entry, uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.engine_batches import (
    arrive_at_engine,
    begin_in_decode,
    end_at_engine,
    form_at_engine,
    plan_before_arrival,
)
from penstock.kernel.in_progress import (
    begun_again,
    cut,
    ended_by,
    first_ending,
    set_end,
    set_length,
    ticks_of_batches,
    touch,
)
from penstock.kernel.lines import end_of_lines, form_from_lines, join_line
from penstock.kernel.outages import happen, strand
from penstock.kernel.recording import count_composition, has_room, note_run, thin_series
from penstock.kernel.records import (
    BAD_ROUTER,
    COMPOSED,
    COMPUTED,
    DONE,
    FULL,
    LATER,
    MORE,
    NO_ROWS,
    PAUSED,
    WORLD,
    World,
)
from penstock.kernel.releases import come_due, finish, release, wait_in_front
from penstock.kernel.routing import cached, report, route
from penstock.kernel.transfers import land

_world_at = reference_at(WORLD)


def advance(world: int) -> int:
    """Serve until something is needed: see `_advance`."""
    status: int = _advance(_world_at(world))
    return status


@uncounted()
def _advance(world: World) -> int:
    """Serve until the jobs are done, the next one is not known, the step allowance is used up, or
    room is needed; return why it stopped.
    """
    clock = world.clock[0]
    jobs = world.job_arrival.size
    if clock.prefilled > 0:
        begin_in_decode(world)
        return PAUSED
    if clock.until < NEVER:
        _end_in_time(world)
    while True:
        # -- replicas that are free form batches
        while clock.formed < clock.touched:
            if clock.now >= clock.until:
                return DONE
            if clock.steps <= 0:
                return PAUSED
            if not _has_room(world):
                return FULL
            failed = _form(world, world.touched[clock.formed])
            if failed != 0:
                return failed  # type: ignore[no-any-return]
            clock.formed += 1
            clock.steps -= 1
        clock.formed = clock.touched = 0

        # -- what comes next
        # A calendar for each kind of event: a tree of the ends of batches, as each replica has one;
        # jobs in order of arrival; heaps of delayed requests and of clients who may leave; outages
        # in order.
        now = world.ends[1]
        if clock.next_job < jobs:
            now = min(now, world.job_arrival[clock.next_job])
        if clock.waiting_room > 0:
            now = min(now, world.heap[0, 0])
        # A replica that comes back matters only while something is left to be served.
        if clock.next_outage < now and (now < NEVER or clock.stranded > 0):
            now = clock.next_outage
        if clock.impatient != 0:
            now = min(now, next_leaving(world))
        if clock.final == 0 and (jobs == 0 or now >= world.job_arrival[jobs - 1]):
            return MORE  # a job to come may arrive then, too
        if now == NEVER and clock.until == NEVER:
            return DONE
        _note_series(world, min(now, clock.until + 1))
        if now >= clock.next_report and now <= clock.until:
            report(world, now)
        if now > clock.until:
            clock.now = clock.until
            return DONE
        clock.now = now

        # -- batches end, and clients leave
        if clock.impatient != 0:
            cut_runs(world)
        while world.ends[1] == now:
            _end(world, first_ending(world))
        if clock.impatient != 0:
            let_leave(world)

        # -- replicas die and come back
        if clock.next_outage == now:
            happen(world)

        # -- requests arrive
        if clock.waiting_room > 0:
            come_due(world)
        while clock.next_job < jobs and world.job_arrival[clock.next_job] == now:
            clock.future += world.job_tokens[clock.next_job]
            release(world, world.job_root[clock.next_job])
            clock.next_job += 1
        while clock.ready_done < clock.ready:
            request = world.ready_now[clock.ready_done]
            clock.ready_done += 1
            _arrive(world, request)
        if clock.bad_router != 0:
            clock.failed = clock.bad_router - 1
            return BAD_ROUTER
        clock.ready = clock.ready_done = 0
        _note_series(world, now + 1)


@uncounted()
def _end_in_time(world: World) -> None:
    """Let runs of batches end where the run is to stop, which they were begun without knowing.

    Not those that an arrival has cut: who joins the batch after them hangs on their end.
    """
    for server in range(world.servers.size):
        replica = world.servers[server]
        pool = world.pools[replica.pool]
        settled = False
        if pool.by_lines == 0:
            engine = world.engines[replica.engine]
            settled = engine.ahead.next_batch == COMPUTED or (
                engine.ahead.next_batch == LATER and engine.ahead.joins_until < NEVER
            )
        if replica.equal > 1 and not settled:
            repeat = ended_by(replica, world.clock[0].until, replica.equal)
            set_length(world, server, max(repeat, 1))


@uncounted(inline=True)
def _has_room(world: World) -> Any:
    """Return whether the next batch, and those in progress, have room for all that they leave."""
    clock = world.clock[0]
    if not has_room(world, clock.engine_slots + clock.line_slots):
        return False
    return _has_slots(world, world.servers[world.touched[clock.formed]])


@uncounted(inline=True)
def _has_slots(world: World, replica: Any) -> Any:
    """Return whether there are slots for all whom a replica may admit to its next batch."""
    pool, clock = world.pools[replica.pool], world.clock[0]
    if pool.by_lines != 0:
        return True
    engine = world.engines[replica.engine]
    most = engine.waiting + engine.transfers.incoming
    if pool.running_scope != 0:
        most = min(most, pool.batch_size - engine.running)
    else:
        most = min(most, pool.batch_size)
    if pool.policy.address != 0:  # who is served gets a token at least
        most = min(most, pool.budget)
    return clock.used_slots + most <= clock.engine_slots


@uncounted(inline=True)
def _form(world: World, server: int) -> Any:
    """Let a free replica form a batch; return what failed, or 0."""
    replica = world.servers[server]
    pool = world.pools[replica.pool]
    if pool.by_lines != 0:
        failed = form_from_lines(world, server, pool)
    else:
        failed = form_at_engine(world, server, pool)
    replica.is_touched = 0
    if failed != 0:
        world.clock[0].failed = server
    return failed


@uncounted(inline=True)
def _end(world: World, server: int) -> None:
    """End the batches in progress at a replica, which may then form the next."""
    clock, replica = world.clock[0], world.servers[server]
    pool = world.pools[replica.pool]
    repeat = replica.equal
    ticks = clock.now - replica.start
    again = (repeat - 1) * replica.tokens
    replica.unprocessed -= again
    clock.future -= again
    if clock.record > NO_ROWS:
        note_run(world, server, replica)
    if world.cells.size > 0:
        count_composition(world, replica, pool, ticks)
    replica.batches += repeat
    replica.busy += ticks
    replica.processed += repeat * replica.tokens
    set_end(world, server, NEVER)
    if pool.by_lines != 0:
        end_of_lines(world, server, pool)
    else:
        end_at_engine(world, server, pool)
    replica.equal = 0
    touch(world, server)


@uncounted(inline=True)
def _arrive(world: World, request: int) -> None:
    """Route a request and let it wait at its replica."""
    clock, row = world.clock[0], world.rows[request]
    if world.ready[request] >= 0:  # it has been routed: what comes is its KV memory
        land(world, request)
        return
    if world.fronts.size > 0 and wait_in_front(world, request) != 0:
        return
    stage = world.stages[row.stage]
    pool = world.pools[stage.pool]
    if pool.up == 0:
        strand(world, request)
        return
    if clock.guarded == 0:
        server = route(world, request, pool)
    else:
        server = let_in(world, request, pool)
        if server < 0:
            return
    pool = world.pools[world.servers[server].pool]
    if pool.routing.affinity != 0:
        home = world.rows[request + world.home[request]]
        if home.server < 0:
            home.server = server
    # Where it goes is settled; what is computed there already is not done again.
    row.server = server
    world.ready[request] = clock.now
    if pool.by_lines != 0 and world.reuse[request] > 0:
        tokens = cached(world, request, server, pool.retention)
        world.cached[request] = tokens
        row.left -= tokens
        clock.future -= tokens
    left, decodes = np.int64(row.left), np.int64(row.decodes)
    if left + decodes == 0:
        finish(world, request)
        return
    replica = world.servers[server]
    replica.count += 1
    replica.unprocessed += left + decodes
    if left > 0:
        replica.work += stage.prefill_weight
        stage.in_prefill += 1
    else:
        replica.work += stage.decode_weight
        stage.in_decode += 1
    if pool.by_lines != 0:
        line = world.lines[replica.first_line + stage.line]
        join_line(world, line, request)
        arrival_ends = True
    else:
        engine = world.engines[replica.engine]
        # The batch after the run in progress must not see it if it is composed by now.
        if engine.ahead.next_batch == LATER:
            plan_before_arrival(world, server, engine, pool)
        arrive_at_engine(world, engine, pool, request)
        arrival_ends = engine.ahead.next_batch == COMPOSED and (
            engine.batch.arrival_ends != 0 or engine.transfers.incoming > 0
        )
    if replica.equal == 0:
        touch(world, server)
    elif replica.equal > 1 and arrival_ends:  # equal batches end where the request can join
        cut(world, server)


@uncounted(inline=True)
def _note_series(world: World, before: int) -> None:
    """Write the values at the instants of the series before a tick."""
    clock = world.clock[0]
    while clock.series_rows * clock.series_step < before:
        if clock.series_rows == world.series.shape[0]:
            thin_series(world)
        else:
            _note_instant(world, clock.series_rows * clock.series_step)


@uncounted()
def _note_instant(world: World, tick: int) -> None:
    """Write the values at an instant."""
    clock = world.clock[0]
    stages, servers = world.stages.size, world.servers.size
    row = world.series[clock.series_rows]
    row[0] = tick
    for stage in range(stages):
        row[1 + 2 * stage] = world.stages[stage].in_prefill
        row[2 + 2 * stage] = world.stages[stage].in_decode
    future = clock.future
    for server in range(servers):
        replica = world.servers[server]
        again = begun_again(replica, tick) * replica.tokens
        row[1 + 2 * stages + server] = replica.unprocessed - again
        future -= again
        inside = 0
        if replica.equal > 0 and tick > replica.start:
            # The last of a run goes on until the replica is free.
            whole = ended_by(replica, tick, replica.equal - 1)
            if tick - replica.start > ticks_of_batches(replica, whole):
                inside = replica.tokens
        row[1 + 2 * stages + servers + server] = inside
    row[1 + 2 * stages + 2 * servers] = future
    clock.series_rows += 1


@functools.cache
def compiled_advance() -> Callable[[Any], int]:
    """Return `advance` compiled: seconds the first time, from the disk cache after."""
    return entry(advance, types.int64(types.int64))
