"""How TensorRT-LLM forms a batch: who may run, then who of them is served.

Its list has all who may run, in order of arrival. Who of them got no token yet is *unstarted*: its
prompt waits in the list, where memory is reserved to completion with its blocks, else with none.
"""

from typing import Any

import numpy as np

from penstock.kernel.apart import A_RULE, apart
from penstock.kernel.blocks import blocks_of, take_blocks
from penstock.kernel.by_reference import part_of_rule
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import INPUT, STATIC, World, record
from penstock.kernel.running import (
    admit,
    growth_of,
    make_room,
    needs,
    peak_of,
    pop_waiting,
    preempt,
    serve_prefill,
    wait_first,
)

SETTINGS = record(i8="capacity_rule")
"""``capacity_rule`` of `penstock.system.engines.tensorrt`: what must be free before a request is
admitted (`INPUT`, `COMPLETION`, `STATIC`).
"""

settings_of = part_of_rule(SETTINGS)


@apart(A_RULE)
def tensorrt(world: World, engine: Any, pool: Any) -> int:
    """TensorRT-LLM: all decodes, then prompts; in a static batch prompts alone, or decodes."""
    _form(world, engine, pool)
    engine.batch.arrival_ends = engine.waiting == 0
    return 0


@uncounted(inline=True)
def _form(world: World, engine: Any, pool: Any) -> None:
    everyone_fits = settings_of(pool).capacity_rule != INPUT or _fit_in_order(world, engine, pool)
    take_blocks(world, engine, pool, growth_of(world, engine, pool))
    engine.batch.decodes = engine.decoding
    if settings_of(pool).capacity_rule == STATIC and engine.decoding > 0:
        return
    if everyone_fits:
        _admit_what_fits(world, engine, pool)
    if engine.prefilling > 0:
        _serve_prompts(world, engine, pool)
        if pool.grows != 0:  # unstarted ones may lack blocks before those who decode do
            engine.batch.steady = 0


@uncounted(inline=True)
def _is_unstarted(slot: Any) -> Any:
    """Return whether a request that may run got no token yet, and holds no blocks."""
    return slot.left == slot.target and slot.blocks == 0


@uncounted()
def _fit_in_order(world: World, engine: Any, pool: Any) -> Any:
    """Give unstarted requests their blocks, and keep some for decodes, one request after another;
    where they lack, pause those who started last. Return whether nobody lacked any.
    """
    if engine.prefilling == 0 and growth_of(world, engine, pool) <= engine.free:
        return True
    everyone_fits = True
    for_decodes = 0  # blocks that are kept
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        lacking: Any = 0
        if _is_unstarted(slot):
            lacking = blocks_of(np.int64(slot.target), pool.block_size)
        elif slot.left == 0:
            lacking = needs(engine, pool, slot)
        if lacking > engine.free - for_decodes:
            everyone_fits = False
            if _cut_behind(world, engine, pool, place):
                continue
            break
        if slot.left == 0:
            for_decodes += lacking
        elif lacking > 0:
            slot.blocks = lacking
            engine.free -= lacking
        place = slot.next
    return everyone_fits


@uncounted()
def _cut_behind(world: World, engine: Any, pool: Any, place: int) -> Any:
    """Pause the last request that has started, from one of the list on, and let all behind it wait;
    where none has, that one and all behind it. Return whether that one may still run.
    """
    while True:
        last = engine.slots.last
        if not _is_unstarted(world.slots[last]):
            make_room(world, engine, pool, last)
            return last != place
        request = preempt(world, engine, pool, last)  # which has nothing to lose
        engine.batch.preempted -= 1
        engine.preemptions -= 1
        world.again[request].times -= 1
        wait_first(world, engine, pool, request)
        if last == place:
            return False


@uncounted(inline=True)
def _admit_what_fits(world: World, engine: Any, pool: Any) -> None:
    """Let those who wait run, in order, while places and blocks are left."""
    while engine.running < pool.batch_size and engine.queue.first >= 0:
        tokens = world.again[engine.queue.first].target
        if (
            settings_of(pool).capacity_rule != INPUT
        ):  # its last output counts, though it is never computed
            tokens = peak_of(world, pool, engine.queue.first) + 1
        blocks = blocks_of(tokens, pool.block_size)
        if blocks > engine.free:
            break
        admit(world, engine, pool, pop_waiting(world, engine, pool), blocks, 0)


@uncounted(inline=True)
def _serve_prompts(world: World, engine: Any, pool: Any) -> None:
    """Serve prompts in order: all that is left of each; else the whole blocks that fit, where
    prompts may be cut, or nothing of it and of those behind it.
    """
    size = pool.block_size
    left = max(pool.budget - engine.batch.decodes, 0)
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        take: Any = np.int64(slot.left)
        if take > left:
            take = left // size * size if pool.chunked != 0 else 0
            if pool.chunked == 0:
                left = 0
        if take > 0:
            serve_prefill(world, engine, place, take)
            left -= take
        elif settings_of(pool).capacity_rule == INPUT and slot.left == slot.target:
            engine.free += slot.blocks
            slot.blocks = 0
        place = slot.next
