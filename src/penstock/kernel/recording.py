"""What is kept of batches: rows, allocations, compositions, times between tokens."""

from typing import Any

from penstock.kernel.compiled_code import uncounted
from penstock.kernel.composition import ticks_of
from penstock.kernel.counting import add
from penstock.kernel.gaps import count_stall
from penstock.kernel.records import World

MOST_CELLS = 2**17
"""Batch compositions that have a counter of their own; others share a multiset."""

MIX_TICKS = 1 << 62
"""Added to a composition's key in that multiset, counts the ticks of its batches instead of them.
"""


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
def note_batches(world: World, server: int) -> None:
    """Write down the batches in progress at a replica."""
    clock, replica = world.clock[0], world.servers[server]
    start = replica.start
    for index in range(replica.equal):
        row = world.batch_rows[clock.batch_rows]
        ticks = replica.ticks
        if replica.plain < 0 and index > 0:
            ticks = ticks_of(replica.cost + index * replica.rise)
        row[0] = server
        row[1] = start
        row[2] = ticks
        row[3] = replica.prefill
        row[4] = replica.decodes
        row[5] = replica.requests
        start += ticks
        clock.batch_rows += 1


@uncounted(inline=True)
def count_composition(world: World, replica: Any, pool: Any, ticks: int) -> None:
    """Count the equal batches that have ended at a replica by what was in them."""
    clock = world.clock[0]
    x, y, repeat = replica.prefill, replica.decodes, replica.equal
    cells = world.cells.size
    if pool.composed != 0:
        cells //= 2
    cell = x * pool.cell_columns + y
    key = (x << 32) | y
    if y < pool.cell_columns and cell < cells:
        world.cells[cell] += repeat
        if pool.composed != 0:
            world.cells[cells + cell] += ticks
    elif pool.composed != 0:
        clock.mixes_used += add(world.mixes, key, repeat)
        clock.mixes_used += add(world.mixes, MIX_TICKS | key, ticks)
    elif x + y == pool.budget:
        world.full[y] += repeat
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
        world.gaps[pool.duration + replica.tokens] += count
    else:
        count_stall(clock, world.stalls, gap, count, clock.gap_bits)
