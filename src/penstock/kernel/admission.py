"""Who is let in: a router, or a server, refuses requests that find too many before them."""

from typing import Any

from penstock.kernel.apart import A_POOL, A_WORLD, NUMBER, apart
from penstock.kernel.clients import expect_nothing, fail, strike
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.in_progress import begun_before, ticks_of_batches
from penstock.kernel.records import LEFT, REFUSED, World
from penstock.kernel.routing import route
from penstock.kernel.running import last_waiting, not_begun
from penstock.kernel.tries import ask_in


@apart(NUMBER(A_WORLD, NUMBER, A_POOL))
def let_in(world: World, request: int, pool: Any) -> Any:
    """Choose the replica of a request; -1: it is refused, or its client has left meanwhile."""
    trial = world.tries[request]
    if trial.gone >= 0:  # while it was in the front end
        fail(world, request, LEFT)
        return -1
    if trial.first_until == 0:
        ask_in(world, request)
    if _is_turned_away(world, request, pool, -1):
        return -1
    server = route(world, request, pool)
    kind = world.pools[world.servers[server].pool]
    return -1 if _is_turned_away(world, request, kind, server) else server


@uncounted()
def _is_turned_away(world: World, request: int, pool: Any, server: int) -> Any:
    """Refuse a request that its router (``server`` -1) or its server does not let in; return
    whether it was.
    """
    first, end = server, server + 1
    limits = pool.at_server
    if server < 0:
        first, end = pool.first_server, pool.first_server + pool.replicas
        limits = pool.at_router
    requests = waiting = tokens = 0
    for place in range(first, end):
        engine = world.engines[world.servers[place].engine]
        requests += world.servers[place].count - engine.gone
        waiting += engine.waiting
        if pool.waits_among_running != 0:
            waiting += not_begun(world, engine)[0]
        tokens += engine.without_first + engine.ahead.first_tokens
    refused = requests >= limits.requests or tokens >= limits.prompt_tokens
    if server >= 0 and not refused:
        longest = min(limits.ttft, pool.at_router.ttft)
        if longest < NEVER:
            refused = _first_token_in(world, request, pool, server, tokens) > longest
    if not refused and waiting >= limits.waiting:
        refused = server < 0 or pool.evicts == 0 or not _makes_way(world, request, pool, server)
    if refused:
        fail(world, request, REFUSED)
    return refused


@uncounted(inline=True)
def _first_token_in(world: World, request: int, pool: Any, server: int, tokens: int) -> Any:
    """Return in how many ticks a request would have its first token if full batches took all
    prompts before it, beside those who decode now.
    """
    replica = world.servers[server]
    room = max(pool.budget - world.engines[replica.engine].decoding, 1)
    batches = (tokens + world.rows[request].left + room - 1) // room
    rest = 0
    if replica.equal > 0:  # of the batch in progress
        now = world.clock[0].now
        begun = begun_before(replica, now, replica.equal)
        rest = replica.start + ticks_of_batches(replica, begun) - now
    return rest + batches * pool.full_batch


@uncounted()
def _makes_way(world: World, request: int, pool: Any, server: int) -> Any:
    """Refuse the request that waits and would be served last, if another is more urgent; return
    whether it is.
    """
    engine = world.engines[world.servers[server].engine]
    last = last_waiting(world, engine, pool)
    step = pool.evicts
    if last < 0 or world.again[request].rank // step >= world.again[last].rank // step:
        return False
    expect_nothing(world, engine, last)
    strike(world, engine, pool, last)
    fail(world, last, REFUSED)
    return True
