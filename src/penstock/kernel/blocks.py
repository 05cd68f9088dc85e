"""KV memory in blocks: how many are free and, with prefix caching, which ones, and what they hold.

Without prefix caching blocks are alike and a number says it all. With it a full block has a *name*
that stands for all tokens up to its end. Who is admitted shares the blocks whose names its prompt
begins with. Blocks that nobody uses stand in a queue, nameless ones in front, and keep their
contents until they are taken from there (vLLM's ``BlockPool``).

A prompt's blocks are listed in the row of ``table`` of its slot. Blocks taken by decodes have no
name before their request leaves, so they are all alike until then: they lie on one pile, from which
a request that leaves takes what it holds.

Recorded prompts have the names ``ids[bounds[row] : bounds[row + 1]]``. A request that goes on with
the context of an earlier one of its job has that one's names as far as the context reaches. The
blocks of an engine are ``blocks[first_block : first_block + blocks + 1]``; the last one is both
ends of its queue.
"""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import World

NAMELESS = -1

UNSOUGHT = -(2**62)
"""In place of a name that nobody will look for: it is not listed by names."""

FIRST_NAMED, LAST_NAMED = range(2)
"""Columns of `World.buckets`: ends of the list of blocks whose names fall there, oldest first."""

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
    """Return how many blocks of a prompt have names that others may have too."""
    tokens = max(np.int64(world.again[request].named), np.int64(world.reuse[request]))
    return tokens // pool.block_size


@uncounted(inline=True)
def _name_of(world: World, pool: Any, request: int, index: int) -> Any:
    """Return the name of a full block of a request: recorded, or of the request that it comes from
    (below `NAMELESS`).
    """
    end = (index + 1) * pool.block_size
    again = world.again[request]
    if end <= again.named:
        return world.ids[world.bounds[again.prefix] + index]
    owner = request
    while end <= world.reuse[owner]:
        owner += world.context[owner]
    number = world.clock[0].requests_before + owner
    return NAMELESS - 1 - ((number << OWN_BITS) | index)


@uncounted(inline=True)
def _bucket(engine: Any, name: int) -> Any:
    # Recorded names are numbered from 0.
    return engine.first_bucket + ((name + (name >> OWN_BITS) * 7919) & (engine.buckets - 1))


@uncounted(inline=True)
def _holder(world: World, engine: Any, name: int) -> Any:
    """Return the oldest block of that name, or -1."""
    block = world.buckets[_bucket(engine, name), FIRST_NAMED]
    while block >= 0 and world.blocks[block].name != name:
        block = world.blocks[block].next_named
    return block


@uncounted()
def _give_name(world: World, engine: Any, place: int, name: int) -> None:
    bucket = _bucket(engine, name)
    last = world.buckets[bucket, LAST_NAMED]
    block = world.blocks[place]
    block.name = name
    block.next_named = -1
    block.previous_named = last
    if last < 0:
        world.buckets[bucket, FIRST_NAMED] = place
    else:
        world.blocks[last].next_named = place
    world.buckets[bucket, LAST_NAMED] = place


@uncounted()
def _forget(world: World, engine: Any, block: Any) -> None:
    """Take a block's name."""
    if block.name == UNSOUGHT:
        block.name = NAMELESS
        return
    bucket = _bucket(engine, block.name)
    before = block.previous_named
    after = block.next_named
    if before < 0:
        world.buckets[bucket, FIRST_NAMED] = after
    else:
        world.blocks[before].next_named = after
    if after < 0:
        world.buckets[bucket, LAST_NAMED] = before
    else:
        world.blocks[after].previous_named = before
    block.name = NAMELESS


@uncounted()
def name_prompt(world: World, engine: Any, pool: Any, place: int, first: int, end: int) -> None:
    """Name the blocks of a prompt from ``first`` on and before ``end``, which a batch fills.

    Those that nobody else looks for before the request leaves get their names then.
    """
    request = world.slots[place].request
    for index in range(first, min(end, _shared_blocks(world, pool, request))):
        block = world.table[place, index]
        if world.blocks[block].name == NAMELESS:
            _give_name(world, engine, block, _name_of(world, pool, request, index))


@uncounted()
def found_in_cache(world: World, engine: Any, pool: Any, request: int) -> Any:
    """Return how many blocks hold the beginning of a waiting request's prefill, which are then
    `World.hits`, and how many of them nobody uses.

    Its last token is always computed.
    """
    hits = unused = 0
    most = (world.again[request].target - 1) // pool.block_size
    if world.again[request].times == 0:  # else blocks of its own may be there
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


@uncounted()
def forget_all(world: World, engine: Any) -> None:
    """Let blocks be free that have no names, as at first."""
    first, count = engine.first_block, engine.blocks + 1
    for index in range(count):
        block = world.blocks[first + index]
        block.name = NAMELESS
        block.users = 0
        block.next_free = first + (index + 1) % count
        block.previous_free = first + (index + count - 1) % count
    forget_buckets(world, engine)


@uncounted()
def forget_buckets(world: World, engine: Any) -> None:
    """Let no name be found."""
    for bucket in range(engine.first_bucket, engine.first_bucket + engine.buckets):
        world.buckets[bucket, FIRST_NAMED] = world.buckets[bucket, LAST_NAMED] = -1


# -- who uses what


@uncounted()
def _leave_queue(world: World, engine: Any, block: Any) -> None:
    world.blocks[block.previous_free].next_free = block.next_free
    world.blocks[block.next_free].previous_free = block.previous_free
    engine.free -= 1


@uncounted()
def _join_queue(world: World, engine: Any, place: int) -> None:
    """Put a block without a name to the front of the queue, one with a name to its end."""
    end = engine.first_block + engine.blocks
    nameless = world.blocks[place].name == NAMELESS
    before = end if nameless else world.blocks[end].previous_free
    after = world.blocks[before].next_free
    world.blocks[place].previous_free = before
    world.blocks[place].next_free = after
    world.blocks[before].next_free = place
    world.blocks[after].previous_free = place
    engine.free += 1


@uncounted()
def _first_free(world: World, engine: Any) -> Any:
    """Take the first block of the queue; what it held is forgotten."""
    place = world.blocks[engine.first_block + engine.blocks].next_free
    block = world.blocks[place]
    _leave_queue(world, engine, block)
    if block.name != NAMELESS:
        _forget(world, engine, block)
    block.users = 1
    return place


@uncounted(inline=True)
def take_blocks(world: World, engine: Any, pool: Any, count: int) -> None:
    """Take so many blocks for decodes."""
    if pool.caching == 0:
        engine.free -= count
        return
    for _ in range(count):
        world.pile[engine.first_block + engine.piled] = _first_free(world, engine)
        engine.piled += 1


@uncounted(inline=True)
def hold(world: World, engine: Any, pool: Any, place: int, after: int) -> None:
    """Let a request in prefill hold so many blocks in all."""
    slot = world.slots[place]
    if pool.caching == 0:
        engine.free -= after - slot.held
    else:
        for index in range(slot.held, after):
            world.table[place, index] = _first_free(world, engine)
    slot.held = after


@uncounted()
def occupy(world: World, engine: Any, place: int, hits: int, held: int) -> None:
    """Let a request that is admitted hold so many blocks, of which the first ones, those just found
    in the cache, have its prefix already.
    """
    for index in range(hits):
        block = world.hits[index]
        if world.blocks[block].users == 0:
            _leave_queue(world, engine, world.blocks[block])
        world.blocks[block].users += 1
        world.table[place, index] = block
    for index in range(hits, held):
        world.table[place, index] = _first_free(world, engine)


@uncounted()
def give_back(
    world: World, engine: Any, pool: Any, place: int, held: int, full: int, sought: bool
) -> None:
    """Let a request that leaves give back its blocks, the last first; the full ones keep what they
    hold.

    ``sought``: whether anybody will look for what is its own.
    """
    slot = world.slots[place]
    for index in range(slot.held, held):
        engine.piled -= 1
        world.table[place, index] = world.pile[engine.first_block + engine.piled]
    for index in range(full):
        block = world.table[place, index]
        if world.blocks[block].name == NAMELESS and sought:
            _give_name(world, engine, block, _name_of(world, pool, slot.request, index))
        elif world.blocks[block].name == NAMELESS:
            world.blocks[block].name = UNSOUGHT
    for index in range(held - 1, -1, -1):
        block = world.table[place, index]
        world.blocks[block].users -= 1
        if world.blocks[block].users == 0:
            _join_queue(world, engine, block)
