"""What SGLang's cache of prefixes gets of requests, and what those who wait find in it.

What a request computed goes into the tree when its prefill (or a chunk of it) is complete and when
it finishes; pages that the tree had already are given back. A retracted request leaves nothing.
"""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.radix import insert, make_free, match, shared_tokens, use
from penstock.kernel.records import IN_FLIGHT, SORTED_QUEUE, World

LOOKS_BETWEEN_TOUCHES = 32
SHARED_IN_QUEUE = 32  # tokens that make a request wait for another one in the queue

_LAST = 2**40
"""The rank of those that wait for another one."""


# -- what the tree gets


@uncounted()
def _put(world: World, engine: Any, pool: Any, request: int, tokens: int) -> Any:
    """Put pages into the tree, cut where the prompt ends: what follows may go before it."""
    size = pool.block_size
    pages, prompt = tokens // size, world.rows[request].left // size
    end = insert(world, engine, pool, request, pages)
    if 0 < prompt < pages:
        insert(world, engine, pool, request, prompt)
    return end


@uncounted()
def keep(world: World, engine: Any, pool: Any, place: int, tokens: int) -> None:
    """Put what is computed of a running request into the tree; it holds that instead."""
    slot = world.slots[place]
    end = _put(world, engine, pool, slot.request, tokens)
    use(world, engine, slot.end_node, -1)
    use(world, engine, end, 1)
    pages = tokens // pool.block_size
    engine.free += pages - slot.shared
    slot.shared = pages
    slot.end_node = end


@uncounted(inline=True)
def _leave_in_tree(world: World, engine: Any, pool: Any, place: int, tokens: int) -> None:
    """Put all that a request computed, which finishes now, into the tree."""
    slot = world.slots[place]
    _put(world, engine, pool, slot.request, tokens)
    use(world, engine, slot.end_node, -1)


@uncounted()
def keep_at_end(world: World, engine: Any, pool: Any, epoch: int) -> None:
    """Keep what is complete as a batch ends, at that epoch, in its order: prompts, then decodes."""
    place = engine.served_head
    for _ in range(engine.served):
        slot = world.slots[place]
        if slot.left == slot.taken and slot.outputs == 1:
            _leave_in_tree(world, engine, pool, place, np.int64(slot.target))
        elif slot.left == slot.taken:
            keep(world, engine, pool, place, np.int64(slot.target))
        place = slot.served_next
    place = engine.first_slot
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0 and slot.due == epoch:
            _leave_in_tree(world, engine, pool, place, np.int64(slot.total))
        place = slot.next


@uncounted(inline=True)
def note_joined(world: World, engine: Any, place: int) -> None:
    """Note that the prefill of a request is complete when the batch in progress ends."""
    world.slots[place].joined = 1
    world.slots[place].next_joined = -1
    if engine.first_joined < 0:
        engine.first_joined = place
    else:
        world.slots[engine.last_joined].next_joined = place
    engine.last_joined = place


@uncounted()
def keep_ahead(world: World, engine: Any, pool: Any) -> None:
    """Keep what is complete as a batch ends that was taken for computed when it began."""
    place = engine.first_joined
    while place >= 0:
        slot = world.slots[place]
        if slot.joined != 0 and slot.left == IN_FLIGHT:
            _leave_in_tree(world, engine, pool, place, slot.total + slot.taken)
        elif slot.joined != 0:
            keep(world, engine, pool, place, np.int64(slot.target))
            slot.joined = 0
        place = np.int64(slot.next_joined)
    engine.first_joined = -1
    place = engine.first_slot if engine.first_leaving >= 0 else -1
    while place >= 0:
        slot = world.slots[place]
        if slot.left == IN_FLIGHT and slot.joined == 0:
            _leave_in_tree(world, engine, pool, place, slot.total + slot.taken)
        place = slot.next


@uncounted(inline=True)
def make_free_for(world: World, engine: Any, pool: Any, pages: int) -> None:
    """Let the cache, where there is one, give up pages until so many are free."""
    if pool.radix != 0:
        make_free(world, engine, pool, pages)


# -- what those who wait find


@uncounted()
def look_at_queue(world: World, engine: Any, pool: Any) -> None:
    """Sort the waiting queue by what the tree has of it, or only touch that now and then."""
    if pool.by_match != 0 and engine.waiting <= SORTED_QUEUE:
        _rank_by_match(world, engine, pool)
        _sort_queue(world, engine)
        return
    engine.looks += 1
    if engine.looks % LOOKS_BETWEEN_TOUCHES != 1:
        return
    count = 0
    request = engine.head
    while request >= 0 and count < SORTED_QUEUE:
        world.lives[count, 0] = request
        count += 1
        request = np.int64(world.rows[request].next)
    for index in range(count - 1, -1, -1):
        request = world.lives[index, 0]
        match(world, engine, pool, request, world.again[request].target // pool.block_size)


@uncounted()
def _rank_by_match(world: World, engine: Any, pool: Any) -> None:
    """Rank all that wait: the most tokens in the tree first, and last those that begin as an
    earlier one does of which the tree has little.
    """
    request = engine.head
    first = 0
    while request >= 0:
        again = world.again[request]
        matched, _ = match(world, engine, pool, request, again.target // pool.block_size)
        tokens = matched * pool.block_size
        again.priority = -min(tokens, again.target - 1)
        if tokens <= SHARED_IN_QUEUE:
            for index in range(first):
                if _begin_alike(world, pool, request, world.lives[index, 0]):
                    again.priority = _LAST
                    break
            if again.priority != _LAST:
                world.lives[first, 0] = request
                first += 1
        request = np.int64(world.rows[request].next)


@uncounted(inline=True)
def _begin_alike(world: World, pool: Any, one: int, other: int) -> Any:
    """Return whether two prompts share so many tokens that one waits for the other."""
    if shared_tokens(world, one, other) >= SHARED_IN_QUEUE:
        return True
    a, b = np.int64(world.again[one].prefix), np.int64(world.again[other].prefix)
    if a < 0 or b < 0:
        return False
    ids = (SHARED_IN_QUEUE + pool.hash_block - 1) // pool.hash_block
    for request in (one, other):
        again = world.again[request]
        if min(again.named, again.target) < ids * pool.hash_block:
            return False
    for index in range(ids):
        if world.ids[world.bounds[a] + index] != world.ids[world.bounds[b] + index]:
            return False
    return True


@uncounted()
def _sort_queue(world: World, engine: Any) -> None:
    """Sort the waiting queue by rank for good; equal ones stay as they stand."""
    rest = engine.head
    engine.head = -1
    while rest >= 0:
        request = rest
        rest = np.int64(world.rows[request].next)
        rank = world.again[request].priority
        before: Any = -1
        if engine.head >= 0 and world.again[engine.head].priority <= rank:
            before = engine.tail
            if world.again[before].priority > rank:
                before = engine.head
                following = np.int64(world.rows[before].next)
                while world.again[following].priority <= rank:
                    before = following
                    following = np.int64(world.rows[before].next)
        if before < 0:
            world.rows[request].next = engine.head
            if engine.head < 0:
                engine.tail = request
            engine.head = request
        else:
            world.rows[request].next = world.rows[before].next if before != engine.tail else -1
            world.rows[before].next = request
            if before == engine.tail:
                engine.tail = request
