"""Requests at an engine: those that wait, those that run, and how they move from one to the other.

Those that wait are linked through their rows; where the queue goes by rank they are a skew heap.

Running requests are *slots* in a list, in the order in which the engine keeps them. One in prefill
knows how many tokens are left; one in decode only the *epoch* (number of decode batches) at which
it is due, so that a batch that serves all of them touches none. Memory follows the same idea: a
decoding request takes a block every ``block_size`` epochs, so counting requests by the remainder of
their epoch (*growth*) says what the next batch needs.

Who is preempted when KV memory is short leaves its slot and waits again, with what it must do anew
in its row of ``again``.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, give_back, name_blocks, nameable, occupy
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import chain, unchain
from penstock.kernel.engines.sglang_cache import leave
from penstock.kernel.lists import (
    append,
    append_row,
    append_served,
    give_up_slot,
    take_slot,
    unlink,
)
from penstock.kernel.records import (
    CAME_BY_NUMBER,
    CAME_WITH_ARRIVAL,
    EVICTED,
    IN_STEP,
    NONE_YET,
    World,
)

# -- the waiting queue


@uncounted(inline=True)
def comes_before(world: World, one: int, other: int) -> Any:
    """Return whether a request is served before another: by priority, arrival, then row."""
    a, b = world.again[one].rank, world.again[other].rank
    if a != b:
        return a < b
    a, b = world.again[one].came, world.again[other].came
    return a < b or (a == b and one < other)


@uncounted()
def _merged(world: World, one: int, other: int) -> Any:
    """Return the root of two skew heaps made one."""
    root = above = -1
    while one >= 0 and other >= 0:
        if comes_before(world, other, one):
            one, other = other, one
        if above < 0:
            root = one
        else:
            world.again[above].less = one
        above = one
        one = world.again[above].more
        world.again[above].more = world.again[above].less
    rest = max(one, other)
    if above < 0:
        return rest
    world.again[above].less = rest
    return root


@uncounted(inline=True)
def wait_last(world: World, engine: Any, pool: Any, request: int) -> None:
    """Put a request at the end of the queue, or where its priority puts it."""
    engine.waiting += 1
    if pool.came_as != CAME_WITH_ARRIVAL:
        if pool.came_as == CAME_BY_NUMBER:
            engine.age += 1
        world.again[request].came = engine.age
    elif pool.by_priority != 0:
        world.again[request].came = world.ready[request]
    if pool.by_priority != 0:
        world.again[request].less = world.again[request].more = -1
        engine.queue.first = _merged(world, engine.queue.first, request)
        return
    append_row(world.rows, engine.queue, request)


@uncounted(inline=True)
def wait_first(world: World, engine: Any, pool: Any, request: int) -> None:
    """Put a request at the head of the queue, or where its priority puts it."""
    if pool.by_priority != 0:
        wait_last(world, engine, pool, request)
        return
    engine.waiting += 1
    if engine.queue.first < 0:
        engine.queue.last = request
    world.rows[request].next = engine.queue.first
    engine.queue.first = request


@uncounted(inline=True)
def pop_waiting(world: World, engine: Any, pool: Any) -> Any:
    """Take the request that is served next, the first of `ENGINE.queue`, out of the queue."""
    request = engine.queue.first
    engine.waiting -= 1
    if pool.by_priority != 0:
        engine.queue.first = _merged(world, world.again[request].less, world.again[request].more)
    else:
        engine.queue.first = world.rows[request].next
    return request


@uncounted()
def unqueue(world: World, engine: Any, pool: Any, request: int) -> None:
    """Take any request out of the queue."""
    engine.waiting -= 1
    first = engine.queue.first
    after = np.int64(world.rows[request].next)
    if pool.by_priority != 0:
        after = _merged(world, world.again[request].less, world.again[request].more)
    if first == request:
        engine.queue.first = after
        return
    before = first
    if pool.by_priority == 0:
        while world.rows[before].next != request:
            before = world.rows[before].next
        world.rows[before].next = after
        if after < 0:
            engine.queue.last = before
        return
    world.rows[first].next = -1
    while world.again[before].less != request and world.again[before].more != request:
        before = _next_of_heap(world, before)
    if world.again[before].less == request:
        world.again[before].less = after
    else:
        world.again[before].more = after


@uncounted(inline=True)
def _next_of_heap(world: World, request: int) -> Any:
    """Return the request of a heap that is looked at after another, each with those below it: what
    is left to be looked at is linked through their rows.
    """
    left = np.int64(world.rows[request].next)
    for below in (world.again[request].less, world.again[request].more):
        if below >= 0:
            world.rows[below].next = left
            left = np.int64(below)
    return left


@uncounted()
def last_waiting(world: World, engine: Any, pool: Any) -> Any:
    """Return the least urgent of those that wait, of equal ones the last that came, or -1."""
    last = request = engine.queue.first
    if request >= 0 and pool.by_priority != 0:
        world.rows[request].next = -1
    while request >= 0:
        one, other = world.again[last], world.again[request]
        urgency, others = one.rank // pool.evicts, other.rank // pool.evicts
        later = other.came > one.came or (other.came == one.came and request > last)
        if others > urgency or (others == urgency and later):
            last = request
        if pool.by_priority != 0:
            request = _next_of_heap(world, request)
        else:
            request = np.int64(world.rows[request].next)
    return last


@uncounted()
def not_begun(world: World, engine: Any) -> Any:
    """Return how many requests of a running list have got no token yet, and the blocks that are
    kept for them: to a router they wait.
    """
    requests = blocks = 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == slot.target and slot.taken == 0:
            requests += 1
            blocks += slot.blocks
        place = slot.next
    return requests, blocks


@uncounted(inline=True)
def done_by(engine: Any, slot: Any) -> Any:
    """Return the tokens that a running request has processed."""
    if slot.left > 0:
        return slot.target - slot.left
    if slot.left < 0:
        return slot.total
    return slot.total - (slot.due - engine.epoch)


@uncounted(inline=True)
def held_by(engine: Any, pool: Any, slot: Any) -> Any:
    """Return the blocks that a running request holds."""
    if pool.grows == 0 or slot.left > 0:
        return slot.blocks
    if pool.drafts > 0:
        return slot.grown
    if slot.left < 0:
        return blocks_of(slot.total + slot.taken, pool.block_size)
    # Its block is taken, its token not yet counted.
    growing = 1 if slot.taken > 0 else 0
    return blocks_of(done_by(engine, slot) + growing, pool.block_size)


@uncounted(inline=True)
def ends_unforeseen(world: World, slot: Any) -> Any:
    """Return whether a request that is done ends with more tokens than the one that was sure to
    come, or stops before the outputs that it declared: nobody knows before it has.
    """
    request = slot.request
    return slot.brings > 1 or world.again[request].declared > world.rows[request].decodes + 1


@uncounted(inline=True)
def needs(engine: Any, pool: Any, slot: Any) -> Any:
    """Return the blocks, 0 or 1, that the next token of a decoding request needs."""
    if pool.grows == 0 or done_by(engine, slot) % pool.block_size != 0:
        return 0
    return 1


@uncounted(inline=True)
def growth_of(world: World, engine: Any, pool: Any) -> Any:
    """Return the blocks that all decoding requests need together for their next tokens."""
    if pool.grows == 0:
        return 0
    return world.growth[engine.index, engine.epoch % pool.block_size]


@uncounted(inline=True)
def count_growth(world: World, engine: Any, pool: Any, slot: Any, change: int) -> None:
    """Count a decoding request under the epochs at which it needs a block, or no longer."""
    world.growth[engine.index, (slot.due - slot.total) % pool.block_size] += change


@uncounted(inline=True)
def tokens_sent_to(world: World, request: int) -> Any:
    """Return the tokens of KV memory that a request gets from elsewhere."""
    if world.sent.size == 0:
        return 0
    return np.int64(world.sent[request].tokens)


# -- the running list


@uncounted(inline=True)
def leave_list(world: World, engine: Any, slot: int) -> None:
    """Give up the slot of a request that leaves the list, if it has not left it already."""
    if world.slots[slot].left != EVICTED:
        unlink(world.slots, engine.slots, slot)
        engine.running -= 1
    give_up_slot(world, slot)
    world.clock[0].used_slots -= 1


# -- admission and service


@uncounted(inline=True)
def peak_of(world: World, pool: Any, request: int) -> Any:
    """Return the most tokens that a waiting request will ever hold."""
    return world.again[request].target + world.again[request].outputs - pool.convention


@uncounted(inline=True)
def admit(world: World, engine: Any, pool: Any, request: int, blocks: int, hits: int) -> Any:
    """Put a request that has left the queue at the end of the running list, holding so many blocks.

    ``hits`` of them have the beginning of its prompt already. Return its slot.
    """
    place = take_slot(world)
    slot = world.slots[place]
    world.clock[0].used_slots += 1
    again = world.again[request]
    slot.request = request
    slot.target = again.target
    slot.left = again.target
    slot.outputs = again.outputs
    slot.total = peak_of(world, pool, request)
    slot.blocks = blocks
    slot.last = again.last
    slot.before = NONE_YET
    slot.shared = slot.named = slot.joined = 0
    slot.taken = slot.drafted = slot.brings = slot.rejected = slot.flight = 0
    append(world.slots, engine.slots, place)
    engine.running += 1
    engine.prefilling += 1
    if pool.caching == 0:
        engine.free -= blocks
    else:
        occupy(world, engine, place, hits, blocks)
        tokens = hits * pool.block_size
        slot.left -= tokens
        engine.uncomposed_prefill -= tokens
        engine.reused += tokens
        if world.tries.size > 0:
            world.tries[request].found = tokens
        if again.times == 0:
            world.cached[request] = tokens
        add_tokens(world, engine, -tokens)
    return place


@uncounted(inline=True)
def waste_a_decode(engine: Any, slot: Any) -> None:
    """Serve a request that is done when the batch in progress ends, which nobody knows yet."""
    slot.taken = 1
    engine.batch.wasted += 1


@uncounted(inline=True)
def add_tokens(world: World, engine: Any, tokens: int) -> None:
    """Note that an engine has so many tokens more to do than was known."""
    world.servers[engine.server].unprocessed += tokens
    world.clock[0].future += tokens


@uncounted(inline=True)
def serve_prefill(world: World, engine: Any, place: int, tokens: int) -> None:
    """Put so many prompt tokens into the batch."""
    world.slots[place].taken = tokens
    engine.uncomposed_prefill -= tokens
    append_served(world.slots, engine.batch.served, place)
    engine.batch.prompts += 1


@uncounted()
def name_prompt(world: World, engine: Any, pool: Any, place: int, take: int) -> None:
    """Name the blocks that so many tokens of a prompt fill."""
    slot = world.slots[place]
    done = done_by(engine, slot)
    name_blocks(world, engine, pool, place, done + take, np.int64(slot.target))


@uncounted(inline=True)
def flight_of(engine: Any, pool: Any, slot: Any) -> Any:
    """Return how many outputs the batch in progress brings a decoding request, where the next one
    is composed before that is known.
    """
    if engine.ahead.all_fly != 0 and pool.drafts == 0:
        return 1
    return np.int64(slot.flight)


@uncounted()
def name_output(world: World, engine: Any, pool: Any, place: int) -> None:
    """Name the block that a decode fills, whose token is known; a step ahead, the one that was
    filled before those in flight.
    """
    slot = world.slots[place]
    known = done_by(engine, slot) + 1 - flight_of(engine, pool, slot)
    name_blocks(world, engine, pool, place, known, known)


@uncounted(inline=True)
def change_phase(world: World, engine: Any, request: int, change: int) -> None:
    """Count a request in decode (1), or in prefill again (-1), for routers and other pools."""
    stage = world.stages[world.rows[request].stage]
    stage.in_prefill -= change
    stage.in_decode += change
    world.servers[engine.server].work += change * (stage.decode_weight - stage.prefill_weight)


@uncounted(inline=True)
def begin_decode(world: World, engine: Any, pool: Any, place: int, iterations: int) -> None:
    """Let a request decode from the next batch on."""
    slot = world.slots[place]
    slot.grown = slot.blocks
    slot.left = 0
    slot.due = engine.epoch + iterations
    chain(world.slots, world.heads[engine.line], world.bits[engine.line], place)
    count_growth(world, engine, pool, slot, 1)
    engine.decoding += 1
    engine.decode_tokens += iterations
    engine.context_base += slot.total - slot.due
    change_phase(world, engine, slot.request, 1)


@uncounted(inline=True)
def end_decode(world: World, engine: Any, pool: Any, slot: Any) -> None:
    """Let a request that has left the calendar take no more decodes."""
    count_growth(world, engine, pool, slot, -1)
    engine.decoding -= 1
    engine.context_base -= slot.total - slot.due
    if slot.last == IN_STEP:
        slot.last = engine.last_step
    else:
        engine.out_of_step -= 1


# -- preemption


@uncounted()
def _strike(world: World, engine: Any, place: int) -> None:
    """Take a request in prefill out of the batch that is being formed."""
    engine.batch.prompts -= 1
    following = world.slots[place].served_next
    if engine.batch.served.first == place:
        engine.batch.served.first = following
        return
    before = engine.batch.served.first
    while world.slots[before].served_next != place:
        before = world.slots[before].served_next
    world.slots[before].served_next = following
    if following < 0:
        engine.batch.served.last = before


@uncounted(inline=True)
def _named(world: World, engine: Any, pool: Any, slot: Any, done: int) -> Any:
    """Return how many blocks of a running request are full, and can have names.

    What is in the batch has its name already; but a step ahead, what the batch in progress brings
    is not known before the batch after it starts. Of one that came with KV memory, the token that
    its first decode takes was known.
    """
    computed, known = done + np.int64(slot.taken), np.int64(slot.target)
    if slot.left <= 0:
        flight = flight_of(engine, pool, slot)
        came_decoding = world.again[slot.request].times == 0
        if came_decoding and tokens_sent_to(world, slot.request) > 0:
            known = min(known + 1, computed)
        computed, known = max(known, computed - flight), done + 1 - flight
    return nameable(pool, computed, known) // pool.block_size


@uncounted()
def preempt(world: World, engine: Any, pool: Any, place: int) -> Any:
    """Take a running request out, with what it has to do again in ``again``; return it, to be
    queued.
    """
    slot = world.slots[place]
    request = slot.request
    again = world.again[request]
    done = done_by(engine, slot)
    blocks = held_by(engine, pool, slot)
    full = _named(world, engine, pool, slot, done)
    # What it has to do again: its prompt, and what it has made of its outputs.
    again.target = slot.target
    again.outputs = slot.outputs
    again.times += 1
    if slot.left > 0:
        engine.prefilling -= 1
        engine.uncomposed_prefill += slot.taken - slot.left
        if slot.taken > 0:  # it was served in this batch already
            _strike(world, engine, place)
    else:
        left = slot.due - engine.epoch
        engine.decode_tokens -= left
        unchain(world.slots, world.heads[engine.line], world.bits[engine.line], place)
        end_decode(world, engine, pool, slot)
        change_phase(world, engine, request, -1)
        again.target = slot.total + pool.convention - left
        again.outputs = left
        if slot.taken > 0:
            engine.batch.decodes -= 1
            if pool.drafts > 0:
                engine.batch.verified -= slot.drafted
                engine.batch.rejected -= 1 + slot.drafted - slot.brings
    again.last = slot.last  # from which its next time between tokens counts
    engine.uncomposed_prefill += again.target
    if pool.radix != 0:
        leave(world, engine, place)
        again.matched = 0
    # Its blocks keep what they hold: nobody is likelier to look for that than itself.
    if pool.caching == 0:
        engine.free += blocks - slot.shared
    else:
        give_back(world, engine, pool, place, blocks, full, True)
    slot.taken = 0
    leave_list(world, engine, place)
    engine.batch.preempted += 1
    engine.preemptions += 1
    engine.lost += done
    add_tokens(world, engine, done)
    return request


@uncounted()
def _evict_ahead(world: World, engine: Any, pool: Any, place: int) -> None:
    """Take the blocks of a request whose last token is in flight; it does nothing again."""
    slot = world.slots[place]
    if pool.caching == 0:
        engine.free += held_by(engine, pool, slot)
    else:
        give_back_ahead(world, engine, pool, place)
    if ends_unforeseen(world, slot):
        engine.ahead.unforeseen -= 1
        engine.batch.wasted -= slot.taken
        engine.batch.verified -= slot.drafted
        engine.batch.rejected -= slot.drafted
    slot.left = EVICTED
    unlink(world.slots, engine.slots, place)
    engine.running -= 1
    engine.batch.preempted += 1
    engine.preemptions += 1
    world.again[slot.request].times += 1


@uncounted()
def give_back_ahead(world: World, engine: Any, pool: Any, place: int) -> None:
    """Give back the blocks of a request whose last token is in flight."""
    slot = world.slots[place]
    blocks = held_by(engine, pool, slot)
    full = _named(world, engine, pool, slot, np.int64(slot.total))
    sought = world.tries.size > 0 or world.again[slot.request].followed != 0
    give_back(world, engine, pool, place, blocks, full, sought)


@uncounted(inline=True)
def make_room(world: World, engine: Any, pool: Any, place: int) -> None:
    """Preempt a request, which is then the first that waits."""
    if world.slots[place].left < 0:
        _evict_ahead(world, engine, pool, place)
        return
    wait_first(world, engine, pool, preempt(world, engine, pool, place))


@uncounted(inline=True)
def victim_of(world: World, engine: Any, pool: Any, first_of_equals: bool) -> Any:
    """Return who is preempted next: the last of the list, or the one whose priority puts it last;
    of those that came at once with the same, the last row or the first of the list.
    """
    if pool.by_priority == 0:
        return engine.slots.last
    victim = engine.slots.first
    place = world.slots[victim].next
    while place >= 0:
        one, other = world.slots[victim].request, world.slots[place].request
        tie = world.again[one].rank == world.again[other].rank
        tie = tie and world.again[one].came == world.again[other].came
        if comes_before(world, one, other) and not (tie and first_of_equals):
            victim = place
        place = world.slots[place].next
    return victim
