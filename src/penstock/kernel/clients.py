"""Whose client leaves before the end, and who comes again.

A client that leaves is gone at that tick. If its request waits, it is struck from the queue at
once. If it runs, the engine takes note when the batch in progress ends: what that brings the
request is of no use, nor is what the next batch has of it that was composed ahead; then its memory
is free. Whoever was refused or left comes again after a back-off, as a new request, until that is
lost.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER, put_off
from penstock.kernel.in_progress import cut, touch
from penstock.kernel.lists import pop
from penstock.kernel.recording import note_allocation
from penstock.kernel.records import (
    ALLOCATION_ROWS,
    IN_FLIGHT,
    IN_STEP,
    LEFT,
    REFUSED,
    World,
)
from penstock.kernel.releases import answer_client, push_delayed
from penstock.kernel.running import (
    count_growth,
    done_by,
    give_back_ahead,
    leave_list,
    peak_of,
    preempt,
    unqueue,
)
from penstock.kernel.tries import await_end, begin_anew, come_again, lose

# -- a try fails


@uncounted()
def fail(world: World, request: int, reason: int) -> None:
    """Let the client of a request that was refused, or left, come again, or be lost."""
    clock, row, trial = world.clock[0], world.rows[request], world.tries[request]
    if reason == REFUSED:
        trial.refusals += 1
        row.server = -1  # it has been nowhere
        world.ready[request] = -1
    begin_anew(world, request, world.pools[world.stages[row.stage].pool])
    trial.gone = -1
    trial.found = trial.first_until = 0
    backoff = world.backoffs[row.stage, min(trial.times, world.backoffs.shape[1] - 1)]
    if backoff < 0:
        clock.future -= row.left + row.decodes
        lose(world, request, reason)
        if clock.clients > 0:
            answer_client(world, request)
        return
    come_again(world, request)
    if world.fronts.size > 0:
        world.reached[request] = -1
    # Weyl's sequence, of which each try takes the next: evenly spread.
    chance = ((trial.luck + trial.times * 0x9E3779B9) & 0xFFFFFFFF) / 4294967296.0
    earlier = np.int64(world.jitter[row.stage] * backoff * chance)
    push_delayed(world, clock.now + max(backoff - earlier, 1), request)


# -- who leaves


@uncounted(inline=True)
def _leaves_at(world: World, request: int) -> Any:
    """Return when a client leaves, or NEVER where it has what it wants, or is not there."""
    trial, first = world.tries[request], world.first_token[request]
    if world.finish[request] != -1 or trial.gone >= 0 or trial.first_until == 0:
        return NEVER
    if 0 <= first <= trial.first_until:
        return trial.whole_until
    return min(trial.first_until, trial.whole_until)


@apart(NUMBER(A_WORLD))
def next_leaving(world: World) -> Any:
    """Return when the next client leaves, or NEVER."""
    clock = world.clock[0]
    while clock.leaving > 0:
        tick = world.leaves[0, 0]
        request = world.leaves[0, 1]
        until = _leaves_at(world, request)
        if until == tick:
            return tick
        clock.leaving -= 1
        pop(world.leaves, clock.leaving)
        world.tries[request].is_listed = 0
        if until < NEVER:
            await_end(world, request, until)
    return NEVER


@apart(types.void(A_WORLD))
def cut_runs(world: World) -> None:
    """Let runs of batches end with the one in progress where clients leave at this tick: equal ones
    follow only if nobody goes.
    """
    clock, leaves = world.clock[0], world.leaves
    if clock.leaving == 0 or leaves[0, 0] != clock.now:
        return
    for place in range(clock.leaving):
        if leaves[place, 0] == clock.now and world.ready[leaves[place, 1]] >= 0:
            server = np.int64(world.rows[leaves[place, 1]].server)
            if world.servers[server].equal > 1:
                cut(world, server)


@apart(types.void(A_WORLD))
def let_leave(world: World) -> None:
    """Let the clients go who leave at this tick."""
    clock = world.clock[0]
    while next_leaving(world) == clock.now:
        clock.leaving -= 1
        request = pop(world.leaves, clock.leaving)
        world.tries[request].is_listed = 0
        if world.ready[request] < 0:  # it is in the front end still
            world.tries[request].gone = clock.now
        else:
            _leave(world, request)


@uncounted()
def _leave(world: World, request: int) -> None:
    """Let the client of a request go that waits or runs at an engine."""
    clock, replica = world.clock[0], world.servers[world.rows[request].server]
    engine, pool = world.engines[replica.engine], world.pools[replica.pool]
    expect_nothing(world, engine, request)
    place = _slot_of(world, engine, request)
    if place < 0:
        strike(world, engine, pool, request)
        fail(world, request, LEFT)
    else:
        world.tries[request].gone = clock.now
        engine.gone += 1
        slot = world.slots[place]
        waits = pool.waits_among_running != 0 and slot.left == slot.target and slot.taken == 0
        if waits or replica.equal == 0:
            composed = pool.ahead != 0 and world.planned[engine.index].tokens > 0
            _dismiss(world, engine, pool, place, composed)
    if replica.equal == 0:
        touch(world, engine.server)


@uncounted(inline=True)
def expect_nothing(world: World, engine: Any, request: int) -> None:
    """Count a request no more among those without a first token, if it has none."""
    first, prompt = world.first_token[request], world.rows[request].left
    if first < 0:
        engine.without_first -= prompt
    elif first > world.clock[0].now:  # it is in flight
        engine.ahead.first_tokens -= prompt


@uncounted()
def _slot_of(world: World, engine: Any, request: int) -> Any:
    """Return the slot of a request that runs, or waits for its last token alone; -1: none."""
    place = engine.slots.first
    while place >= 0 and world.slots[place].request != request:
        place = world.slots[place].next
    if place < 0:
        place = engine.ahead.leaving.first
        while place >= 0 and world.slots[place].request != request:
            place = world.slots[place].chain
    return place


@uncounted()
def strike(world: World, engine: Any, pool: Any, request: int) -> None:
    """Take a request out of the queue in which it waits."""
    tokens = peak_of(world, pool, request)
    unqueue(world, engine, pool, request)
    engine.uncomposed_prefill -= world.again[request].target
    world.servers[engine.server].unprocessed -= tokens
    _count_out(world, engine, request)


@uncounted(inline=True)
def _count_out(world: World, engine: Any, request: int) -> None:
    """Count a request out that is in prefill."""
    stage, replica = world.stages[world.rows[request].stage], world.servers[engine.server]
    stage.in_prefill -= 1
    replica.count -= 1
    replica.work -= stage.prefill_weight


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL))
def dismiss(world: World, engine: Any, pool: Any) -> None:
    """Let the requests go whose clients have left during the batch that has just ended."""
    in_batch = pool.ahead == 0 or world.planned[engine.index].tokens > 0
    place = engine.slots.first
    while place >= 0:
        following = world.slots[place].next
        if world.tries[world.slots[place].request].gone >= 0:
            if world.slots[place].left != IN_FLIGHT:
                _dismiss(world, engine, pool, place, in_batch)
            elif pool.caching != 0:  # it leaves with those that end now, but its blocks are first
                give_back_ahead(world, engine, pool, place)
        place = following


@uncounted()
def _dismiss(world: World, engine: Any, pool: Any, place: int, in_batch: bool) -> None:
    """Take a running request out whose client has left; ``in_batch``: the engine's batch, which has
    just ended or is composed ahead, may have something for it.
    """
    slot, batch = world.slots[place], engine.batch
    if not in_batch:
        slot.taken = 0
    elif slot.left == 0 and batch.decodes + batch.gone > 0:
        if batch.serves_all != 0:
            slot.taken = 1
        elif slot.taken == 0:
            _put_back(world, engine, pool, place)
    if pool.ahead != 0 and slot.left == 0:
        last = engine.last_step if slot.last == IN_STEP else slot.last
        if last == world.clock[0].now:  # when its batch was composed, that token was in flight
            slot.flight = 1
    request, taken = np.int64(slot.request), np.int64(slot.taken)
    decodes = 1 if slot.left == 0 and taken > 0 else 0
    if pool.ahead != 0 and taken > 0 and world.clock[0].record >= ALLOCATION_ROWS:
        note_allocation(world, engine.server, request, taken - decodes, decodes)
    done = done_by(engine, slot)
    total = np.int64(slot.total)
    preempt(world, engine, pool, place)
    # It gave up its memory as one that is preempted, but does nothing again.
    batch.preempted -= 1
    engine.preemptions -= 1
    engine.lost -= done
    batch.gone += decodes
    engine.uncomposed_prefill -= world.again[request].target
    # What it has of a batch that is composed ahead is unprocessed until that starts.
    begun = taken if pool.ahead == 0 else 0
    batch.in_vain += taken - begun
    world.servers[engine.server].unprocessed -= total - begun
    world.clock[0].future += begun
    engine.gone -= 1
    engine.changed = 1
    world.tries[request].wasted += done + taken - world.tries[request].found
    _count_out(world, engine, request)
    fail(world, request, LEFT)


@uncounted()
def _put_back(world: World, engine: Any, pool: Any, place: int) -> None:
    """Let a request that the batch leaves out be due as if there were no such batch."""
    slot = world.slots[place]
    count_growth(world, engine, pool, slot, -1)
    put_off(world.slots, world.heads[engine.line], world.bits[engine.line], place, -1)
    engine.context_base += 1
    count_growth(world, engine, pool, slot, 1)


@apart(types.void(A_WORLD, AN_ENGINE, NUMBER))
def leave_unserved(world: World, engine: Any, place: int) -> None:
    """Let a request go without its last token, which is out, as its client has left."""
    slot = world.slots[place]
    request, row = np.int64(slot.request), world.rows[slot.request]
    tokens = np.int64(row.left) + row.decodes
    in_vain = np.int64(slot.taken) if slot.left == IN_FLIGHT else 0  # of a batch composed ahead
    leave_list(world, engine, place)
    engine.gone -= 1
    engine.changed = 1
    world.tries[request].wasted += tokens + in_vain - world.tries[request].found
    world.clock[0].future += tokens
    _count_out(world, engine, request)
    fail(world, request, LEFT)
