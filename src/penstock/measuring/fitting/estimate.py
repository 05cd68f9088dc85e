"""One family fitted to measured batches, its step width or bend searched."""

import dataclasses
from typing import Any

import numpy as np

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.families import (
    BY_LOAD,
    COMPOSED,
    Linear,
    Terms,
    table_knots,
    terms_of,
)
from penstock.measuring.fitting.robust import Solution, apply, fit_relative, running_median, solve
from penstock.system.batch_time import MOST_TOKENS, BatchTime, Composition

_FEWEST = 5
_LIKELY = 3.84  # 95% of chi squared with one degree of freedom
_STARTS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A family fitted."""

    linear: Linear  # the family by token load, with its shape
    terms: Terms | None  # of Appendix A beside it; None: by token load alone
    solution: Solution  # coefficients of both, in this order
    # Step widths or bends that fit as well, rising: their likelihood is within the 95% interval.
    likely: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Family, as `fit` takes it."""
        return self.linear.family if self.terms is None else COMPOSED + self.linear.family

    @property
    def size(self) -> int:
        """Number of parameters that are not zero."""
        count = len(self.linear.names)
        return self.linear.size + int(np.count_nonzero(self.solution.coefficients[count:]))

    def columns(self, batches: MeasuredBatches, b0: float | None = None) -> Array:
        """Return the columns of the coefficients, perhaps with another step width or bend."""
        linear = self.linear if b0 is None else Linear(self.linear.family, (b0,))
        columns = linear.columns(batches.tokens)
        if self.terms is None:
            return columns
        return np.column_stack((columns, self.terms.columns(batches)))

    def predicted(self, batches: MeasuredBatches) -> Array:
        """Return seconds; beyond the last load of a table as long as there."""
        return apply(self.columns(batches), self.solution.coefficients)

    def model(self, gap_s: float = 0.0) -> BatchTime:
        """Return the batch-time model, each batch longer by the gap to the next one."""
        count = len(self.linear.names)
        coefficients = self.solution.coefficients[:count].copy()
        coefficients[0] += gap_s  # of a table the first load, from which the others rise
        linear = self.linear.model(coefficients)
        if self.terms is None:
            return linear
        costs: dict[str, Any] = {"decode_attention": 0.0}
        costs |= zip(self.terms.names, self.solution.coefficients[count:].tolist(), strict=True)
        return Composition(linear, **costs)


def estimate(batches: MeasuredBatches, name: str, b0: float | None = None) -> Estimate:
    """Fit one family; ``composition`` has an affine linear part, a ``b0`` given is not searched."""
    composed = name == "composition" or name.startswith(COMPOSED)
    family = "affine" if name == "composition" else name.removeprefix(COMPOSED)
    if family not in BY_LOAD:
        names = [*BY_LOAD, *(COMPOSED + family for family in BY_LOAD)]
        raise InputError(f"unknown model {checks.shown(name)}{nearest(str(name), names)}")
    check_enough(batches)
    terms = terms_of(batches) if composed else None
    if terms is not None and not terms.names:
        raise InputError(
            f"{batches.source}: nothing but the token load tells these batches apart, and a "
            "composition needs prefill_tokens, requests, squares, pairs or context; ask for "
            "affine, steps, hinge or table"
        )
    beside = np.empty((len(batches), 0)) if terms is None else terms.columns(batches)
    start = _by_load(batches)
    if family in ("affine", "table") or b0 is not None:
        linear = Linear(family, _shape(family, batches.tokens, b0))
        columns = np.column_stack((linear.columns(batches.tokens), beside))
        return Estimate(linear, terms, fit_relative(columns, batches.seconds, start, batches.kinds))
    return _searched(batches, family, terms, beside, start)


def _shape(family: str, tokens: Array, b0: float | None) -> tuple[float, ...]:
    """Return the shape of a family that is not searched."""
    if b0 is None:
        return table_knots(tokens) if family == "table" else ()
    if family not in ("hinge", "steps"):
        raise InputError(
            f"b0 is {b0:g}, but {family} has no step or bend; ask for steps or hinge, or leave b0 "
            "out"
        )
    why = "a step or bend at a whole number of tokens"
    return (float(checks.whole("b0", b0, 1, MOST_TOKENS, "tokens", why)),)


def check_enough(batches: MeasuredBatches) -> None:
    """Refuse batches from which no cost of a token can be told."""
    if len(batches) < _FEWEST:
        raise InputError(
            f"{batches.source}: {len(batches):,} batches are too few for a fit; measure at least "
            f"{_FEWEST}"
        )
    if batches.tokens.max() == batches.tokens.min():
        raise InputError(
            f"{batches.source}: every batch has {batches.tokens[0]:g} tokens, so what a token "
            "costs is not known; measure other token loads, too"
        )


def _by_load(batches: MeasuredBatches) -> Array:
    """Return the median seconds of batches with similar token loads."""
    order = np.argsort(batches.tokens, kind="stable")
    medians = np.empty(len(batches))
    medians[order] = running_median(batches.seconds[order])
    return medians


def _searched(
    batches: MeasuredBatches, family: str, terms: Terms | None, beside: Array, start: Array
) -> Estimate:
    """Fit a family with its step width or bend: a grid, then whole numbers around the best few."""
    # Candidates have the outliers and weights of a table. Step widths that data cannot tell apart
    # (95% likelihood interval) become the one with the highest power of two, as kernels are tiled.
    tokens, seconds = batches.tokens, batches.seconds
    table = np.column_stack((Linear("table", table_knots(tokens)).columns(tokens), beside))
    flexible = fit_relative(table, seconds, start, batches.kinds)
    weights = ~flexible.outliers / np.maximum(flexible.predicted, 0.01 * float(np.median(seconds)))
    lost: dict[float, float] = {}

    def loss(b0: float) -> float:
        if b0 not in lost:
            columns = np.column_stack((Linear(family, (b0,)).columns(tokens), beside))
            left = (seconds - apply(columns, solve(columns, seconds, weights))) * weights
            lost[b0] = float(np.sum(left * left))
        return lost[b0]

    grid = _grid(family, float(tokens.max()))
    if not grid:
        raise InputError(
            f"{batches.source}: the largest batch has {tokens.max():g} tokens, so no step or bend "
            "can be found; measure larger batches, or ask for affine"
        )
    starts = sorted(range(len(grid)), key=lambda index: loss(grid[index]))[:_STARTS]
    for index in starts:
        low, high = grid[max(index - 1, 0)], grid[min(index + 1, len(grid) - 1)]
        for b0 in range(int(low), int(high) + 1, max(1, int(high - low) // 64)):
            loss(float(b0))
    best = min(lost, key=lambda b0: lost[b0])
    free = max(int((~flexible.outliers).sum()) - table.shape[1], 1)
    noise = max(lost[best] / free, 1e-12)  # relative: finer than any clock
    likely = [b0 for b0, left in lost.items() if left <= lost[best] + _LIKELY * noise]
    if family == "steps":
        best = max(likely, key=lambda b0: (int(b0) & -int(b0), -lost[b0]))
    linear = Linear(family, (best,))
    columns = np.column_stack((linear.columns(tokens), beside))
    return Estimate(
        linear, terms, fit_relative(columns, seconds, start, batches.kinds), tuple(sorted(likely))
    )


def _grid(family: str, most: float) -> list[float]:
    """Return step widths or bends to begin with: multiples of 8, wider apart where large."""
    fine = [
        *range(8, 257, 8), *range(288, 1025, 32), *range(1152, 4097, 128), *range(4608, 2**20, 512)
    ]  # fmt: skip
    small = [2, 4] if family == "steps" else [0, 1, 2, 4]
    return [float(b0) for b0 in (*small, *fine) if b0 < most]
