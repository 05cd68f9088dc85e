"""How engines form a batch: one function each, over the running list and the waiting queue.

Each says who is served: slots in prefill (`serve_prefill`) and the number of decoding requests
(``served_decodes``), which are the first of the list unless ``taken`` marks them (``marked``).
Memory is taken as requests are put into the batch, and who has to make room for it leaves
(`preempt`).

Where every decoding request is served, whether memory suffices is one comparison: who is preempted
comes from the end of the list, so making room one request at a time, as engines do, ends at the
same place as making room for all.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, found_in_cache, hold, name_prompt, take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.drafts import blocks_for_drafts, verify
from penstock.kernel.records import (
    SGLANG,
    TENSORRT,
    VIDUR_FASTERTRANSFORMER,
    VIDUR_SARATHI,
    VIDUR_VLLM,
    VLLM,
    VLLM_V0,
    World,
)
from penstock.kernel.rules_sglang import sglang
from penstock.kernel.rules_tensorrt import tensorrt
from penstock.kernel.running import (
    admit,
    append,
    done_by,
    ends_unforeseen,
    growth_of,
    insert_before,
    keep_sorted,
    make_room,
    needs,
    serve_prefill,
    unlink,
    victim_of,
    waste_a_decode,
)
from penstock.kernel.waiting import pop_waiting


@uncounted(inline=True)
def form_by_rule(world: World, engine: Any, pool: Any) -> None:
    """Form a batch by the pool's rule."""
    if pool.rule == VLLM:
        _vllm(world, engine, pool)
    elif pool.rule == VLLM_V0 or pool.rule == VIDUR_VLLM:
        _prompts_or_decodes(world, engine, pool)
    elif pool.rule == SGLANG:
        sglang(world, engine, pool)
    elif pool.rule == TENSORRT:
        tensorrt(world, engine, pool)
    elif pool.rule == VIDUR_FASTERTRANSFORMER:
        _static_batch(world, engine, pool)
    else:
        _decodes_then_prompts(world, engine, pool)


@uncounted()
def _decode_all(world: World, engine: Any, pool: Any, spare: int) -> None:
    """Serve every decoding request that memory has room for; each must find ``spare`` blocks before
    its own.
    """
    while engine.decoding > 0:
        grow = growth_of(world, engine, pool)
        if spare > 0:
            last = engine.last_slot
            while world.slots[last].left > 0:
                last = world.slots[last].previous
            grow = max(grow, grow - needs(engine, pool, world.slots[last]) + spare)
        if grow <= engine.free:
            break
        make_room(world, engine, pool, engine.last_slot)
    take_blocks(world, engine, pool, growth_of(world, engine, pool))
    engine.served_decodes = engine.decoding


# -- vLLM V1


@uncounted(inline=True)
def _vllm(world: World, engine: Any, pool: Any) -> None:
    """VLLM V1: those that run, in order, then new ones."""
    engine.has_prompts = 0
    most = pool.long_prefill
    requests = engine.running + engine.waiting
    if most == 0 or requests <= 1:
        most = pool.budget
    elif pool.adapts != 0:
        most = max(most, pool.budget // requests)
    deferred = _defers_prompts(engine, pool)
    left = -1
    if pool.drafts == 0 and not deferred:
        left = _vllm_at_once(world, engine, pool, most)
    if left < 0:
        engine.marked = 1
        left = _vllm_in_order(world, engine, pool, most, deferred)
    if engine.preempted == 0 and left > 0:
        _vllm_waiting(world, engine, pool, most, left, deferred)
    if pool.prefill_interval > 1:
        _count_since_prompts(engine, deferred)


@uncounted(inline=True)
def _defers_prompts(engine: Any, pool: Any) -> Any:
    """Return whether prompts must wait for a batch that may have some."""
    if pool.prefill_interval <= 1 or engine.overfull != 0:
        return False
    decodes = engine.running > engine.prefilling
    return decodes and engine.since_prompts < pool.prefill_interval


@uncounted(inline=True)
def _count_since_prompts(engine: Any, deferred: bool) -> None:
    """Count the batches since the last with prompts, and note whether those that wait were too many
    for one that could have some.
    """
    if deferred:
        if engine.waiting + engine.prefilling > 0:
            engine.steady = 0
    elif engine.preempted == 0:
        engine.overfull = 1 if engine.waiting > 0 else 0
    if engine.has_prompts != 0:
        engine.since_prompts = 1
    elif engine.served + engine.served_decodes + engine.wasted > 0:
        engine.since_prompts += 1


@uncounted(inline=True)
def _vllm_at_once(world: World, engine: Any, pool: Any, most: int) -> Any:
    """Serve all that run, where the only one in prefill is the last; return the tokens left, or -1
    where one must be looked at after the other.
    """
    last = engine.last_slot
    in_order = engine.prefilling == 0 or (engine.prefilling == 1 and world.slots[last].left > 0)
    if not in_order or engine.decoding > pool.budget or pool.by_priority != 0:
        return -1
    if engine.unforeseen > 0:
        return -1
    while True:
        left = pool.budget - engine.decoding
        grow = growth_of(world, engine, pool)
        need = grow
        take = 0
        if engine.prefilling > 0:
            last = engine.last_slot
            slot = world.slots[last]
            take = min(slot.left, left, most)
            need += blocks_of(done_by(engine, slot) + take, pool.block_size) - slot.held
        if need <= engine.free:
            break
        if pool.caching != 0:
            # What is forgotten depends on who takes a block before another makes room.
            return -1
        make_room(world, engine, pool, engine.last_slot)
    take_blocks(world, engine, pool, grow)
    engine.served_decodes = engine.decoding
    if take > 0:
        _hold_for(world, engine, pool, last, take)
        serve_prefill(world, engine, last, take)
    return left - take


@uncounted(inline=True)
def _hold_for(world: World, engine: Any, pool: Any, place: int, take: int) -> None:
    """Let a request in prefill hold the blocks for so many tokens more."""
    engine.has_prompts = 1
    tokens = done_by(engine, world.slots[place]) + take + pool.lookahead
    hold(world, engine, pool, place, blocks_of(tokens, pool.block_size))
    if pool.caching != 0:
        name_blocks(world, engine, pool, place, take)


@uncounted()
def name_blocks(world: World, engine: Any, pool: Any, place: int, take: int) -> None:
    """Name the blocks that so many tokens of a prompt fill."""
    done = done_by(engine, world.slots[place])
    name_prompt(world, engine, pool, place, (done + take) // pool.block_size)


@uncounted()
def _vllm_in_order(world: World, engine: Any, pool: Any, most: int, deferred: bool) -> Any:
    """Go through those that run one by one; return the tokens left."""
    left = pool.budget
    place = engine.first_slot
    while place >= 0 and left > 0:
        slot = world.slots[place]
        following = slot.next
        prefill = slot.left > 0
        wanted = _vllm_wants(world, engine, pool, slot)
        if wanted <= 0 or (prefill and deferred):
            place = following
            continue
        take = min(wanted, left, most)
        gone = False
        while True:
            need = _vllm_lacks(engine, pool, slot, take)
            if need <= engine.free:
                break
            victim = victim_of(world, engine, pool)
            left += world.slots[victim].taken + world.slots[victim].drafted
            make_room(world, engine, pool, victim)
            gone = victim == place
            if gone:
                break
            following = slot.next
        if not gone:  # under priorities those behind one that is gone may still fit
            left -= take
            if prefill:
                _hold_for(world, engine, pool, place, take)
                serve_prefill(world, engine, place, take)
            else:
                take_blocks(world, engine, pool, need)
                slot.grown += need
                _vllm_decodes(world, engine, pool, place, take - 1)
        place = following
    return left


@uncounted(inline=True)
def _vllm_wants(world: World, engine: Any, pool: Any, slot: Any) -> Any:
    """Return the tokens that a running request would have of the batch."""
    if slot.left > 0:
        return np.int64(slot.left)
    if slot.left < 0 and not ends_unforeseen(world, slot):
        return 0
    if pool.longest > 0 and pool.drafts > 0:
        return min(1 + pool.drafts, pool.longest - done_by(engine, slot) - slot.rejected - 1)
    return 1 + pool.drafts


@uncounted(inline=True)
def _vllm_lacks(engine: Any, pool: Any, slot: Any, take: int) -> Any:
    """Return the blocks that a request lacks for so many tokens."""
    if slot.left > 0:
        tokens = done_by(engine, slot) + take + pool.lookahead
        return max(blocks_of(tokens, pool.block_size) - slot.held, 0)
    if pool.drafts > 0:
        return blocks_for_drafts(engine, pool, slot, take)
    return needs(engine, pool, slot)


@uncounted(inline=True)
def _vllm_decodes(world: World, engine: Any, pool: Any, place: int, drafted: int) -> None:
    """Put a decode into the batch, with its drafts."""
    slot = world.slots[place]
    if slot.left < 0:
        waste_a_decode(engine, slot)
        slot.drafted = drafted
        engine.verified += drafted
        engine.rejected += drafted
        return
    slot.taken = 1
    engine.served_decodes += 1
    if pool.drafts > 0:
        verify(world, engine, pool, place, drafted)


@uncounted(inline=True)
def _vllm_waiting(
    world: World, engine: Any, pool: Any, most: int, left: int, deferred: bool
) -> None:
    """Admit those that wait, in order, while tokens, places and blocks are left."""
    size = pool.block_size
    runs_prompts = engine.has_prompts != 0
    runs_decodes = engine.served_decodes + engine.wasted > 0
    while left > 0 and engine.running < pool.batch_size and engine.head >= 0:
        request = engine.head
        target = world.again[request].target
        spare = pool.watermark if engine.running > 0 else 0
        hits = unused = 0
        if pool.caching != 0:
            if spare >= engine.free:  # its last token needs a block
                break
            hits, unused = found_in_cache(world, engine, pool, request)
        lacking = target - hits * size
        if deferred and lacking > 1:
            break
        wanted = lacking
        if lacking == 1 and not runs_prompts and (hits > 0 or runs_decodes):
            wanted = 1 + pool.drafts
            if wanted > left:
                break
        take = min(wanted, most)
        if pool.chunked == 0 and take > left:
            break
        take = min(take, left)
        held = hits * size + take + pool.lookahead
        if pool.reserve_prompt != 0:
            held = max(held, target)
        if blocks_of(held, size) - hits + unused + spare > engine.free:
            break
        pop_waiting(world, engine, pool)
        blocks = hits + blocks_of(take + pool.lookahead, size)
        place = admit(world, engine, pool, request, blocks, hits)
        prefill = min(take, lacking)
        if pool.caching != 0:
            name_blocks(world, engine, pool, place, prefill)
        serve_prefill(world, engine, place, prefill)
        if pool.drafts > 0 and wanted > lacking:
            verify(world, engine, pool, place, take - prefill)
        left -= take
        if lacking > 1:
            engine.has_prompts = 1


# -- vLLM V0


@uncounted()
def _prompts_or_decodes(world: World, engine: Any, pool: Any) -> None:
    """VLLM V0, and Vidur's: whole prompts alone if any can be admitted, else all decodes."""
    padded = pool.rule == VIDUR_VLLM
    tokens = longest = 0
    while engine.running < pool.batch_size and engine.head >= 0:
        target = world.again[engine.head].target
        blocks = blocks_of(target, pool.block_size)
        longest = max(longest, target)
        tokens = longest * (engine.served + 1) if padded else tokens + target
        if tokens > pool.budget or engine.free - blocks < pool.watermark:
            break
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks, 0)
        serve_prefill(world, engine, place, target)
        if padded:
            keep_sorted(world, engine, place)
    if engine.served == 0:
        _decode_all(world, engine, pool, 1)


# -- Vidur's others


@uncounted()
def _decodes_then_prompts(world: World, engine: Any, pool: Any) -> None:
    """Vidur's Orca and Sarathi: all decodes, prompts that were begun, then new ones."""
    _decode_all(world, engine, pool, 1 if pool.rule == VIDUR_SARATHI else 0)
    left = max(pool.budget - engine.served_decodes, 0)
    if engine.prefilling > 0:
        left = _go_on(world, engine, left)
    while engine.running < pool.batch_size and engine.head >= 0:
        target = take = world.again[engine.head].target
        if pool.rule == VIDUR_SARATHI:
            if left == 0:
                break
            take = min(target, left)
        blocks = pool.reserved if pool.reserved > 0 else blocks_of(target, pool.block_size)
        if engine.free - blocks < pool.watermark:
            break
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks, 0)
        serve_prefill(world, engine, place, take)
        left -= take


@uncounted()
def _go_on(world: World, engine: Any, left: int) -> Any:
    """Serve prompts of those that run, in order; return the tokens left.

    Those in the batch stand at the end from now on, those that are not at the front.
    """
    place = engine.first_slot
    end = engine.last_slot
    front = place
    while place >= 0:
        slot = world.slots[place]
        following = slot.next if place != end else -1
        if slot.left > 0:
            take = min(slot.left, left)
            if take > 0:
                serve_prefill(world, engine, place, take)
                left -= take
                unlink(world, engine, place)
                append(world, engine, place)
            elif place == front:
                front = following
            else:
                unlink(world, engine, place)
                insert_before(world, engine, place, front)
        place = following
    return left


@uncounted()
def _static_batch(world: World, engine: Any, pool: Any) -> None:
    """Vidur's FasterTransformer: all prompts that fit in one batch; then their decodes until the
    last is done.
    """
    if engine.running > 0:
        engine.served_decodes = engine.decoding
        return
    while engine.running < pool.batch_size and engine.free >= pool.reserved and engine.head >= 0:
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, pool.reserved, 0)
        serve_prefill(world, engine, place, world.slots[place].target)
