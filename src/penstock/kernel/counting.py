"""Counters: a multiset of integers in one array, and histograms of spans of time.

The kernel counts gaps between tokens and batch compositions with the multiset, millions of times a
second. Its keys and counts alternate, so that a look-up touches one cache line.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernel.compiled_code import allocating_nothing, uncounted

# -- how often each key was added, by open addressing


EMPTY = -1
Multiset = npt.NDArray[np.int64]


def new_multiset(places: int = 1024) -> Multiset:
    """Return an empty multiset with room for so many distinct keys, a power of two."""
    multiset = np.zeros(2 * places, np.int64)
    multiset[::2] = EMPTY
    return multiset


@uncounted()
def add(multiset: Multiset, key: int, weight: int) -> int:
    """Add ``weight`` copies of the non-negative ``key``; return 1 if the key is new, else 0.

    The caller keeps the multiset at most half full, so a free place is always near.
    """
    mask = multiset.size - 1
    # Bits that the whole key has stirred.
    place = (((key ^ (key >> 29)) * 0x1E3779B97F4A7C15) >> 35) & mask & ~1
    while multiset[place] != key:
        if multiset[place] == EMPTY:
            multiset[place] = key
            multiset[place + 1] = weight
            return 1
        place = (place + 2) & mask
    multiset[place + 1] += weight
    return 0


def doubled(multiset: Multiset) -> Multiset:
    """Return the same multiset in twice the room."""
    larger = new_multiset(multiset.size)
    _add_all(larger, multiset)
    return larger


@allocating_nothing
def _add_all(larger: Multiset, multiset: Multiset) -> None:
    for place in range(0, multiset.size, 2):
        if multiset[place] != EMPTY:
            add(larger, multiset[place], multiset[place + 1])


def contents(multiset: Multiset) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct keys in rising order and their counts."""
    keys, counts = multiset[::2], multiset[1::2]
    used = np.flatnonzero(keys != EMPTY)
    order = used[np.argsort(keys[used], kind="stable")]
    return keys[order], counts[order]


# -- spans, to their leading binary digits


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
