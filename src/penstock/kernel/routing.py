"""Which replica gets a request, by what its router knows, and what it finds there.

A router sees replicas as they are, or as they were at its last report: at a multiple of so many
ticks, before anything happens then.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, NUMBER, apart
from penstock.kernel.blocks import found_in_cache
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.engine_ends import grown, settle
from penstock.kernel.engines.sglang_cache import pages_found
from penstock.kernel.in_progress import begun_again
from penstock.kernel.records import EVICTED, World
from penstock.kernel.running import not_begun
from penstock.kernel.signatures import (
    ASKED_COIN,
    ASKED_HOME,
    ASKED_PROMPT,
    ASKED_TURN,
    ROUTE_BY_FUNCTION,
    ROUTE_POWER_OF_TWO,
    ROUTE_RANDOM,
    ROUTE_REQUESTS,
    ROUTE_ROUND_ROBIN,
    ROUTE_TOKENS,
    SEEN_CACHED,
    SEEN_MEMORY,
    SEEN_REQUESTS,
    SEEN_SENT,
    SEEN_TOKENS,
    SEEN_WAITING,
    SEEN_WORK,
    router_at,
)

# -- what a router sees


@uncounted(inline=True)
def _tokens(replica: Any, tick: int) -> Any:
    """Return the tokens at a replica that have not gone into a batch before a tick."""
    return replica.unprocessed - begun_again(replica, tick) * replica.tokens


@uncounted(inline=True)
def _put_back(world: World, engine: Any) -> Any:
    """Return how many requests wait for nothing but their last token, which is in flight, since
    they gave up their memory.
    """
    requests = 0
    place = engine.ahead.leaving.first
    while place >= 0:
        requests += world.slots[place].left == EVICTED
        place = world.slots[place].chain
    return requests


@uncounted(inline=True)
def _memory_in_use(world: World, replica: Any, pool: Any, tick: int) -> Any:
    """Return the share of the KV memory in use before a tick; what a cache would give up is not."""
    if pool.by_lines != 0:
        return 0.0
    engine = world.engines[replica.engine]
    if engine.usable == 0:
        return 0.0
    free = engine.free + engine.evictable
    if pool.waits_among_running != 0:
        _, blocks = not_begun(world, engine)
        free += blocks
    if replica.equal > 1:
        free -= grown(world, engine, pool, begun_again(replica, tick) + 1) - engine.settled
    return (engine.usable - free) / engine.usable


@uncounted()
def look(world: World, server: int, tick: int) -> None:
    """Let a router see how a replica is before a tick."""
    replica = world.servers[server]
    pool = world.pools[replica.pool]
    seen = world.seen[server]
    seen[SEEN_REQUESTS] = replica.count
    seen[SEEN_WAITING] = replica.count
    if pool.by_lines == 0:
        engine = world.engines[replica.engine]
        seen[SEEN_WAITING] = engine.waiting + _put_back(world, engine)
    if pool.waits_among_running != 0:
        unstarted, _ = not_begun(world, world.engines[replica.engine])
        seen[SEEN_WAITING] += unstarted
    seen[SEEN_TOKENS] = _tokens(replica, tick)
    seen[SEEN_WORK] = replica.work
    if pool.routing.looks_at_memory != 0:
        seen[SEEN_MEMORY] = _memory_in_use(world, replica, pool, tick)


@apart(types.void(A_WORLD, NUMBER))
def report(world: World, now: int) -> None:
    """Tell routers how replicas were at the last multiple of their times up to now, before anything
    happens now.
    """
    clock = world.clock[0]
    clock.next_report = NEVER
    for index in range(world.pools.size):
        pool = world.pools[index]
        if pool.routing.report == 0:
            continue
        tick = now // pool.routing.report * pool.routing.report
        if tick > pool.routing.reported:
            pool.routing.reported = tick
            for server in range(pool.first_server, pool.first_server + pool.replicas):
                look(world, server, tick)
                world.seen[server, SEEN_SENT] = 0
        clock.next_report = min(clock.next_report, pool.routing.reported + pool.routing.report)


@uncounted(inline=True)
def _measure(world: World, server: int, router: int, stale: bool) -> Any:
    """Return how full a router takes a replica to be: unfinished requests, tokens that have not
    gone into a batch, or work.
    """
    replica, seen = world.servers[server], world.seen[server]
    if router == ROUTE_REQUESTS:
        return seen[SEEN_REQUESTS] if stale else np.float64(replica.count)
    if router == ROUTE_TOKENS:
        return seen[SEEN_TOKENS] if stale else np.float64(_tokens(replica, world.clock[0].now))
    return seen[SEEN_WORK] if stale else np.float64(replica.work)


# -- where a request goes


@uncounted(inline=True)
def _server_at(world: World, pool: Any, place: int) -> Any:
    """Return the replica at a place among those that serve."""
    if pool.up == pool.replicas:
        return pool.first_server + place
    return world.serving[pool.first_server + place]


@uncounted(inline=True)
def _emptiest(world: World, pool: Any) -> Any:
    """Return which of those that serve is least full; of equal ones the first."""
    stale = pool.routing.report > 0
    best = 0
    least = _measure(world, _server_at(world, pool, 0), pool.routing.router, stale)
    for place in range(1, pool.up):
        measure = _measure(world, _server_at(world, pool, place), pool.routing.router, stale)
        if measure < least:
            best, least = place, measure
    return best


@uncounted(inline=True)
def _of_two(world: World, coin: int, pool: Any) -> Any:
    """Return which of two that a coin names has fewer requests; of equal ones the first named."""
    count, stale = pool.up, pool.routing.report > 0
    one = ((coin & 0xFFFF) * count) >> 16
    other = ((coin >> 16) * (count - 1)) >> 16
    if other >= one:
        other += 1
    left = _measure(world, _server_at(world, pool, other), ROUTE_REQUESTS, stale)
    if left < _measure(world, _server_at(world, pool, one), ROUTE_REQUESTS, stale):
        return other
    return one


@uncounted()
def _look_up(world: World, request: int, pool: Any) -> None:
    """Let a router see what each replica has computed of a prompt."""
    first, end = pool.first_server, pool.first_server + pool.replicas
    if pool.by_lines == 0 and _others_may_have(world, request):
        for server in range(first, end):
            world.seen[server, SEEN_CACHED] = _cached_at(world, request, server)
        return
    world.seen[first:end, SEEN_CACHED] = 0
    earlier: Any = request
    while world.reuse[earlier] > 0:
        earlier += world.context[earlier]
        place: Any = np.int64(world.rows[earlier].server)
        if first <= place < end and world.seen[place, SEEN_CACHED] == 0:
            world.seen[place, SEEN_CACHED] = _cached_at(world, request, place)


@uncounted()
def _others_may_have(world: World, request: int) -> Any:
    """Return whether other replicas than those of the requests that it goes on with may have
    computed the beginning of a prompt: for what a trace names, or for another one that goes on with
    the same.
    """
    if world.again[request].named > 0 or (
        world.tries.size > 0 and world.tries[request].times > 0  # itself was there before
    ):
        return True
    earlier: Any = request
    while world.reuse[earlier] > 0:
        earlier += world.context[earlier]
        if world.again[earlier].followed > 1:
            return True
    return False


@uncounted()
def _look_at_serving(world: World, pool: Any) -> None:
    """Put what a router sees of those that serve next to each other."""
    for place in range(pool.up):
        server = world.serving[pool.first_server + place]
        for column in range(world.seen.shape[1]):
            world.seen[world.servers.size + place, column] = world.seen[server, column]


@uncounted()
def _place_of_home(world: World, request: int, pool: Any) -> Any:
    """Return where among those that serve the replica is that the first request of a job went to,
    or -1.
    """
    home = world.rows[request + world.home[request]].server
    first = pool.first_server
    if home < 0 or pool.up == pool.replicas:
        return home - first if home >= 0 else -1
    for place in range(pool.up):
        if _server_at(world, pool, place) == home:
            return place
    return -1


@uncounted()
def _by_function(world: World, request: int, pool: Any) -> Any:
    """Ask a router that is a function."""
    clock = world.clock[0]
    first, end = pool.first_server, pool.first_server + pool.replicas
    if pool.routing.report == 0:
        for server in range(first, end):
            look(world, server, clock.now)
    if pool.routing.looks_up != 0:
        _look_up(world, request, pool)
    rows = first
    if pool.up < pool.replicas:
        rows = world.servers.size
        _look_at_serving(world, pool)
    world.asked[ASKED_PROMPT] = world.rows[request].left
    world.asked[ASKED_HOME] = _place_of_home(world, request, pool)
    world.asked[ASKED_COIN] = world.coin[request] / 4294967296.0
    world.asked[ASKED_TURN] = pool.routing.turn
    pool.routing.turn += 1
    router = pool.routing.function
    params = world.params[router.params : router.end]
    place = router_at(router.address)(world.seen[rows : rows + pool.up], world.asked, params)
    if place < 0 or place >= pool.up:
        clock.bad_router = first + 1
        place = 0
    if pool.routing.report > 0:
        world.seen[_server_at(world, pool, place), SEEN_SENT] += 1
    return place


@uncounted(inline=True)
def route(world: World, request: int, pool: Any) -> Any:
    """Choose the replica of a request, among those that serve."""
    return pool.first_server if pool.replicas == 1 else choose(world, request, pool)


@apart(NUMBER(A_WORLD, NUMBER, A_POOL))
def choose(world: World, request: int, pool: Any) -> Any:
    """Choose one of several replicas."""
    count, router = pool.up, pool.routing.router
    if count == 1:
        return _server_at(world, pool, 0)
    coin = np.int64(world.coin[request])
    if pool.routing.affinity != 0:
        home = np.int64(world.rows[request + world.home[request]].server)
        if home >= 0 and world.servers[home].is_down == 0:
            return home
    if router == ROUTE_BY_FUNCTION:
        place = _by_function(world, request, pool)
    elif router == ROUTE_RANDOM:
        place = (coin * count) >> 32
    elif router == ROUTE_ROUND_ROBIN:
        place = pool.routing.turn % count
        pool.routing.turn += 1
    elif router == ROUTE_POWER_OF_TWO:
        place = _of_two(world, coin, pool)
    else:
        place = _emptiest(world, pool)
    return _server_at(world, pool, place)


# -- what it finds there


@uncounted()
def _cached_at(world: World, request: int, server: int) -> Any:
    """Return how many prompt tokens of a request a replica has computed before."""
    replica = world.servers[server]
    pool = world.pools[replica.pool]
    if pool.by_lines != 0:
        return cached(world, request, server, pool.retention)
    engine = world.engines[replica.engine]
    if pool.radix != 0:
        pages = max(world.again[request].target - 1, 0) // pool.block_size
        return pages_found(world, engine, pool, request, pages) * pool.block_size
    if pool.caching == 0 or world.again[request].target == 0:
        return 0
    hits, _ = found_in_cache(world, engine, pool, request)
    if hits > 0 and replica.equal > 1:  # decodes may have taken what a block held
        settle(world, replica, engine, pool)
        hits, _ = found_in_cache(world, engine, pool, request)
    return hits * pool.block_size


@apart(NUMBER(A_WORLD, NUMBER, NUMBER, NUMBER))
def cached(world: World, request: int, server: int, retention: int) -> Any:
    """Return how many prompt tokens of a request the replica has processed for an earlier one, and
    kept.
    """
    shared = np.int64(world.reuse[request])
    earlier = request
    while shared > 0 and world.context[earlier] != 0:
        earlier += world.context[earlier]
        finish = world.finish[earlier]
        done = world.rows[earlier].server == server and finish > world.health[server].died
        if done and world.clock[0].now - finish <= retention:
            return min(shared, world.rows[request].left - 1)
        shared = min(shared, world.reuse[earlier])
    return 0
