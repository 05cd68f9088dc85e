"""How SGLang forms a batch: prompts if it can, else decodes.

Its running batch is the list of slots: those that decode, in its order, and behind them the one in
mid-prefill. Requests whose last token is in flight stay there until it is out, but decode no more.
"""

from typing import Any

import numpy as np

from penstock.kernel.apart import A_RULE, apart
from penstock.kernel.blocks import blocks_of, take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import keep, make_free_for
from penstock.kernel.engines.sglang_estimate import made_by, rank_of
from penstock.kernel.engines.sglang_prompts import serve_prompts
from penstock.kernel.engines.sglang_retraction import taken_back
from penstock.kernel.lists import append, insert_before, unlink
from penstock.kernel.preemption import preempt
from penstock.kernel.records import RESPONSE_RATIO, SHORTEST_PREFILL, World
from penstock.kernel.running import (
    done_by,
    ends_unforeseen,
    growth_of,
    needs,
    waste_a_decode,
)
from penstock.kernel.waiting import wait_last


@apart(A_RULE)
def sglang(world: World, engine: Any, pool: Any) -> int:
    """SGLang: a batch of prompts when one can be formed, at most one of them cut, else all decodes.

    Its parameters: the ratio of a request's future output that admission counts, its least, its
    fall per decode batch.
    """
    if pool.radix != 0 and engine.prefilling > 0:
        place = engine.slots.last
        keep(world, engine, pool, place, done_by(engine, world.slots[place]))
    others = engine.running - engine.prefilling
    serve_prompts(world, engine, pool)
    if engine.served > 0:
        if pool.mixed != 0:
            _ride_along(world, engine, pool)
        if pool.queue_order == SHORTEST_PREFILL:
            _put_cut_last(world, engine, engine.prompts.first)
        if pool.queue_order == RESPONSE_RATIO:
            _age_by_prompts(world, engine, pool, others)
        return 0
    _decode(world, engine, pool)
    if pool.queue_order == RESPONSE_RATIO:
        _age_by_decodes(engine, others)
    asks_again = engine.is_full == 0 or pool.priority_preemption != 0
    if engine.prefilling > 0 or (engine.waiting > 0 and asks_again):
        engine.steady = 0  # the next batch may have prompts
    return 0


# -- how requests age, by response ratio


@uncounted(inline=True)
def _begin_running_batch(engine: Any, others: int) -> None:
    """Note what the running batch was at first: the last batch, if that left nobody in the one
    before and there were prompts in it that are complete.
    """
    if engine.last_prefill > 0 and engine.left == 0 and others > 0:
        engine.began_with = engine.last_prefill
    engine.last_prefill = 0


@uncounted()
def _age_by_prompts(world: World, engine: Any, pool: Any, others: int) -> None:
    """Count the tokens of a batch with prompts, and who is left in the running batch."""
    _begin_running_batch(engine, others)
    riding = engine.served_decodes + engine.wasted
    tokens = np.int64(riding)
    place = engine.prompts.first
    for _ in range(engine.served):
        tokens += world.slots[place].taken
        place = world.slots[place].served_next
    engine.processed += tokens
    engine.last_prefill = tokens
    engine.left = others
    if pool.mixed != 0:
        engine.left = 0 if riding > 0 else _decoders(engine)


@uncounted(inline=True)
def _age_by_decodes(engine: Any, others: int) -> None:
    """Count the batch that the running one was at first once more, as SGLang does for each batch of
    decodes; so none of them may be left out.
    """
    _begin_running_batch(engine, others)
    if engine.served_decodes + engine.wasted > 0:
        engine.processed += engine.began_with
    engine.steady = 0


# -- the estimate


@uncounted(inline=True)
def begin_ratio(world: World, engine: Any, pool: Any) -> None:
    """Let SGLang count as much of a request's future output as it does at first."""
    engine.is_full = 0
    engine.ratio = world.params[pool.params]


@uncounted(inline=True)
def lower_ratio(world: World, engine: Any, pool: Any, batches: int) -> None:
    """Let the ratio fall with so many batches of decodes, step by step as floats do.

    After a retraction it may be below the least, and then it rises to that.
    """
    fall, least = world.params[pool.params + 2], world.params[pool.params + 1]
    if batches > 0:
        engine.ratio = max(engine.ratio, least)
    while batches > 0 and engine.ratio > least and fall > 0:
        engine.ratio = max(engine.ratio - fall, least)
        batches -= 1


@uncounted(inline=True)
def _drop_finishing(engine: Any) -> Any:
    """Return how many have their last output in flight, who decode no more: others may come."""
    finishing = engine.running - engine.prefilling - engine.decoding - engine.unforeseen
    if finishing > 0:
        engine.is_full = 0
    return finishing


@uncounted(inline=True)
def _decoders(engine: Any) -> Any:
    """Return how many decode next, those included who are done though nobody knows it yet."""
    return engine.decoding + engine.unforeseen


@uncounted(inline=True)
def _growth(world: World, engine: Any, pool: Any) -> Any:
    """Return the blocks that they need for it."""
    growth = growth_of(world, engine, pool)
    place = engine.leaving.first if engine.unforeseen > 0 else -1
    while place >= 0:
        slot = world.slots[place]
        if ends_unforeseen(world, slot):
            growth += needs(engine, pool, slot)
        place = slot.chain
    return growth


@uncounted(inline=True)
def _may_decode(world: World, engine: Any, pool: Any) -> Any:
    """Return whether memory suffices for that, once a cache has given up what it can."""
    growth = _growth(world, engine, pool)
    make_free_for(world, engine, pool, growth)
    return growth <= engine.free


@uncounted(inline=True)
def _serve_decodes(world: World, engine: Any, pool: Any, growth: int) -> None:
    """Serve all that decode, with the blocks that they need for it."""
    make_free_for(world, engine, pool, _decoders(engine))
    take_blocks(world, engine, pool, growth)
    engine.served_decodes = engine.decoding
    place = engine.leaving.first if engine.unforeseen > 0 else -1
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
    if _decoders(engine) == 0 or not _may_decode(world, engine, pool):
        return
    _serve_decodes(world, engine, pool, _growth(world, engine, pool))
    if pool.priority_preemption != 0:
        _note_lengths(world, engine)
    first, last, head = engine.slots.first, engine.slots.last, engine.prompts.first
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
    if _decoders(engine) == 0:
        return
    if _may_decode(world, engine, pool):
        lower_ratio(world, engine, pool, 1)
    elif finishing > 0:
        return
    else:
        _retract(world, engine, pool)
    _serve_decodes(world, engine, pool, _growth(world, engine, pool))


# -- retraction


@uncounted()
def _retract(world: World, engine: Any, pool: Any) -> None:
    """Retract at least one, until the others can decode once, or one is left; the others go on in
    the order of outputs made.
    """
    _sort_by_outputs(world, engine, pool)
    fewest = engine.slots.last
    if engine.prefilling > 0:
        fewest = world.slots[fewest].previous
    first = True
    while _decoders(engine) > 1 and (first or not _may_decode(world, engine, pool)):
        first = False
        place = fewest
        fewest = world.slots[place].previous
        wait_last(world, engine, pool, taken_back(world, engine, pool, place))
        pages = blocks_of(_decoders(engine) * pool.retract_steps, pool.block_size)
        make_free_for(world, engine, pool, pages)
    engine.is_full = 0
    if not _may_decode(world, engine, pool):  # it is held in mid-prefill
        wait_last(world, engine, pool, preempt(world, engine, pool, engine.slots.last))
    made = declared = 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left <= 0:
            made += made_by(world, engine, slot)
            declared += world.again[slot.request].declared
        place = slot.next
    engine.ratio = min(1.0, (made + pool.retract_steps * _decoders(engine)) / (declared + 1))


@uncounted(inline=True)
def _sort_by_outputs(world: World, engine: Any, pool: Any) -> None:
    """Sort those that decode: most outputs first, of equal ones the shorter prompt; equal ones stay
    as they stand. They grow alike, so most stand so already.
    """
    place = engine.slots.first
    while place >= 0 and world.slots[place].left <= 0:
        following = world.slots[place].next
        before = world.slots[place].previous
        while before >= 0 and _goes_before(world, engine, pool, place, before):
            before = world.slots[before].previous
        if before != world.slots[place].previous:
            unlink(world.slots, engine.slots, place)
            after = engine.slots.first if before < 0 else world.slots[before].next
            insert_before(world.slots, engine.slots, place, after)
        place = following


@uncounted(inline=True)
def _goes_before(world: World, engine: Any, pool: Any, one: int, other: int) -> Any:
    """Return whether a request is retracted later than another."""
    a, b = world.slots[one], world.slots[other]
    if pool.retracts_by_rank != 0:
        rank, others = rank_of(world, a.request), rank_of(world, b.request)
        if rank != others:
            return rank < others
    made, others = made_by(world, engine, a), made_by(world, engine, b)
    if made != others:
        return made > others
    return world.rows[a.request].left < world.rows[b.request].left
