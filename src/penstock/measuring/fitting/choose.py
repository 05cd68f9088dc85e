"""Which family predicts best.

Families are compared on batches held out of the fit: ``folds`` blocks of neighbours in time, or of
rows dealt out at random where the file is a sweep. Of the families whose error is, block by block,
no more than one standard error above the smallest, the one with the fewest parameters is taken.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.estimate import Estimate, check_enough, estimate
from penstock.measuring.fitting.families import BY_LOAD, COMPOSED, terms_of
from penstock.show.answers import Meaning
from penstock.words import share

FOLDS = 5
_EQUAL = 0.01  # share of the smallest error within which another is as good
_SMALLEST = 1e-6

_percent = functools.partial(share, decimals=2)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A family's error on batches held out of its fit."""

    name: Annotated[str, Meaning("Of the family.", name="Model")]
    parameters: Annotated[int, Meaning("How many, the step width included.", name="Parameters")]
    error: Annotated[float, Meaning(
        "Mean of |predicted / measured - 1| over blocks held out.", name="Error", format=_percent
    )]  # fmt: skip
    standard_error: Annotated[
        float, Meaning("Of the error.", name="Standard error", format=_percent)
    ]
    chosen: Annotated[bool, Meaning(
        "Whether it was chosen.", name="", format=lambda chosen: "chosen" if chosen else ""
    )]  # fmt: skip


def choose(
    batches: MeasuredBatches,
    models: Sequence[str] | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
) -> list[Candidate]:
    """Compare families by cross-validation, simple ones first, and choose one."""
    # ``folds`` blocks are held out in turn; the seed deals out the rows of a sweep.
    check_enough(batches)
    folds = checks.whole("folds", folds, 2, 1_000, "", "each is held out of the fit once")
    names = list(models) if models is not None else families_for(batches)
    whole = {name: fitted for name in names if (fitted := _possible(batches, name)) is not None}
    blocks = batches.blocks(folds, seed)
    errors = {
        name: np.array([_error_on(batches, block, name) for block in blocks]) for name in whole
    }
    if not any(np.isfinite(fitted).all() for fitted in errors.values()):
        raise InputError(
            f"{batches.source}: no model can be fitted with a block of the batches held out; "
            "measure more batches, or name the model"
        )
    sizes = {name: fitted.size for name, fitted in whole.items()}
    taken = _simplest(errors, sizes)
    return [
        Candidate(name, sizes[name], *_mean(errors[name]), name == taken)
        for name in sorted(whole, key=lambda name: sizes[name])
    ]


def _possible(batches: MeasuredBatches, name: str) -> Estimate | None:
    """Fit a family to all batches; None where they give it no parameters that a model may have."""
    try:
        fitted = estimate(batches, name)
        fitted.model()
    except InputError:
        return None
    return fitted


def _mean(errors: Array) -> tuple[float, float]:
    """Return mean and standard error; infinite where a block could not be predicted."""
    if not np.isfinite(errors).all():
        return math.inf, math.inf
    return float(errors.mean()), float(errors.std(ddof=1)) / math.sqrt(errors.size)


def families_for(batches: MeasuredBatches) -> list[str]:
    """Name the families that these batches allow."""
    steps = batches.tokens.max() > 2
    linear = [name for name in BY_LOAD if name in ("affine", "table") or steps]
    return [*linear, *(COMPOSED + name for name in linear if terms_of(batches).names)]


def _error_on(batches: MeasuredBatches, block: npt.NDArray[np.int64], name: str) -> float:
    """Return the mean of |predicted / measured - 1| on a block, fitted to the others."""
    held = np.zeros(len(batches), bool)
    held[block] = True
    try:
        fitted = estimate(batches.take(~held), name)
    except InputError:
        return math.inf
    judged = batches.take(held)
    return float(np.mean(np.abs(fitted.predicted(judged) / judged.seconds - 1)))


def _simplest(errors: dict[str, Array], sizes: dict[str, int]) -> str:
    """Return the smallest family as good as the best (one standard error, paired)."""
    best = min(errors, key=lambda name: float(errors[name].mean()))
    least = float(errors[best].mean())
    for name in sorted(errors, key=lambda name: sizes[name]):
        excess = errors[name] - errors[best]
        if not np.isfinite(excess).all():
            continue
        spread = float(excess.std(ddof=1)) / math.sqrt(excess.size)
        if float(excess.mean()) <= max(spread, _EQUAL * least, _SMALLEST):
            return name
    return best
