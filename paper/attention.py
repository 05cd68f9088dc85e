"""Attention times of a profile, and straight lines between them."""

import dataclasses
from functools import cached_property

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from paper.batches import BatchContents
from penstock.errors import InputError
from penstock.measuring.fitting.batches import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Times measured at combinations of some values, straight lines between and beyond them.

    Below the smallest value of an axis the time is that at the smallest.
    """

    axes: tuple[Array, ...]  # rising values on each axis
    seconds: Array  # shape (values of the first axis, of the second ...)

    @classmethod
    def of(cls, at: Array, seconds: Array, what: str) -> "Grid":
        """Make a grid of scattered measurements.

        Repeats are averaged. What is missing along the last axis lies on straight lines between and
        beyond the measurements beside it, since attention takes a time affine in the tokens before;
        values of other axes that were not measured with all the others are left out, the rarest
        first.

        ``at`` has shape (measurements, axes); ``what`` says what was measured, for messages.
        """
        axes = [np.unique(column) for column in at.T]
        places = tuple(np.searchsorted(axis, column) for axis, column in zip(axes, at.T, strict=True))
        total, repeats = (
            np.zeros([axis.size for axis in axes]),
            np.zeros([axis.size for axis in axes]),
        )
        np.add.at(total, places, seconds)
        np.add.at(repeats, places, 1)
        with np.errstate(invalid="ignore"):
            table = total / repeats
        table = np.apply_along_axis(_filled, -1, table, axes[-1])
        while np.isnan(table).any():
            known = ~np.isnan(table)
            shares = [known.mean(axis=tuple(set(range(table.ndim)) - {i})) for i in range(table.ndim)]
            worst = min(range(table.ndim), key=lambda i: float(shares[i].min()))
            keep = np.arange(axes[worst].size) != np.argmin(shares[worst])
            axes[worst], table = axes[worst][keep], np.compress(keep, table, axis=worst)
        if min(table.shape) < 2:
            raise InputError(
                f"{what} was measured at too few combinations: of {at.shape[0]:,} rows no grid of "
                "two values on each axis remains, so nothing lies between; measure more"
            )
        return cls(tuple(axes), table)

    @cached_property
    def _between(self) -> RegularGridInterpolator:
        return RegularGridInterpolator(self.axes, self.seconds, bounds_error=False, fill_value=None)

    def __call__(self, *at: Array) -> Array:
        """Return the seconds at some places, one array for each axis."""
        inside = [np.maximum(values, axis[0]) for values, axis in zip(at, self.axes, strict=True)]
        return np.asarray(np.maximum(self._between(np.column_stack(inside)), 0.0))


def _filled(line: Array, axis: Array) -> Array:
    """Fill what is missing on a line that was measured at two places at least."""
    known = np.flatnonzero(~np.isnan(line))
    if known.size in (0, 1, line.size):
        return line
    cell = np.clip(np.searchsorted(axis[known], axis) - 1, 0, known.size - 2)
    low, high = known[cell], known[cell + 1]
    slope = (line[high] - line[low]) / (axis[high] - axis[low])
    return np.where(np.isnan(line), np.maximum(line[low] + slope * (axis - axis[low]), 0.0), line)


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """Seconds of one layer's attention."""

    prefill: Grid  # by new tokens of a prompt and tokens before them
    decode: Grid  # by decodes and tokens before each
    # By new tokens of a prompt, tokens before them, decodes, and tokens before each. None: the
    # engine runs two kernels, whose times add up.
    mixed: Grid | None = None

    def seconds(self, batches: BatchContents) -> Array:
        """Return the seconds of each batch.

        Batches were measured with one prompt, and decodes that all have equally many tokens before
        them: the mean is put for those. Prompts but the costliest add what they take above an
        (almost) empty one.
        """
        alone = self.prefill(batches.new, batches.before)
        order = np.lexsort((-alone, batches.batch))
        # The costliest prompt of each batch.
        one = order[np.unique(batches.batch[order], return_index=True)[1]]
        above = np.maximum(alone - float(self.prefill.seconds.flat[0]), 0.0)
        above[one] = 0.0
        n, each = batches.decodes, batches.context / np.maximum(batches.decodes, 1)
        seconds = np.where(n > 0, self.decode(n, each), 0.0)
        if self.mixed is None:
            seconds[batches.batch[one]] += alone[one]
        else:
            beside = one[n[batches.batch[one]] > 0]
            seconds[batches.batch[one]] = alone[one]
            both = batches.batch[beside]
            seconds[both] = self.mixed(batches.new[beside], batches.before[beside], n[both], each[both])
            seconds[both] += self._spread(n[both], batches.context[both], batches.longest[both])
        return seconds + batches.per_batch(above)

    def _spread(self, n: Array, context: Array, longest: Array) -> Array:
        """Return what it costs that the decodes beside a prompt do not all have equally many tokens
        before them.

        A kernel lasts until its longest request is done. The profile knows one request among
        shorter ones: a prompt of few tokens after many, which stands for the longest decode here.
        What it takes beside the others, above what it takes where all have the mean, is the cost.
        """
        assert self.mixed is not None
        few, others = np.full(n.size, self.mixed.axes[0][0]), np.maximum(n - 1, 1)
        mean, rest = context / n, np.maximum(context - longest, 0.0) / others
        uneven, even = self.mixed(few, longest, others, rest), self.mixed(few, mean, others, mean)
        return np.where(n > 1, np.maximum(uneven - even, 0.0), 0.0)
