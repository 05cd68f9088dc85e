"""A network of replicas, event by event, in integer ticks.

Jobs come unfolded (`penstock.workload.jobs`): which requests they make, how long, after which
delays is settled before anything is served. Left to do are routing to replicas, order, batches and
time. At a tick: batches end, requests arrive in order of their rows, replicas that are free form
batches.

How it is fast, and still exact:

* A tournament tree holds the ends of the batches in progress, so the next event of 64 replicas is
  its root.
* Lines keep requests as the kernel of one server does (`lines`): decoding requests count nothing
  down.
* Equal batches without prefill are one step here too. Who will join the replica is not known in
  advance, so a step is as long as it can be, and an arrival cuts it at the end of the batch then in
  progress.

All state lives in arrays that the caller owns.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from penstock.kernel.legacy_server import (
    DONE,
    MORE,
    NEVER,
    PAUSED,
    SLOT_CHAIN,
    SLOT_REQUEST,
)
from penstock.kernel.lines import (
    CHILD,
    DECODE,
    DECODES,
    DECODES_NOW,
    DECODING,
    DONE_HEAD,
    FRESH_HEAD,
    IN_DECODE,
    LEFT,
    LINE_ARRIVED,
    LINE_ARRIVED_TOKENS,
    LINE_DECODE_TOKENS,
    LINE_FINISHED,
    LINE_FINISHED_DECODES,
    NEXT,
    PENDING,
    PREFILL,
    PROMPT_HEAD,
    PROMPT_TOKENS,
    PROMPTS,
    SERVER,
    SIBLING,
    STAGE,
    STARTED,
    WAITING,
    Ints,
    append,
    find_due,
    insert_by_age,
    pop,
    serve_decodes,
    uncounted,
    unlink,
)
from penstock.kernel.network_arrays import (
    AFFINITY,
    BATCHES,
    BUSY,
    BY_AGE,
    COUNT,
    DECODE_WEIGHT,
    ENGINE,
    FAILED,
    FINAL,
    FINISHED,
    FIRST_LINE,
    FREE_SLOT,
    FUTURE,
    IN_DECODES,
    IN_PREFILL,
    IS_TOUCHED,
    LINES,
    MOST_POLICIES,
    NEXT_JOB,
    NOW,
    POOL,
    PREFILL_WEIGHT,
    PROCESSED,
    READY,
    READY_DONE,
    REPEAT,
    RETENTION,
    SERIES_ROWS,
    SERIES_STEP,
    SERVED,
    STAGE_LINE,
    STAGE_POOL,
    START,
    STEPS,
    TICKS,
    TOKENS,
    TOUCHED,
    UNPROCESSED,
    UNTIL,
    WAITING_ROOM,
    WORK,
    Arrays,
    set_end,
)
from penstock.kernel.network_batches import form_batch
from penstock.kernel.network_routing import begun, cached, route
from penstock.kernel.signatures import (
    ORDER,
    PARAMS,
    POLICY,
)


@uncounted(inline=True)
def _first_ending(ends: Ints) -> Any:
    """Return the replica whose batch ends first; of equal ones the first."""
    place = 1
    while place < ends.size >> 1:
        place *= 2
        if ends[place] > ends[place >> 1]:
            place += 1
    return place - (ends.size >> 1)


@uncounted(inline=True)
def _heap_push(heap: Ints, size: int, tick: int, request: int) -> None:
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if heap[above, 0] < tick or (heap[above, 0] == tick and heap[above, 1] < request):
            break
        heap[place, 0], heap[place, 1] = heap[above, 0], heap[above, 1]
        place = above
    heap[place, 0], heap[place, 1] = tick, request


@uncounted(inline=True)
def _heap_pop(heap: Ints, size: int) -> Any:
    """Take the first of a heap; the caller lowers its size."""
    first = heap[0, 1]
    tick, request = heap[size - 1, 0], heap[size - 1, 1]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size - 1:
            break
        if below + 1 < size - 1 and (
            heap[below + 1, 0] < heap[below, 0]
            or (heap[below + 1, 0] == heap[below, 0] and heap[below + 1, 1] < heap[below, 1])
        ):
            below += 1
        if tick < heap[below, 0] or (tick == heap[below, 0] and request < heap[below, 1]):
            break
        heap[place, 0], heap[place, 1] = heap[below, 0], heap[below, 1]
        place = below
    heap[place, 0], heap[place, 1] = tick, request
    return first


@uncounted(inline=True)
def _release(net: Arrays, request: int) -> None:
    """Let a request arrive after its delay: now, in order of rows, or later."""
    state = net.state
    if net.delay[request] > 0:
        _heap_push(net.heap, state[WAITING_ROOM], state[NOW] + net.delay[request], request)
        state[WAITING_ROOM] += 1
        return
    place = state[READY]
    while place > state[READY_DONE] and net.ready_now[place - 1] > request:
        net.ready_now[place] = net.ready_now[place - 1]
        place -= 1
    net.ready_now[place] = request
    state[READY] += 1


@uncounted(inline=True)
def _finish(net: Arrays, request: int) -> None:
    """Note that a request is done, and release what waits for nothing else."""
    net.finish[request] = net.state[NOW]
    net.state[FINISHED] += 1
    child = net.rows[request, CHILD]
    if child == 0:
        return
    following = request + child
    while True:
        net.rows[following, PENDING] -= 1
        if net.rows[following, PENDING] == 0:
            _release(net, following)
        sibling = net.rows[following, SIBLING]
        if sibling == 0:
            return
        following += sibling


@uncounted(inline=True)
def _arrive(net: Arrays, request: int) -> None:
    """Route a request and put it into its line."""
    rows, now = net.rows, net.state[NOW]
    stage = net.stages[rows[request, STAGE]]
    pool = net.pools[stage[STAGE_POOL]]
    server = route(net, request, pool)
    if pool[AFFINITY] != 0:
        home = request + net.home[request]
        if rows[home, SERVER] < 0:
            rows[home, SERVER] = server
    rows[request, SERVER] = server
    net.ready[request] = now
    if net.reuse[request] > 0:
        found = cached(net, request, server, pool[RETENTION])
        net.cached[request] = found
        rows[request, LEFT] -= found
        net.state[FUTURE] -= found
    left, decodes = np.int64(rows[request, LEFT]), np.int64(rows[request, DECODES])
    if left + decodes == 0:
        _finish(net, request)
        return
    replica = net.servers[server]
    replica[COUNT] += 1
    replica[UNPROCESSED] += left + decodes
    line = net.lines[replica[FIRST_LINE] + stage[STAGE_LINE]]
    line[LINE_ARRIVED] += 1
    line[LINE_ARRIVED_TOKENS] += left
    if left > 0:
        replica[WORK] += stage[PREFILL_WEIGHT]
        stage[IN_PREFILL] += 1
        line[PROMPTS] += 1
        line[PROMPT_TOKENS] += left
        rows[request, PENDING] = WAITING
        if pool[BY_AGE] == 0:
            append(line, rows, PROMPT_HEAD, request)
    else:
        replica[WORK] += stage[DECODE_WEIGHT]
        stage[IN_DECODES] += 1
        line[DECODING] += 1
        line[LINE_DECODE_TOKENS] += decodes
        rows[request, PENDING] = IN_DECODE
        if pool[BY_AGE] == 0:
            append(line, rows, FRESH_HEAD, request)
    if pool[BY_AGE] != 0:
        insert_by_age(line, rows, request)
    if replica[REPEAT] == 0:
        _touch(net, server)
    elif replica[REPEAT] > 1:  # the equal batches in progress end where the request can join
        repeat = max((now - replica[START] + replica[TICKS] - 1) // replica[TICKS], 1)
        if repeat < replica[REPEAT]:
            replica[REPEAT] = repeat
            set_end(net.ends, server, replica[START] + repeat * replica[TICKS])


@uncounted(inline=True)
def _touch(net: Arrays, server: int) -> None:
    if net.servers[server, IS_TOUCHED] == 0:
        net.servers[server, IS_TOUCHED] = 1
        net.touched[net.state[TOUCHED]] = server
        net.state[TOUCHED] += 1


@uncounted(inline=True)
def _leave(net: Arrays, request: int, server: int, line: Ints) -> None:
    """Let a request that has had all its decodes go."""
    stage = net.stages[net.rows[request, STAGE]]
    stage[IN_DECODES] -= 1
    net.servers[server, COUNT] -= 1
    net.servers[server, WORK] -= stage[DECODE_WEIGHT]
    line[DECODING] -= 1
    line[LINE_FINISHED] += 1
    _finish(net, request)


@uncounted(inline=True)
def _end_prefill(net: Arrays, request: int, server: int, line: Ints, engine: int) -> Any:
    """Move a request whose prompt is done into decode; return whether it goes on there."""
    rows = net.rows
    stage = net.stages[rows[request, STAGE]]
    decodes = rows[request, DECODES]
    if engine != 0 or decodes == 0:
        net.first_token[request] = net.state[NOW]
    stage[IN_PREFILL] -= 1
    stage[IN_DECODES] += 1
    net.servers[server, WORK] += stage[DECODE_WEIGHT] - stage[PREFILL_WEIGHT]
    rows[request, PENDING] = IN_DECODE
    line[DECODING] += 1
    line[LINE_DECODE_TOKENS] += decodes
    if decodes == 0:
        _leave(net, request, server, line)
        return False
    return True


@uncounted(inline=True)
def _end_of_line(net: Arrays, server: int, index: int, repeat: int, engine: int) -> None:
    """Hand out the tokens of a batch that has ended, in one line."""
    line = net.lines[index]
    if line[DECODE] > 0:
        line[LINE_DECODE_TOKENS] -= line[DECODE] * repeat
        slot = serve_decodes(line, net.slots, net.heads[index], net.bits[index], repeat)
        while slot >= 0:
            following = net.slots[SLOT_CHAIN, slot]
            request = net.slots[SLOT_REQUEST, slot]
            unlink(line, net.slots, slot)
            net.slots[SLOT_CHAIN, slot] = net.state[FREE_SLOT]
            net.state[FREE_SLOT] = slot
            line[LINE_FINISHED_DECODES] += net.rows[request, DECODES]
            _leave(net, request, server, line)
            slot = following
        find_due(line, net.bits[index])
        line[DECODE] = 0
    line[PREFILL] = 0
    while line[DONE_HEAD] >= 0:
        request = pop(line, net.rows, DONE_HEAD)
        if _end_prefill(net, request, server, line, engine):
            append(line, net.rows, FRESH_HEAD, request)


@uncounted(inline=True)
def _end_by_age(net: Arrays, server: int, index: int, repeat: int, engine: int) -> None:
    """Hand out the tokens of a batch that has ended, in a line by age."""
    line, rows = net.lines[index], net.rows
    left = net.servers[server, SERVED]
    before, request = -1, line[PROMPT_HEAD]
    while left > 0:
        following = rows[request, NEXT]
        stays = True
        if rows[request, PENDING] == DECODES_NOW:
            left -= 1
            rows[request, DECODES] -= repeat
            line[LINE_DECODE_TOKENS] -= repeat
            rows[request, PENDING] = IN_DECODE
            if rows[request, DECODES] == 0:
                _leave(net, request, server, line)
                stays = False
        elif rows[request, PENDING] == STARTED and rows[request, LEFT] == 0:
            left -= 1
            stays = _end_prefill(net, request, server, line, engine)
        if stays:
            before = request
        else:
            if before < 0:
                line[PROMPT_HEAD] = following
            else:
                rows[before, NEXT] = following
            if following < 0:
                line[PROMPT_HEAD + 1] = before
        request = following
    line[PREFILL] = line[DECODE] = 0


@uncounted(inline=True)
def _end_batch(net: Arrays, server: int) -> None:
    replica = net.servers[server]
    pool = net.pools[replica[POOL]]
    repeat = replica[REPEAT]
    replica[BATCHES] += repeat
    replica[BUSY] += repeat * replica[TICKS]
    replica[PROCESSED] += repeat * replica[TOKENS]
    replica[UNPROCESSED] -= (repeat - 1) * replica[TOKENS]
    net.state[FUTURE] -= (repeat - 1) * replica[TOKENS]
    replica[REPEAT] = 0
    set_end(net.ends, server, NEVER)
    first = replica[FIRST_LINE]
    if pool[BY_AGE] != 0:
        _end_by_age(net, server, first, repeat, pool[ENGINE])
    else:
        for index in range(first, first + pool[LINES]):
            if (
                net.lines[index, DECODE] > 0
                or net.lines[index, DONE_HEAD] >= 0
                or net.lines[index, PREFILL] > 0
            ):
                _end_of_line(net, server, index, repeat, pool[ENGINE])
    _touch(net, server)


@uncounted(inline=True)
def _note_series(net: Arrays, before: int) -> None:
    """Write the values at the instants of the series before a tick."""
    state, series = net.state, net.series
    n_stages, n_servers = net.stages.shape[0], net.servers.shape[0]
    tick = state[SERIES_ROWS] * state[SERIES_STEP]
    while tick < before:
        if state[SERIES_ROWS] == series.shape[0]:  # full: keep every other instant
            for row in range(1, series.shape[0] // 2):
                for column in range(series.shape[1]):
                    series[row, column] = series[2 * row, column]
            state[SERIES_ROWS] = series.shape[0] // 2
            state[SERIES_STEP] *= 2
        else:
            row = series[state[SERIES_ROWS]]
            row[0] = tick
            for stage in range(n_stages):
                row[1 + 2 * stage] = net.stages[stage, IN_PREFILL]
                row[2 + 2 * stage] = net.stages[stage, IN_DECODES]
            future = state[FUTURE]
            for server in range(n_servers):
                started = begun(net.servers, server, tick) * net.servers[server, TOKENS]
                row[1 + 2 * n_stages + server] = net.servers[server, UNPROCESSED] - started
                future -= started
            row[1 + 2 * n_stages + n_servers] = future
            state[SERIES_ROWS] += 1
        tick = state[SERIES_ROWS] * state[SERIES_STEP]


def advance(policies: Any, orders: Any, net: Arrays) -> int:
    """Serve until the jobs are done, the next one is not known, or the step allowance is used up.

    Returns
    -------
    int
        `DONE`, `MORE`, `PAUSED`, `IDLE_POLICY`, `BAD_POLICY` or `BAD_ORDER`.
    """
    state = net.state
    until = state[UNTIL]
    jobs = net.job_arrival.size
    while True:
        now = net.ends[1]
        if state[NEXT_JOB] < jobs:
            now = min(now, net.job_arrival[state[NEXT_JOB]])
        if state[WAITING_ROOM] > 0:
            now = min(now, net.heap[0, 0])
        if state[FINAL] == 0 and (
            jobs == 0 or now >= net.job_arrival[jobs - 1]
        ):  # a job to come may arrive then, too
            return MORE
        if now <= until and now < NEVER:
            _note_series(net, now)
        elif until < NEVER:
            _note_series(net, until + 1)
        if now == NEVER or now > until:
            if until < NEVER:
                state[NOW] = until
            return DONE
        if state[STEPS] <= 0:
            return PAUSED
        state[NOW] = now

        # -- finish
        while net.ends[1] == now:
            _end_batch(net, _first_ending(net.ends))

        # -- arrive
        while state[WAITING_ROOM] > 0 and net.heap[0, 0] == now:
            request = _heap_pop(net.heap, state[WAITING_ROOM])
            state[WAITING_ROOM] -= 1
            place = state[READY]
            while place > 0 and net.ready_now[place - 1] > request:
                net.ready_now[place] = net.ready_now[place - 1]
                place -= 1
            net.ready_now[place] = request
            state[READY] += 1
        while state[NEXT_JOB] < jobs and net.job_arrival[state[NEXT_JOB]] == now:
            job = state[NEXT_JOB]
            state[FUTURE] += net.job_tokens[job]
            _release(net, net.job_root[job])
            state[NEXT_JOB] += 1
        while state[READY_DONE] < state[READY]:
            request = net.ready_now[state[READY_DONE]]
            state[READY_DONE] += 1
            _arrive(net, request)
        state[READY] = state[READY_DONE] = 0
        if state[SERIES_ROWS] * state[SERIES_STEP] == now:
            _note_series(net, now + 1)

        # -- schedule
        for index in range(state[TOUCHED]):
            server = net.touched[index]
            net.servers[server, IS_TOUCHED] = 0
            state[STEPS] -= 1
            failed: int = form_batch(net, server, policies, orders)
            if failed != 0:
                state[FAILED] = server
                return failed
        state[TOUCHED] = 0


_I64, _I32 = types.int64[::1], types.int32[::1]
_TABLE, _REALS = types.int64[:, ::1], types.float64[:, ::1]
_NET = types.NamedTuple(  # type: ignore[no-untyped-call]
    (
        _I64, _TABLE, _TABLE, _TABLE, _TABLE, _REALS, _REALS, _I64, _I64, PARAMS, _TABLE, _TABLE,
        types.uint64[:, ::1], _I64, _I64, _I64, _I64, types.int32[:, ::1], _I64, types.uint32[::1],
        _I32, _I32, _I32,
        _I32, _I64, _I64, _I64, _TABLE, _I64, _I64, _REALS, _REALS, _TABLE,
    ),
    Arrays,
)  # fmt: skip
_SIGNATURE = types.int64(
    types.UniTuple(POLICY, MOST_POLICIES),  # type: ignore[no-untyped-call]
    types.UniTuple(ORDER, MOST_POLICIES),  # type: ignore[no-untyped-call]
    _NET,
)


@functools.cache
def compiled_advance() -> Callable[..., int]:
    """Return `advance` compiled under its one signature: seconds the first time, from the disk
    cache after.
    """
    compiled: Callable[..., int] = uncounted(_SIGNATURE)(advance)
    return compiled
