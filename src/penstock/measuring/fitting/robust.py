"""Least squares of relative errors: coefficients not negative, robust to outliers, with intervals.

What matters of a batch time is its relative error: 1 ms is nothing in a prefill of 200 ms, and 5%
of a decode. Squares of (measured - predicted) / predicted are summed, the prediction in the
denominator taken from the round before: so the mean is fitted, where dividing by what was measured
would favour short times. Rounds with Huber's loss find the start; then outliers are found, and the
rest is fitted without weights of its own: measured / predicted is about 1 in the mean over all
batches but the outliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import median_filter
from scipy.optimize import nnls

from penstock.measuring.fitting.batches import Array

Rows = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

_HUBER = 1.345  # standard deviations; 95% efficient for normal errors
_FAR = 4.0  # standard deviations
_MAD_TO_SD = 1.4826
_FINEST = 1e-4  # relative; no clock of an engine is finer
_FEWEST = 8  # batches among which one can be told to be an outlier
_SIMILAR = 1.5  # times as long
_AT_ENDS = 9
_ROUNDS = 20
_SETTLED = 1e-6
_RIDGE = 1e-12
_RESAMPLES = 400


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients of the columns, and which rows they leave out."""

    coefficients: Array  # shape (columns,), at least 0
    predicted: Array  # shape (rows,)
    outliers: Rows  # shape (rows,)


def solve(columns: Array, seconds: Array, weights: Array) -> Array:
    """Return coefficients x >= 0 with the least squares of weights * (seconds - columns @ x)."""
    scaled = np.column_stack((columns, seconds)) * weights[:, None]
    return _solve_normal(_products(scaled))


def apply(columns: Array, coefficients: Array) -> Array:
    """Return columns @ coefficients without BLAS, whose threads cost more than this takes."""
    return np.asarray(np.einsum("ij,j->i", columns, coefficients))


def _products(columns: Array) -> Array:
    return np.asarray(np.einsum("ij,ik->jk", columns, columns))


def fit_relative(columns: Array, seconds: Array, start: Array, kinds: Sequence[Places]) -> Solution:
    """Fit relative errors robustly; columns have shape (rows, coefficients)."""
    # ``start``: a first idea of the predicted seconds. Outliers are found among batches of one
    # kind; a row of no kind is none.
    least = 0.01 * float(np.median(seconds))
    predicted = np.maximum(start, least)
    coefficients = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        before = predicted
        error = seconds / predicted - 1
        scale = max(_MAD_TO_SD * float(np.median(np.abs(error))), _FINEST)
        weights = (
            np.sqrt(np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(error), 1e-300))) / predicted
        )
        coefficients = solve(columns, seconds, weights)
        predicted = np.maximum(apply(columns, coefficients), least)
        if np.allclose(predicted, before, rtol=_SETTLED, atol=0):
            break
    outliers = np.zeros(seconds.size, bool)
    for _ in range(_ROUNDS):
        before, far = predicted, np.zeros(seconds.size, bool)
        for kind in kinds:
            far[kind] = far_from_neighbours(seconds[kind] / predicted[kind] - 1, predicted[kind])
        coefficients = solve(columns, seconds, ~far / predicted)
        predicted = np.maximum(apply(columns, coefficients), least)
        settled = bool((far == outliers).all()) and np.allclose(
            predicted, before, rtol=_SETTLED, atol=0
        )
        outliers = far
        if settled:
            break
    return Solution(coefficients, apply(columns, coefficients), outliers)


def far_from_neighbours(error: Array, by: Array) -> Rows:
    """Say which errors are far from those of batches with similar values of ``by``."""
    # An outlier differs from its neighbours; a model that is wrong for all batches of a kind, which
    # may be few, must not be rid of them. A batch with hardly any like it is not judged.
    if error.size < _FEWEST:
        return np.zeros(error.size, bool)
    order = np.argsort(by, kind="stable")
    from_median = np.abs(error[order] - running_median(error[order]))
    scale = np.maximum(running_median(from_median), np.median(from_median))
    far = from_median > _FAR * np.maximum(_MAD_TO_SD * scale, _FINEST)
    level = by[order]
    similar = np.searchsorted(level, _SIMILAR * level, "right") - np.searchsorted(
        level, level / _SIMILAR
    )
    outliers = np.zeros(error.size, bool)
    outliers[order] = far & (similar >= _FEWEST)
    return outliers


def running_median(values: Array) -> Array:
    """Return the median of each value's neighbours, about a twentieth of them."""
    # Beyond both ends stands the median of the last few: no value is its own neighbour.
    side = min(max(values.size // 40, 7), 50)
    ends = np.median(values[:_AT_ENDS]), np.median(values[-_AT_ENDS:])
    padded = np.pad(values, side, constant_values=ends)
    return np.asarray(median_filter(padded, size=2 * side + 1)[side : side + values.size])


def resampled(
    candidates: list[Array], seconds: Array, solution: Solution, blocks: list[Places], seed: int
) -> Array:
    """Return a bootstrap's coefficients over blocks of batches, shape (resamples, coefficients)."""
    # Rows of a block are drawn together; outliers and weights stay as in ``solution``. Each
    # resample solves the normal equations for every candidate, shape (rows, coefficients), such as
    # bends that fit as well, and keeps the one with the least squares.
    weights = ~solution.outliers / np.maximum(solution.predicted, 1e-300)
    drawn = np.random.default_rng(seed).multinomial(
        len(blocks), np.full(len(blocks), 1 / len(blocks)), size=_RESAMPLES
    )
    best = np.full(_RESAMPLES, np.inf)
    kept = np.zeros((_RESAMPLES, candidates[0].shape[1]))
    for columns in candidates:
        both = np.column_stack((columns, seconds)) * weights[:, None]
        squares = np.stack([_products(both[block]) for block in blocks])
        totals = np.einsum("rb,bij->rij", drawn, squares)
        solutions = np.array([_solve_normal(total) for total in totals])
        signed = np.column_stack((solutions, np.full(_RESAMPLES, -1.0)))
        left = np.einsum("ri,rij,rj->r", signed, totals, signed)
        better = left < best
        best[better], kept[better] = left[better], solutions[better]
    return kept


def _solve_normal(products: Array) -> Array:
    """Solve non-negative least squares, given the products of columns and target (the last)."""
    size = np.sqrt(np.diag(products))
    size[size == 0] = 1.0
    scaled = products / np.outer(size, size)
    matrix = scaled[:-1, :-1] + _RIDGE * np.eye(len(scaled) - 1)
    root = np.linalg.cholesky(matrix).T
    coefficients: Array = (
        nnls(root, np.linalg.solve(root.T, scaled[:-1, -1]))[0] * size[-1] / size[:-1]
    )
    return coefficients
