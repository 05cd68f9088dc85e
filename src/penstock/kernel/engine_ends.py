"""What ends with a batch of an engine: tokens, prompts, requests, and the blocks that they held."""

from typing import Any

import numpy as np

from penstock.kernel.blocks import blocks_of, give_back, take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import empty_bucket
from penstock.kernel.recording import note_gaps, note_gaps_within
from penstock.kernel.records import (
    IN_STEP,
    NONE_YET,
    World,
)
from penstock.kernel.releases import finish
from penstock.kernel.running import (
    begin_decode,
    end_decode,
    held_by,
    release,
)


@uncounted(inline=True)
def end_at_engine(world: World, server: int, pool: Any) -> None:
    """Hand out the tokens of the batches that have ended at an engine."""
    replica = world.servers[server]
    engine = world.engines[replica.engine]
    repeat = replica.equal
    decodes = replica.decodes
    # Blocks: those taken after the first of equal batches, and those of who finishes, where they
    # are told apart.
    if repeat > 1:
        take_blocks(world, engine, pool, _grown(world, engine, pool, repeat))
    if pool.caching != 0:
        epoch = engine.epoch + (repeat if decodes > 0 else 0)
        heads = world.heads[engine.line]
        if replica.prefill > 0 or heads[epoch & (heads.size - 1)] >= 0:
            _give_back_of_finished(world, engine, pool, epoch)
    alone = engine.decoding == 0
    if decodes > 0:
        _count_gaps(world, replica, engine, pool)
        engine.last_step = world.clock[0].now
        engine.decode_tokens -= decodes * repeat
        engine.epoch += repeat
        engine.ratio_steps += repeat - 1
        if engine.marked != 0 or engine.everyone == 0:
            _unmark_decodes(world, engine)
        _finish_due(world, replica, engine, pool)
    if replica.prefill > 0:
        _end_prompts(world, replica, engine, pool, decodes > 0 or alone)


@uncounted(inline=True)
def _grown(world: World, engine: Any, pool: Any, repeat: int) -> Any:
    """Return the blocks that all decoding requests take in the batches after the first of so
    many.
    """
    if pool.grows == 0:
        return 0
    size = pool.block_size
    cycles = (repeat - 1) // size
    blocks = cycles * engine.decoding
    growth = world.growth[engine.index]
    place = engine.epoch % size
    for _ in range(1 + cycles * size, repeat):
        place += 1
        if place == size:
            place = 0
        blocks += growth[place]
    return blocks


@uncounted()
def _give_back_of_finished(world: World, engine: Any, pool: Any, epoch: int) -> None:
    """Give back the blocks of requests that finish when this batch ends, at that epoch, in the
    order of the list.
    """
    place = engine.first_slot
    while place >= 0:
        slot = world.slots[place]
        done: Any = -1
        if slot.left == 0:
            if slot.due == epoch:
                done = np.int64(slot.total)
        elif slot.left == slot.taken and slot.outputs == pool.convention:
            done = np.int64(slot.target)
        if done >= 0:
            size = pool.block_size
            give_back(world, engine, place, blocks_of(done, size), done // size)
        place = slot.next


@uncounted(inline=True)
def _count_gaps(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Count the times between tokens of those that decode."""
    in_step = replica.decodes
    if engine.own > 0:
        in_step -= _own_gaps(world, replica, engine, pool)
    if in_step > 0:
        note_gaps(world, replica, pool, engine.last_step, in_step)
    note_gaps_within(world, replica, pool)


@uncounted(inline=True)
def _own_gaps(world: World, replica: Any, engine: Any, pool: Any) -> Any:
    """Count the times between tokens of requests that know when they had their last; return how
    many are served.
    """
    served = 0
    owners = engine.own
    place = engine.last_slot
    while owners > 0:
        slot = world.slots[place]
        if slot.left == 0 and slot.last != IN_STEP:
            owners -= 1
            if engine.everyone != 0 or slot.taken > 0:
                if slot.last == NONE_YET:
                    world.first_token[slot.request] = replica.start + replica.ticks
                else:
                    note_gaps(world, replica, pool, slot.last, 1)
                slot.last = IN_STEP
                engine.own -= 1
                served += 1
        place = slot.previous
    return served


@uncounted()
def _unmark_decodes(world: World, engine: Any) -> None:
    place = engine.first_slot
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            slot.taken = 0
        place = slot.next


@uncounted(inline=True)
def _finish_due(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Let those go that have had all their decodes."""
    place = empty_bucket(world.heads[engine.line], world.bits[engine.line], engine.epoch)
    while place >= 0:
        slot = world.slots[place]
        following = slot.chain
        if pool.caching == 0:
            engine.free += held_by(engine, pool, slot)
        end_decode(world, engine, pool, slot)
        _leave(world, replica, engine, place)
        place = following


@uncounted(inline=True)
def _leave(world: World, replica: Any, engine: Any, place: int) -> None:
    """Let a request go that is done and decodes no more."""
    request = world.slots[place].request
    row = world.rows[request]
    stage = world.stages[row.stage]
    release(world, engine, place)
    engine.finished += 1
    engine.finished_decodes += row.decodes
    engine.is_full = 0
    stage.in_prefill -= 1
    replica.count -= 1
    replica.work -= stage.prefill_weight
    finish(world, request)


@uncounted(inline=True)
def _end_prompts(world: World, replica: Any, engine: Any, pool: Any, in_step: bool) -> None:
    """Move requests whose prompts are done into decode; ``in_step``: their tokens come with all
    others.
    """
    clock = world.clock[0]
    place = engine.served_head
    for _ in range(engine.served):
        slot = world.slots[place]
        following = slot.served_next
        slot.left -= slot.taken
        slot.taken = 0
        if slot.left == 0:
            engine.prefilling -= 1
            decodes = slot.outputs - pool.convention
            if pool.convention != 0 or decodes == 0:
                _first_token(world, replica, pool, slot)
            if decodes == 0:
                if pool.caching == 0:
                    engine.free += slot.held
                _leave(world, replica, engine, place)
            else:
                if pool.convention == 0:
                    engine.own += 1
                elif in_step:
                    slot.last = IN_STEP
                    engine.last_step = clock.now
                else:
                    slot.last = clock.now
                    engine.own += 1
                begin_decode(world, engine, pool, place, decodes)
        place = following


@uncounted(inline=True)
def _first_token(world: World, replica: Any, pool: Any, slot: Any) -> None:
    """Note the token that comes with the end of a prefill: the first one, or after a preemption the
    next.
    """
    if world.first_token[slot.request] < 0:
        world.first_token[slot.request] = world.clock[0].now
    else:
        note_gaps(world, replica, pool, slot.last, 1)
