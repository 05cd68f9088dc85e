"""KV memory in blocks: how many are free and, with prefix caching, which ones, and what they hold.

Without prefix caching blocks are alike and a number says it all: functions get ``None`` for the
cache, which is settled when they are compiled. With it a full block has a *name* that stands for
all tokens up to its end. Who is admitted shares the blocks whose names its prompt begins with.
Blocks that nobody uses stand in a queue, nameless ones in front, and keep their contents until they
are taken from there (vLLM's ``BlockPool``).

A prompt's blocks are listed in the table of its slot. Blocks taken by decodes have no name before
their request leaves, so they are all alike until then: they lie on one pile, from which a request
that leaves takes what it holds.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.kernel import legacy_server as server

BLOCK_SIZE = server.N_OPTIONS  # option: tokens
N_OPTIONS = server.N_OPTIONS + 1

# State.
(
    FREE,  # blocks
    PILED,  # of those in use, on the pile
    REUSED,  # tokens that requests found computed when they were admitted
) = range(server.N_STATE, server.N_STATE + 3)
N_STATE = server.N_STATE + 3

# Columns of `Cache.blocks`.
NAME, USERS, NEXT_FREE, PREV_FREE, NEXT_NAMED, PREV_NAMED = range(6)
N_COLUMNS = 6

NAMELESS = -1

FIRST_NAMED, LAST_NAMED = range(2)
"""Rows of `Cache.buckets`: ends of the list of blocks, the oldest first, whose names fall there."""

# of a name that no other request can have: the place of the block, the number of the request above
OWN_BITS = 25

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]


class Cache(NamedTuple):
    """Which blocks there are, and what they hold.

    Attributes
    ----------
    blocks
        Shape (blocks + 1, 6); the last row is both ends of the queue of blocks that nobody uses.
    buckets
        Shape (2, a power of two): named blocks, by name.
    table
        Shape (slots, most blocks of a request): the listed blocks of each slot.
    pile
        Shape (blocks,): those taken by decodes.
    ids, bounds
        Shape (ids,) and (recorded requests + 1,): the names of the full blocks of recorded prompts
        are ``ids[bounds[row] : bounds[row + 1]]``.
    """

    blocks: Ints
    buckets: Ints
    table: Places
    pile: Ints
    ids: Ints
    bounds: Ints


def new_cache(blocks: int, slots: int, ids: Ints, bounds: Ints) -> Cache:
    """Return so many blocks, none in use and none with a name; the table is still to be given
    columns.
    """
    rows = np.zeros((blocks + 1, N_COLUMNS), np.int64)
    rows[:, NAME] = NAMELESS
    rows[:, NEXT_FREE] = np.roll(np.arange(blocks + 1), -1)
    rows[:, PREV_FREE] = np.roll(np.arange(blocks + 1), 1)
    buckets = np.full((2, 1 << blocks.bit_length()), -1, np.int64)
    return Cache(
        rows, buckets, np.empty((slots, 0), np.int32), np.empty(blocks, np.int64), ids, bounds
    )


@njit(cache=True, forceinline=True)
def blocks_of(tokens: int, size: int) -> Any:
    """Return the blocks that so many tokens need."""
    return (tokens + size - 1) // size


# -- names


@njit(cache=True, forceinline=True)
def _named_by_row(cache: Cache, row: int) -> Any:
    """Return how many blocks of a prompt have names that others may have too."""
    return cache.bounds[row + 1] - cache.bounds[row] if row >= 0 else 0


@njit(cache=True, forceinline=True)
def _name_of(cache: Cache, request: int, row: int, place: int) -> Any:
    """Return the name of a full block of a request: recorded, or its own (below `NAMELESS`)."""
    if place < _named_by_row(cache, row):
        return cache.ids[cache.bounds[row] + place]
    return NAMELESS - 1 - ((request << OWN_BITS) | place)


@njit(cache=True, forceinline=True)
def _bucket(cache: Cache, name: int) -> Any:
    # Recorded names are numbered from 0.
    return (name + (name >> OWN_BITS) * 7919) & (cache.buckets.shape[1] - 1)


@njit(cache=True)
def _holder(cache: Cache, name: int) -> Any:
    """Return the oldest block of that name, or -1."""
    block = cache.buckets[FIRST_NAMED, _bucket(cache, name)]
    while block >= 0 and cache.blocks[block, NAME] != name:
        block = cache.blocks[block, NEXT_NAMED]
    return block


@njit(cache=True)
def _give_name(cache: Cache, block: int, name: int) -> None:
    place = _bucket(cache, name)
    last = cache.buckets[LAST_NAMED, place]
    cache.blocks[block, NAME] = name
    cache.blocks[block, NEXT_NAMED] = -1
    cache.blocks[block, PREV_NAMED] = last
    if last < 0:
        cache.buckets[FIRST_NAMED, place] = block
    else:
        cache.blocks[last, NEXT_NAMED] = block
    cache.buckets[LAST_NAMED, place] = block


@njit(cache=True)
def _forget(cache: Cache, block: int) -> None:
    """Take a block's name."""
    place = _bucket(cache, cache.blocks[block, NAME])
    before, after = cache.blocks[block, PREV_NAMED], cache.blocks[block, NEXT_NAMED]
    if before < 0:
        cache.buckets[FIRST_NAMED, place] = after
    else:
        cache.blocks[before, NEXT_NAMED] = after
    if after < 0:
        cache.buckets[LAST_NAMED, place] = before
    else:
        cache.blocks[after, PREV_NAMED] = before
    cache.blocks[block, NAME] = NAMELESS


@njit(cache=True)
def name_prompt(cache: Cache, request: int, row: int, slot: int, first: int, end: int) -> None:
    """Name the blocks of a prompt from ``first`` on and before ``end``, which a batch fills.

    Those that only the request itself could look for get their names when it leaves.
    """
    for place in range(first, min(end, _named_by_row(cache, row))):
        block = cache.table[slot, place]
        if cache.blocks[block, NAME] == NAMELESS:
            _give_name(cache, block, _name_of(cache, request, row, place))


@njit(cache=True)
def found(options: Ints, cache: Cache, request: int, row: int, target: int, again: bool) -> Any:
    """Return how many blocks hold the beginning of a prompt, and how many of them nobody uses.

    Its last token is always computed. ``again``: the request has run, so blocks of its own may be
    there.
    """
    hits = unused = 0
    most = (target - 1) // options[BLOCK_SIZE]
    if not again:
        most = min(most, _named_by_row(cache, row))
    while hits < most:
        block = _holder(cache, _name_of(cache, request, row, hits))
        if block < 0:
            break
        if cache.blocks[block, USERS] == 0:
            unused += 1
        hits += 1
    return hits, unused


# -- who uses what


@njit(cache=True, forceinline=True)
def _leave_queue(state: Ints, cache: Cache, block: int) -> None:
    before, after = cache.blocks[block, PREV_FREE], cache.blocks[block, NEXT_FREE]
    cache.blocks[before, NEXT_FREE] = after
    cache.blocks[after, PREV_FREE] = before
    state[FREE] -= 1


@njit(cache=True, forceinline=True)
def _join_queue(state: Ints, cache: Cache, block: int) -> None:
    """Put a block without a name to the front of the queue, one with a name to its end."""
    end = cache.blocks.shape[0] - 1
    before = end if cache.blocks[block, NAME] == NAMELESS else cache.blocks[end, PREV_FREE]
    after = cache.blocks[before, NEXT_FREE]
    cache.blocks[block, PREV_FREE] = before
    cache.blocks[block, NEXT_FREE] = after
    cache.blocks[before, NEXT_FREE] = block
    cache.blocks[after, PREV_FREE] = block
    state[FREE] += 1


@njit(cache=True)
def _first_free(state: Ints, cache: Cache) -> Any:
    """Take the first block of the queue; what it held is forgotten."""
    block = cache.blocks[cache.blocks.shape[0] - 1, NEXT_FREE]
    _leave_queue(state, cache, block)
    if cache.blocks[block, NAME] != NAMELESS:
        _forget(cache, block)
    cache.blocks[block, USERS] = 1
    return block


@njit(cache=True, forceinline=True)
def take(state: Ints, cache: Cache | None, count: int) -> None:
    """Take so many blocks for decodes."""
    if cache is None:
        state[FREE] -= count
    else:
        for place in range(state[PILED], state[PILED] + count):
            cache.pile[place] = _first_free(state, cache)
        state[PILED] += count


@njit(cache=True, forceinline=True)
def take_for_prompt(state: Ints, cache: Cache | None, slot: int, held: int, after: int) -> None:
    """Let a request in prefill, which holds some blocks, hold more."""
    if cache is None:
        state[FREE] -= after - held
    else:
        for place in range(held, after):
            cache.table[slot, place] = _first_free(state, cache)


@njit(cache=True)
def occupy(
    state: Ints, cache: Cache, request: int, row: int, slot: int, hits: int, held: int
) -> None:
    """Let a request that is admitted hold so many blocks, of which the first ones have its prefix
    already.
    """
    for place in range(hits):
        block = _holder(cache, _name_of(cache, request, row, place))
        if cache.blocks[block, USERS] == 0:
            _leave_queue(state, cache, block)
        cache.blocks[block, USERS] += 1
        cache.table[slot, place] = block
    take_for_prompt(state, cache, slot, hits, held)


@njit(cache=True)
def give_back(
    state: Ints, cache: Cache, request: int, row: int, slot: int, listed: int, held: int, full: int
) -> None:
    """Let a request that leaves give back its blocks, the last first; the full ones keep what they
    hold.
    """
    for place in range(listed, held):
        state[PILED] -= 1
        cache.table[slot, place] = cache.pile[state[PILED]]
    for place in range(full):
        block = cache.table[slot, place]
        if cache.blocks[block, NAME] == NAMELESS:
            _give_name(cache, block, _name_of(cache, request, row, place))
    for place in range(held - 1, -1, -1):
        block = cache.table[slot, place]
        cache.blocks[block, USERS] -= 1
        if cache.blocks[block, USERS] == 0:
            _join_queue(state, cache, block)
