"""Which replica gets a request, and what it finds there."""

from typing import Any

import numpy as np

from penstock.kernel.calendar import NEVER
from penstock.kernel.lines import LEFT, SERVER, Ints, uncounted
from penstock.kernel.network_arrays import (
    AFFINITY,
    COUNT,
    FIRST_SERVER,
    NOW,
    REPEAT,
    REPLICAS,
    ROUTER,
    START,
    TICKS,
    TOKENS,
    TURN,
    UNPROCESSED,
    WORK,
    Arrays,
)
from penstock.kernel.signatures import (
    ROUTE_POWER_OF_TWO,
    ROUTE_RANDOM,
    ROUTE_REQUESTS,
    ROUTE_ROUND_ROBIN,
    ROUTE_TOKENS,
)


@uncounted(inline=True)
def begun(servers: Ints, server: int, tick: int) -> Any:
    """Return how many of the equal batches in progress after the first have started before a
    tick.
    """
    if servers[server, REPEAT] <= 1:
        return 0
    ticks = servers[server, TICKS]
    return max((tick - servers[server, START] + ticks - 1) // ticks - 1, 0)


@uncounted(inline=True)
def _least(servers: Ints, first: int, count: int, field: int) -> Any:
    """Return the replica with the least of a field; of equal ones the first."""
    best = first
    for server in range(first + 1, first + count):
        if servers[server, field] < servers[best, field]:
            best = server
    return best


@uncounted(inline=True)
def _least_tokens(servers: Ints, first: int, count: int, now: int) -> Any:
    """Return the replica with the fewest tokens that have not gone into a batch."""
    best, fewest = first, NEVER
    for server in range(first, first + count):
        tokens = (
            servers[server, UNPROCESSED] - begun(servers, server, now) * servers[server, TOKENS]
        )
        if tokens < fewest:
            best, fewest = server, tokens
    return best


@uncounted(inline=True)
def route(net: Arrays, request: int, pool: Ints) -> Any:
    """Choose the replica of a request."""
    first, count, router = pool[FIRST_SERVER], pool[REPLICAS], pool[ROUTER]
    if count == 1:
        return first
    home = request + net.home[request]
    if pool[AFFINITY] != 0 and net.rows[home, SERVER] >= 0:
        return net.rows[home, SERVER]
    coin = np.int64(net.coin[request])
    if router == ROUTE_RANDOM:
        return first + ((coin * count) >> 32)
    if router == ROUTE_ROUND_ROBIN:
        turn = pool[TURN]
        pool[TURN] = (turn + 1) % count
        return first + turn
    if router == ROUTE_REQUESTS:
        return _least(net.servers, first, count, COUNT)
    if router == ROUTE_TOKENS:
        return _least_tokens(net.servers, first, count, net.state[NOW])
    if router == ROUTE_POWER_OF_TWO:
        one = ((coin & 0xFFFF) * count) >> 16
        other = ((coin >> 16) * (count - 1)) >> 16
        other += 1 if other >= one else 0
        fewer = net.servers[first + other, COUNT] < net.servers[first + one, COUNT]
        return first + (other if fewer else one)
    return _least(net.servers, first, count, WORK)


@uncounted(inline=True)
def cached(net: Arrays, request: int, server: int, retention: int) -> Any:
    """Return how many prompt tokens of a request the replica has processed for an earlier one, and
    kept.
    """
    shared = net.reuse[request]
    earlier = request
    while shared > 0 and net.context[earlier] != 0:
        earlier += net.context[earlier]
        done = net.rows[earlier, SERVER] == server and net.finish[earlier] >= 0
        if done and net.state[NOW] - net.finish[earlier] <= retention:
            return min(shared, net.rows[request, LEFT] - 1)
        shared = min(shared, net.reuse[earlier])
    return 0
