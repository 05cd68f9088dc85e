"""Batches of an engine: who is in the next one, how long it takes, how many equal ones follow.

The rules themselves are in `penstock.kernel.engines`, and in `penstock.kernel.seam` where a policy
chooses; what ends with a batch is in `penstock.kernel.engine_ends`.
"""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_WORLD, AN_ENGINE, NUMBER, apart, form_by_rule
from penstock.kernel.blocks import blocks_of, name_blocks
from penstock.kernel.clients import dismiss
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import Terms, cost_of, rise_of, ticks_of
from penstock.kernel.due_epochs import NEVER, next_due_epoch, put_off
from penstock.kernel.engine_ends import advance_engine, compute_run, let_go
from penstock.kernel.in_progress import (
    before_it_dies,
    begun_before,
    set_length,
    start,
    ticks_of_batches,
    touch,
    within_the_run,
)
from penstock.kernel.recording import note_allocation
from penstock.kernel.records import (
    ALLOCATION_ROWS,
    COMPOSED,
    COMPUTED,
    ENDLESS,
    IN_FLIGHT,
    IN_STEP,
    LATER,
    NONE_YET,
    NOT_BY_LOAD,
    STUCK,
    World,
)
from penstock.kernel.running import (
    add_tokens,
    admit,
    begin_decode,
    count_growth,
    done_by,
    tokens_sent_to,
    wait_last,
)
from penstock.kernel.transfers import come, receive


@uncounted(inline=True)
def arrive_at_engine(world: World, engine: Any, pool: Any, request: int) -> None:
    """Let a request wait at an engine: to be admitted, or for its KV memory."""
    if tokens_sent_to(world, request) > 0:
        come(world, engine, pool, request)
        return
    tokens = world.again[request].target
    engine.uncomposed_prefill += tokens
    engine.arrived += 1
    engine.arrived_tokens += tokens
    engine.without_first += tokens
    wait_last(world, engine, pool, request)


@uncounted()
def begin_in_decode(world: World) -> None:
    """Let the first requests decode at an idle engine at tick 0, while memory has room for them,
    their next tokens and the watermark, and at most so many; those behind them wait as prompts.
    """
    clock, replica = world.clock[0], world.servers[0]
    count, most = clock.prefilled, clock.prefilled_most
    clock.prefilled = 0
    engine, pool = world.engines[replica.engine], world.pools[replica.pool]
    while engine.running < most and clock.next_job < count:
        request = clock.next_job
        row = world.rows[request]
        prompt, decodes = np.int64(row.left), np.int64(row.decodes)
        later = 1 if pool.grows != 0 else decodes + pool.reserves_last
        blocks = blocks_of(prompt + later, pool.block_size)
        if blocks + pool.watermark > engine.free:
            break
        clock.next_job += 1
        row.server = 0
        world.ready[request] = 0
        replica.processed += prompt
        engine.arrived += 1
        engine.arrived_tokens += prompt
        if pool.convention != 0:
            world.first_token[request] = 0
        if decodes == 0:
            world.finish[request] = 0
            clock.finished += 1
            engine.finished += 1
            continue
        stage = world.stages[row.stage]
        stage.in_prefill += 1
        replica.count += 1
        replica.work += stage.prefill_weight
        replica.unprocessed += decodes
        clock.future += decodes
        if pool.grows != 0:
            blocks = blocks_of(prompt, pool.block_size)
        place = admit(world, engine, pool, request, blocks, 0)
        if pool.caching != 0:
            name_blocks(world, engine, pool, place, prompt, prompt + pool.convention)
        engine.prefilling -= 1
        if pool.convention != 0:
            world.slots[place].last = IN_STEP
        else:
            engine.out_of_step += 1
        begin_decode(world, engine, pool, place, decodes)
    waits = clock.next_job < world.job_arrival.size and world.job_arrival[clock.next_job] == 0
    if engine.running > 0 and not waits:  # an arrival at this tick lets it form a batch anyway
        touch(world, 0)


# -- a batch is formed


@uncounted(inline=True)
def form_at_engine(world: World, server: int, pool: Any) -> Any:
    """Form a batch, or a run of equal ones, at a free engine; return what failed, or 0."""
    replica = world.servers[server]
    engine = world.engines[replica.engine]
    if pool.ahead != 0:
        return _form_ahead(world, server, engine, pool)
    failed = _compose(world, replica, engine, pool, True)
    if failed == 0 and replica.tokens > 0:
        _begin(world, server, engine)
        start(world, server, _equal_batches(world, replica, replica, engine, pool, 0))
    return failed


@uncounted()
def _form_ahead(world: World, server: int, engine: Any, pool: Any) -> Any:
    """Start the batch that was composed ahead, or one composed now, and compose the one after it,
    for which this one is taken for computed.
    """
    replica, planned = world.servers[server], world.planned[engine.index]
    # Nothing was composed ahead where nobody was there, or a batch had nobody in it.
    if planned.tokens == 0:
        failed = _compose(world, planned, engine, pool, True)
        if failed != 0 or planned.tokens == 0:
            return failed
    everyone = engine.batch.serves_all
    replica.ticks, replica.plain = planned.ticks, planned.plain
    replica.cost, replica.rise = planned.cost, planned.rise
    replica.tokens, replica.prefill = planned.tokens, planned.prefill
    replica.decodes, replica.requests = planned.decodes, planned.requests
    replica.verified, replica.rejected = planned.verified, planned.rejected
    _begin(world, server, engine)
    # A run of decodes that nobody waits to join says by itself what the next batch is, so composing
    # that can wait: else every request would take two more steps of the loop.
    if pool.plans_late != 0 and engine.waiting == 0:
        repeat = _equal_batches(world, replica, replica, engine, pool, 1)
        if repeat > 1:
            engine.ahead.next_batch = LATER
            engine.ahead.joins_until = NEVER
            start(world, server, repeat)
            return 0
    # The engine does not wait for tokens: it goes on as if they were out, and so does this.
    engine.ahead.flight_end = replica.start + replica.ticks
    advance_engine(world, replica, engine, pool)
    failed = _compose(world, planned, engine, pool, False)
    # The planned batch follows the run, so only one that is like this one makes it longer.
    repeat = 1
    alike = planned.tokens == replica.tokens and engine.ahead.leaving.first < 0
    if replica.prefill == 0 and everyone != 0 and alike:
        repeat = _equal_batches(world, replica, planned, engine, pool, 0)
    start(world, server, repeat)
    return failed


@uncounted()
def plan_after_run(world: World, server: int, engine: Any, pool: Any) -> None:
    """Compute the run of decodes in progress, and compose the batch after it, as when its last one
    started; also while that goes on.

    Nothing can fail: only policies of the seam do, and preemptions that go on for ever.
    """
    replica = world.servers[server]
    engine.ahead.flight_end = replica.start + ticks_of_batches(replica, replica.equal)
    if replica.equal > 1:
        compute_run(world, replica, engine, pool)
    advance_engine(world, replica, engine, pool)
    if replica.equal > 1:
        engine.ahead.step_before = replica.start + ticks_of_batches(replica, replica.equal - 1)
    _compose(world, world.planned[engine.index], engine, pool, False)
    engine.ahead.next_batch = COMPUTED


@uncounted()
def plan_before_arrival(world: World, server: int, engine: Any, pool: Any) -> None:
    """Let the run of decodes in progress end one batch after the one in progress now, which was
    composed without the request that arrives.

    In the last batch, or after somebody whom it cannot join, the batch after the run is composed
    before it is queued.
    """
    replica = world.servers[server]
    now = world.clock[0].now
    if now <= engine.ahead.joins_until < NEVER:
        return
    if engine.ahead.joins_until == NEVER:
        begun = max(begun_before(replica, now, replica.equal), 1)
        if begun < replica.equal:
            set_length(world, server, begun + 1)
            engine.ahead.joins_until = replica.start + ticks_of_batches(replica, begun)
            return
    plan_after_run(world, server, engine, pool)


@uncounted(inline=True)
def end_at_engine(world: World, server: int, pool: Any) -> None:
    """Hand out the tokens of the batches that have ended at an engine."""
    replica = world.servers[server]
    engine = world.engines[replica.engine]
    if engine.ahead.next_batch == LATER:
        plan_after_run(world, server, engine, pool)
    elif replica.equal > 1 and engine.ahead.next_batch == COMPOSED:
        compute_run(world, replica, engine, pool)
    engine.ahead.next_batch = COMPOSED
    if engine.gone > 0:  # clients who left while the batch was in progress get nothing of it
        dismiss(world, engine, pool)
    if pool.ahead == 0:
        advance_engine(world, replica, engine, pool)
    else:
        let_go(world, replica, engine, pool)


@uncounted(inline=True)
def _begin(world: World, server: int, engine: Any) -> None:
    """Write down that a batch starts now, and who gets what of it."""
    clock = world.clock[0]
    world.servers[server].start = clock.now
    engine.rejections += world.servers[server].rejected
    if clock.record >= ALLOCATION_ROWS:
        note_allocations(world, server, engine)
    if engine.batch.wasted + engine.batch.in_vain > 0:
        engine.batch.wasted_on = -1
        engine.lost += engine.batch.wasted
        add_tokens(world, engine, engine.batch.wasted + engine.batch.in_vain)


@uncounted()
def _compose(world: World, batch: Any, engine: Any, pool: Any, at_once: bool) -> Any:
    """Say who is in the next batch, and how long it takes; one of no tokens if nobody can be.

    ``at_once``: nothing is in progress, so who gave up memory or waits for it is looked at again.
    Return what failed, or 0.
    """
    load = 0
    if at_once:
        engine.ahead.flight_end = NONE_YET
    while load == 0:
        batch.tokens = 0
        # Who came with KV memory runs first: its place and blocks count before a rule looks.
        if engine.transfers.incoming > 0:
            receive(world, engine, pool)
        if engine.running == 0 and engine.waiting == 0:
            # Not while a batch is in progress (a step ahead), or KV memory is on its way here.
            if at_once and engine.transfers.incoming == 0:
                engine.was_idle = 1
            return 0
        failed = _choose(world, engine, pool)
        if failed != 0:
            return failed
        # Two that take each other's memory in turn would go on for ever.
        if engine.batch.preempted > 0:
            engine.barren += 1
            if engine.barren > pool.most_barren:
                return ENDLESS
        prefill = _prefill_tokens(world, engine)
        decodes = engine.batch.decodes + engine.batch.wasted
        load = prefill + decodes + engine.batch.verified
        if load == 0 and not at_once:
            return 0
        if load == 0 and engine.batch.preempted == 0:
            return 0 if engine.transfers.incoming + engine.transfers.lending > 0 else STUCK
        # Else all made room: begin anew with them.
    batch.tokens = load
    batch.decodes = decodes + engine.batch.verified
    batch.prefill = prefill
    batch.verified = engine.batch.verified
    batch.rejected = engine.batch.rejected
    batch.requests = engine.batch.prompts + decodes
    _time(world, batch, engine, pool)
    return 0


@uncounted(inline=True)
def _choose(world: World, engine: Any, pool: Any) -> Any:
    """Say who is in the batch; return what failed, or 0."""
    engine.batch.prompts = 0
    engine.batch.served.first = -1
    engine.batch.decodes = 0
    engine.batch.wasted = 0
    engine.batch.preempted = 0
    engine.batch.verified = 0
    engine.batch.rejected = 0
    engine.batch.gone = engine.batch.in_vain = 0
    engine.batch.is_marked = 0
    engine.batch.steady = 1 if pool.drafts == 0 else 0
    engine.batch.arrival_ends = 1  # always right, if slower: a rule may know better
    failed = form_by_rule(world, engine, pool)
    engine.repeats = engine.changed = engine.was_idle = 0
    return failed


@uncounted(inline=True)
def _prefill_tokens(world: World, engine: Any) -> Any:
    tokens = 0
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        tokens += world.slots[place].taken
        place = world.slots[place].served_next
    return tokens


@uncounted(inline=True)
def _time(world: World, replica: Any, engine: Any, pool: Any) -> None:
    """Work out how long the batch takes."""
    context = 0  # tokens before the decodes
    engine.batch.serves_all = engine.batch.decodes == engine.decoding
    if engine.batch.serves_all != 0:
        context = engine.context_base + engine.decoding * engine.epoch
    elif engine.batch.decodes > 0:
        context = _put_off_others(world, engine, pool)
    if engine.batch.wasted > 0:
        context += _context_of_done(world, engine)
    if pool.composed == 0:
        replica.plain = replica.ticks = world.duration[pool.duration + replica.tokens]
    else:
        squares, pairs = _attention(world, engine, pool)
        terms = Terms(world.linear[pool.duration :], world.per[replica.pool])
        x, y = replica.prefill, replica.decodes
        if pool.drafts > 0:  # what verifies drafts is like a prompt
            x, y, context = replica.tokens, 0, 0
        replica.cost = cost_of(terms, x, y, replica.requests, squares, pairs, context)
        replica.rise = rise_of(terms, y)
        replica.plain = NOT_BY_LOAD
        replica.ticks = ticks_of(replica.cost)


@uncounted()
def _put_off_others(world: World, engine: Any, pool: Any) -> Any:
    """Put off the due epochs of decoding requests that this batch leaves out: all but the first, or
    those unmarked.

    Return the tokens before the decodes that it serves.
    """
    heads, bits = world.heads[engine.line], world.bits[engine.line]
    served = context = 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            taken = slot.taken > 0 if engine.batch.is_marked != 0 else served < engine.batch.decodes
            if taken:
                served += 1
                context += done_by(engine, slot)
                slot.taken = 1
            else:
                count_growth(world, engine, pool, slot, -1)
                put_off(world.slots, heads, bits, place, 1)
                engine.context_base -= 1
                count_growth(world, engine, pool, slot, 1)
                if slot.last == IN_STEP:
                    slot.last = engine.last_step
                    engine.out_of_step += 1
        place = slot.next
    return context


@uncounted()
def _context_of_done(world: World, engine: Any) -> Any:
    """Return the tokens before the decodes that a batch has for nothing."""
    context = 0
    place = engine.ahead.leaving.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left == IN_FLIGHT and slot.taken > 0:
            context += slot.total
        place = slot.chain
    return context


@uncounted(inline=True)
def _attention(world: World, engine: Any, pool: Any) -> Any:
    """Return the sums of n^2 and of n l over the prompts of a batch: n tokens in it, l processed
    before.
    """
    squares = pairs = 0
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        slot = world.slots[place]
        tokens = slot.taken + slot.drafted
        squares += tokens * tokens
        pairs += tokens * done_by(engine, slot)
        place = slot.served_next
    if pool.drafts > 0:
        place = engine.slots.first
        while place >= 0:
            slot = world.slots[place]
            if slot.left <= 0 and slot.taken > 0:
                tokens = 1 + slot.drafted
                squares += tokens * tokens
                pairs += tokens * done_by(engine, slot)
            place = slot.next
    return squares, pairs


@apart(types.void(A_WORLD, NUMBER, AN_ENGINE))
def note_allocations(world: World, server: int, engine: Any) -> None:
    """Write down who gets what."""
    place = engine.batch.served.first
    for _ in range(engine.batch.prompts):
        slot = world.slots[place]
        note_allocation(world, server, slot.request, slot.taken, slot.drafted)
        place = slot.served_next
    place = engine.slots.first if engine.batch.decodes > 0 else -1
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0 and (engine.batch.serves_all != 0 or slot.taken > 0):
            note_allocation(world, server, slot.request, 0, 1 + slot.drafted)
        place = slot.next
    request = engine.batch.wasted_on
    while request >= 0:
        note_allocation(world, server, request, 0, 1 + world.again[request].drafted)
        request = np.int64(world.rows[request].next)


# -- how many equal batches follow each other


@uncounted(inline=True)
def _equal_batches(
    world: World, replica: Any, batch: Any, engine: Any, pool: Any, beyond: int
) -> Any:
    """Return how many batches like the one just composed are one step: those until a request
    finishes, memory is used up, or the rule may choose otherwise.

    ``batch`` is the one composed last; where that is the one after the batch in progress, the run
    is in progress, and it follows. Memory must have room for so many batches ``beyond`` the run.
    """
    clock = world.clock[0]
    if batch.prefill > 0 or engine.batch.serves_all == 0 or engine.batch.steady == 0:
        return 1
    if clock.merges == 0 or engine.batch.preempted > 0 or engine.batch.wasted > 0:
        return 1
    if engine.out_of_step > 0 and clock.guarded != 0:  # who has a first token is to be known
        return 1
    most = next_due_epoch(world.bits[engine.line], engine.epoch) - engine.epoch
    if most > 1 and pool.names_outputs != 0:
        most = _until_named(world, engine, pool, most)
    if most > 1 and pool.grows != 0:
        most = _within_memory(world, engine, pool, most + beyond) - beyond
    return before_it_dies(world, engine.server, within_the_run(world, replica, most))


@uncounted()
def _until_named(world: World, engine: Any, pool: Any, most: int) -> Any:
    """Return how many of so many equal decode batches go by before one of them, but for the first,
    fills a block: who waits may find what it holds.

    A step ahead, that is known a batch later.
    """
    growth = world.growth[engine.index]
    size = pool.block_size
    place = engine.epoch + (1 if pool.ahead == 0 else 0)
    for batch in range(1, min(most, size + 1)):
        if growth[(place + batch) % size] > 0:
            return batch
    return most


@uncounted(inline=True)
def _within_memory(world: World, engine: Any, pool: Any, most: int) -> Any:
    """Return how many equal decode batches memory has room for, this one included."""
    size, decoding, free = pool.block_size, engine.decoding, engine.free
    if pool.radix != 0 and size > 1:
        free -= decoding  # for as many pages as requests its cache gives something up
    cycles = (most - 1) // size  # in each, every request takes one block
    # Mostly all of them fit; else whole cycles that do, and the last one batch by batch.
    if (cycles + 1) * decoding <= free:
        return most
    repeat = 1
    cycles = min(cycles, free // decoding - 1)
    if cycles > 0:
        repeat += cycles * size
        free -= cycles * decoding
    growth = world.growth[engine.index]
    place = engine.epoch % size
    while repeat < most:
        place += 1
        if place == size:
            place = 0
        free -= growth[place]
        if free < 0:
            break
        repeat += 1
    return repeat
