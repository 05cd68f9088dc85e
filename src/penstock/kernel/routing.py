"""Which replica gets a request, and what it finds there."""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.in_progress import begun_again
from penstock.kernel.records import World
from penstock.kernel.signatures import (
    ROUTE_POWER_OF_TWO,
    ROUTE_RANDOM,
    ROUTE_REQUESTS,
    ROUTE_ROUND_ROBIN,
    ROUTE_TOKENS,
)


@uncounted(inline=True)
def _measure(world: World, server: int, router: int) -> Any:
    """Return how full a router takes a replica to be: unfinished requests, tokens that have not
    gone into a batch, or work.
    """
    replica = world.servers[server]
    if router == ROUTE_REQUESTS:
        return replica.count
    if router == ROUTE_TOKENS:
        again = begun_again(replica, world.clock[0].now)
        return replica.unprocessed - again * replica.tokens
    return replica.work


@uncounted(inline=True)
def _emptiest(world: World, first: int, count: int, router: int) -> Any:
    """Return the replica that is least full; of equal ones the first."""
    best, least = first, _measure(world, first, router)
    for server in range(first + 1, first + count):
        measure = _measure(world, server, router)
        if measure < least:
            best, least = server, measure
    return best


@uncounted(inline=True)
def route(world: World, request: int, pool: Any) -> Any:
    """Choose the replica of a request."""
    first, count, router = pool.first_server, pool.replicas, pool.router
    if count == 1:
        return first
    home = request + world.home[request]
    if pool.affinity != 0 and world.rows[home].server >= 0:
        return np.int64(world.rows[home].server)
    coin = np.int64(world.coin[request])
    if router == ROUTE_RANDOM:
        return first + ((coin * count) >> 32)
    if router == ROUTE_ROUND_ROBIN:
        turn = pool.turn
        pool.turn = (turn + 1) % count
        return first + turn
    if router == ROUTE_POWER_OF_TWO:
        one = ((coin & 0xFFFF) * count) >> 16
        other = ((coin >> 16) * (count - 1)) >> 16
        other += 1 if other >= one else 0
        fewer = world.servers[first + other].count < world.servers[first + one].count
        return first + (other if fewer else one)
    return _emptiest(world, first, count, router)


@uncounted(inline=True)
def cached(world: World, request: int, server: int, retention: int) -> Any:
    """Return how many prompt tokens of a request the replica has processed for an earlier one, and
    kept.
    """
    shared = np.int64(world.reuse[request])
    earlier = request
    while shared > 0 and world.context[earlier] != 0:
        earlier += world.context[earlier]
        finish = world.finish[earlier]
        done = world.rows[earlier].server == server and finish >= 0
        if done and world.clock[0].now - finish <= retention:
            return min(shared, world.rows[request].left - 1)
        shared = min(shared, world.reuse[earlier])
    return 0
