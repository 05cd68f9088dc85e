"""How often batches had which composition, from the counters of a kernel."""

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel import counting
from penstock.kernel.recording import MIX_TICKS
from penstock.simulation.run import Distribution


def compositions(
    cells: tuple[Ints, Ints], columns: int, full: tuple[Ints, int], mixes: Ints, duration: Ints
) -> tuple[tuple[Ints, Ints], Ints]:
    """Put the batch compositions together: prefill << 32 | decode, how many batches had it, and
    their ticks.

    Parameters
    ----------
    cells
        Batches by composition, at prefill * columns + decode, and their ticks; none of these where
        the token load decides.
    columns
        Of the cells.
    full
        Batches filled to the token budget by their decodes, and that budget.
    mixes
        The multiset of all others.
    duration
        Ticks by token load.
    """
    (batches, cell_ticks), (full_batches, budget) = cells, full
    used, filled = np.flatnonzero(batches), np.flatnonzero(full_batches)
    prefill, decode = np.divmod(used, columns)
    others, counts = counting.contents(mixes)
    # From there on ticks, in the same order.
    apart = int(np.searchsorted(others, MIX_TICKS))
    others, counts, ticks = others[:apart], counts[:apart], counts[apart:]
    keys = np.concatenate([(prefill << 32) | decode, ((budget - filled) << 32) | filled, others])
    counts = np.concatenate([batches[used], full_batches[filled], counts])
    every = Distribution.merged(keys, counts, 0)
    if not cell_ticks.size:
        loads = (every.values >> 32) + (every.values & 0xFFFFFFFF)
        return (every.values, every.counts), every.counts * duration[loads]
    total = np.zeros_like(every.counts)
    np.add.at(total, np.searchsorted(every.values, keys), np.concatenate([cell_ticks[used], ticks]))
    return (every.values, every.counts), total
