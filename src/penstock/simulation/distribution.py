"""Times and how often each occurred: what a run keeps of them, in constant memory where asked."""

import dataclasses
import functools

import numpy as np

from penstock.inputs.arrays import Ints
from penstock.kernel.counting import count_spans

LEADING_BITS = 11
"""Binary digits that a summary keeps of a time: within 0.05%."""


def exact_sum(samples: Ints) -> int:
    """Sum non-negative integers without overflow."""
    return (int((samples >> 32).sum()) << 32) + int((samples & 0xFFFFFFFF).sum())


@dataclasses.dataclass(frozen=True, eq=False)
class Distribution:
    """Values and how often each occurred."""

    values: Ints  # shape (distinct,), ticks, rising
    counts: Ints  # shape (distinct,)
    total: int  # exact sum of all values, ticks (values may be rounded, the sum is not)

    @classmethod
    def of(cls, samples: Ints) -> "Distribution":
        """Count samples."""
        values, counts = np.unique(samples, return_counts=True)
        return cls(values, counts.astype(np.int64), exact_sum(samples))

    @classmethod
    def merged(cls, values: Ints, counts: Ints, total: int) -> "Distribution":
        """Add up the counts of equal values."""
        distinct, index = np.unique(values, return_inverse=True)
        return cls(distinct, np.bincount(index, counts, distinct.size).astype(np.int64), total)

    def since(self, earlier: "Distribution") -> "Distribution":
        """Return what was counted since ``earlier``, whose values are all among these."""
        counts = self.counts.copy()
        counts[np.searchsorted(self.values, earlier.values)] -= earlier.counts
        return Distribution(self.values[counts > 0], counts[counts > 0], self.total - earlier.total)

    @functools.cached_property
    def up_to(self) -> Ints:
        """Shape (distinct,), how many samples are at most each value."""
        return np.cumsum(self.counts)

    @property
    def size(self) -> int:
        """Number of samples."""
        return int(self.up_to[-1]) if self.up_to.size else 0

    def count_up_to(self, value: int) -> int:
        """Return how many samples are at most a value."""
        index = int(self.values.searchsorted(value, "right"))
        return int(self.up_to[index - 1]) if index else 0

    @property
    def mean(self) -> float:
        """Mean, ticks."""
        return self.total / self.size

    def quantile(self, share: float) -> float:
        """Return the quantile in ticks, linear between neighbours as in `numpy.quantile`."""
        rank = share * (self.size - 1)
        low = int(rank)
        neighbours = [low, min(low + 1, self.size - 1)]
        below, above = self.values[self.up_to.searchsorted(neighbours, side="right")]
        return float(below + (above - below) * (rank - low))


class Fold:
    """A distribution that grows by samples, in constant memory; values are rounded, the sum not."""

    def __init__(self) -> None:
        self._total = 0

    @functools.cached_property
    def _counts(self) -> Ints:
        """By shift, then by leading digits; made when needed, for it is large."""
        return np.zeros((64 - LEADING_BITS) << LEADING_BITS, np.int64)

    def add(self, begin: Ints, end: Ints) -> None:
        """Add the times from each begin to its end, where that is not negative: it has not come."""
        high, low = count_spans(self._counts, begin, end, LEADING_BITS)
        self._total += (int(high) << 32) + int(low)

    @property
    def distribution(self) -> Distribution:
        """What was added, each value in the middle of those that share its leading digits."""
        (cells,) = np.nonzero(self._counts)
        shift = cells >> LEADING_BITS
        leading = cells & ((1 << LEADING_BITS) - 1)
        values = (leading << shift) + np.where(shift > 0, 1 << np.maximum(shift - 1, 0), 0)
        return Distribution(values, self._counts[cells], self._total)
