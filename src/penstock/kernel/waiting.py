"""Requests that wait at an engine: linked through their rows; where the queue goes by rank, a skew
heap.
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.lists import append_row
from penstock.kernel.records import CAME_BY_NUMBER, CAME_WITH_ARRIVAL, World


@uncounted(inline=True)
def comes_before(world: World, one: int, other: int) -> Any:
    """Return whether a request is served before another: by priority, arrival, then row."""
    a, b = world.again[one].priority, world.again[other].priority
    if a != b:
        return a < b
    a, b = world.again[one].came, world.again[other].came
    return a < b or (a == b and one < other)


@uncounted()
def _merged(world: World, one: int, other: int) -> Any:
    """Return the root of two skew heaps made one."""
    root = above = -1
    while one >= 0 and other >= 0:
        if comes_before(world, other, one):
            one, other = other, one
        if above < 0:
            root = one
        else:
            world.again[above].less = one
        above = one
        one = world.again[above].more
        world.again[above].more = world.again[above].less
    rest = max(one, other)
    if above < 0:
        return rest
    world.again[above].less = rest
    return root


@uncounted(inline=True)
def wait_last(world: World, engine: Any, pool: Any, request: int) -> None:
    """Put a request at the end of the queue, or where its priority puts it."""
    engine.waiting += 1
    if pool.came_as != CAME_WITH_ARRIVAL:
        if pool.came_as == CAME_BY_NUMBER:
            engine.age += 1
        world.again[request].came = engine.age
    elif pool.by_priority != 0:
        world.again[request].came = world.ready[request]
    if pool.by_priority != 0:
        world.again[request].less = world.again[request].more = -1
        engine.queue.first = _merged(world, engine.queue.first, request)
        return
    append_row(world.rows, engine.queue, request)


@uncounted(inline=True)
def wait_first(world: World, engine: Any, pool: Any, request: int) -> None:
    """Put a request at the head of the queue, or where its priority puts it."""
    if pool.by_priority != 0:
        wait_last(world, engine, pool, request)
        return
    engine.waiting += 1
    if engine.queue.first < 0:
        engine.queue.last = request
    world.rows[request].next = engine.queue.first
    engine.queue.first = request


@uncounted(inline=True)
def pop_waiting(world: World, engine: Any, pool: Any) -> Any:
    """Take the request that is served next, the first of `ENGINE.queue`, out of the queue."""
    request = engine.queue.first
    engine.waiting -= 1
    if pool.by_priority != 0:
        engine.queue.first = _merged(world, world.again[request].less, world.again[request].more)
    else:
        engine.queue.first = world.rows[request].next
    return request
