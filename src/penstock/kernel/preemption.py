"""Preemption: who leaves when KV memory is short, and what it has to do again.

A request that is preempted leaves its slot and waits again, with what it must do anew in its row of
``again`` (`penstock.kernel.waiting`).
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import give_back, nameable
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import unchain
from penstock.kernel.engines.sglang_cache import leave
from penstock.kernel.lists import unlink
from penstock.kernel.records import EVICTED, World
from penstock.kernel.running import (
    add_tokens,
    change_phase,
    done_by,
    end_decode,
    ends_unforeseen,
    flight_of,
    held_by,
    release,
)
from penstock.kernel.waiting import comes_before, wait_first


@uncounted()
def _strike(world: World, engine: Any, place: int) -> None:
    """Take a request in prefill out of the batch that is being formed."""
    engine.batch.prompts -= 1
    following = world.slots[place].served_next
    if engine.batch.served.first == place:
        engine.batch.served.first = following
        return
    before = engine.batch.served.first
    while world.slots[before].served_next != place:
        before = world.slots[before].served_next
    world.slots[before].served_next = following
    if following < 0:
        engine.batch.served.last = before


@uncounted(inline=True)
def _named(engine: Any, pool: Any, slot: Any, done: int) -> Any:
    """Return how many blocks of a running request are full, and can have names.

    What is in the batch has its name already; but a step ahead, what the batch in progress brings
    is not known before the batch after it starts.
    """
    computed, known = done + np.int64(slot.taken), np.int64(slot.target)
    if slot.left <= 0:
        flight = flight_of(engine, pool, slot)
        computed, known = max(known, computed - flight), done + 1 - flight
    return nameable(pool, computed, known) // pool.block_size


@uncounted()
def preempt(world: World, engine: Any, pool: Any, place: int) -> Any:
    """Take a running request out, with what it has to do again in ``again``; return it, to be
    queued.
    """
    slot = world.slots[place]
    request = slot.request
    again = world.again[request]
    done = done_by(engine, slot)
    held = held_by(engine, pool, slot)
    full = _named(engine, pool, slot, done)
    again.target = slot.target
    again.outputs = slot.outputs
    again.times += 1
    if slot.left > 0:
        engine.prefilling -= 1
        engine.waiting_tokens += slot.taken - slot.left
        if slot.taken > 0:  # it was served in this batch already
            _strike(world, engine, place)
    else:
        left = slot.due - engine.epoch
        engine.decode_tokens -= left
        unchain(world.slots, world.heads[engine.line], world.bits[engine.line], place)
        end_decode(world, engine, pool, slot)
        change_phase(world, engine, request, -1)
        again.target = slot.total + pool.convention - left
        again.outputs = left
        if slot.taken > 0:
            engine.batch.decodes -= 1
            if pool.drafts > 0:
                engine.batch.verified -= slot.drafted
                engine.batch.rejected -= 1 + slot.drafted - slot.brings
    again.last = slot.last
    engine.waiting_tokens += again.target
    if pool.radix != 0:
        leave(world, engine, slot.end_node)
        slot.joined = 0
        again.matched = 0
    if pool.caching == 0:
        engine.free += held - slot.shared
    else:
        give_back(world, engine, pool, place, held, full, True)
    slot.taken = 0
    release(world, engine, place)
    engine.batch.preempted += 1
    engine.preemptions += 1
    engine.lost += done
    add_tokens(world, engine, done)
    return request


@uncounted()
def _evict_ahead(world: World, engine: Any, pool: Any, place: int) -> None:
    """Take the blocks of a request whose last token is in flight; it does nothing again."""
    slot = world.slots[place]
    held = held_by(engine, pool, slot)
    if pool.caching == 0:
        engine.free += held
    else:
        full = _named(engine, pool, slot, np.int64(slot.total))
        sought = world.again[slot.request].followed != 0
        give_back(world, engine, pool, place, held, full, sought)
    if ends_unforeseen(world, slot):
        engine.ahead.unforeseen -= 1
        engine.batch.wasted -= slot.taken
        engine.batch.verified -= slot.drafted
        engine.batch.rejected -= slot.drafted
    slot.left = EVICTED
    unlink(world.slots, engine.slots, place)
    engine.running -= 1
    engine.batch.preempted += 1
    engine.preemptions += 1
    world.again[slot.request].times += 1


@uncounted(inline=True)
def make_room(world: World, engine: Any, pool: Any, place: int) -> None:
    """Preempt a request, which is then the first that waits."""
    if world.slots[place].left < 0:
        _evict_ahead(world, engine, pool, place)
        return
    wait_first(world, engine, pool, preempt(world, engine, pool, place))


@uncounted(inline=True)
def victim_of(world: World, engine: Any, pool: Any, first_of_equals: bool) -> Any:
    """Return who is preempted next: the last of the list, or the one whose priority puts it last;
    of those that came at once with the same, the last row or the first of the list.
    """
    if pool.by_priority == 0:
        return engine.slots.last
    victim = engine.slots.first
    place = world.slots[victim].next
    while place >= 0:
        one, other = world.slots[victim].request, world.slots[place].request
        tie = world.again[one].priority == world.again[other].priority
        tie = tie and world.again[one].came == world.again[other].came
        if comes_before(world, one, other) and not (tie and first_of_equals):
            victim = place
        place = world.slots[place].next
    return victim
