"""What is kept of batches: rows, allocations, compositions, times between tokens; of one server
and of the event loop.
"""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import BITS, HALF, ticks_of, ticks_of_run
from penstock.kernel.counting import Multiset, add
from penstock.kernel.due_epochs import at
from penstock.kernel.records import ALLOCATION_ROWS, NO_ROWS, World

# -- times between the tokens of a request, counted as they pass


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


# -- batches and the series


MOST_CELLS = 2**17
"""Batch compositions that have a counter of their own; others share a multiset."""

MIX_TICKS = 1 << 62
"""Added to a composition's key in that multiset, counts the ticks of its batches instead of them.
"""


@uncounted(inline=True)
def has_room(world: World, slots: int) -> Any:
    """Return whether the next batch, and those in progress, have room for all that they leave, with
    so many requests that decode at most.
    """
    clock = world.clock[0]
    if 4 * (clock.stalls_used + slots) > world.stalls.size:
        return False
    if 4 * (clock.mixes_used + 2 * world.servers.size) > world.mixes.size:
        return False
    if clock.record == NO_ROWS:
        return True
    if 2 * clock.batch_rows > world.batch_rows.shape[0]:
        return False
    rows = clock.allocation_rows + 2 * world.slots.size
    return clock.record < ALLOCATION_ROWS or rows <= world.allocation_rows.shape[0]


@uncounted()
def thin_series(world: World) -> None:
    """Keep every other instant."""
    clock, series = world.clock[0], world.series
    for row in range(1, series.shape[0] // 2):
        for column in range(series.shape[1]):
            series[row, column] = series[2 * row, column]
    clock.series_rows = series.shape[0] // 2
    clock.series_step *= 2


@uncounted()
def note_allocation(world: World, server: int, request: int, prefill: int, decode: int) -> None:
    """Write down what a request gets of the batch that a replica forms."""
    clock = world.clock[0]
    row = world.allocation_rows[clock.allocation_rows]
    row[0] = server
    row[1] = world.servers[server].batches
    row[2] = clock.requests_before + request
    row[3] = prefill
    row[4] = decode
    clock.allocation_rows += 1


@uncounted()
def note_run(world: World, server: int, run: Any) -> None:
    """Write down equal batches of a replica."""
    clock = world.clock[0]
    start = run.start
    for index in range(run.equal):
        row = world.batch_rows[clock.batch_rows]
        ticks = run.ticks
        if run.plain < 0 and index > 0:
            ticks = ticks_of(run.cost + index * run.rise)
        row[0] = server
        row[1] = start
        row[2] = ticks
        row[3] = run.prefill
        row[4] = run.decodes
        row[5] = run.requests
        start += ticks
        clock.batch_rows += 1


@uncounted(inline=True)
def count_composition(world: World, run: Any, pool: Any, ticks: int) -> None:
    """Count equal batches that have ended by what was in them: in a cell where there is one, else
    in a multiset.
    """
    clock = world.clock[0]
    x, y, repeat = run.prefill, run.decodes, run.equal
    cells = world.cells.size
    if run.plain < 0:
        cells //= 2
    cell = x * pool.cell_columns + y
    key = (x << 32) | y
    if y < pool.cell_columns and cell < cells:
        world.cells[at(cell)] += repeat
        if run.plain < 0:
            world.cells[at(cells + cell)] += ticks
    elif run.plain < 0:
        clock.mixes_used += add(world.mixes, key, repeat)
        clock.mixes_used += add(world.mixes, MIX_TICKS | key, ticks)
    elif run.tokens == pool.budget:
        world.full[at(y)] += repeat
    else:
        clock.mixes_used += add(world.mixes, key, repeat)


@uncounted(inline=True)
def note_gaps(world: World, replica: Any, pool: Any, before: int, count: int) -> None:
    """Count the time from a tick to the end of the first of the batches in progress, for so many
    requests.
    """
    clock = world.clock[0]
    gap = replica.start + replica.ticks - before
    if gap == replica.plain:
        world.gaps[at(pool.duration + replica.tokens)] += count
    else:
        count_stall(clock, world.stalls, gap, count, clock.gap_bits)


@uncounted(inline=True)
def note_gaps_within(world: World, replica: Any, pool: Any) -> None:
    """Count the times between tokens from one to the next of equal batches."""
    clock, repeat, decodes = world.clock[0], replica.equal, replica.decodes
    if replica.plain >= 0:
        world.gaps[at(pool.duration + replica.tokens)] += decodes * (repeat - 1)
    elif repeat > 1:
        cost, rise = replica.cost, replica.rise
        count_run(clock, world.stalls, cost, rise, repeat, decodes, clock.gap_bits)
