"""Requests that arrive: fresh ones, after a delay, after others; and what their end releases."""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_WORLD, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.lists import insert_in_order, pop, push
from penstock.kernel.records import World
from penstock.kernel.tries import ask_in


@apart(types.void(A_WORLD, NUMBER, NUMBER))
def push_delayed(world: World, tick: int, request: int) -> None:
    """Put a request into the heap of those that are delayed."""
    push(world.heap, world.clock[0].waiting_room, tick, request)
    world.clock[0].waiting_room += 1


@uncounted(inline=True)
def arrive_now(world: World, request: int) -> None:
    """Let a request arrive at this tick, among the others in order of rows."""
    clock = world.clock[0]
    insert_in_order(world.ready_now, clock.ready_done, clock.ready, request)
    clock.ready += 1


@apart(types.void(A_WORLD))
def come_due(world: World) -> None:
    """Let those arrive whose delay is over."""
    clock = world.clock[0]
    while clock.waiting_room > 0 and world.heap[0, 0] == clock.now:
        clock.waiting_room -= 1
        arrive_now(world, pop(world.heap, clock.waiting_room))


@apart(NUMBER(A_WORLD, NUMBER))
def wait_in_front(world: World, request: int) -> Any:
    """Let a request wait until the front end of its pool has taken it in; return whether it must.

    It is the first time that it comes. Whichever process is free first works on it next.
    """
    if world.reached[request] >= 0:  # it has been there
        return 0
    now = world.clock[0].now
    world.reached[request] = now
    if world.clock[0].guarded != 0:
        ask_in(world, request)
    if world.front[request] == 0:
        return 0
    pool = world.pools[world.stages[world.rows[request].stage].pool]
    fronts, first = world.fronts, pool.first_front
    place = first
    for other in range(first + 1, first + pool.fronts):
        if fronts[other] < fronts[place]:
            place = other
    fronts[place] = max(fronts[place], now) + world.front[request]
    push_delayed(world, fronts[place], request)
    return 1


@uncounted(inline=True)
def release(world: World, request: int) -> None:
    """Let a request arrive after its delay: now, or later."""
    delay = world.delay[request]
    if delay > 0:
        push_delayed(world, world.clock[0].now + delay, request)
    else:
        arrive_now(world, request)


@uncounted(inline=True)
def finish(world: World, request: int) -> None:
    """Note that a request is done, and release what waits for nothing else."""
    clock = world.clock[0]
    world.finish[request] = clock.now
    clock.finished += 1
    if clock.clients > 0:
        answer_client(world, request)
    if world.rows[request].child != 0:
        follow(world, request)


@apart(types.void(A_WORLD, NUMBER))
def follow(world: World, request: int) -> None:
    """Release what waits for the end of a request and for nothing else."""
    following = request + world.rows[request].child
    while True:
        row = world.rows[following]
        row.pending -= 1
        if row.pending == 0:
            release(world, following)
        if row.sibling == 0:
            return
        following += row.sibling


@uncounted()
def answer_client(world: World, request: int) -> None:
    """Let the client whose job is done, if this was the last of it, send the next one that is left,
    after a pause.
    """
    clock = world.clock[0]
    if _has_ended(world, request) and clock.next_sent < world.job_arrival.size:
        world.job_arrival[clock.next_sent] = clock.now + clock.pause
        clock.next_sent += 1


@uncounted(inline=True)
def _has_ended(world: World, request: int) -> bool:
    """Whether all requests of a request's job are done."""
    roots = world.job_root
    if roots.size == world.rows.size:  # each is a job
        return True
    job = np.searchsorted(roots[:], request, side="right")
    end = world.rows.size if job == roots.size else roots[job]
    left = 0
    for other in range(roots[job - 1], end):
        left += world.finish[other] == -1
    return left == 0
