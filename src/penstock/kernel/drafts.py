"""Speculative decoding: drafts that a decode verifies, and how many of them are accepted."""

from typing import Any

import numpy as np
from numba import types

from penstock.kernel.apart import A_POOL, A_WORLD, AN_ENGINE, NUMBER, apart
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.due_epochs import put_off
from penstock.kernel.records import World
from penstock.kernel.running import count_growth

_ONE = np.uint64(1)


@uncounted(inline=True)
def _stirred(key: Any) -> Any:
    """Return 64 bits that look random (SplitMix64; Steele, Lea and Flood, 2014)."""
    z = (key + _ONE) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@uncounted()
def _accepted(world: World, pool: Any, request: int, outputs: int) -> Any:
    """Return how many of the drafts behind so many outputs of a request are accepted.

    The pool's parameters are the shares of decodes of which so many are, at least.
    """
    row = np.uint64(world.clock[0].requests_before + request)
    coin = float(_stirred((row << np.uint64(32)) + np.uint64(outputs)) >> np.uint64(11))
    right = 0
    while right < pool.drafts and coin < world.params[pool.policy.params + right] * 2.0**53:
        right += 1
    return right


@apart(types.void(A_WORLD, AN_ENGINE, A_POOL, NUMBER, NUMBER))
def verify(world: World, engine: Any, pool: Any, place: int, drafted: int) -> None:
    """Put drafts into the batch beside the next token of a request, some of which will stay."""
    slot = world.slots[place]
    left = slot.due - engine.epoch
    if slot.left > 0:  # the last token of a prompt
        left = np.int64(slot.outputs)
    made = world.rows[slot.request].decodes + pool.convention - left
    right = _accepted(world, pool, slot.request, made)
    slot.drafted = drafted
    slot.brings = min(1 + min(right, drafted), left)
    engine.batch.verified += drafted
    engine.batch.rejected += 1 + drafted - slot.brings


@apart(NUMBER(A_WORLD, AN_ENGINE, A_POOL))
def keep_accepted(world: World, engine: Any, pool: Any) -> Any:
    """Bring the ends of requests nearer, that decode with the batch, by the drafts that stay;
    return how many do.
    """
    heads, bits = world.heads[engine.line], world.bits[engine.line]
    total = 0
    place = engine.slots.first
    while place >= 0:
        slot = world.slots[place]
        slot.flight = 0
        if slot.left == 0 and slot.taken > 0:
            forget_rejected(pool, slot)
            right = slot.brings - 1
            if right > 0:
                count_growth(world, engine, pool, slot, -1)
                put_off(world.slots, heads, bits, place, -right)
                engine.context_base += right
                count_growth(world, engine, pool, slot, 1)
                total += right
        place = slot.next
    engine.decode_tokens -= total
    return total


@uncounted()
def know_rejected(world: World, engine: Any) -> None:
    """Take note of what was right and wrong: the batch that it was in has ended."""
    place = engine.slots.first
    while place >= 0:
        world.slots[place].rejected = world.slots[place].flight = 0
        place = world.slots[place].next


@uncounted(inline=True)
def forget_rejected(pool: Any, slot: Any) -> None:
    """Forget drafts that were wrong; a step ahead, the next batch is composed as if they stayed."""
    if pool.ahead != 0:
        slot.flight = slot.brings
        slot.rejected = 1 + slot.drafted - slot.brings
    slot.drafted = 0
