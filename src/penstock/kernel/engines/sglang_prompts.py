"""Prompts of SGLang's batches: who is admitted, by an estimate of the outputs still to come.

The estimate is a share, the new token ratio, of what those who run may still make; what a request
may make is what it has declared. See `penstock.kernel.engines.sglang` for who runs.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, hold
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import make_free, match, unused_before, use
from penstock.kernel.engines.sglang_queue import look_at_queue, tokens_beside_shorter
from penstock.kernel.engines.sglang_records import (
    SHORTEST_PREFILL,
    foreseen_by_all,
    made_before,
    made_by,
    settings_of,
    state_of,
)
from penstock.kernel.engines.sglang_retraction import take_places
from penstock.kernel.records import World
from penstock.kernel.running import (
    add_tokens,
    admit,
    done_by,
    pop_waiting,
    serve_prefill,
    wait_last,
)

GO_ON, NO_MEMORY, STOP = range(3)
"""What follows for the next request once one was asked for."""

_NO_LIMIT = 2**40
"""Tokens of a batch, where prompts are not cut."""


# -- budgets


@uncounted(inline=True)
def _new_budget(world: World, engine: Any, pool: Any) -> Any:
    """Begin with the budgets of a batch, less what those who decode take or may still take."""
    budget = state_of(engine).budget
    riding = engine.running - engine.prefilling if settings_of(pool).mixed != 0 else 0
    budget.chunk = (pool.budget if pool.chunked != 0 else _NO_LIMIT) - riding
    budget.prompts = settings_of(pool).max_prefill_tokens - riding
    budget.pending = riding
    budget.foreseen = riding + foreseen_by_all(world, engine, pool)
    budget.room = (engine.free + engine.evictable) * pool.block_size
    budget.pages = engine.free
    budget.matched = 0
    budget.victims.first = -1
    budget.is_cut = 0
    budget.lives = -1
    return budget


@uncounted(inline=True)
def _outputs_charged(world: World, pool: Any, request: int) -> Any:
    """Return the outputs that are charged for a request whose prompt is complete."""
    return min(np.int64(world.again[request].declared), settings_of(pool).clip_new_tokens)


@uncounted(inline=True)
def _charge(budget: Any, pool: Any, tokens: int, outputs: int) -> None:
    """Charge a prompt of whole pages, a page more for rounding, and the outputs to come."""
    size = pool.block_size
    paged = blocks_of(tokens, size) * size
    budget.foreseen += paged + size + outputs
    budget.pending += paged + size
    budget.prompts -= paged
    budget.chunk -= paged


@uncounted(inline=True)
def _verdict(budget: Any) -> Any:
    """Return whether there is anything left for one more."""
    if budget.room - budget.foreseen <= 0 or budget.room - budget.pending <= 0:
        return NO_MEMORY
    return STOP if min(budget.prompts, budget.chunk) <= 0 else GO_ON


# -- a batch of prompts


@uncounted()
def serve_prompts(world: World, engine: Any, pool: Any) -> None:
    """Go on with the request in mid-prefill, then admit waiting ones while the budgets last."""
    state, preempts = state_of(engine), settings_of(pool).priority_preemption != 0
    if engine.running == engine.prefilling or preempts:
        state.is_full = 0
    if engine.prefilling == 0:
        if state.is_full != 0 or engine.waiting == 0:
            return
        if engine.running >= pool.batch_size and not preempts:
            state.is_full = 1
            return
    if pool.radix != 0 and engine.waiting > 0:
        look_at_queue(world, engine, pool)
    budget = _new_budget(world, engine, pool)
    if engine.prefilling > 0:
        _serve_next_chunk(world, engine, pool, budget)
        if engine.batch.prompts == 0:
            return
    _admit_waiting(world, engine, pool, budget)
    request = budget.victims.first
    while request >= 0:
        following = np.int64(world.rows[request].next)
        wait_last(world, engine, pool, request)
        request = following
    if pool.radix != 0 and engine.batch.prompts > 0:
        _make_free_for_prompts(world, engine, pool, budget)


@uncounted(inline=True)
def _make_free_for_prompts(world: World, engine: Any, pool: Any, budget: Any) -> None:
    """Let the cache give up pages as SGLang does before a batch of prompts gets what it needs: one
    more for each, if pages are longer than a token.
    """
    tokens = 0
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        tokens += world.slots[place].taken
        place = world.slots[place].served_next
    size = pool.block_size
    rounding = 0 if size == 1 else engine.batch.prompts
    taken = budget.pages - engine.free  # already
    make_free(world, engine, pool, blocks_of(tokens, size) + rounding - taken)


@uncounted(inline=True)
def _serve_next_chunk(world: World, engine: Any, pool: Any, budget: Any) -> None:
    """Put the next chunk of the request in mid-prefill, the last of the list, into the batch.

    A whole chunk where the estimate leaves nothing, but no more than memory has.
    """
    place, size = engine.slots.last, pool.block_size
    slot = world.slots[place]
    done = done_by(engine, slot)
    take = min(slot.left, slot.blocks * size - done + budget.room)
    available = min(np.float64(budget.chunk), budget.room - budget.foreseen)
    if available < 1:
        available = np.float64(budget.chunk)
    if available < take:
        take = np.int64(available)
    if settings_of(pool).queue_order == SHORTEST_PREFILL:
        take = min(take, tokens_beside_shorter(world, engine, pool, budget.chunk, slot.left))
    if take <= 0:
        return
    hold(world, engine, pool, place, blocks_of(done + take, size))
    serve_prefill(world, engine, place, take)
    outputs = 0
    if take == slot.left:
        outputs = min(
            np.int64(world.again[slot.request].declared), settings_of(pool).clip_new_tokens
        )
    else:
        budget.is_cut = 1
    _charge(budget, pool, take, outputs)


@uncounted(inline=True)
def _admit_waiting(world: World, engine: Any, pool: Any, budget: Any) -> None:
    """Admit in the order of the queue, until one finds no place, no memory or no budget."""
    state, settings = state_of(engine), settings_of(pool)
    while engine.waiting > 0 and _verdict(budget) != STOP:
        if engine.running >= pool.batch_size:
            state.is_full = 1
        if state.is_full != 0 and (
            settings.priority_preemption == 0 or not take_places(world, engine, pool, budget)
        ):
            break
        world.again[engine.queue.first].filled = world.again[engine.queue.first].target
        if settings.ignore_eos != 0 and pool.radix == 0:
            verdict = _ask_with_known_outputs(world, engine, pool, budget)
        else:
            verdict = _ask(world, engine, pool, budget)
        if verdict == NO_MEMORY:
            decodes = engine.running - engine.prefilling
            state.is_full = 1 if engine.batch.prompts > 0 or decodes > 0 else 0
        if verdict != GO_ON:
            break


@uncounted(inline=True)
def _ask(world: World, engine: Any, pool: Any, budget: Any) -> Any:
    """Admit the first that waits if its prompt and the outputs that may follow fit
    (``add_one_req``).

    It is charged for all outputs that it has declared, those included that were out before it was
    retracted.
    """
    request, size = engine.queue.first, pool.block_size
    target = np.int64(world.again[request].target)
    declared = np.int64(world.again[request].declared)
    outputs = min(declared - made_before(world, request), settings_of(pool).clip_new_tokens)
    room = budget.room
    if pool.radix != 0:
        pages, end = match(world, engine, pool, request, (target - 1) // size)
        budget.matched = pages
        budget.match_end = end
        world.again[request].matched = pages * size
        target -= pages * size
        room -= unused_before(world, engine, end) * size
    if target + outputs + size >= room - budget.foreseen:
        return NO_MEMORY
    paged = blocks_of(target, size) * size
    if pool.chunked == 0 and engine.batch.prompts > 0 and paged >= budget.prompts:
        return STOP
    if paged > budget.chunk:  # the part that comes first fills its pages
        if budget.is_cut != 0 and settings_of(pool).queue_order == SHORTEST_PREFILL:
            return STOP
        return _enter(world, engine, pool, budget, budget.chunk // size * size)
    return _enter(world, engine, pool, budget, target)


@uncounted(inline=True)
def _enter(world: World, engine: Any, pool: Any, budget: Any, take: int) -> Any:
    """Admit the first that waits with so many tokens of its prompt, if any."""
    if take <= 0:
        return STOP
    whole = take == world.again[engine.queue.first].target - budget.matched * pool.block_size
    request = pop_waiting(world, engine, pool)
    place = admit(world, engine, pool, request, blocks_of(take, pool.block_size), 0)
    if pool.radix != 0:
        _share(world, engine, pool, budget, place)
    serve_prefill(world, engine, place, take)
    outputs = 0
    if whole:
        outputs = _outputs_charged(world, pool, request)
    _charge(budget, pool, take, outputs)
    return _verdict(budget)


@uncounted(inline=True)
def _share(world: World, engine: Any, pool: Any, budget: Any, place: int) -> None:
    """Let a request that is admitted hold the pages that the cache has of it."""
    slot = world.slots[place]
    pages = budget.matched
    budget.room -= unused_before(world, engine, budget.match_end) * pool.block_size
    use(world, engine, budget.match_end, 1)
    slot.end_node = budget.match_end
    slot.shared = pages
    slot.blocks += pages
    tokens = pages * pool.block_size
    slot.left -= tokens
    engine.uncomposed_prefill -= tokens
    engine.reused += tokens
    if world.again[slot.request].times == 0:
        world.cached[slot.request] = tokens
    add_tokens(world, engine, -tokens)


# -- admission where all outputs are known beforehand


@uncounted()
def _ask_with_known_outputs(world: World, engine: Any, pool: Any, budget: Any) -> Any:
    """Admit the first that waits if memory lasts until each of them ends
    (``add_one_req_ignore_eos``).

    Requests end in the order of the outputs left; up to then all who are left grow alike, and each
    end frees what that request holds.
    """
    size = pool.block_size
    target = np.int64(world.again[engine.queue.first].target)
    paged = blocks_of(target, size) * size + size
    now = budget.room - budget.pending
    if paged > now or paged > budget.room - budget.foreseen:
        return NO_MEMORY
    _foresee_ends(world, engine, budget)
    freed = 0
    for index in range(budget.lives):
        together = budget.lives - index
        if now - paged + freed - world.lives[index, 0] * together <= together:
            return NO_MEMORY
        freed += world.lives[index, 1]
    return _enter(world, engine, pool, budget, min(target, budget.chunk))


@uncounted(inline=True)
def _foresee_ends(world: World, engine: Any, budget: Any) -> None:
    """Put the first that waits among those who are to run together; the first who asks finds all
    others there.

    Who comes later and has the most left goes before the last, not behind it.
    """
    request = engine.queue.first
    left = np.int64(world.again[request].declared) - made_before(world, request)
    tokens = np.int64(world.again[request].target)
    if budget.lives >= 0:
        index = 0
        while index < budget.lives and world.lives[index, 0] < left:
            index += 1
        if index == budget.lives:
            index = max(index - 1, 0)
        _insert_life(world, budget, index, left, tokens)
        return
    budget.lives = 0
    _insert_life(world, budget, 0, left, tokens)
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        request = slot.request
        made = np.int64(world.rows[request].decodes) + 1 - slot.outputs
        if slot.left <= 0:
            made = made_by(world, engine, slot)
        left = world.again[request].declared - made
        index = budget.lives
        while index > 0 and world.lives[index - 1, 0] > left:
            index -= 1
        _insert_life(world, budget, index, left, world.rows[request].left + made)
        place = slot.next


@uncounted(inline=True)
def _insert_life(world: World, budget: Any, index: int, left: int, tokens: int) -> None:
    """Put one who has outputs left at a place among those who are to run together."""
    if left <= 0:
        return
    lives = world.lives
    for later in range(budget.lives, index, -1):
        lives[later, 0] = lives[later - 1, 0]
        lives[later, 1] = lives[later - 1, 1]
    lives[index, 0] = left
    lives[index, 1] = tokens
    budget.lives += 1
