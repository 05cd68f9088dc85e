"""Whom SGLang takes memory from: who is retracted so that the others may decode, who gives up a
place to whom, and what they lose.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import make_free_for
from penstock.kernel.engines.sglang_records import (
    foreseen_of,
    in_flight,
    made_by,
    rank_of,
    settings_of,
    state_of,
)
from penstock.kernel.lists import append_row, insert_before, unlink
from penstock.kernel.recording import note_gaps
from penstock.kernel.records import IN_STEP, NONE_YET, World
from penstock.kernel.running import (
    begin_decode,
    change_phase,
    ends_unforeseen,
    growth_of,
    needs,
    preempt,
    wait_last,
)

# -- retraction


@uncounted(inline=True)
def decoders(engine: Any) -> Any:
    """Return how many decode next, those included who are done though nobody knows it yet."""
    return engine.decoding + engine.ahead.unforeseen


@uncounted(inline=True)
def blocks_to_decode(world: World, engine: Any, pool: Any) -> Any:
    """Return the blocks that they need for it."""
    growth = growth_of(world, engine, pool)
    place = engine.ahead.leaving.first if engine.ahead.unforeseen > 0 else -1
    while place >= 0:
        slot = world.slots[place]
        if ends_unforeseen(world, slot):
            growth += needs(engine, pool, slot)
        place = slot.chain
    return growth


@uncounted(inline=True)
def may_decode(world: World, engine: Any, pool: Any) -> Any:
    """Return whether memory suffices for that, once a cache has given up what it can."""
    growth = blocks_to_decode(world, engine, pool)
    make_free_for(world, engine, pool, growth)
    return growth <= engine.free


@uncounted()
def retract(world: World, engine: Any, pool: Any) -> None:
    """Retract at least one, until the others can decode once, or one is left; the others go on in
    the order of outputs made.
    """
    # Those with the fewest outputs lose least, and stand last then.
    _sort_by_outputs(world, engine, pool)
    fewest = engine.slots.last
    if engine.prefilling > 0:
        fewest = world.slots[fewest].previous
    first = True
    while decoders(engine) > 1 and (first or not may_decode(world, engine, pool)):
        first = False
        place = fewest
        fewest = world.slots[place].previous
        wait_last(world, engine, pool, taken_back(world, engine, pool, place))
        pages = blocks_of(decoders(engine) * settings_of(pool).retract_steps, pool.block_size)
        make_free_for(world, engine, pool, pages)
    state_of(engine).is_full = 0
    if not may_decode(world, engine, pool):  # it is held in mid-prefill
        wait_last(world, engine, pool, preempt(world, engine, pool, engine.slots.last))
    # Outputs ran ahead of the estimate, which becomes what they have made of what they declared.
    made = declared = 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left <= 0:
            made += made_by(world, engine, slot)
            declared += world.again[slot.request].declared
        place = slot.next
    state_of(engine).ratio = min(
        1.0, (made + settings_of(pool).retract_steps * decoders(engine)) / (declared + 1)
    )


@uncounted(inline=True)
def _sort_by_outputs(world: World, engine: Any, pool: Any) -> None:
    """Sort those that decode: most outputs first, of equal ones the shorter prompt; equal ones stay
    as they stand. They grow alike, so most stand so already.
    """
    place = engine.slots.first
    while place >= 0 and world.slots[place].left <= 0:
        following = world.slots[place].next
        before = world.slots[place].previous
        while before >= 0 and _is_retracted_later(world, engine, pool, place, before):
            before = world.slots[before].previous
        if before != world.slots[place].previous:
            unlink(world.slots, engine.slots, place)
            after = engine.slots.first if before < 0 else world.slots[before].next
            insert_before(world.slots, engine.slots, place, after)
        place = following


@uncounted(inline=True)
def _is_retracted_later(world: World, engine: Any, pool: Any, one: int, other: int) -> Any:
    """Return whether a request is retracted later than another."""
    a, b = world.slots[one], world.slots[other]
    if settings_of(pool).retracts_by_rank != 0:
        rank, others = rank_of(world, a.request), rank_of(world, b.request)
        if rank != others:
            return rank < others
    made, others = made_by(world, engine, a), made_by(world, engine, b)
    if made != others:
        return made > others
    return world.rows[a.request].left < world.rows[b.request].left


# -- what is lost


@uncounted(inline=True)
def taken_back(world: World, engine: Any, pool: Any, place: int) -> Any:
    """Preempt a request that decodes; its token in flight is lost. Return it."""
    slot = world.slots[place]
    flying = in_flight(engine, slot)
    last = _last_but_one(engine, slot)
    if slot.left < 0:
        _call_back(world, engine, pool, place)
    request = preempt(world, engine, pool, place)
    if flying:
        again = world.again[request]
        again.target -= 1
        again.outputs += 1
        again.last = last
        engine.uncomposed_prefill -= 1
        if last == NONE_YET:
            world.first_token[request] = -1
            engine.ahead.first_tokens -= world.rows[request].left
            engine.without_first += world.rows[request].left
        else:
            note_gaps(world, world.servers[engine.server], pool, last, -1)
    return request


@uncounted()
def _call_back(world: World, engine: Any, pool: Any, place: int) -> None:
    """Let a request whose last token is in flight be one that decodes again."""
    slot = world.slots[place]
    before = -1
    other = engine.ahead.leaving.first
    while other != place:
        before = other
        other = world.slots[other].chain
    if before < 0:
        engine.ahead.leaving.first = slot.chain
    else:
        world.slots[before].chain = slot.chain
    if engine.ahead.leaving.last == place:
        engine.ahead.leaving.last = before
    if ends_unforeseen(world, slot):
        engine.ahead.unforeseen -= 1
    slot.last = IN_STEP
    begin_decode(world, engine, pool, place, 0)
    change_phase(world, engine, slot.request, -1)


@uncounted(inline=True)
def _last_but_one(engine: Any, slot: Any) -> Any:
    """Return the tick of the token before that in flight."""
    if slot.due - engine.epoch == slot.outputs - 1:  # it comes with the prefill
        return slot.before
    return max(slot.before, engine.ahead.step_before)


# -- priorities


@uncounted()
def take_places(world: World, engine: Any, pool: Any, budget: Any) -> Any:
    """Preempt running requests of much lower priority, the lowest and latest first, if that makes
    room for the outputs of the first that waits (``preempt_to_schedule``); return whether it does.

    Its prompt counts only if it has been looked at before.
    """
    request = engine.queue.first
    again = world.again[request]
    outputs = min(np.int64(again.declared), settings_of(pool).clip_new_tokens)
    lacking = np.float64(again.filled - again.matched + outputs)
    lacking -= budget.room - budget.foreseen
    worst = -1
    while worst < 0 or lacking > 0:
        following = _next_lowest(world, engine, worst)
        if following < 0:
            return False
        other = world.slots[following].request
        if (
            rank_of(world, other) - rank_of(world, request)
            <= settings_of(pool).priority_scheduling_preemption_threshold
        ):
            return False
        worst = following
        lacking -= foreseen_of(world, engine, pool, world.slots[worst])
    _preempt_from(world, engine, pool, budget, world.slots[worst].request)
    return True


@uncounted(inline=True)
def _next_lowest(world: World, engine: Any, worst: int) -> Any:
    """Return who gives up its place after another one (-1: as the first), or -1."""
    chosen = -1
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        below = worst < 0 or _is_lower(world, world.slots[worst].request, slot.request)
        below = below and slot.left <= 0
        if below and (chosen < 0 or _is_lower(world, slot.request, world.slots[chosen].request)):
            chosen = place
        place = slot.next
    return chosen


@uncounted(inline=True)
def _is_lower(world: World, one: int, other: int) -> Any:
    """Return whether a request gives up its place before another."""
    rank, others = rank_of(world, one), rank_of(world, other)
    if rank != others:
        return rank > others
    return world.again[one].came > world.again[other].came


@uncounted(inline=True)
def _preempt_from(world: World, engine: Any, pool: Any, budget: Any, last: int) -> None:
    """Preempt, in running order, a request and all who give up their places before it.

    They wait again when the batch is formed.
    """
    taken = (
        budget.pages - engine.free
    )  # by those admitted before, whom SGLang gives theirs when the batch is formed
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        following = slot.next
        if slot.left <= 0 and not _is_lower(world, last, slot.request):
            free, evictable = engine.free, engine.evictable
            budget.foreseen -= foreseen_of(world, engine, pool, slot)
            request = taken_back(world, engine, pool, place)
            others = engine.running - engine.prefilling
            pages = blocks_of(others * settings_of(pool).retract_steps, pool.block_size)
            make_free_for(world, engine, pool, pages - taken)
            budget.pages += engine.free - free
            budget.room += (engine.free - free + engine.evictable - evictable) * pool.block_size
            append_row(world.rows, budget.victims, request)
        place = following
