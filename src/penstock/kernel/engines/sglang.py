"""How SGLang forms a batch: prompts if it can, else decodes.

Its running batch is the list of slots: those that decode, in its order, and behind them the one in
mid-prefill. Requests whose last token is in flight stay there until it is out, but decode no more.
"""

from typing import Any

import numpy as np

from penstock.kernel.apart import A_RULE, apart
from penstock.kernel.blocks import take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import keep, make_free_for
from penstock.kernel.engines.sglang_prompts import serve_prompts
from penstock.kernel.engines.sglang_records import (
    RESPONSE_RATIO,
    SETTINGS,
    SHORTEST_PREFILL,
    made_by,
    settings_of,
    state_of,
)
from penstock.kernel.engines.sglang_retraction import (
    blocks_to_decode,
    decoders,
    may_decode,
    retract,
)
from penstock.kernel.lists import append, unlink
from penstock.kernel.records import World
from penstock.kernel.running import done_by, ends_unforeseen, waste_a_decode

__all__ = ["SETTINGS", "sglang"]


@apart(A_RULE)
def sglang(world: World, engine: Any, pool: Any) -> int:
    """Form a batch of prompts when one can be, at most one of them cut, else of all decodes."""
    state, settings = state_of(engine), settings_of(pool)
    _catch_up(world, engine, pool)
    if pool.radix != 0 and engine.prefilling > 0:
        place = engine.slots.last
        keep(world, engine, pool, place, done_by(engine, world.slots[place]))
    others = engine.running - engine.prefilling
    serve_prompts(world, engine, pool)
    if engine.batch.prompts > 0:
        if settings.mixed != 0:
            _ride_along(world, engine, pool)
        if settings.queue_order == SHORTEST_PREFILL:
            _put_cut_last(world, engine, engine.batch.served.first)
        if settings.queue_order == RESPONSE_RATIO:
            _age_by_prompts(world, engine, pool, others)
    else:
        _decode(world, engine, pool)
        if settings.queue_order == RESPONSE_RATIO:
            _age_by_decodes(engine, others)
    asks_again = state.is_full == 0 or settings.priority_preemption != 0
    engine.batch.arrival_ends = asks_again
    if engine.prefilling > 0 or (engine.waiting > 0 and asks_again):
        engine.batch.steady = 0  # the next batch may have prompts
    return 0


@uncounted(inline=True)
def _catch_up(world: World, engine: Any, pool: Any) -> None:
    """Take note of what has happened since the last batch was formed."""
    state = state_of(engine)
    _lower_ratio(world, engine, pool, engine.repeats)
    if engine.changed != 0:
        state.is_full = 0
    if engine.was_idle != 0:
        state.is_full = 0
        state.ratio = world.params[pool.policy.params]


# -- how requests age, by response ratio


@uncounted(inline=True)
def _begin_running_batch(engine: Any, others: int) -> None:
    """Note what the running batch was at first: the last batch, if that left nobody in the one
    before and there were prompts in it that are complete.
    """
    state = state_of(engine)
    if state.last_prefill > 0 and state.left_running == 0 and others > 0:
        state.first_prefill = state.last_prefill
    state.last_prefill = 0


@uncounted()
def _age_by_prompts(world: World, engine: Any, pool: Any, others: int) -> None:
    """Count the tokens of a batch with prompts, and who is left in the running batch."""
    _begin_running_batch(engine, others)
    riding = engine.batch.decodes + engine.batch.wasted
    tokens = np.int64(riding)
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        tokens += world.slots[place].taken
        place = world.slots[place].served_next
    state = state_of(engine)
    engine.age += tokens
    state.last_prefill = tokens
    state.left_running = others
    if settings_of(pool).mixed != 0:
        state.left_running = 0 if riding > 0 else decoders(engine)


@uncounted(inline=True)
def _age_by_decodes(engine: Any, others: int) -> None:
    """Count the batch that the running one was at first once more, as SGLang does for each batch of
    decodes; so none of them may be left out.
    """
    _begin_running_batch(engine, others)
    if engine.batch.decodes + engine.batch.wasted > 0:
        engine.age += state_of(engine).first_prefill
    engine.batch.steady = 0


# -- the estimate


@uncounted(inline=True)
def _lower_ratio(world: World, engine: Any, pool: Any, batches: int) -> None:
    """Let the ratio fall with so many batches of decodes, step by step as floats do.

    After a retraction it may be below the least, and then it rises to that.
    """
    fall, least = world.params[pool.policy.params + 2], world.params[pool.policy.params + 1]
    state = state_of(engine)
    if batches > 0:
        state.ratio = max(state.ratio, least)
    while batches > 0 and state.ratio > least and fall > 0:
        state.ratio = max(state.ratio - fall, least)
        batches -= 1


@uncounted(inline=True)
def _drop_finishing(engine: Any) -> Any:
    """Return how many have their last output in flight, who decode no more: others may come."""
    finishing = engine.running - engine.prefilling - engine.decoding - engine.ahead.unforeseen
    if finishing > 0:
        state_of(engine).is_full = 0
    return finishing


@uncounted(inline=True)
def _serve_decodes(world: World, engine: Any, pool: Any, growth: int) -> None:
    """Serve all that decode, with the blocks that they need for it."""
    make_free_for(world, engine, pool, decoders(engine))
    take_blocks(world, engine, pool, growth)
    engine.batch.decodes = engine.decoding
    place = engine.ahead.leaving.first if engine.ahead.unforeseen > 0 else -1
    while place >= 0:
        slot = world.slots[place]
        if ends_unforeseen(world, slot):
            waste_a_decode(engine, slot)
        place = slot.chain


@uncounted()
def _ride_along(world: World, engine: Any, pool: Any) -> None:
    """Let all decodes ride along with prompts, if memory suffices: in the running batch they come
    behind those then.
    """
    _drop_finishing(engine)
    if decoders(engine) == 0 or not may_decode(world, engine, pool):
        return
    _serve_decodes(world, engine, pool, blocks_to_decode(world, engine, pool))
    if settings_of(pool).priority_preemption != 0:
        _note_lengths(world, engine)
    # Prompts stand before those that ride along, as SGLang merges its batches.
    first, last, head = engine.slots.first, engine.slots.last, engine.batch.served.first
    before = world.slots[head].previous
    world.slots[before].next = world.slots[head].previous = -1
    world.slots[last].next = first
    world.slots[first].previous = last
    engine.slots.first = head
    engine.slots.last = before
    _put_cut_last(world, engine, last)


@uncounted(inline=True)
def _put_cut_last(world: World, engine: Any, place: int) -> None:
    """Put a request in mid-prefill behind those that were admitted beside its chunk."""
    slot = world.slots[place]
    if slot.taken < slot.left and engine.slots.last != place:
        unlink(world.slots, engine.slots, place)
        append(world.slots, engine.slots, place)


@uncounted()
def _note_lengths(world: World, engine: Any) -> None:
    """Take note of the tokens of all that ride along."""
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0 or (slot.left < 0 and slot.taken > 0):
            request = slot.request
            made = made_by(world, engine, slot)
            world.again[request].filled = world.rows[request].left + made
        place = slot.next


@uncounted(inline=True)
def _decode(world: World, engine: Any, pool: Any) -> None:
    """Serve all decodes; where memory is short some are retracted, if nobody finishes just now."""
    finishing = _drop_finishing(engine)
    if decoders(engine) == 0:
        return
    if may_decode(world, engine, pool):
        _lower_ratio(world, engine, pool, 1)
    elif finishing > 0:
        return
    else:
        retract(world, engine, pool)
    _serve_decodes(world, engine, pool, blocks_to_decode(world, engine, pool))
