"""The waiting queue of SGLang beside its cache of prefixes: sorted before each batch of prompts.

What a request ranks by is `AGAIN.rank`: its match, its response ratio, its node, or what the
workload says.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_cache import match, owner_of, shared_tokens
from penstock.kernel.engines.sglang_records import (
    BY_ARRIVAL,
    BY_RANK,
    DFS_WEIGHT,
    LONGEST_MATCH,
    RESPONSE_RATIO,
    SHORTEST_PREFILL,
    settings_of,
    state_of,
)
from penstock.kernel.lists import append_row
from penstock.kernel.records import SORTED_QUEUE, World

LOOKS_BETWEEN_TOUCHES = 32
SHARED_IN_QUEUE = 32  # tokens that make a request wait for another one in the queue

_LATER = 2**40
"""What is added to the rank of those that wait for another one."""

_LAST = 2**63 - 1
"""Their rank by response ratio, and less 0 that of those who need no prefill: no ratio is such."""

_MIXED_BITS = 2**31 - 1


@uncounted()
def look_at_queue(world: World, engine: Any, pool: Any) -> None:
    """Sort the waiting queue, by what the tree has of it where its order asks for that; else only
    touch that now and then.
    """
    order = settings_of(pool).queue_order
    aware = order not in (BY_ARRIVAL, BY_RANK)
    if order in (LONGEST_MATCH, RESPONSE_RATIO) and engine.waiting > SORTED_QUEUE:
        aware = False
    if aware:
        _match_all(world, engine, pool)
    if order == DFS_WEIGHT:
        _weigh(world, engine, 1)
        _sort(world, engine, pool)
        _weigh(world, engine, 0)
    elif aware or order == BY_RANK:
        _sort(world, engine, pool)
    if not aware:
        _touch_all(world, engine, pool)


@uncounted()
def _touch_all(world: World, engine: Any, pool: Any) -> None:
    """Touch the prefixes of all that wait, at every 32nd look, the first of the queue last."""
    state = state_of(engine)
    state.looks_at_queue += 1
    if state.looks_at_queue % LOOKS_BETWEEN_TOUCHES != 1:
        return
    count = 0
    request = engine.queue.first
    while request >= 0 and count < SORTED_QUEUE:
        world.lives[count, 0] = request
        count += 1
        request = np.int64(world.rows[request].next)
    for index in range(count - 1, -1, -1):
        request = world.lives[index, 0]
        match(world, engine, pool, request, world.again[request].target // pool.block_size)


@uncounted()
def tokens_beside_shorter(world: World, engine: Any, pool: Any, chunk: int, left: int) -> Any:
    """Return the most tokens of a request in mid-prefill that lacks so many, so that those of the
    queue fit beside it in a chunk that are shorter (``shortest_prefill_chunk_limit``).
    """
    size = pool.block_size
    if chunk < 2 * size:
        return np.int64(left)
    reserved = 0
    request = engine.queue.first
    while request >= 0:
        work = world.again[request].target - world.again[request].matched
        paged = blocks_of(work, size) * size
        if work >= left or reserved + paged > chunk - size:
            break
        reserved += paged
        request = np.int64(world.rows[request].next)
    if reserved == 0:
        return np.int64(left)
    return (chunk - reserved) // size * size


# -- ranks


@uncounted()
def _match_all(world: World, engine: Any, pool: Any) -> None:
    """Rank all that wait by what the tree has of them; last those that begin as an earlier one does
    of which the tree has little.
    """
    order = settings_of(pool).queue_order
    request = engine.queue.first
    root = -1  # of the beginnings
    while request >= 0:
        again = world.again[request]
        matched, end = match(world, engine, pool, request, again.target // pool.block_size)
        tokens = min(matched * pool.block_size, np.int64(again.target) - 1)
        again.matched = tokens
        is_later = False
        if order == DFS_WEIGHT:
            again.rank = end
        elif matched * pool.block_size <= SHARED_IN_QUEUE:
            is_later = _begins_like_one(world, pool, request, root)
            if root < 0:
                root = request
        if order == LONGEST_MATCH:
            again.rank = _LATER if is_later else -tokens
        elif order == SHORTEST_PREFILL:
            again.rank = again.target - tokens + (_LATER if is_later else 0)
        elif order == RESPONSE_RATIO:
            again.rank = _LAST if is_later else _by_ratio(world, engine, request)
        request = np.int64(world.rows[request].next)


@uncounted(inline=True)
def _by_ratio(world: World, engine: Any, request: int) -> Any:
    """Return the rank of a request by tokens processed since it came for each of its prompt that
    the tree lacks: the bits of a number that is not negative grow with it.
    """
    again = world.again[request]
    missing = np.int64(world.rows[request].left) - again.matched
    if missing <= 0:
        return np.int64(-_LAST)
    return -np.float64((engine.age - again.came) / missing).view(np.int64)


@uncounted()
def _begins_like_one(world: World, pool: Any, request: int, root: int) -> Any:
    """Return whether a request begins as one does that was looked at before; else let it be found
    by those behind it, in a tree by `_beginning`.
    """
    again = world.again[request]
    again.less = again.more = -1
    beginning = _beginning(world, pool, request)
    place = np.int64(root)
    while place >= 0:
        other = _beginning(world, pool, place)
        if beginning == other and _begin_alike(world, pool, request, place):
            return True
        above = world.again[place]
        if beginning < other:
            place = np.int64(above.less)
            if place < 0:
                above.less = request
        else:
            place = np.int64(above.more)
            if place < 0:
                above.more = request
    return False


@uncounted(inline=True)
def _beginning(world: World, pool: Any, request: int) -> Any:
    """Return a number that those have in common who begin alike."""
    again = world.again[request]
    ids = _ids_of_beginning(pool)
    if again.prefix < 0 or _named_before(world, request) < ids * pool.hash_block:
        number = world.clock[0].requests_before + request
        return _mixed(0, owner_of(world, number, SHARED_IN_QUEUE))
    mixed = 0
    for index in range(ids):
        mixed = _mixed(mixed, world.ids[world.bounds[again.prefix] + index])
    return mixed


@uncounted(inline=True)
def _mixed(mixed: int, name: int) -> Any:
    return (((mixed ^ name) & _MIXED_BITS) * 1103515245) & _MIXED_BITS


@uncounted(inline=True)
def _named_before(world: World, request: int) -> Any:
    """Return how many tokens of a request's prefill recorded ids name."""
    again = world.again[request]
    return min(np.int64(again.named), np.int64(again.target))


@uncounted(inline=True)
def _ids_of_beginning(pool: Any) -> Any:
    """Return how many recorded ids name as many tokens as make two requests begin alike."""
    return (SHARED_IN_QUEUE + pool.hash_block - 1) // pool.hash_block


@uncounted(inline=True)
def _begin_alike(world: World, pool: Any, one: int, other: int) -> Any:
    """Return whether two prompts share so many tokens that one waits for the other."""
    if shared_tokens(world, one, other) >= SHARED_IN_QUEUE:
        return True
    a, b = np.int64(world.again[one].prefix), np.int64(world.again[other].prefix)
    if a < 0 or b < 0:
        return False
    ids = _ids_of_beginning(pool)
    for request in (one, other):
        if _named_before(world, request) < ids * pool.hash_block:
            return False
    for index in range(ids):
        if world.ids[world.bounds[a] + index] != world.ids[world.bounds[b] + index]:
            return False
    return True


@uncounted()
def _weigh(world: World, engine: Any, weight: int) -> None:
    """Count (with 0: forget) at each node how many that wait end with it or beyond."""
    request = engine.queue.first
    while request >= 0:
        place = np.int64(world.again[request].rank)
        while place != engine.tree.root:
            node = world.nodes[place]
            node.weight = (node.weight + 1) * weight
            place = np.int64(node.parent)
        request = np.int64(world.rows[request].next)


# -- sorting


@uncounted()
def _sort(world: World, engine: Any, pool: Any) -> None:
    """Sort the waiting queue for good, by merging what is in order already; equal ones stay as they
    stand.
    """
    while True:
        rest = engine.queue.first
        engine.queue.first = engine.queue.last = -1
        runs = 0
        while rest >= 0:
            one = rest
            other = _cut_behind_run(world, engine, pool, one)
            rest = _cut_behind_run(world, engine, pool, other)
            runs += 1
            while one >= 0 or other >= 0:
                if one < 0 or (other >= 0 and _goes_before(world, engine, pool, other, one)):
                    request = other
                    other = np.int64(world.rows[other].next)
                else:
                    request = one
                    one = np.int64(world.rows[one].next)
                append_row(world.rows, engine.queue, request)
        if runs <= 1:
            return


@uncounted()
def _cut_behind_run(world: World, engine: Any, pool: Any, first: int) -> Any:
    """Cut the queue behind those that are in order, from one on; return who comes next, or -1."""
    place = np.int64(first)
    while place >= 0:
        following = np.int64(world.rows[place].next)
        if following >= 0 and _goes_before(world, engine, pool, following, place):
            world.rows[place].next = -1
            return following
        place = following
    return np.int64(-1)


@uncounted(inline=True)
def _goes_before(world: World, engine: Any, pool: Any, one: int, other: int) -> Any:
    """Return whether one that waits must be served before another."""
    a, b = world.again[one], world.again[other]
    order = settings_of(pool).queue_order
    if order == DFS_WEIGHT:
        return _is_visited_before(world, engine, np.int64(a.rank), np.int64(b.rank))
    if a.rank != b.rank:
        return a.rank < b.rank
    if order == LONGEST_MATCH:
        return False
    if order == RESPONSE_RATIO:
        return one < other
    return a.came < b.came


@uncounted()
def _is_visited_before(world: World, engine: Any, one: Any, other: Any) -> Any:
    """Return whether a search that goes down first, to where most are, then to the older, and comes
    to a node after all beyond it, is at one node before another.
    """
    a = b = np.int64(-1)
    while one != other:
        up = one != engine.tree.root
        if up and other != engine.tree.root:
            up = world.nodes[one].first >= world.nodes[other].first
        if up:
            a = one
            one = np.int64(world.nodes[one].parent)
        else:
            b = other
            other = np.int64(world.nodes[other].parent)
    if a < 0 or b < 0:
        return a >= 0
    if world.nodes[a].weight != world.nodes[b].weight:
        return world.nodes[a].weight > world.nodes[b].weight
    return world.nodes[a].born < world.nodes[b].born
