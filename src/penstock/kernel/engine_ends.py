"""What ends with a batch of an engine: tokens, prompts, requests, and the blocks that they held."""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.blocks import blocks_of, give_back, name_blocks, nameable, take_blocks
from penstock.kernel.clients import leave_unserved
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import ticks_of
from penstock.kernel.drafts import forget_rejected, keep_accepted, know_rejected
from penstock.kernel.due_epochs import empty_bucket
from penstock.kernel.engines.sglang_cache import keep_ahead, keep_at_end, note_joined
from penstock.kernel.in_progress import begun_again
from penstock.kernel.lists import append_leaving
from penstock.kernel.recording import count_stall, note_gaps, note_gaps_within
from penstock.kernel.records import (
    COMPOSED,
    IN_FLIGHT,
    IN_STEP,
    NONE_YET,
    World,
)
from penstock.kernel.releases import finish
from penstock.kernel.running import (
    begin_decode,
    change_phase,
    done_by,
    end_decode,
    ends_unforeseen,
    held_by,
    leave_list,
    tokens_sent_to,
)


@uncounted()
def compute_run(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Compute all batches of a run of decodes but one: the last, which `advance_engine` computes
    next, or, where the batch after the run is `COMPOSED`, the first, which was when it started.
    """
    again = replica.equal - 1
    take_blocks(world, engine, pool, grown(world, engine, pool, replica.equal) - engine.settled)
    engine.settled = 0
    note_gaps_within(world, replica, pool)
    engine.decode_tokens -= replica.decodes * again
    engine.epoch += again
    engine.repeats += again
    if pool.ahead != 0 and engine.ahead.next_batch == COMPOSED:
        engine.last_step = world.clock[0].now
        planned = world.planned[engine.index]
        if planned.plain < 0:
            planned.cost += again * planned.rise
            planned.ticks = ticks_of(planned.cost)


@uncounted()
def advance_engine(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Compute the batch in progress, or the last of a run: requests have its tokens when it ends.

    Composed ahead, that is before it ends, at the tick ``flight_end``, and who finishes stays until
    then.
    """
    decodes = replica.decodes - replica.verified - engine.batch.wasted
    # What is computed goes into a cache before anybody leaves. All slots are gone through for that,
    # so only where a prompt ends or somebody is due.
    if pool.radix != 0 and pool.ahead == 0:
        epoch = engine.epoch + (1 if decodes > 0 else 0)
        heads = world.heads[engine.line]
        if replica.prefill > 0 or heads[epoch & (heads.size - 1)] >= 0:
            keep_at_end(world, engine, pool, epoch)
    alone = engine.decoding == 0
    if pool.drafts > 0:
        _count_kept(world, keep_accepted(world, engine, pool))
    if pool.caching != 0 and pool.ahead == 0:
        epoch = engine.epoch + (1 if decodes > 0 else 0)
        heads = world.heads[engine.line]
        if replica.prefill > 0 or heads[epoch & (heads.size - 1)] >= 0:
            give_back_of_finished(world, engine, pool, epoch)
    # Decodes before prompts: those whose prompt ends with this batch decode from the next one on.
    if decodes > 0:
        _count_gaps(world, replica, engine, pool)
        engine.ahead.step_before = engine.last_step
        engine.last_step = _end_of(world, engine, pool)
        engine.decode_tokens -= decodes - engine.batch.gone
        engine.epoch += 1
        engine.barren = 0
        if engine.batch.is_marked != 0 or engine.batch.serves_all == 0:
            _unmark_decodes(world, engine, pool)
        elif pool.ahead != 0:
            engine.ahead.all_fly = 1
        _finish_due(world, replica, engine, pool)
    if replica.prefill > 0:
        _end_prompts(world, replica, engine, pool, decodes > 0 or alone)
    if pool.ahead == 0 and pool.drafts > 0 and pool.names_outputs != 0:
        name_known(world, engine, pool)


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL))
def name_known(world: World, engine: Any, pool: Any) -> None:
    """Name the blocks of outputs that are full now that a batch has ended, of those who go on."""
    # Whom the next batch, composed already, leaves out has been put off.
    puts_off = pool.ahead != 0 and engine.batch.serves_all == 0 and engine.batch.decodes > 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            done = done_by(engine, slot)
            if puts_off and slot.taken == 0:
                done += 1
            name_blocks(world, engine, pool, place, done, done + 1)
        place = slot.next


@uncounted(inline=True)
def _count_kept(world: World, tokens: int) -> None:
    """Count tokens that come together with others of their request."""
    if tokens > 0:
        count_stall(world.clock[0], world.stalls, 0, tokens, world.clock[0].gap_bits)


@uncounted(inline=True)
def _end_of(world: World, engine: Any, pool: Any) -> Any:
    """Return the tick at which the tokens of the batch are out."""
    if pool.ahead != 0:
        return engine.ahead.flight_end
    return world.clock[0].now


@uncounted()
def settle(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Let decodes of the run in progress have the blocks that they have taken up to now."""
    if replica.equal > 1:
        blocks = grown(world, engine, pool, begun_again(replica, world.clock[0].now) + 1)
        take_blocks(world, engine, pool, blocks - engine.settled)
        engine.settled = blocks


@uncounted(inline=True)
def grown(world: World, engine: Any, pool: Any, repeat: int) -> Any:
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


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER))
def give_back_of_finished(world: World, engine: Any, pool: Any, epoch: int) -> None:
    """Give back the blocks of requests that finish when this batch ends, at that epoch, in the
    order of the list.
    """
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        gone = engine.gone > 0 and world.tries[slot.request].gone >= 0
        ends = slot.left == IN_FLIGHT and not gone
        if pool.ahead == 0 and slot.left == 0:
            ends = slot.due == epoch
        elif pool.ahead == 0:
            right = max(slot.brings - 1, 0)  # drafts beside its last token
            ends = slot.left == slot.taken and slot.outputs == pool.convention + right
        if ends:
            wasted = slot.taken if slot.left == IN_FLIGHT else 0
            blocks: Any = blocks_of(slot.total + wasted, pool.block_size)
            if pool.drafts > 0:
                blocks = np.int64(slot.blocks if slot.left > 0 else slot.grown)
            sought = world.again[slot.request].followed != 0
            total = np.int64(slot.total)
            full = nameable(pool, total, total + pool.convention) // pool.block_size
            give_back(world, engine, pool, place, blocks, full, sought)
        place = slot.next


@uncounted(inline=True)
def _count_gaps(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Count the times between tokens of those that decode."""
    in_step = replica.decodes - replica.verified - engine.batch.wasted - engine.batch.gone
    if engine.out_of_step > 0:
        in_step -= _own_gaps(world, replica, engine, pool)
    if in_step > 0:
        note_gaps(world, replica, pool, engine.last_step, in_step)


@uncounted(inline=True)
def _own_gaps(world: World, replica: Any, engine: Any, pool: Any) -> Any:
    """Count the times between tokens of requests that know when they had their last; return how
    many are served.
    """
    served = 0
    owners = engine.out_of_step
    place = engine.slots.last
    while owners > 0:
        slot = world.slots[place]
        if slot.left == 0 and slot.last != IN_STEP:
            owners -= 1
            if engine.batch.serves_all != 0 or slot.taken > 0:
                if slot.last == NONE_YET:
                    world.first_token[slot.request] = replica.start + replica.ticks
                    engine.without_first -= world.rows[slot.request].left
                    _gap_from_elsewhere(world, replica, pool, slot.request)
                else:
                    note_gaps(world, replica, pool, slot.last, 1)
                slot.before = slot.last
                slot.last = IN_STEP
                engine.out_of_step -= 1
                served += 1
        place = slot.previous
    return served


@uncounted(inline=True)
def _gap_from_elsewhere(world: World, replica: Any, pool: Any, request: int) -> None:
    """Count the time since the token that came before a request's KV memory was sent here."""
    if tokens_sent_to(world, request) > 0:
        before = world.finish[request + world.sent[request].sender]
        note_gaps(world, replica, pool, before, 1)


@uncounted()
def _unmark_decodes(world: World, engine: Any, pool: Any) -> None:
    if pool.ahead != 0:
        engine.ahead.some_fly = 1
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            if pool.ahead != 0 and pool.drafts == 0:
                slot.flight = slot.taken
            slot.taken = 0
        place = slot.next


@uncounted(inline=True)
def _finish_due(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Let those go that have had all their decodes."""
    place = empty_bucket(world.heads[engine.line], world.bits[engine.line], engine.epoch)
    while place >= 0:
        slot = world.slots[place]
        following = slot.chain
        if pool.ahead == 0 and pool.caching == 0:
            engine.free += held_by(engine, pool, slot) - slot.shared
        end_decode(world, engine, pool, slot)
        if pool.ahead == 0:
            change_phase(world, engine, slot.request, -1)
            _leave(world, replica, engine, place)
        else:
            _stay(world, engine, place)
        place = following


@uncounted(inline=True)
def _stay(world: World, engine: Any, place: int) -> None:
    """Let a request whose last token is in flight keep its slot and blocks until that is out."""
    slot = world.slots[place]
    slot.left = IN_FLIGHT
    slot.due = engine.epoch
    if ends_unforeseen(world, slot):
        engine.ahead.unforeseen += 1
    append_leaving(world.slots, engine.ahead.leaving, place)


@uncounted(inline=True)
def let_go(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Let those go whose last tokens are out now."""
    # What was in flight is known now, and names of blocks may be given that stand for it.
    engine.ahead.all_fly = 0
    if pool.drafts > 0 or (pool.caching != 0 and engine.ahead.some_fly != 0):
        know_rejected(world, engine)
        engine.ahead.some_fly = 0
    place = engine.ahead.leaving.first
    if place >= 0 and pool.caching != 0:
        give_back_of_finished(world, engine, pool, engine.epoch)
    if pool.names_outputs != 0:
        name_known(world, engine, pool)
    if pool.radix != 0:
        keep_ahead(world, engine, pool)
    while place >= 0:
        slot = world.slots[place]
        following = slot.chain
        if pool.caching == 0 and slot.left == IN_FLIGHT:
            engine.free += held_by(engine, pool, slot) - slot.shared
        change_phase(world, engine, slot.request, -1)
        if slot.left == IN_FLIGHT and slot.taken > 0:
            world.rows[slot.request].next = engine.batch.wasted_on
            engine.batch.wasted_on = slot.request
            world.again[slot.request].drafted = slot.drafted
        _leave(world, replica, engine, place)
        place = following
    engine.ahead.leaving.first = -1
    engine.ahead.unforeseen = engine.ahead.first_tokens = 0


@uncounted(inline=True)
def _leave(world: World, replica: Any, engine: Any, place: int) -> None:
    """Let a request go that is done and decodes no more."""
    request = world.slots[place].request
    row = world.rows[request]
    stage = world.stages[row.stage]
    if engine.gone > 0 and world.tries[request].gone >= 0:
        leave_unserved(world, engine, place)
        return
    leave_list(world, engine, place)
    engine.finished += 1
    engine.finished_decodes += row.decodes
    engine.changed = 1
    stage.in_prefill -= 1
    replica.count -= 1
    replica.work -= stage.prefill_weight
    finish(world, request)


@uncounted(inline=True)
def _end_prompts(world: World, replica: Any, engine: Any, pool: Any, in_step: bool) -> None:
    """Move requests whose prompts are done into decode; ``in_step``: their tokens come with all
    others.
    """
    end = _end_of(world, engine, pool)
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        slot = world.slots[place]
        following = slot.served_next
        slot.left -= slot.taken
        slot.taken = 0
        if in_step or slot.left > 0:
            engine.changed = 1
        if slot.left == 0:
            engine.prefilling -= 1
            if pool.radix != 0 and pool.ahead != 0:
                note_joined(world, engine, place)
            # By the engines' convention the end of a prompt brings a token.
            decodes = slot.outputs - pool.convention
            if slot.brings > 0:  # drafts beside its last token
                forget_rejected(pool, slot)
                _count_kept(world, slot.brings - 1)
                decodes -= slot.brings - 1
            if pool.ahead != 0 and slot.brings == 0:
                slot.flight = 1
                engine.ahead.some_fly = 1
            if pool.convention != 0 or decodes == 0:
                engine.barren = 0
                _first_token(world, replica, engine, pool, slot)
            slot.grown = slot.blocks
            slot.before = slot.last
            if decodes == 0 and pool.ahead != 0:
                change_phase(world, engine, slot.request, 1)
                _stay(world, engine, place)
            elif decodes == 0:
                # With a cache its blocks were given back before, in the order of the list.
                if pool.caching == 0:
                    engine.free += slot.blocks - slot.shared
                _leave(world, replica, engine, place)
            else:
                # Its next gap begins now: with that of all others, or by itself.
                if pool.convention == 0:
                    engine.out_of_step += 1
                elif in_step:
                    slot.last = IN_STEP
                    engine.last_step = end
                else:
                    slot.last = end
                    engine.out_of_step += 1
                begin_decode(world, engine, pool, place, decodes)
        place = following


@uncounted(inline=True)
def _first_token(world: World, replica: Any, engine: Any, pool: Any, slot: Any) -> None:
    """Note the token that comes with the end of a prefill: the first one, or after a preemption the
    next.
    """
    if world.first_token[slot.request] < 0:
        world.first_token[slot.request] = _end_of(world, engine, pool)
        engine.without_first -= world.rows[slot.request].left
        if pool.ahead != 0:
            engine.ahead.first_tokens += world.rows[slot.request].left
        _gap_from_elsewhere(world, replica, pool, slot.request)
    else:
        note_gaps(world, replica, pool, slot.last, 1)
