"""Requests that SGLang takes memory from: what they lose, and who gives up a place to whom."""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import make_free_for
from penstock.kernel.engines.sglang_records import foreseen_of, in_flight, rank_of, settings_of
from penstock.kernel.lists import append_row
from penstock.kernel.recording import note_gaps
from penstock.kernel.records import IN_STEP, NONE_YET, World
from penstock.kernel.running import begin_decode, change_phase, ends_unforeseen, preempt


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
        engine.waiting_tokens -= 1
        if last == NONE_YET:
            world.first_token[request] = -1
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
            make_free_for(world, engine, pool, pages)
            budget.pages += engine.free - free
            budget.room += (engine.free - free + engine.evictable - evictable) * pool.block_size
            append_row(world.rows, budget.victims, request)
        place = following
