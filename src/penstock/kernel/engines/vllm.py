"""How vLLM forms a batch."""

from typing import Any

import numpy as np

from penstock.kernel.apart import A_RULE, apart
from penstock.kernel.blocks import blocks_of, found_in_cache, hold, take_blocks
from penstock.kernel.by_reference import part_of_rule
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.drafts import verify
from penstock.kernel.records import World, record
from penstock.kernel.running import (
    admit,
    done_by,
    ends_unforeseen,
    growth_of,
    make_room,
    name_output,
    name_prompt,
    needs,
    pop_waiting,
    serve_prefill,
    victim_of,
    wait_first,
    waste_a_decode,
)

SETTINGS = record(
    i8="""
    long_prefill_threshold long_prefill_adaptive prefill_interval reserve_prompt
    lookahead draft_slots reads_ahead
    """
)
"""Settings of `penstock.system.engines.vllm`, as these are called there.

``lookahead``: tokens for which drafts need memory of their own; ``draft_slots``: tokens of the
budget that each request served takes for drafting; ``reads_ahead``: tokens behind a chunk of a
prompt that the drafter reads, of which it never leaves fewer alone.
"""

STATE = record(i8="has_prompts wait_for_prompts overfull passed")
"""What the rule keeps: whether the batch has prompts; for how many batches more they must wait;
whether the last batch that could have some left requests waiting; how many of those that wait
others have passed.
"""

settings_of = part_of_rule(SETTINGS)
state_of = part_of_rule(STATE)


@apart(A_RULE)
def vllm(world: World, engine: Any, pool: Any) -> int:
    """Form a batch of vLLM: those that run, in order, then new ones."""
    state, settings = state_of(engine), settings_of(pool)
    state.has_prompts = 0
    state.wait_for_prompts -= engine.repeats
    most = settings.long_prefill_threshold
    requests = engine.running + engine.waiting
    if most == 0 or requests <= 1:
        most = pool.budget
    elif settings.long_prefill_adaptive != 0:
        most = max(most, pool.budget // requests)
    # Mostly all are served in order and memory suffices, which sums tell. Else one by one.
    deferred = _defers_prompts(engine, pool)
    left = -1
    if pool.drafts == 0 and pool.names_outputs == 0 and not deferred:
        left = _serve_at_once(world, engine, pool, most)
    if left < 0:
        engine.batch.is_marked = 1
        left = _serve_in_order(world, engine, pool, most, deferred)
    if engine.batch.preempted == 0 and left > 0:
        _admit_waiting(world, engine, pool, most, left, deferred)
    if settings.prefill_interval > 1:
        _count_since_prompts(engine, settings.prefill_interval, deferred)
    # Of a fair share of the budget whoever comes leaves less to the first that waits.
    adaptive = settings.long_prefill_adaptive != 0
    engine.batch.arrival_ends = engine.waiting == 0 or pool.by_priority != 0 or adaptive
    return 0


@uncounted(inline=True)
def _defers_prompts(engine: Any, pool: Any) -> Any:
    """Return whether prompts must wait for a batch that may have some."""
    state = state_of(engine)
    if settings_of(pool).prefill_interval <= 1 or state.overfull != 0:
        return False
    return engine.running > engine.prefilling and state.wait_for_prompts > 0


@uncounted(inline=True)
def _count_since_prompts(engine: Any, interval: int, deferred: bool) -> None:
    """Count the batches since the last with prompts, and note whether those that wait were too many
    for one that could have some.
    """
    state = state_of(engine)
    if deferred:
        if engine.waiting + engine.prefilling > 0:
            engine.batch.steady = 0
    elif engine.batch.preempted == 0:
        state.overfull = 1 if engine.waiting > state.passed else 0
    if state.has_prompts != 0:
        state.wait_for_prompts = interval - 1
    elif engine.batch.prompts + engine.batch.decodes + engine.batch.wasted > 0:
        state.wait_for_prompts -= 1


@uncounted(inline=True)
def _serve_at_once(world: World, engine: Any, pool: Any, most: int) -> Any:
    """Serve all that run, where the only one in prefill is the last; return the tokens left, or -1
    where one must be looked at after the other.
    """
    last = engine.slots.last
    in_order = engine.prefilling == 0 or (engine.prefilling == 1 and world.slots[last].left > 0)
    if not in_order or engine.decoding > pool.budget or pool.by_priority != 0:
        return -1
    if engine.ahead.unforeseen > 0:
        return -1
    while True:
        left = pool.budget - engine.decoding
        grow = growth_of(world, engine, pool)
        need = grow
        take = 0
        if engine.prefilling > 0:
            last = engine.slots.last
            slot = world.slots[last]
            take = min(slot.left, left, most)
            need += blocks_of(done_by(engine, slot) + take, pool.block_size) - slot.blocks
        if need <= engine.free:
            break
        if pool.caching != 0:
            # What is forgotten depends on who takes a block before another makes room.
            return -1
        make_room(world, engine, pool, engine.slots.last)
    take_blocks(world, engine, pool, grow)
    engine.batch.decodes = engine.decoding
    if take > 0:
        _hold_for(world, engine, pool, last, take)
        serve_prefill(world, engine, last, take)
    return left - take


@uncounted(inline=True)
def _looked_ahead(pool: Any, tokens: int) -> Any:
    """Return for how many tokens a request needs blocks whose drafter looks ahead of so many."""
    tokens += settings_of(pool).lookahead
    return min(tokens, pool.longest) if pool.longest > 0 else tokens


@uncounted(inline=True)
def _cut(pool: Any, left: int, take: int) -> Any:
    """Return how many tokens of a prompt are served at once: all that are left, or so few that
    the next chunk has what its drafter reads behind them.
    """
    rest = left - take
    lacking = settings_of(pool).reads_ahead - rest
    return max(take - lacking, 0) if rest > 0 and lacking > 0 else take


@uncounted(inline=True)
def _hold_for(world: World, engine: Any, pool: Any, place: int, take: int) -> None:
    """Let a request in prefill hold the blocks for so many tokens more."""
    state_of(engine).has_prompts = 1
    tokens = _looked_ahead(pool, done_by(engine, world.slots[place]) + take)
    hold(world, engine, pool, place, blocks_of(tokens, pool.block_size))
    if pool.caching != 0:
        name_prompt(world, engine, pool, place, take)


@uncounted()
def _serve_in_order(world: World, engine: Any, pool: Any, most: int, deferred: bool) -> Any:
    """Go through those that run one by one; return the tokens left."""
    draft_slots = settings_of(pool).draft_slots
    left = pool.budget - draft_slots
    place = engine.slots.first
    while place >= 0 and left > 0:
        slot = world.slots[place]
        following = slot.next
        prefill = slot.left > 0
        wish = _wants(world, engine, pool, slot)
        if wish <= 0 or (prefill and deferred):
            place = following
            continue
        take = min(wish, left, most)
        if prefill:
            take = _cut(pool, np.int64(slot.left), take)
            if take == 0:
                place = following
                continue
        # Who lacks blocks makes others leave, the last first, and at last leaves itself.
        gone = False
        while True:
            need = _lacks(engine, pool, slot, take)
            if need <= engine.free:
                break
            victim = victim_of(world, engine, pool, True)
            if world.slots[victim].taken > 0:
                left += world.slots[victim].taken + world.slots[victim].drafted + draft_slots
            make_room(world, engine, pool, victim)
            gone = victim == place
            if gone:
                break
            following = slot.next
        if not gone:  # under priorities those behind one that is gone may still fit
            left -= take + draft_slots
            if prefill:
                _hold_for(world, engine, pool, place, take)
                serve_prefill(world, engine, place, take)
            else:
                take_blocks(world, engine, pool, need)
                slot.grown += need
                if pool.names_outputs != 0:
                    name_output(world, engine, pool, place)
                _serve_decode(world, engine, pool, place, take - 1)
        place = following
    return left


@uncounted(inline=True)
def _wants(world: World, engine: Any, pool: Any, slot: Any) -> Any:
    """Return the tokens that a running request would have of the batch."""
    if slot.left > 0:
        return np.int64(slot.left)
    if slot.left < 0 and not ends_unforeseen(world, slot):
        return 0
    if pool.longest > 0 and pool.drafts > 0:
        return min(1 + pool.drafts, pool.longest - done_by(engine, slot) - slot.rejected - 1)
    return 1 + pool.drafts


@uncounted(inline=True)
def _lacks(engine: Any, pool: Any, slot: Any, take: int) -> Any:
    """Return the blocks that a request lacks for so many tokens."""
    if slot.left > 0:
        tokens = _looked_ahead(pool, done_by(engine, slot) + take)
        return max(blocks_of(tokens, pool.block_size) - slot.blocks, 0)
    if pool.drafts > 0:
        tokens = _looked_ahead(pool, done_by(engine, slot) + slot.rejected + take)
        return max(blocks_of(tokens, pool.block_size) - slot.grown, 0)
    return needs(engine, pool, slot)


@uncounted(inline=True)
def _serve_decode(world: World, engine: Any, pool: Any, place: int, drafted: int) -> None:
    """Put a decode into the batch, with its drafts."""
    slot = world.slots[place]
    if slot.left < 0:
        waste_a_decode(engine, slot)
        slot.drafted = drafted
        engine.batch.verified += drafted
        engine.batch.rejected += drafted
        return
    slot.taken = 1
    engine.batch.decodes += 1
    if pool.drafts > 0:
        verify(world, engine, pool, place, drafted)


@uncounted(inline=True)
def _admit_waiting(
    world: World, engine: Any, pool: Any, most: int, left: int, deferred: bool
) -> None:
    """Admit those that wait, in order, while tokens, places and blocks are left.

    One that would be cut too near to its end lets others pass, and stays where it is.
    """
    passed: Any = -1
    size = pool.block_size
    state, settings = state_of(engine), settings_of(pool)
    runs_prompts = state.has_prompts != 0
    runs_decodes = engine.batch.decodes + engine.batch.wasted > 0
    while left > 0 and engine.running < pool.batch_size and engine.queue.first >= 0:
        request = engine.queue.first
        target = world.again[request].target
        spare = pool.watermark if engine.running > 0 else 0
        hits = unused = 0
        if pool.caching != 0:
            if spare >= engine.free:  # its last token needs a block
                break
            hits, unused = found_in_cache(world, engine, pool, request)
        # What is cached costs no tokens, but the blocks of it that nobody uses.
        lacking = target - hits * size
        if deferred and lacking > 1:
            break
        wish = lacking
        padded = lacking == 1 and not runs_prompts and (hits > 0 or runs_decodes)
        if padded and (pool.longest == 0 or target + pool.drafts < pool.longest):
            wish = 1 + pool.drafts
            if wish > left:
                break
        take = min(wish, most)
        if pool.chunked == 0 and take > left:
            break
        take = _cut(pool, lacking, min(take, left))
        if take == 0:
            pop_waiting(world, engine, pool)
            world.rows[request].next = passed
            passed = request
            if world.again[request].passed == 0:
                world.again[request].passed = 1
                state.passed += 1
            continue
        tokens = _looked_ahead(pool, hits * size + take)
        reserved = tokens
        if settings.reserve_prompt != 0:
            reserved = max(reserved, target)
        if blocks_of(reserved, size) - hits + unused + spare > engine.free:
            break
        pop_waiting(world, engine, pool)
        if world.again[request].passed != 0:
            world.again[request].passed = 0
            state.passed -= 1
        blocks = blocks_of(tokens, size)
        place = admit(world, engine, pool, request, blocks, hits)
        prefill = min(take, lacking)
        if pool.caching != 0:
            name_prompt(world, engine, pool, place, prefill)
        serve_prefill(world, engine, place, prefill)
        if pool.drafts > 0 and wish > lacking:
            verify(world, engine, pool, place, take - prefill)
        left -= take + settings.draft_slots
        if lacking > 1:
            state.has_prompts = 1
    # Those that were passed stand in front again, in their order.
    while passed >= 0:
        following = np.int64(world.rows[passed].next)
        wait_first(world, engine, pool, passed)
        passed = following
