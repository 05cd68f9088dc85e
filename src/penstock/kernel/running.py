"""Requests that run at an engine and requests that wait there, where both can change places.

Running requests are *slots* in a list, in the order in which the engine keeps them. One in prefill
knows how many tokens are left; one in decode only the *epoch* (number of decode batches) at which
it is due, so that a batch that serves all of them touches none. Memory follows the same idea: a
decoding request takes a block every ``block_size`` epochs, so counting requests by the remainder of
their epoch (*growth*) says what the next batch needs.

A request that is preempted leaves its slot and waits again, with what it must do anew in its row of
``again`` (`penstock.kernel.waiting`).
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, give_back, name_prompt, occupy, take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import chain, unchain
from penstock.kernel.radix import use
from penstock.kernel.records import EVICTED, IN_STEP, NONE_YET, VIDUR_SARATHI, VLLM, World
from penstock.kernel.waiting import comes_before, wait_first

# -- what a running request has done, holds and needs; ``slot`` is its record


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
        return slot.held
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
    return slot.stay > 1 or world.again[request].declared > world.rows[request].decodes + 1


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
def append(world: World, engine: Any, slot: int) -> None:
    """Put a slot at the end of the list."""
    last = engine.last_slot
    world.slots[slot].previous = last
    world.slots[slot].next = -1
    if last < 0:
        engine.first_slot = slot
    else:
        world.slots[last].next = slot
    engine.last_slot = slot


@uncounted(inline=True)
def insert_before(world: World, engine: Any, slot: int, following: int) -> None:
    """Put a slot before another of the list."""
    previous = world.slots[following].previous
    world.slots[slot].previous = previous
    world.slots[slot].next = following
    world.slots[following].previous = slot
    if previous < 0:
        engine.first_slot = slot
    else:
        world.slots[previous].next = slot


@uncounted(inline=True)
def unlink(world: World, engine: Any, slot: int) -> None:
    """Take a slot out of the list."""
    previous = world.slots[slot].previous
    following = world.slots[slot].next
    if previous < 0:
        engine.first_slot = following
    else:
        world.slots[previous].next = following
    if following < 0:
        engine.last_slot = previous
    else:
        world.slots[following].previous = previous


@uncounted(inline=True)
def release(world: World, engine: Any, slot: int) -> None:
    """Give up the slot of a request that leaves the list, if it has not left it already."""
    if world.slots[slot].left != EVICTED:
        unlink(world, engine, slot)
        engine.running -= 1
    clock = world.clock[0]
    world.slots[slot].chain = clock.free_slot
    clock.free_slot = slot
    clock.used_slots -= 1


# -- admission, service and preemption


@uncounted(inline=True)
def peak_of(world: World, pool: Any, request: int) -> Any:
    """Return the most tokens that a waiting request will ever hold."""
    return world.again[request].target + world.again[request].outputs - pool.convention


@uncounted(inline=True)
def admit(world: World, engine: Any, pool: Any, request: int, blocks: int, hits: int) -> Any:
    """Put a request that has left the queue at the end of the running list, holding so many blocks.

    ``hits`` of them have the beginning of its prompt already. Return its slot.
    """
    clock = world.clock[0]
    place = clock.free_slot
    slot = world.slots[place]
    clock.free_slot = slot.chain
    clock.used_slots += 1
    again = world.again[request]
    slot.request = request
    slot.target = again.target
    slot.left = again.target
    slot.outputs = again.outputs
    slot.total = peak_of(world, pool, request)
    slot.held = blocks
    slot.last = again.last
    slot.before = NONE_YET
    slot.shared = slot.named = slot.joined = 0
    slot.taken = slot.drafted = slot.stay = slot.rejected = slot.flight = 0
    append(world, engine, place)
    engine.running += 1
    engine.prefilling += 1
    if pool.caching == 0:
        engine.free -= blocks
    else:
        occupy(world, engine, place, hits, blocks)
        tokens = hits * pool.block_size
        slot.left -= tokens
        engine.waiting_tokens -= tokens
        engine.reused += tokens
        if again.times == 0:
            world.cached[request] = tokens
        add_tokens(world, engine, -tokens)
    return place


@uncounted(inline=True)
def waste_a_decode(engine: Any, slot: Any) -> None:
    """Serve a request that is done when the batch in progress ends, which nobody knows yet."""
    slot.taken = 1
    engine.wasted += 1


@uncounted(inline=True)
def add_tokens(world: World, engine: Any, tokens: int) -> None:
    """Note that an engine has so many tokens more to do than was known."""
    world.servers[engine.server].unprocessed += tokens
    world.clock[0].future += tokens


@uncounted(inline=True)
def serve_prefill(world: World, engine: Any, place: int, tokens: int) -> None:
    """Put so many prompt tokens into the batch."""
    world.slots[place].taken = tokens
    world.slots[place].served_next = -1
    engine.waiting_tokens -= tokens
    if engine.served == 0:
        engine.served_head = place
    else:
        world.slots[engine.served_tail].served_next = place
    engine.served_tail = place
    engine.served += 1


@uncounted()
def serve_begun_prompts(world: World, engine: Any, left: int) -> Any:
    """Serve prompts of those that run, in order; return the tokens left.

    Those in the batch stand at the end from now on, those that are not at the front.
    """
    place = engine.first_slot
    end = engine.last_slot
    front = place
    while place >= 0:
        slot = world.slots[place]
        following = slot.next if place != end else -1
        if slot.left > 0:
            take = min(slot.left, left)
            if take > 0:
                serve_prefill(world, engine, place, take)
                left -= take
                unlink(world, engine, place)
                append(world, engine, place)
            elif place == front:
                front = following
            else:
                unlink(world, engine, place)
                insert_before(world, engine, place, front)
        place = following
    return left


@uncounted()
def name_blocks(world: World, engine: Any, pool: Any, place: int, take: int) -> None:
    """Name the blocks that so many tokens of a prompt fill."""
    done = done_by(engine, world.slots[place])
    name_prompt(world, engine, pool, place, (done + take) // pool.block_size)


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
    slot.grown = slot.held
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
        engine.own -= 1


@uncounted()
def _strike(world: World, engine: Any, place: int) -> None:
    """Take a request in prefill out of the batch that is being formed."""
    engine.served -= 1
    following = world.slots[place].served_next
    if engine.served_head == place:
        engine.served_head = following
        return
    before = engine.served_head
    while world.slots[before].served_next != place:
        before = world.slots[before].served_next
    world.slots[before].served_next = following
    if following < 0:
        engine.served_tail = before


@uncounted(inline=True)
def _named(pool: Any, slot: Any, done: int) -> Any:
    """Return the tokens of a running request of which full blocks have their names.

    What is in the batch has its name already; but a step ahead, what the batch in progress brings
    is not known before the batch after it starts.
    """
    if pool.ahead == 0 or slot.left > 0:
        return done + slot.taken
    flight = slot.flight if pool.drafts > 0 else 1
    return max(slot.target, done - flight + slot.taken)


@uncounted()
def preempt(world: World, engine: Any, pool: Any, place: int) -> Any:
    """Take a running request out, with what it has to do again in ``again``; return it, to be
    queued.
    """
    slot = world.slots[place]
    request = slot.request
    again = world.again[request]
    done = done_by(engine, slot)
    held = held_by(engine, pool, slot)
    full = _named(pool, slot, done) // pool.block_size
    swaps = pool.swap_ticks >= 0
    again.target = slot.target
    again.outputs = slot.outputs
    again.done = done if swaps else 0
    again.times += 1
    if slot.left > 0:
        engine.prefilling -= 1
        engine.waiting_tokens += slot.taken - slot.left
        if slot.taken > 0:  # it was served in this batch already
            _strike(world, engine, place)
        if pool.rule == VIDUR_SARATHI:
            # What it had not processed becomes output: a defect of Vidur's.
            again.target = done
            again.outputs = slot.target + slot.outputs - done
    else:
        left = slot.due - engine.epoch
        engine.decode_tokens -= left
        unchain(world.slots, world.heads[engine.line], world.bits[engine.line], place)
        end_decode(world, engine, pool, slot)
        change_phase(world, engine, request, -1)
        if swaps:
            again.outputs = left + pool.convention
            again.target = slot.total - left
        else:
            again.target = slot.total + pool.convention - left
            again.outputs = left
        if slot.taken > 0:
            engine.served_decodes -= 1
            if pool.drafts > 0:
                engine.verified -= slot.drafted
                engine.rejected -= 1 + slot.drafted - slot.stay
    again.last = slot.last
    engine.waiting_tokens += again.target - again.done
    if pool.radix != 0:
        use(world, engine, slot.end_node, -1)
        slot.joined = 0
    if pool.caching == 0:
        engine.free += held - slot.shared
    else:
        give_back(world, engine, pool, place, held, full, True)
    slot.taken = 0
    release(world, engine, place)
    engine.preempted += 1
    engine.preemptions += 1
    if swaps:
        engine.moved += held
    else:
        engine.lost += done
        add_tokens(world, engine, done)
    return request


@uncounted()
def _evict_ahead(world: World, engine: Any, pool: Any, place: int) -> None:
    """Take the blocks of a request whose last token is in flight; it does nothing again."""
    slot = world.slots[place]
    held = held_by(engine, pool, slot)
    if pool.caching == 0:
        engine.free += held
    else:
        full = _named(pool, slot, slot.total) // pool.block_size
        sought = world.again[slot.request].followed != 0
        give_back(world, engine, pool, place, held, full, sought)
    if ends_unforeseen(world, slot):
        engine.unforeseen -= 1
        engine.wasted -= slot.taken
        engine.verified -= slot.drafted
        engine.rejected -= slot.drafted
    slot.left = EVICTED
    unlink(world, engine, place)
    engine.running -= 1
    engine.preempted += 1
    engine.preemptions += 1
    world.again[slot.request].times += 1


@uncounted(inline=True)
def make_room(world: World, engine: Any, pool: Any, place: int) -> None:
    """Preempt a request, which is then the first that waits."""
    if world.slots[place].left < 0:
        _evict_ahead(world, engine, pool, place)
        return
    wait_first(world, engine, pool, preempt(world, engine, pool, place))


@uncounted()
def decode_all_that_fit(world: World, engine: Any, pool: Any, spare: int) -> None:
    """Serve every decoding request that memory has room for; each must find ``spare`` blocks before
    its own.

    Whether memory suffices for all is one comparison: who is preempted comes from the end of the
    list, so making room one request at a time, as engines do, ends at the same place.
    """
    while engine.decoding > 0:
        grow = growth_of(world, engine, pool)
        if spare > 0:
            last = engine.last_slot
            while world.slots[last].left > 0:
                last = world.slots[last].previous
            grow = max(grow, grow - needs(engine, pool, world.slots[last]) + spare)
        if grow <= engine.free:
            break
        make_room(world, engine, pool, engine.last_slot)
    take_blocks(world, engine, pool, growth_of(world, engine, pool))
    engine.served_decodes = engine.decoding


@uncounted(inline=True)
def victim_of(world: World, engine: Any, pool: Any) -> Any:
    """Return who is preempted next: the last of the list, or the one whose priority puts it
    last.
    """
    if pool.by_priority == 0:
        return engine.last_slot
    victim = engine.first_slot
    place = world.slots[victim].next
    while place >= 0:
        one, other = world.slots[victim].request, world.slots[place].request
        tie = world.again[one].priority == world.again[other].priority
        tie = tie and world.again[one].came == world.again[other].came
        # vLLM's first of equal ones leaves.
        if comes_before(world, one, other) and not (tie and pool.rule == VLLM):
            victim = place
        place = world.slots[place].next
    return victim


@uncounted(inline=True)
def _came_before(world: World, one: int, other: int) -> Any:
    """Return whether the request of a slot came to its replica before that of another."""
    a, b = world.slots[one].request, world.slots[other].request
    return world.ready[a] < world.ready[b] or (world.ready[a] == world.ready[b] and a < b)


@uncounted()
def keep_sorted(world: World, engine: Any, place: int) -> None:
    """Move the last slot of the list to where its arrival puts it."""
    following = world.slots[place].previous
    if following < 0 or _came_before(world, following, place):
        return
    unlink(world, engine, place)
    before = world.slots[following].previous
    while before >= 0 and _came_before(world, place, before):
        following = before
        before = world.slots[following].previous
    insert_before(world, engine, place, following)
