"""The families of batch-time models as columns whose coefficients are sought.

By token load: ``affine``, ``hinge``, ``steps`` and ``table``. Each may be the linear part of a
``composition``, which adds the columns of `Composition` that the batches know: requests, pairs of
tokens, tokens before decodes, and whether there is prefill.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.system.batch_time import Affine, BatchTime, Hinge, PiecewiseConstant
from penstock.system.measured_times import Measured

BY_LOAD = ("affine", "hinge", "steps", "table")
"""Families by token load, simple ones first."""

COMPOSED = "composition-"
"""What the name of a composition begins with; the family of its linear part follows."""

_MOST_KNOTS = 32
# Batches with prefill, and without, below which nothing is told of one kind alone.
_FEWEST_OF_A_KIND = 20
# Share of a column's squares that others leave unexplained, below which it is one of them.
_SAME = 1e-4


@dataclass(frozen=True)
class Linear:
    """A family by token load with its shape: step width or bend ``b0``, or the knots of a table."""

    family: str
    shape: tuple[float, ...] = ()

    def columns(self, tokens: Array) -> Array:
        """Return shape (batches, coefficients): a constant, and what rises with the token load."""
        match self.family:
            case "affine":
                rising = [tokens]
            case "hinge":
                rising = [np.maximum(tokens - self.shape[0], 0.0)]
            case "steps":
                rising = [np.ceil(tokens / self.shape[0])]
            case _:
                pairs = zip(self.shape[:-1], self.shape[1:], strict=True)
                rising = [np.clip((tokens - low) / (high - low), 0.0, 1.0) for low, high in pairs]
        return np.column_stack([np.ones(tokens.size), *rising])

    @property
    def names(self) -> list[str]:
        """Name the coefficients."""
        if self.family == "table":
            return [f"t_{knot:g}" for knot in self.shape]
        return ["c", "a"]

    @property
    def size(self) -> int:
        """Number of parameters, the shape included."""
        return len(self.names) + (self.family in ("hinge", "steps"))

    def model(self, coefficients: Array) -> BatchTime:
        """Return the model with these coefficients."""
        if self.family == "table":
            return Measured(self.shape, np.cumsum(coefficients).tolist())
        c, a = (float(value) for value in coefficients)
        match self.family:
            case "affine":
                return Affine(c, a)
            case "hinge":
                return Hinge(c, a, self.shape[0])
            case _:
                return PiecewiseConstant(c, a, int(self.shape[0]))


@dataclass(frozen=True)
class Terms:
    """The terms that can be fitted, by the name of their coefficient in `Composition`."""

    names: tuple[str, ...]
    left_out: Mapping[str, str]  # terms that cannot, with the reason

    def columns(self, batches: MeasuredBatches) -> Array:
        """Return shape (batches, terms), of any batches."""
        terms = known_terms(batches, split="mixed_attention" in self.names)
        return np.column_stack([np.empty((len(batches), 0)), *(terms[name] for name in self.names)])


def table_knots(tokens: Array) -> tuple[float, ...]:
    """Return token loads between which a table has straight lines, at most so many."""
    loads = np.unique(tokens)
    if loads.size > _MOST_KNOTS:
        by_batches = np.quantile(tokens, np.linspace(0, 1, _MOST_KNOTS // 2), method="nearest")
        by_load = loads[np.unique(np.geomspace(1, loads.size, _MOST_KNOTS // 2).astype(int)) - 1]
        loads = np.unique(np.concatenate((by_batches, by_load, loads[-1:])))
    return tuple(loads.tolist())


def known_terms(batches: MeasuredBatches, *, split: bool) -> dict[str, Array]:
    """Return what each cost of a `Composition` is paid for, if known; shape (batches,) each."""
    # ``split``: decodes beside prefill on their own.
    terms: dict[str, Array] = {}
    beside = (
        np.zeros(len(batches), bool)
        if batches.prefill_tokens is None
        else batches.prefill_tokens > 0
    )
    if batches.context is not None:
        if split:
            terms["decode_attention"] = np.where(beside, 0.0, batches.context)
            terms["mixed_attention"] = np.where(beside, batches.context, 0.0)
        else:
            terms["decode_attention"] = batches.context
    if batches.requests is not None:
        terms["per_request"] = batches.requests
    if batches.squares is not None and batches.decode_tokens is not None:
        terms["self_attention"] = batches.squares + batches.decode_tokens
    if batches.pairs is not None:
        terms["cross_attention"] = batches.pairs
    if batches.prefill_tokens is not None:
        terms["with_prefill"] = beside.astype(np.float64)
    return terms


def terms_of(batches: MeasuredBatches) -> Terms:
    """Return the terms of Appendix A that these batches can tell apart."""
    # A term within 1% of a sum of multiples of the others is left out: its cost is in theirs.
    # Decodes beside prefill cost their own where there are enough of both kinds to tell.
    parts = known_terms(batches, split=True)
    if batches.context is not None and all(
        _enough(parts[name]) for name in ("decode_attention", "mixed_attention")
    ):
        terms = _told_apart(batches, split=True)
        if {"decode_attention", "mixed_attention"}.issubset(terms.names):
            return terms
    return _told_apart(batches, split=False)


def _enough(column: Array) -> bool:
    return int(np.count_nonzero(column)) >= _FEWEST_OF_A_KIND


def _told_apart(batches: MeasuredBatches, split: bool) -> Terms:
    weights = 1 / batches.seconds
    basis = Linear("affine").columns(batches.tokens) * weights[:, None]
    chosen: list[str] = []
    left_out: dict[str, str] = {}
    for name, column in known_terms(batches, split=split).items():
        if not column.any():
            left_out[name] = "no batch has any"
            continue
        if name == "with_prefill" and not (_enough(column) and _enough(1 - column)):
            if not column.all():
                left_out[name] = (
                    f"fewer than {_FEWEST_OF_A_KIND} batches have prefill, or have none"
                )
            continue
        weighted = column * weights
        fitted = basis @ np.linalg.lstsq(basis, weighted, rcond=None)[0]
        if float(((weighted - fitted) ** 2).sum()) < _SAME * float((weighted**2).sum()):
            left_out[name] = f"it cannot be told from {' and '.join(['the token load', *chosen])}"
            continue
        chosen.append(name)
        basis = np.column_stack((basis, weighted))
    return Terms(tuple(chosen), left_out)
