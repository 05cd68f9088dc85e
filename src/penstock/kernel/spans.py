"""Histograms of spans of time, to their leading binary digits."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernel.compiled_code import allocating_nothing

Ints = npt.NDArray[np.int64]


@allocating_nothing
def count_spans(cells: Ints, begin: Ints, end: Ints, bits: int) -> Any:
    """Count the ticks from each begin to its end in the cell of their leading ``bits`` digits; an
    end below 0 has not come.

    A cell is named by how many digits are cut off, then by those left. Return the sum of all spans,
    its multiples of 2^32 apart: the sum itself could overflow.
    """
    high = 0
    low = 0
    for index in range(end.size):
        if end[index] < 0:
            continue
        span = end[index] - begin[index]
        high += span >> 32
        low += span & 0xFFFFFFFF
        digits = int(np.float64(span).view(np.int64) >> 52) - 1022  # the exponent of a double
        shift = max(digits - bits, 0)
        cells[(shift << bits) + (span >> shift)] += 1
    return high, low
