"""A multiset of integers in two arrays: how often each key was added, by open addressing.

The kernel counts gaps between tokens and batch compositions with it, millions of times a second.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, types

EMPTY = -1
Counts = npt.NDArray[np.int64]


def new_multiset(size: int = 1024) -> tuple[Counts, Counts]:
    """Return empty key and count arrays; ``size`` is a power of two."""
    return np.full(size, EMPTY, np.int64), np.zeros(size, np.int64)


@njit(types.int64(types.int64[::1], types.int64[::1], types.int64, types.int64), cache=True, inline="never")
def add(keys: Counts, counts: Counts, key: int, weight: int) -> int:
    """Add ``weight`` copies of the non-negative ``key``; return 1 if the key is new, else 0.

    The caller keeps the table at most half full, so a free place is always near.
    """
    mask = keys.size - 1
    place = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while keys[place] != key:
        if keys[place] == EMPTY:
            keys[place] = key
            counts[place] = weight
            return 1
        place = (place + 1) & mask
    counts[place] += weight
    return 0


def doubled(keys: Counts, counts: Counts) -> tuple[Counts, Counts]:
    """Return the same multiset in twice the room."""
    larger_keys, larger_counts = new_multiset(2 * keys.size)
    for key, count in zip(*contents(keys, counts), strict=True):
        add(larger_keys, larger_counts, key, count)
    return larger_keys, larger_counts


def contents(keys: Counts, counts: Counts) -> tuple[Counts, Counts]:
    """Return the distinct keys in rising order and their counts."""
    used = np.flatnonzero(keys != EMPTY)
    order = used[np.argsort(keys[used], kind="stable")]
    return keys[order], counts[order]
