"""Times between the tokens of a request, counted as they pass.

``counts`` is the clock, of which these are the fields ``stall_sum`` (ticks, below `CARRY`),
``stall_carry`` (units of `CARRY` ticks) and ``stalls_used`` (distinct keys of the multiset).
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import BITS, HALF, ticks_of, ticks_of_run
from penstock.kernel.counting import Multiset, add

CARRY_BITS = 31
CARRY = 2**CARRY_BITS


@uncounted(inline=True)
def _sum_up(counts: Any, ticks: int, count: int) -> None:
    """Add ``count`` times so many ticks, in two parts: the product itself could overflow."""
    low = counts.stall_sum + (ticks & (CARRY - 1)) * count
    counts.stall_sum = low & (CARRY - 1)
    counts.stall_carry += (ticks >> CARRY_BITS) * count + (low >> CARRY_BITS)


@uncounted()
def count_stall(counts: Any, stalls: Multiset, gap: int, count: int, bits: int) -> None:
    """Count a time between two tokens; keep only its leading ``bits`` binary digits if not 0."""
    _sum_up(counts, gap, count)
    if bits > 0:
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        if shift > 0:
            # The middle of what they stand for.
            gap = ((gap >> shift) << shift) + (1 << (shift - 1))
    counts.stalls_used += add(stalls, gap, count)


@uncounted()
def count_run(
    counts: Any, stalls: Multiset, cost: int, rise: int, end: int, count: int, bits: int
) -> None:
    """Count the times of the batches 1 .. end - 1 of a run, ``count`` gaps each, as
    `count_stall` would.

    Batch i costs ``cost + i rise``; those whose times share their leading digits are counted at
    once.
    """
    _sum_up(counts, ticks_of_run(cost + rise, rise, end - 1), count)
    first = 1
    while first < end:
        gap = ticks_of(cost + first * rise)
        shift = 0
        while (gap >> shift) >= (1 << bits):
            shift += 1
        leading = gap >> shift
        beyond = end
        if rise > 0:  # the first batch that takes (leading + 1) << shift ticks
            least = ((((leading + 1) << shift) << BITS) - HALF - cost + rise - 1) // rise
            beyond = min(least, end)
        middle = (leading << shift) + (1 << (shift - 1)) if shift > 0 else leading
        counts.stalls_used += add(stalls, middle, count * (beyond - first))
        first = beyond
