"""What policies of the seam may serve at an engine, and how their batch is formed.

A policy sees prompts that memory and slots admit, with room kept for the decodes: `_see` counts
them, `_fill` serves as many of their tokens as the policy asked for.
"""

from typing import Any

import numpy as np

from penstock.kernel.apart import A_RULE, apart
from penstock.kernel.blocks import blocks_of, found_in_cache, take_blocks
from penstock.kernel.choice import ask, decodes_beside, failure_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import (
    COMPLETION,
    OPTIMISTIC,
    PLENTY,
    STUCK,
    World,
)
from penstock.kernel.running import (
    admit,
    done_by,
    growth_of,
    make_room,
    name_output,
    name_prompt,
    needs,
    peak_of,
    pop_waiting,
    serve_prefill,
    victim_of,
    wait_first,
)
from penstock.kernel.signatures import SEES_BATCH, SEES_DECODES, Limits, Queue


@apart(A_RULE)
def form_by_policy(world: World, engine: Any, pool: Any) -> Any:
    """Let the policy choose a batch, and put it together; return what failed, or 0."""
    prompts, tokens, arrival_seen = _see(world, engine, pool)
    decoding = engine.decoding
    engine.batch.steady = _is_steady(engine, pool, prompts)
    engine.batch.arrival_ends = arrival_seen or pool.by_priority != 0 or pool.sees != SEES_BATCH
    if prompts == 0 and decoding == 0:
        # Where all made room, the caller begins anew with them.
        goes_on = engine.batch.preempted + engine.transfers.incoming + engine.transfers.lending > 0
        return 0 if goes_on else STUCK
    # What it sees is what memory and slots admit: it may ask for all of it.
    queue = Queue(
        prompts,
        tokens,
        decoding,
        engine.waiting + engine.prefilling,
        engine.uncomposed_prefill,
        _head_tokens(world, engine),
        engine.decode_tokens,
        engine.arrived,
        engine.arrived_tokens,
        engine.finished,
        engine.finished_decodes,
    )
    limits = Limits(pool.budget, pool.batch_size)
    params = world.params[pool.policy.params : pool.policy.end]
    choice = ask(pool.policy.address, queue, limits, params)
    failed = failure_of(choice)
    if failed != 0:
        return failed
    # Prompts take their blocks as they are served; of decodes only those that are.
    prefill = _fill(world, engine, pool, choice.prefill, choice.prompts)
    engine.batch.decodes = decodes_beside(choice, limits, prefill, engine.batch.prompts)
    if engine.batch.decodes == decoding:
        take_blocks(world, engine, pool, growth_of(world, engine, pool))
    elif engine.batch.decodes > 0:
        _grow_first(world, engine, pool)
    if pool.names_outputs != 0:
        _name_outputs(world, engine, pool)
    return 0


@uncounted(inline=True)
def _is_steady(engine: Any, pool: Any, prompts: int) -> Any:
    """Return whether the policy is asked the same again while nobody comes or goes."""
    if pool.sees == SEES_DECODES:
        return False
    if pool.caching != 0 and engine.waiting > 0:
        return False  # it sees what is cached of a prompt, which a decode may take
    return prompts == 0 or pool.grows == 0 or engine.free > PLENTY // 2


@uncounted()
def _name_outputs(world: World, engine: Any, pool: Any) -> None:
    """Name the blocks that the decodes of the batch fill."""
    served = 0
    place = engine.slots.first
    while served < engine.batch.decodes:
        if world.slots[place].left == 0:
            served += 1
            name_output(world, engine, pool, place)
        place = world.slots[place].next


@uncounted()
def _grow_first(world: World, engine: Any, pool: Any) -> None:
    """Take the blocks that the first decoding requests of the list need."""
    served = blocks = 0
    place = engine.slots.first
    while served < engine.batch.decodes:
        slot = world.slots[place]
        if slot.left == 0:
            served += 1
            blocks += needs(engine, pool, slot)
        place = slot.next
    take_blocks(world, engine, pool, blocks)


@uncounted()
def _head_tokens(world: World, engine: Any) -> Any:
    """Return the unprocessed prompt tokens of the first request in prefill."""
    if engine.prefilling > 0:
        single = engine.prefilling == 1  # is near the end
        place = engine.slots.last if single else engine.slots.first
        while world.slots[place].left == 0:
            place = world.slots[place].previous if single else world.slots[place].next
        return np.int64(world.slots[place].left)
    if engine.queue.first < 0:
        return 0
    return np.int64(world.again[engine.queue.first].target)


@uncounted()
def _see(world: World, engine: Any, pool: Any) -> Any:
    """Make room for the decoding requests; return what a policy of the seam may serve besides.

    Prompts, their tokens, and whether the next arrival could be served too.
    """
    while growth_of(world, engine, pool) > engine.free:
        make_room(world, engine, pool, victim_of(world, engine, pool, False))
    prompts, tokens, free = _begun(world, engine, pool)
    if prompts == 0 and engine.decoding == 0 and engine.running > 0:
        # The only one, in mid-prefill: what it lacks is kept for a transfer.
        make_room(world, engine, pool, engine.slots.last)
    # Nobody is admitted to the room that others had to make.
    if engine.batch.preempted > 0:
        return prompts, tokens, False
    limit = pool.batch_size - (engine.running if pool.running_scope != 0 else prompts)
    ample = pool.caching == 0 and engine.free > PLENTY // 2
    if ample and limit >= engine.waiting:  # neither memory nor slots bind
        return prompts + engine.waiting, engine.uncomposed_prefill, limit > engine.waiting
    # Those that wait, in order: a heap is taken apart as far as they are looked at.
    blocked = False
    popped = -1
    request = engine.queue.first
    while limit > 0 and request >= 0:
        if pool.by_priority != 0:
            pop_waiting(world, engine, pool)
            world.rows[request].next = popped
            popped = request
        may, blocks, _ = _admissible(world, engine, pool, request, free)
        if may == 0:
            blocked = True
            break
        free -= blocks
        prompts += 1
        tokens += may
        limit -= 1
        if pool.admission == OPTIMISTIC and may < world.again[request].target:
            blocked = True
            break
        request = engine.queue.first if pool.by_priority != 0 else world.rows[request].next
    while popped >= 0:
        following = world.rows[popped].next
        wait_first(world, engine, pool, popped)
        popped = following
    return prompts, tokens, limit > 0 and not blocked


@uncounted()
def _begun(world: World, engine: Any, pool: Any) -> Any:
    """Return how many requests in mid-prefill may be served, the tokens they may be given, and the
    blocks then left.
    """
    free = engine.free - growth_of(world, engine, pool)
    prompts = tokens = seen = 0
    single = engine.prefilling == 1  # is near the end
    place = engine.slots.last if single else engine.slots.first
    while seen < engine.prefilling and (pool.running_scope != 0 or prompts < pool.batch_size):
        slot = world.slots[place]
        if slot.left > 0:
            seen += 1
            may = _may_take(engine, pool, slot, free)
            if may > 0:
                free -= _blocks_for(engine, pool, slot, may)
                prompts += 1
                tokens += may
        place = slot.previous if single else slot.next
    return prompts, tokens, free


@uncounted(inline=True)
def _may_take(engine: Any, pool: Any, slot: Any, free: int) -> Any:
    """Return the most tokens that a request in mid-prefill may be given."""
    room = (slot.blocks + free) * pool.block_size - done_by(engine, slot)
    return min(slot.left, room)


@uncounted(inline=True)
def _blocks_for(engine: Any, pool: Any, slot: Any, take: int) -> Any:
    """Return the blocks that so many more tokens of a prompt need."""
    return max(blocks_of(done_by(engine, slot) + take, pool.block_size) - slot.blocks, 0)


@uncounted()
def _admissible(world: World, engine: Any, pool: Any, request: int, free: int) -> Any:
    """Return the most tokens that a waiting request may be given, 0 if none, and the blocks that it
    takes.

    And how many blocks hold the beginning of its prefill.
    """
    size = pool.block_size
    target = np.int64(world.again[request].target)
    spare = free - pool.watermark
    if pool.admission == OPTIMISTIC:
        may = min(target, spare * size)
        return (may, blocks_of(may, size), 0) if may > 0 else (0, 0, 0)
    whole = peak_of(world, pool, request) if pool.admission == COMPLETION else target
    blocks = blocks_of(whole, size)
    hits = unused = 0
    if pool.caching != 0 and spare > 0:
        hits, unused = found_in_cache(world, engine, pool, request)
    taken = blocks - hits + unused
    return (target - hits * size, taken, hits) if taken <= spare else (0, 0, 0)


@uncounted()
def _fill(world: World, engine: Any, pool: Any, tokens: int, requests: int) -> Any:
    """Serve so many prompt tokens of at most so many requests, those that run first; return the
    tokens served.
    """
    size = pool.block_size
    grow = growth_of(world, engine, pool)
    free = engine.free - grow
    left = tokens
    # Those in mid-prefill first, as they hold memory already; then those that wait, in order.
    begun, seen = engine.prefilling, 0
    single = begun == 1
    place = engine.slots.last if single else engine.slots.first
    while seen < begun and left > 0 and requests > 0:
        slot = world.slots[place]
        if slot.left > 0:
            seen += 1
            take = min(_may_take(engine, pool, slot, free), left)
            if take > 0:
                blocks = _blocks_for(engine, pool, slot, take)
                slot.blocks += blocks
                engine.free -= blocks  # none where blocks are cached: its prompt has all of them
                free -= blocks
                if pool.caching != 0:
                    name_prompt(world, engine, pool, place, take)
                serve_prefill(world, engine, place, take)
                left -= take
                requests -= 1
        place = slot.previous if single else slot.next
    while left > 0 and requests > 0 and engine.queue.first >= 0:
        request = engine.queue.first
        may, blocks, hits = _admissible(world, engine, pool, request, free)
        take = min(may, left)
        if take == 0:
            break
        if pool.admission == OPTIMISTIC:
            blocks = blocks_of(take, size)
        if pool.caching != 0:
            blocks = blocks_of(world.again[request].target, size)
        pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks, hits)
        free = engine.free - grow
        if pool.caching != 0:
            name_prompt(world, engine, pool, place, take)
        serve_prefill(world, engine, place, take)
        left -= take
        requests -= 1
    return tokens - left
