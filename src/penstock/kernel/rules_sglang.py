"""How SGLang forms a batch: as in `penstock.kernel.rules`, with its estimate of future outputs."""

from typing import Any

from penstock.kernel.blocks import blocks_of, hold, take_blocks
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import (
    World,
)
from penstock.kernel.running import (
    admit,
    done_by,
    growth_of,
    needs,
    pop_waiting,
    preempt,
    serve_prefill,
    wait_last,
)


@uncounted()
def sglang(world: World, engine: Any, pool: Any) -> None:
    """SGLang: a batch of prompts when one can be formed, at most one of them cut, else all decodes.

    Its parameters: the ratio of a request's future output that admission counts, its least, its
    fall per decode batch.
    """
    decoding = engine.decoding
    nobody_may_come = engine.is_full != 0 or engine.head < 0
    if not nobody_may_come or engine.prefilling > 0:
        _sglang_prompts(world, engine, pool)
    if engine.served > 0:
        if pool.mixed != 0 and decoding > 0:
            _ride_along(world, engine, pool)
    elif decoding > 0:
        _decode_or_retract(world, engine, pool)
        if engine.preempted == 0:
            engine.ratio_steps += 1


@uncounted()
def begin_ratio(world: World, engine: Any, pool: Any) -> None:
    """Let SGLang count as much of a request's future output as it does at first."""
    engine.is_full = 0
    engine.ratio_steps = 0
    engine.ratio = world.params[pool.params]


@uncounted()
def _spare_tokens(world: World, engine: Any, pool: Any) -> Any:
    """Return the tokens that memory has room for beside the future outputs that SGLang counts."""
    future = 0
    place = engine.first_slot
    while place >= 0:
        if world.slots[place].left == 0:
            future += min(world.slots[place].due - engine.epoch, pool.clip_new_tokens)
        place = world.slots[place].next
    fall, least = world.params[pool.params + 2], world.params[pool.params + 1]
    ratio = max(engine.ratio - engine.ratio_steps * fall, least)
    return engine.free * pool.block_size - future * ratio


@uncounted()
def _sglang_prompts(world: World, engine: Any, pool: Any) -> None:
    """Go on with the prompt that was cut, then admit those that wait."""
    size, clip = pool.block_size, pool.clip_new_tokens
    beside = engine.decoding if pool.mixed != 0 else 0
    chunk = pool.budget - beside
    tokens = pool.most_prefill - beside
    total = _spare_tokens(world, engine, pool)
    if engine.prefilling > 0:
        place = engine.last_slot
        while world.slots[place].left == 0:
            place = world.slots[place].previous
        slot = world.slots[place]
        room = (slot.held + engine.free) * size - done_by(engine, slot)
        take = min(slot.left, chunk, room)
        if take <= 0:
            return
        hold(world, engine, pool, place, blocks_of(done_by(engine, slot) + take, size))
        serve_prefill(world, engine, place, take)
        whole = take == slot.left
        total -= blocks_of(take, size) * size + (min(slot.outputs, clip) if whole else 0)
        tokens -= take
        chunk -= take
        if not whole:
            return
    while engine.head >= 0:
        request = engine.head
        target = world.again[request].target
        to_come = min(world.again[request].outputs, clip)
        no_memory = blocks_of(target, size) * size + to_come >= total and engine.running > 0
        if engine.running >= pool.batch_size or no_memory:
            engine.is_full = 1
            break
        if target >= tokens and engine.served > 0:
            break
        take = target
        if target > chunk:
            take = chunk // size * size
            if take <= 0:
                break
        pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks_of(take, size), 0)
        serve_prefill(world, engine, place, take)
        total -= blocks_of(take, size) * size + (to_come if take == target else 0)
        tokens -= take
        chunk -= take
        if total <= 0:
            engine.is_full = 1
            break
        if tokens <= 0 or chunk <= 0:
            break


@uncounted()
def _ride_along(world: World, engine: Any, pool: Any) -> None:
    """Serve the decodes for which memory is left beside the prompts; mark them if they are not
    all.
    """
    grow = growth_of(world, engine, pool)
    if grow <= engine.free:
        take_blocks(world, engine, pool, grow)
        engine.served_decodes = engine.decoding
        return
    engine.marked = 1
    place = engine.first_slot
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            need = needs(engine, pool, slot)
            if need <= engine.free:
                engine.free -= need
                slot.taken = 1
                engine.served_decodes += 1
        place = slot.next


@uncounted()
def _decode_or_retract(world: World, engine: Any, pool: Any) -> None:
    """Decode all; where memory is short, those with the fewest outputs (of them the longest prompt)
    wait again.
    """
    if growth_of(world, engine, pool) > engine.free:
        while engine.decoding > 1:
            _retract(world, engine, pool)
            enough = engine.free * pool.block_size >= engine.decoding * pool.retract_steps
            if enough and growth_of(world, engine, pool) <= engine.free:
                break
        if growth_of(world, engine, pool) > engine.free:
            # A single one is left beside a cut prompt.
            place = engine.first_slot
            while world.slots[place].left == 0:
                place = world.slots[place].next
            wait_last(world, engine, pool, preempt(world, engine, pool, place))
        so_far = in_all = 0
        place = engine.first_slot
        while place >= 0:
            slot = world.slots[place]
            if slot.left == 0:
                output = world.rows[slot.request].decodes + pool.convention
                so_far += output - (slot.due - engine.epoch)
                in_all += output
            place = slot.next
        engine.ratio = min(1.0, (so_far + pool.retract_steps * engine.decoding) / in_all)
        engine.ratio_steps = 0
        engine.is_full = 0
    take_blocks(world, engine, pool, growth_of(world, engine, pool))
    engine.served_decodes = engine.decoding


@uncounted()
def _retract(world: World, engine: Any, pool: Any) -> None:
    """Let the decoding request with the fewest outputs, of them the longest prompt, wait again."""
    chosen, fewest, longest = -1, 0, 0
    place = engine.first_slot
    while place >= 0:
        slot = world.slots[place]
        if slot.left == 0:
            row = world.rows[slot.request]
            out = row.decodes + pool.convention - (slot.due - engine.epoch)
            if chosen < 0 or out < fewest or (out == fewest and row.left >= longest):
                chosen, fewest, longest = place, out, row.left
        place = slot.next
    wait_last(world, engine, pool, preempt(world, engine, pool, chosen))
