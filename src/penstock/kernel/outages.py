"""Replicas that die and come back.

A replica that dies loses its batch in progress, its KV memory and its caches. The requests that
were there are routed anew at the same tick, among those that serve, and begin again; or they are
lost, and with them all that would have come after them in their jobs. Where nobody serves, requests
wait until a replica is back, which begins empty. Routers know at once who serves.
"""

from typing import Any

from numba import types

from penstock.kernel.apart import A_WORLD, NUMBER, apart
from penstock.kernel.blocks import forget_all, forget_buckets
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.in_progress import set_end
from penstock.kernel.lists import give_up_slot
from penstock.kernel.recording import note_run
from penstock.kernel.records import (
    DIES_WITH_REQUESTS,
    EVICTED,
    IN_DECODE,
    LOST,
    NO_ROWS,
    RETURNS,
    World,
)
from penstock.kernel.releases import arrive_now
from penstock.kernel.routing import look
from penstock.kernel.running import change_phase
from penstock.kernel.signatures import SEEN_SENT
from penstock.kernel.tries import begin_anew, come_again, lose

TICK, SERVER, WHAT, HIT = range(4)
"""Columns of `World.outages`; ``HIT``: requests that were at a replica when it died, written when
it does.
"""


@apart(types.void(A_WORLD))
def happen(world: World) -> None:
    """Let replicas die and come back at this tick."""
    clock = world.clock[0]
    while clock.next_outage == clock.now:
        row = world.outages[clock.outages_done]
        clock.outages_done += 1
        clock.next_outage = NEVER
        if clock.outages_done < world.outages.shape[0]:
            clock.next_outage = world.outages[clock.outages_done, TICK]
        if row[WHAT] == RETURNS:
            _return(world, row[SERVER])
        else:
            row[HIT] = _die(world, row[SERVER], row[WHAT] == DIES_WITH_REQUESTS)


@apart(types.void(A_WORLD, NUMBER))
def strand(world: World, request: int) -> None:
    """Let a request wait until a replica of its pool is back."""
    trial, clock = world.tries[request], world.clock[0]
    if trial.came < 0:
        trial.came = clock.now
    trial.is_stranded = 1
    clock.stranded += 1


# -- it comes back


@uncounted()
def _return(world: World, server: int) -> None:
    """Let a replica serve again, and whoever waits for that arrive."""
    replica = world.servers[server]
    replica.is_down = 0
    pool = world.pools[replica.pool]
    _list_serving(world, pool.first_server, pool.replicas)
    look(world, server, world.clock[0].now)
    world.seen[server, SEEN_SENT] = 0
    if pool.up > 1 or world.clock[0].stranded == 0:
        return
    for request in range(world.rows.size):
        stage, trial = world.stages[world.rows[request].stage], world.tries[request]
        if trial.is_stranded != 0 and world.pools[stage.pool].first_server == pool.first_server:
            trial.is_stranded = 0
            world.clock[0].stranded -= 1
            arrive_now(world, request)


@uncounted()
def _list_serving(world: World, first: int, replicas: int) -> None:
    """List those replicas of a pool that serve."""
    up = 0
    for server in range(first, first + replicas):
        if world.servers[server].is_down == 0:
            world.serving[first + up] = server
            up += 1
    for index in range(world.pools.size):
        if world.pools[index].first_server == first:
            world.pools[index].up = up


# -- it dies


@uncounted()
def _die(world: World, server: int, loses: bool) -> int:
    """Let a replica die, and send its requests again, or lose them; return how many there were."""
    clock, replica = world.clock[0], world.servers[server]
    pool = world.pools[replica.pool]
    if replica.equal > 0:  # one batch: runs end before this
        replica.ticks = replica.plain = clock.now - replica.start
        if clock.record > NO_ROWS:
            note_run(world, server, replica)
        replica.busy += replica.ticks
        replica.batches += 1
        replica.equal = 0
        set_end(world, server, NEVER)
    if pool.by_lines != 0:
        _empty_lines(world, replica.first_line, pool.lines)
    else:
        _empty_engine(world, replica.engine, pool)
    # Routers know at once, so those who were there are routed among the others.
    replica.is_down = 1
    health = world.health[server]
    health.died = clock.now
    health.dies = _next_death(world, server)
    _list_serving(world, pool.first_server, pool.replicas)
    clock.future -= replica.unprocessed
    replica.count = replica.unprocessed = replica.work = 0
    hit = 0
    for request in range(world.rows.size):
        row = world.rows[request]
        if row.server != server or world.ready[request] < 0 or world.finish[request] != -1:
            continue
        stage = world.stages[row.stage]
        if pool.by_lines != 0 and row.pending == IN_DECODE:
            stage.in_decode -= 1
        else:
            stage.in_prefill -= 1
        hit += 1
        begin_anew(world, request, pool)
        if world.tries[request].came < 0:
            world.tries[request].came = world.ready[request]  # or earlier, at the front end
        if loses:
            lose(world, request, LOST)
        else:
            _send_again(world, request)
    return hit


@uncounted()
def _next_death(world: World, server: int) -> Any:
    """Return when a replica dies after the outages that have happened."""
    for place in range(world.clock[0].outages_done, world.outages.shape[0]):
        row = world.outages[place]
        if row[SERVER] == server and row[WHAT] != RETURNS:
            return row[TICK]
    return NEVER


@uncounted()
def _empty_lines(world: World, first: int, count: int) -> None:
    """Let lines be as they were at first."""
    for index in range(first, first + count):
        place = world.lines[index].linked.first
        while place >= 0:
            following = world.slots[place].next
            give_up_slot(world, place)
            place = following
        world.heads[index, :] = -1
        world.bits[index, :] = 0
        world.lines[index] = world.idle_lines[index]


@uncounted()
def _empty_engine(world: World, index: int, pool: Any) -> None:
    """Let an engine be as it was at first; all its requests are in prefill again."""
    engine = world.engines[index]
    place = engine.ahead.leaving.first  # of these some have left the list
    while place >= 0:
        following = world.slots[place].chain
        if world.slots[place].left == EVICTED:
            _let_go(world, engine, place)
        place = following
    place = engine.slots.first
    while place >= 0:
        following = world.slots[place].next
        _let_go(world, engine, place)
        place = following
    world.heads[engine.line, :] = -1
    world.bits[engine.line, :] = 0
    world.growth[index, :] = 0
    world.planned[index].tokens = 0
    preemptions, lost = engine.preemptions, engine.lost
    reused, rejections = engine.reused, engine.rejections
    world.engines[index] = world.idle_engines[index]
    engine.preemptions, engine.lost = preemptions, lost
    engine.reused, engine.rejections = reused, rejections
    if pool.caching != 0:
        forget_all(world, engine)
    if pool.radix != 0:
        forget_buckets(world, engine)
        world.nodes[engine.tree.root].children = 0


@uncounted()
def _let_go(world: World, engine: Any, place: int) -> None:
    """Let a request of a replica that died have no slot."""
    slot = world.slots[place]
    if slot.left <= 0:
        change_phase(world, engine, slot.request, -1)
    give_up_slot(world, place)
    world.clock[0].used_slots -= 1


@uncounted()
def _send_again(world: World, request: int) -> None:
    """Let a request arrive at this tick."""
    row = world.rows[request]
    come_again(world, request)
    world.clock[0].future += row.left + row.decodes
    arrive_now(world, request)
