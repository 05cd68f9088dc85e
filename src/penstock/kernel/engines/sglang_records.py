"""What SGLang's rule is told, and what it keeps of an engine."""

from penstock.kernel.by_reference import part_of_rule
from penstock.kernel.records import ENDS, record

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
"""A step of priority in the rank of a request that waits; below it counts what it has declared."""


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
