"""Draws from a table of cumulative probabilities, by inversion."""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import types

from penstock.kernel.compiled_code import entry

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def find_quantiles(shares: Floats, cumulative: Floats, guide: Ints, places: Ints) -> None:
    """Write down, for each share, how many cumulative probabilities lie below it.

    ``guide`` has that number for each multiple of one over its cells, so most shares lie in a cell
    in which there is nothing to search.
    """
    cells = guide.size - 1
    for index in range(shares.size):
        share = shares[index]
        cell = max(min(int(share * cells), cells - 1), 0)
        low = guide[cell]
        high = guide[cell + 1]
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] < share:
                low = middle + 1
            else:
                high = middle
        places[index] = low


@functools.cache
def compiled_find_quantiles() -> Callable[[Floats, Floats, Ints, Ints], None]:
    """Return `find_quantiles` compiled."""
    floats, ints = types.float64[::1], types.int64[::1]
    return entry(find_quantiles, types.void(floats, floats, ints, ints))
