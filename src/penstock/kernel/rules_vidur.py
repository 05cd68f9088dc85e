"""How Vidur's schedulers form a batch (`penstock.kernel.rules`)."""

from typing import Any

from penstock.kernel.blocks import blocks_of
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.preemption import decode_all_that_fit
from penstock.kernel.records import VIDUR_SARATHI, World
from penstock.kernel.running import admit, keep_sorted, serve_begun_prompts, serve_prefill
from penstock.kernel.waiting import pop_waiting


@uncounted()
def prompts_or_decodes(world: World, engine: Any, pool: Any) -> None:
    """Vidur's vLLM: whole prompts, padded to the longest, alone if any can be admitted, else all
    decodes.
    """
    longest = 0
    while engine.running < pool.batch_size and engine.head >= 0:
        target = world.again[engine.head].target
        blocks = blocks_of(target, pool.block_size)
        longest = max(longest, target)
        padded = longest * (engine.served + 1)
        if padded > pool.budget or engine.free - blocks < pool.watermark:
            break
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks, 0)
        serve_prefill(world, engine, place, target)
        keep_sorted(world, engine, place)
    if engine.served == 0:
        decode_all_that_fit(world, engine, pool, 1)


@uncounted()
def decodes_then_prompts(world: World, engine: Any, pool: Any) -> None:
    """Vidur's Orca and Sarathi: all decodes, prompts that were begun, then new ones."""
    decode_all_that_fit(world, engine, pool, 1 if pool.rule == VIDUR_SARATHI else 0)
    left = max(pool.budget - engine.served_decodes, 0)
    if engine.prefilling > 0:
        left = serve_begun_prompts(world, engine, left)
    while engine.running < pool.batch_size and engine.head >= 0:
        target = take = world.again[engine.head].target
        if pool.rule == VIDUR_SARATHI:
            if left == 0:
                break
            take = min(target, left)
        blocks = pool.reserved if pool.reserved > 0 else blocks_of(target, pool.block_size)
        if engine.free - blocks < pool.watermark:
            break
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, blocks, 0)
        serve_prefill(world, engine, place, take)
        left -= take


@uncounted()
def static_batch(world: World, engine: Any, pool: Any) -> None:
    """Vidur's FasterTransformer: all prompts that fit in one batch; then their decodes until the
    last is done.
    """
    if engine.running > 0:
        engine.served_decodes = engine.decoding
        return
    while engine.running < pool.batch_size and engine.free >= pool.reserved and engine.head >= 0:
        request = pop_waiting(world, engine, pool)
        place = admit(world, engine, pool, request, pool.reserved, 0)
        serve_prefill(world, engine, place, world.slots[place].target)
