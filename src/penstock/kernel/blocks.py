"""KV memory in blocks: how many are free and, with prefix caching, which ones, and what they hold.

Without prefix caching blocks are alike and a number says it all. With it a full block has a *name*
that stands for all tokens up to its end. Who is admitted shares the blocks whose names its prompt
begins with. Blocks that nobody uses stand in a queue, nameless ones in front, and keep their
contents until they are taken from there (vLLM's ``BlockPool``).

Which block it is matters only where it has a name that somebody may look for. Such a block has a
record in ``blocks``, and stands in the row of ``table`` of those who hold it: the first blocks of a
prompt. All others are counted: those that a request holds, nameless ones in front of the queue
(`CACHE.nameless`), and runs of full ones that nobody will look for, which keep a place in it.

Recorded prompts have the names ``ids[bounds[row] : bounds[row + 1]]``, which may go on with their
outputs. A request that goes on with the context of an earlier one of its job has that one's names
as far as the context reaches. Where a drafter reads ahead, the name of a block stands for the
tokens after it too (`POOL.names_ahead`), and is given once these are known. The
records of an engine are ``blocks[first_block : first_block + blocks]``.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.lists import append_named, append_unused, unlink_named, unlink_unused
from penstock.kernel.records import World

UNSOUGHT = -(2**62)
"""In place of the name of a run of blocks that nobody will look for."""

OWN_BITS = 25
"""Of a name that no other request can have: the place of the block, the number of the request
above.
"""


@uncounted(inline=True)
def blocks_of(tokens: int, size: int) -> Any:
    """Return the blocks that so many tokens need."""
    return (tokens + size - 1) // size


# -- names


@uncounted(inline=True)
def _shared_blocks(world: World, pool: Any, request: int) -> Any:
    """Return how many blocks of a request have names that others may have too."""
    tokens = max(np.int64(world.again[request].named), np.int64(world.reuse[request]))
    return max(tokens - pool.names_ahead, 0) // pool.block_size


@uncounted(inline=True)
def nameable(pool: Any, computed: int, known: int) -> Any:
    """Return of how many tokens full blocks can have their names, where so many are computed, and
    so many known.
    """
    if pool.names_ahead == 0:
        return min(computed, known)
    return max(min(computed + 1, known) - pool.names_ahead, 0)


@uncounted(inline=True)
def _name_of(world: World, pool: Any, request: int, index: int) -> Any:
    """Return the name of a full block of a request: recorded, or of the request that it comes from
    (below 0).
    """
    end = (index + 1) * pool.block_size + pool.names_ahead
    again = world.again[request]
    if end <= again.named:
        return world.ids[world.bounds[again.prefix] + (end - 1) // pool.block_size]
    owner = request
    while end <= world.reuse[owner]:
        owner += world.context[owner]
    number = world.clock[0].requests_before + owner
    return -1 - ((number << OWN_BITS) | index)


@uncounted(inline=True)
def _bucket(engine: Any, name: int) -> Any:
    # Recorded names are numbered from 0.
    return engine.cache.first_bucket + (
        (name + (name >> OWN_BITS) * 7919) & (engine.cache.buckets - 1)
    )


@uncounted(inline=True)
def _holder(world: World, engine: Any, name: int) -> Any:
    """Return the oldest block of that name, or -1."""
    block = world.buckets[_bucket(engine, name)].first
    while block >= 0 and world.blocks[block].name != name:
        block = world.blocks[block].next_named
    return block


@uncounted()
def _give_name(world: World, engine: Any, place: int, name: int) -> None:
    world.blocks[place].name = name
    append_named(world.blocks, world.buckets[_bucket(engine, name)], place)


@uncounted()
def _forget(world: World, engine: Any, place: int) -> None:
    """Take a block from the list of those whose names fall where its own does."""
    bucket = _bucket(engine, world.blocks[place].name)
    unlink_named(world.blocks, world.buckets[bucket], place)


@uncounted()
def _name_next(world: World, engine: Any, pool: Any, place: int) -> None:
    """Name the first block of a request that has no name."""
    slot = world.slots[place]
    block = _new_record(world, engine)
    world.blocks[block].users = 1
    world.table[place, slot.named] = block
    _give_name(world, engine, block, _name_of(world, pool, slot.request, slot.named))
    slot.named += 1


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER, NUMBER, NUMBER))
def name_blocks(
    world: World, engine: Any, pool: Any, place: int, computed: int, known: int
) -> None:
    """Name the blocks of a request that are full when so many tokens are computed.

    Those that nobody else looks for before the request leaves get their names then.
    """
    slot = world.slots[place]
    end = nameable(pool, computed, known) // pool.block_size
    end = min(end, _shared_blocks(world, pool, slot.request))
    while slot.named < end:
        _name_next(world, engine, pool, place)


@apart(types.UniTuple(NUMBER, 2)(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def found_in_cache(world: World, engine: Any, pool: Any, request: int) -> Any:
    """Return how many blocks hold the beginning of a waiting request's prefill, which are then
    `World.hits`, and how many of them nobody uses.

    Its last token is always computed.
    """
    hits = unused = 0
    most = (world.again[request].target - max(1, pool.names_ahead)) // pool.block_size
    tried = world.tries.size > 0 and world.tries[request].times > 0
    if world.again[request].times == 0 and not tried:  # else blocks of its own may be there
        most = min(most, _shared_blocks(world, pool, request))
    while hits < most:
        block = _holder(world, engine, _name_of(world, pool, request, hits))
        if block < 0:
            break
        if world.blocks[block].users == 0:
            unused += 1
        world.hits[hits] = block
        hits += 1
    return hits, unused


@uncounted(inline=True)
def _new_record(world: World, engine: Any) -> Any:
    """Return a record that stands for nothing yet."""
    place = engine.cache.free_record
    engine.cache.free_record = world.blocks[place].next_named
    return place


@uncounted(inline=True)
def _drop_record(world: World, engine: Any, place: int) -> None:
    """Let a record stand for nothing."""
    world.blocks[place].next_named = engine.cache.free_record
    engine.cache.free_record = place


@uncounted()
def forget_all(world: World, engine: Any) -> None:
    """Let all blocks be free and nameless, as at first."""
    end = engine.cache.first + engine.cache.blocks
    for place in range(engine.cache.first, end):
        world.blocks[place].next_named = place + 1
    engine.cache.free_record = engine.cache.first
    engine.cache.nameless = engine.cache.blocks
    engine.cache.unused.first = engine.cache.unused.last = -1
    forget_buckets(world, engine)


@uncounted()
def forget_buckets(world: World, engine: Any) -> None:
    """Let no name be found."""
    for bucket in range(
        engine.cache.first_bucket, engine.cache.first_bucket + engine.cache.buckets
    ):
        world.buckets[bucket].first = world.buckets[bucket].last = -1


# -- who uses what


@uncounted()
def _join_unsought(world: World, engine: Any, count: int) -> None:
    """Put so many full blocks that nobody will look for to the end of the queue."""
    last = engine.cache.unused.last
    if last >= 0 and world.blocks[last].name == UNSOUGHT:
        world.blocks[last].count += count
        return
    place = _new_record(world, engine)
    world.blocks[place].name = UNSOUGHT
    world.blocks[place].count = count
    append_unused(world.blocks, engine.cache.unused, place)


@apart(types.void(A_WORLD, AN_ENGINE, NUMBER))
def take(world: World, engine: Any, count: int) -> None:
    """Take so many blocks from the front of the queue; what they held is forgotten."""
    engine.free -= count
    nameless = min(count, engine.cache.nameless)
    engine.cache.nameless -= nameless
    left = count - nameless
    while left > 0:
        place = engine.cache.unused.first
        block = world.blocks[place]
        if block.name == UNSOUGHT:
            part = min(left, np.int64(block.count))
            block.count -= part
            left -= part
            if block.count > 0:
                return
        else:
            _forget(world, engine, place)
            left -= 1
        unlink_unused(world.blocks, engine.cache.unused, place)
        _drop_record(world, engine, place)


@uncounted(inline=True)
def take_blocks(world: World, engine: Any, pool: Any, count: int) -> None:
    """Take so many blocks for decodes."""
    if pool.caching == 0:
        engine.free -= count
    elif count > 0:
        take(world, engine, count)


@uncounted(inline=True)
def hold(world: World, engine: Any, pool: Any, place: int, after: int) -> None:
    """Let a request in prefill hold so many blocks in all."""
    slot = world.slots[place]
    if pool.caching == 0:
        engine.free -= after - slot.blocks
    elif after > slot.blocks:
        take(world, engine, after - slot.blocks)
    slot.blocks = after


@apart(types.void(A_WORLD, AN_ENGINE, NUMBER, NUMBER, NUMBER))
def occupy(world: World, engine: Any, place: int, hits: int, blocks: int) -> None:
    """Let a request that is admitted hold so many blocks, of which the first ones, those just found
    in the cache, have its prefix already.
    """
    for index in range(hits):
        block = world.blocks[world.hits[index]]
        if block.users == 0:
            unlink_unused(world.blocks, engine.cache.unused, world.hits[index])
            engine.free -= 1
        block.users += 1
        world.table[place, index] = world.hits[index]
    world.slots[place].named = hits
    take(world, engine, blocks - hits)


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER, NUMBER, NUMBER, types.boolean))
def give_back(
    world: World, engine: Any, pool: Any, place: int, blocks: int, full: int, sought: bool
) -> None:
    """Let a request that leaves give back its blocks, the last first; the full ones keep what they
    hold.

    ``full``: how many are full, and can have names; ``sought``: whether anybody will look for what
    is its own.
    """
    slot = world.slots[place]
    end = full if sought else min(full, _shared_blocks(world, pool, slot.request))
    while slot.named < end:
        _name_next(world, engine, pool, place)
    unsought = max(full - slot.named, 0)
    nameless = blocks - slot.named - unsought
    engine.cache.nameless += nameless
    engine.free += nameless + unsought
    if unsought > 0:
        _join_unsought(world, engine, unsought)
    for index in range(slot.named - 1, -1, -1):
        block = world.table[place, index]
        world.blocks[block].users -= 1
        if world.blocks[block].users == 0:
            append_unused(world.blocks, engine.cache.unused, block)
            engine.free += 1
