"""What SGLang's cache of prefixes gets of requests.

What a request computed goes into the tree when its prefill (or a chunk of it) is complete and when
it finishes; pages that the tree had already are given back. A retracted request leaves nothing.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.lists import append_joined
from penstock.kernel.radix import insert, make_free, pages_in_tree, use
from penstock.kernel.records import IN_FLIGHT, World


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


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def keep_at_end(world: World, engine: Any, pool: Any, epoch: int) -> None:
    """Keep what is complete as a batch ends, at that epoch, in its order: prompts, then decodes."""
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        slot = world.slots[place]
        if slot.left == slot.taken and slot.outputs == 1:
            _leave_in_tree(world, engine, pool, place, np.int64(slot.target))
        elif slot.left == slot.taken:
            keep(world, engine, pool, place, np.int64(slot.target))
        place = slot.served_next
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0 and slot.due == epoch:
            _leave_in_tree(world, engine, pool, place, np.int64(slot.total))
        place = slot.next


@uncounted(inline=True)
def note_joined(world: World, engine: Any, place: int) -> None:
    """Note that the prefill of a request is complete when the batch in progress ends."""
    world.slots[place].joined = 1
    append_joined(world.slots, engine.tree.joined, place)


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL))
def keep_ahead(world: World, engine: Any, pool: Any) -> None:
    """Keep what is complete as a batch ends that was taken for computed when it began."""
    place = engine.tree.joined.first
    while place >= 0:
        slot = world.slots[place]
        if slot.joined != 0 and slot.left == IN_FLIGHT:
            _leave_in_tree(world, engine, pool, place, slot.total + slot.taken)
        elif slot.joined != 0:
            keep(world, engine, pool, place, np.int64(slot.target))
            slot.joined = 0
        place = np.int64(slot.next_joined)
    engine.tree.joined.first = -1
    place = engine.slots.first if engine.ahead.leaving.first >= 0 else -1
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


# -- what others ask of the cache


@apart(types.void(A_WORLD, AN_ENGINE, NUMBER))
def leave(world: World, engine: Any, node: int) -> None:
    """Let a request that gives up its place use the tree no more, up to its last node."""
    use(world, engine, node, -1)


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def give_up(world: World, engine: Any, pool: Any, pages: int) -> None:
    """Let the cache give up pages until so many are free."""
    make_free(world, engine, pool, pages)


@apart(NUMBER(A_WORLD, AN_ENGINE, A_POOL, NUMBER, NUMBER))
def pages_found(world: World, engine: Any, pool: Any, request: int, pages: int) -> Any:
    """Return how many of the first pages of a request the cache has."""
    return pages_in_tree(world, engine, pool, request, pages)
