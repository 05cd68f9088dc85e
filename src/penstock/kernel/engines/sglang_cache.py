"""SGLang's cache of prefixes: a tree of pages, whose leaves are given up, the oldest first.

A node is a run of pages of some prompt, what leads to it are its parents. What its pages hold is
said by whom they came from: recorded ids, and tokens that are a request's own. Who uses a node uses
all that leads to it. Leaves that nobody uses stand in a list, in the order in which they were
touched last.

What a request computed goes into the tree when its prefill (or a chunk of it) is complete and when
it finishes; pages that the tree had already are given back. A retracted request leaves nothing.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.blocks import OWN_BITS
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import NEVER
from penstock.kernel.lists import (
    append_joined,
    append_leaf,
    insert_leaf,
    unlink_joined,
    unlink_leaf,
)
from penstock.kernel.records import IN_FLIGHT, World


@uncounted(inline=True)
def _source(world: World, pool: Any, request: int) -> Any:
    """Return what says what a request's pages hold: its number, its recorded row, and how many
    pages the ids of that name.
    """
    again = world.again[request]
    number = world.clock[0].requests_before + request
    return number, np.int64(again.prefix), again.named // pool.block_size


@uncounted(inline=True)
def _page(world: World, pool: Any, source: Any, index: int) -> Any:
    """Return the name of a page: by the ids of its prompt, or of the request that it comes from
    (below 0).
    """
    number, row, named = source
    size, block = pool.block_size, pool.hash_block
    if index >= named:
        return -1 - ((owner_of(world, number, (index + 1) * size) << OWN_BITS) | index)
    first = world.bounds[row]
    if size >= block:  # ids stand for all that is before them too
        return world.ids[first + (index + 1) * size // block - 1]
    return world.ids[first + index * size // block] * (block // size) + index % (block // size)


@uncounted(inline=True)
def owner_of(world: World, number: int, tokens: int) -> Any:
    """Return the number of the first request of a job that has the first tokens of another."""
    before = world.clock[0].requests_before
    owner = np.int64(number - before)
    if owner < 0:  # nobody goes on with a job that is forgotten
        return number
    while tokens <= world.reuse[owner]:
        owner += world.context[owner]
    return before + owner


@uncounted(inline=True)
def shared_tokens(world: World, one: int, other: int) -> Any:
    """Return how many tokens two requests have of the same request of their job."""
    tokens = np.int64(NEVER)
    while one != other and tokens > 0:
        later = max(one, other)  # whose context stands before it
        tokens = min(tokens, np.int64(world.reuse[later]))
        earlier = later + world.context[later]
        one, other = min(one, other), earlier
    return tokens


@uncounted(inline=True)
def _equal_pages(world: World, pool: Any, node: Any, source: Any, end: int) -> Any:
    """Return how many of a node's pages are those of a request, which has so many in all."""
    end = min(end, node.first + node.length)
    number, _, named = source
    if node.number == number:
        return end - node.first
    index = np.int64(node.first)
    # What both have by recorded ids.
    recorded = min(end, min(named, node.named))
    pages = max(pool.hash_block // pool.block_size, 1)  # of an id
    theirs = (node.number, np.int64(node.row), np.int64(node.named))
    while index < recorded:
        if _page(world, pool, source, index) != _page(world, pool, theirs, index):
            return max(index - node.first, 0)
        index = (index // pages + 1) * pages
    # Then what is a context of both; of jobs that are forgotten nobody goes on with any.
    before = world.clock[0].requests_before
    equal = max(np.int64(node.first), recorded)
    if node.number >= before:
        shared = shared_tokens(world, number - before, node.number - before) // pool.block_size
        equal = max(equal, min(end, shared))
    return equal - node.first


# -- the tree


@uncounted(inline=True)
def _bucket(engine: Any, parent: int, page: int) -> Any:
    mixed = (page ^ (page >> OWN_BITS)) * 7919 + parent * 104729
    return engine.cache.first_bucket + (mixed & (engine.cache.buckets - 1))


@uncounted(inline=True)
def _child(world: World, engine: Any, parent: int, page: int) -> Any:
    """Return the child of a node that begins with a page, or -1."""
    place = world.buckets[_bucket(engine, parent, page)].first
    while place >= 0:
        node = world.nodes[place]
        if node.parent == parent and page == node.page:
            break
        place = np.int64(node.next_named)
    return place


@uncounted(inline=True)
def _adopt(world: World, engine: Any, place: int) -> None:
    """Let a node be found from its parent."""
    node = world.nodes[place]
    bucket = world.buckets[_bucket(engine, node.parent, node.page)]
    node.next_named = bucket.first
    bucket.first = place


@uncounted()
def _disown(world: World, engine: Any, place: int) -> None:
    """Let a node be found no more."""
    node = world.nodes[place]
    bucket = world.buckets[_bucket(engine, node.parent, node.page)]
    other = bucket.first
    if other == place:
        bucket.first = node.next_named
        return
    while world.nodes[other].next_named != place:
        other = world.nodes[other].next_named
    world.nodes[other].next_named = node.next_named


@uncounted(inline=True)
def _new_node(world: World, engine: Any, parent: int, first: int, length: int) -> Any:
    place = engine.tree.free_node
    if place >= 0:
        engine.tree.free_node = world.nodes[place].next_named
    else:
        place = engine.tree.root + engine.tree.nodes
        engine.tree.nodes += 1
    node = world.nodes[place]
    node.parent = parent
    node.first = first
    node.length = length
    node.users = node.children = node.weight = 0
    return place


@uncounted()
def _split(world: World, engine: Any, pool: Any, place: int, length: int) -> Any:
    """Cut a node behind so many pages; return the part before the cut, touched first."""
    node = world.nodes[place]
    _disown(world, engine, place)
    before = _new_node(world, engine, node.parent, node.first, length)
    part = world.nodes[before]
    part.row = node.row
    part.named = node.named
    part.number = node.number
    part.page = node.page
    part.users = node.users
    part.born = node.born
    part.children = 1
    node.first += length
    node.length -= length
    node.parent = before
    source = (node.number, np.int64(node.row), np.int64(node.named))
    node.page = _page(world, pool, source, node.first)
    _adopt(world, engine, before)
    _adopt(world, engine, place)
    _touch(world, engine, before)
    _touch(world, engine, place)
    return before


@uncounted()
def match(world: World, engine: Any, pool: Any, request: int, pages: int) -> Any:
    """Return how many of the first pages of a request are there, and the node that they end with.

    They are touched, those nearest to the root the longest ago.
    """
    source = _source(world, pool, request)
    place, matched = engine.tree.root, 0
    while matched < pages:
        page = _page(world, pool, source, matched)
        child = _child(world, engine, place, page)
        if child < 0:
            break
        place = child
        equal = _equal_pages(world, pool, world.nodes[place], source, pages)
        matched += equal
        if equal < world.nodes[place].length:
            place = _split(world, engine, pool, place, equal)
            break
    # Numbers for all on the way at once: the node itself is touched last.
    step = place
    while step != engine.tree.root:
        engine.tree.touches += 1
        step = world.nodes[step].parent
    now = engine.tree.touches
    step = place
    while step != engine.tree.root:
        node = world.nodes[step]
        listed = node.users == 0 and node.children == 0
        if listed:
            _unlist(world, engine, step)
        node.touched = now
        if listed:
            _list(world, engine, step)
        now -= 1
        step = node.parent
    return matched, place


@uncounted()
def pages_in_tree(world: World, engine: Any, pool: Any, request: int, pages: int) -> Any:
    """Return how many of the first pages of a request are there, without touching them."""
    source = _source(world, pool, request)
    place, matched = engine.tree.root, 0
    while matched < pages:
        place = _child(world, engine, place, _page(world, pool, source, matched))
        if place < 0:
            break
        equal = _equal_pages(world, pool, world.nodes[place], source, pages)
        matched += equal
        if equal < world.nodes[place].length:
            break
    return matched


@uncounted()
def insert(world: World, engine: Any, pool: Any, request: int, pages: int) -> Any:
    """Add the first pages of a request; those that are there stay, and the others are one new leaf,
    which takes free ones. Return the node that they end with.
    """
    source = _source(world, pool, request)
    place, matched = engine.tree.root, 0
    while matched < pages:
        page = _page(world, pool, source, matched)
        child = _child(world, engine, place, page)
        if child < 0:
            break
        place = child
        _touch(world, engine, place)
        equal = _equal_pages(world, pool, world.nodes[place], source, pages)
        matched += equal
        if equal < world.nodes[place].length:
            place = _split(world, engine, pool, place, equal)
    if matched == pages:
        return place
    # The rest is a leaf, whose pages are the request's: free ones no longer, though the tree may
    # give them up as soon as nobody uses them.
    parent = world.nodes[place]
    if place != engine.tree.root and parent.users == 0 and parent.children == 0:
        _unlist(world, engine, place)
    parent.children += 1
    page = _page(world, pool, source, matched)
    leaf = _new_node(world, engine, place, matched, pages - matched)
    node = world.nodes[leaf]
    node.number, node.row, node.named = source
    node.page = page
    _adopt(world, engine, leaf)
    engine.tree.touches += 1
    node.touched = node.born = engine.tree.touches
    _list(world, engine, leaf)
    engine.evictable += pages - matched
    engine.free -= pages - matched
    return leaf


# -- who uses what


@uncounted()
def use(world: World, engine: Any, place: Any, users: int) -> None:
    """Add (or, below 0, take away) users of a node and of all that leads to it."""
    step: Any = place
    while step != engine.tree.root:
        node = world.nodes[step]
        if node.users == 0:
            engine.evictable -= node.length
            if node.children == 0:
                _unlist(world, engine, step)
        node.users += users
        if node.users == 0:
            engine.evictable += node.length
            if node.children == 0:
                _list(world, engine, step)
        step = np.int64(node.parent)


@uncounted(inline=True)
def unused_before(world: World, engine: Any, place: Any) -> Any:
    """Return the pages up to the end of a node that nobody uses."""
    pages = 0
    step: Any = place
    while step != engine.tree.root and world.nodes[step].users == 0:
        pages += world.nodes[step].length
        step = np.int64(world.nodes[step].parent)
    return pages


@uncounted()
def make_free(world: World, engine: Any, pool: Any, pages: int) -> None:
    """Give up leaves until so many pages are free, or none is left to give up."""
    while engine.free < pages and engine.tree.leaves.first >= 0:
        place = engine.tree.leaves.first
        node = world.nodes[place]
        _unlist(world, engine, place)
        _disown(world, engine, place)
        engine.free += node.length
        engine.evictable -= node.length
        above = np.int64(node.parent)
        parent = world.nodes[above]
        parent.children -= 1
        if above != engine.tree.root and parent.users == 0 and parent.children == 0:
            _list(world, engine, above)
        node.next_named = engine.tree.free_node
        engine.tree.free_node = place


@uncounted()
def _touch(world: World, engine: Any, place: int) -> None:
    """Note that a node is used now."""
    node = world.nodes[place]
    listed = node.users == 0 and node.children == 0
    if listed:
        _unlist(world, engine, place)
    engine.tree.touches += 1
    node.touched = engine.tree.touches
    if listed:
        _list(world, engine, place)


@uncounted()
def _list(world: World, engine: Any, place: int) -> None:
    """Put a leaf that nobody uses among the others: most were touched after all or before all."""
    node = world.nodes[place]
    newest = engine.tree.leaves.last
    if newest < 0 or world.nodes[newest].touched <= node.touched:
        append_leaf(world.nodes, engine.tree.leaves, place)
        return
    newer = engine.tree.leaves.first
    while world.nodes[newer].touched < node.touched:
        newer = np.int64(world.nodes[newer].newer)
    insert_leaf(world.nodes, engine.tree.leaves, place, newer)


@uncounted()
def _unlist(world: World, engine: Any, place: int) -> None:
    """Take a leaf off that list."""
    unlink_leaf(world.nodes, engine.tree.leaves, place)


# -- what requests leave there


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
        if slot.left == IN_FLIGHT:
            _leave_in_tree(world, engine, pool, place, slot.total + slot.taken)
        else:
            keep(world, engine, pool, place, np.int64(slot.target))
            slot.joined = 0
        place = np.int64(slot.next_joined)
    engine.tree.joined.first = engine.tree.joined.last = -1
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
def leave(world: World, engine: Any, place: int) -> None:
    """Let a request that gives up its place use the tree no more, nor join when the batch ends."""
    slot = world.slots[place]
    use(world, engine, slot.end_node, -1)
    if slot.joined != 0:
        unlink_joined(world.slots, engine.tree.joined, place)
        slot.joined = 0


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def give_up(world: World, engine: Any, pool: Any, pages: int) -> None:
    """Let the cache give up pages until so many are free."""
    make_free(world, engine, pool, pages)


@apart(NUMBER(A_WORLD, AN_ENGINE, A_POOL, NUMBER, NUMBER))
def pages_found(world: World, engine: Any, pool: Any, request: int, pages: int) -> Any:
    """Return how many of the first pages of a request the cache has."""
    return pages_in_tree(world, engine, pool, request, pages)
