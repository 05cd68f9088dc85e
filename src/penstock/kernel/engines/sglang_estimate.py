"""How many outputs SGLang expects of requests: a share of what they have declared.

What the batch in progress brings is not out yet.
"""

from typing import Any

import numpy as np

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.engines.sglang_records import RANK_BITS, settings_of, state_of
from penstock.kernel.records import IN_STEP, World


@uncounted(inline=True)
def in_flight(engine: Any, slot: Any) -> Any:
    """Return whether the batch in progress brings a token of a running request."""
    if slot.left < 0:
        return True
    last = engine.last_step if slot.last == IN_STEP else slot.last
    return last == engine.ahead.flight_end


@uncounted(inline=True)
def made_by(world: World, engine: Any, slot: Any) -> Any:
    """Return the outputs of one that decodes that are out: not yet the one in flight."""
    decodes = np.int64(world.rows[slot.request].decodes)
    if slot.left < 0:
        return decodes
    flying = 1 if in_flight(engine, slot) else 0
    return decodes + 1 - (slot.due - engine.epoch) - flying


@uncounted(inline=True)
def made_before(world: World, request: int) -> Any:
    """Return the outputs of a waiting request that are out."""
    return np.int64(world.rows[request].decodes) + 1 - world.again[request].outputs


@uncounted(inline=True)
def foreseen_of(world: World, engine: Any, pool: Any, slot: Any) -> Any:
    """Return the output tokens that a running request is expected to make yet."""
    ratio = 1.0 if settings_of(pool).ignore_eos != 0 else state_of(engine).ratio
    left = world.again[slot.request].declared - made_by(world, engine, slot)
    return min(left, settings_of(pool).clip_new_tokens) * ratio


@uncounted(inline=True)
def foreseen_by_all(world: World, engine: Any, pool: Any) -> Any:
    """Return the output tokens that running requests are expected to make yet.

    One by one, in their order: it decides the last digit of the sum.
    """
    foreseen = 0.0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        if slot.left <= 0:
            foreseen += foreseen_of(world, engine, pool, slot)
        place = slot.next
    return foreseen


@uncounted(inline=True)
def rank_of(world: World, request: int) -> Any:
    """Return a request's priority, the smaller first."""
    return -((-world.again[request].priority) >> RANK_BITS)
