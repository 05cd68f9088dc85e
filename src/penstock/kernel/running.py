"""The running list of an engine: what its requests have done, hold and need, and how they move on.

Running requests are *slots* in a list, in the order in which the engine keeps them. One in prefill
knows how many tokens are left; one in decode only the *epoch* (number of decode batches) at which
it is due, so that a batch that serves all of them touches none. Memory follows the same idea: a
decoding request takes a block every ``block_size`` epochs, so counting requests by the remainder of
their epoch (*growth*) says what the next batch needs.
"""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, name_blocks, occupy
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import chain
from penstock.kernel.lists import append, append_served, unlink
from penstock.kernel.records import EVICTED, IN_STEP, NONE_YET, World

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
def release(world: World, engine: Any, slot: int) -> None:
    """Give up the slot of a request that leaves the list, if it has not left it already."""
    if world.slots[slot].left != EVICTED:
        unlink(world.slots, engine.slots, slot)
        engine.running -= 1
    clock = world.clock[0]
    world.slots[slot].chain = clock.free_slot
    clock.free_slot = slot
    clock.used_slots -= 1


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
    engine.waiting_tokens -= tokens
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
        engine.out_of_step -= 1
