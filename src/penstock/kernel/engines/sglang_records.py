"""What SGLang's rule is told, what it keeps of an engine, and what it expects of requests.

It expects a share of the outputs that they have declared; what the batch in progress brings is not
out yet.
"""

from typing import Any

import numpy as np

from penstock.kernel.by_reference import part_of_rule
from penstock.kernel.compiled_code import uncounted
from penstock.kernel.records import ENDS, IN_STEP, World, record

SETTINGS = record(
    i8="""
    mixed max_prefill_tokens clip_new_tokens retract_steps ignore_eos queue_order
    priority_preemption priority_scheduling_preemption_threshold retracts_by_rank
    """
)
"""Settings of `penstock.system.engines.sglang`, as these are called there.

Its numbers are the new token ratio at first, its least, and its fall per decode batch.
"""

(
    BY_ARRIVAL,
    BY_RANK,
    LONGEST_MATCH,
    DFS_WEIGHT,
    RESPONSE_RATIO,
    SHORTEST_PREFILL,
) = range(6)
"""``queue_order``: how the queue is sorted beside a cache of prefixes."""

RANK_BITS = 32
RANK = 2**RANK_BITS
"""A step of priority in the rank of a request that waits; below it counts the queue's order."""


BUDGET = record(
    (ENDS, "victims"),
    i8="chunk prompts pending room lives pages matched match_end is_cut",
    f8="foreseen",
)
"""What a batch of prompts that is being formed may still take.

Tokens of the batch, tokens of prompts; tokens of memory that are spoken for now, and those that
there are; rows of `World.lives`; free pages at first; pages that a cache has of the first that
waits, and the node that they end with; whether one stays in mid-prefill; tokens of memory that are
spoken for, outputs to come included. ``victims``: those who gave up their places.
"""

STATE = record(
    (BUDGET, "budget"),
    i8="is_full looks_at_queue last_prefill first_prefill left_running",
    f8="ratio",
)
"""What the rule keeps: whether admission has paused; how often the queue was looked at; the new
token ratio.

For response ratios: tokens of the last batch, if it had prompts, and of the batch that the running
one was at first; how many the last batch left in that.
"""

settings_of = part_of_rule(SETTINGS)
state_of = part_of_rule(STATE)


# -- outputs made and expected


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
    return -((-world.again[request].rank) >> RANK_BITS)
