"""How often batches had which composition, from the counters of a kernel."""

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel import counting
from penstock.kernel.recording import MIX_TICKS
from penstock.kernel.records import World
from penstock.simulation.distribution import Distribution


def compositions(world: World) -> tuple[tuple[Ints, Ints], Ints]:
    """Return batch compositions of a pool, prefill << 32 | decode, how many each, and ticks."""
    pool = world.pools[0]
    batches, cell_ticks = world.cells, world.cells[:0]
    if pool.composed:
        batches, cell_ticks = np.split(world.cells, 2)
    used, filled = np.flatnonzero(batches), np.flatnonzero(world.full)
    prefill, decode = np.divmod(used, int(pool.cell_columns))
    others, counts = counting.contents(world.mixes)
    # From there on ticks, in the same order.
    apart = int(np.searchsorted(others, MIX_TICKS))
    others, counts, ticks = others[:apart], counts[:apart], counts[apart:]
    keys = np.concatenate(
        [(prefill << 32) | decode, ((pool.budget - filled) << 32) | filled, others]
    )
    counts = np.concatenate([batches[used], world.full[filled], counts])
    every = Distribution.merged(keys, counts, 0)
    if not cell_ticks.size:
        loads = (every.values >> 32) + (every.values & 0xFFFFFFFF)
        return (every.values, every.counts), every.counts * world.duration[loads]
    total = np.zeros_like(every.counts)
    np.add.at(total, np.searchsorted(every.values, keys), np.concatenate([cell_ticks[used], ticks]))
    return (every.values, every.counts), total
