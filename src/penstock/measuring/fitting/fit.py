"""From measured batches to a batch-time model, with intervals and errors."""

import dataclasses
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.cautions import cautions_of
from penstock.measuring.fitting.choose import Candidate, choose, families_for
from penstock.measuring.fitting.estimate import Estimate, estimate
from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.relative_errors import Judged, r2
from penstock.measuring.fitting.robust import resampled
from penstock.show.answers import Meaning, Shown, computed
from penstock.system.batch_time import BatchTime
from penstock.system.batch_time_file import BatchTimeFile

_BLOCKS = 100  # of batches, at most, that a bootstrap draws
_BENDS = 9  # of the bends that fit as well, how many a bootstrap tries

# What a batch-time file says of a fit.
_IN_FILE = (
    "model", "batches", "outliers", "tokens", "parameters", "confidence", "r2",
    "r2_without_outliers", "mean_absolute_error", "bias", "warnings",
)  # fmt: skip


class Interval(NamedTuple):
    """A value, and the ends of its interval."""

    value: Annotated[float, Meaning("The parameter.")]
    low: Annotated[float, Meaning("Low end of its interval.")]
    high: Annotated[float, Meaning("High end of its interval.")]


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Judged, Shown):
    """A batch-time model fitted to measured batches."""

    name: Annotated[str, Meaning(
        "Family: ``affine``, ``hinge``, ``steps``, ``table``, or ``composition-`` and one of them.",
        key="model",
    )]  # fmt: skip
    model: Annotated[BatchTime, Meaning(
        "The model; each batch takes the ``gap`` to the next one, too, where that was measured.",
        key=None,
    )]  # fmt: skip
    parameters: Annotated[dict[str, Interval], Meaning(
        "By name: value, and the ends of its interval. Seconds, per token, per step of ``b0`` "
        "tokens, per request, or per pair of tokens. A step width or bend stands with the widths "
        "that fit as well (95% likelihood)."
    )]  # fmt: skip
    batches: Annotated[MeasuredBatches, Meaning("What was fitted.", key=None)]
    predicted: Annotated[
        Array, Meaning("Shape (n,), seconds, without the gap, as they were measured.", key=None)
    ]
    outliers: Annotated[
        npt.NDArray[np.bool_],
        Meaning("Shape (n,), batches far from similar ones, which the fit leaves out.", key=None),
    ]
    candidates: Annotated[
        tuple[Candidate, ...], Meaning("The families compared, if one was chosen.")
    ]
    confidence: Annotated[float, Meaning("Of the intervals.")]
    warnings: Annotated[tuple[str, ...], Meaning("What to mind, in words.")]

    @computed(key="outliers")
    def left_out(self) -> int:
        """Number of batches far from similar ones, which the fit leaves out."""
        return int(self.outliers.sum())

    @property
    def far_off(self) -> str:
        """The same in words."""
        if not self.left_out:
            return "none far from similar ones"
        return f"{self.left_out:,} far from similar ones, left out of the fit"

    @computed()
    def left_out_rows(self) -> int:
        """Rows of the file that are no batch."""
        return self.batches.left_out

    @computed()
    def tokens(self) -> list[float]:
        """The fewest and the most tokens of a batch."""
        return [float(self.batches.tokens.min()), float(self.batches.tokens.max())]

    @computed()
    def r2_without_outliers(self) -> float:
        """``r2`` without the batches left out."""
        kept = ~self.outliers
        return r2(self.batches.seconds[kept], self.predicted[kept])

    @computed()
    def source(self) -> str:
        """Where the batches come from."""
        return self.batches.source

    def as_file(self, description: str = "", licence: str | None = None) -> BatchTimeFile:
        """Return the content of a batch-time file."""
        facts = self.as_dict()
        return BatchTimeFile(
            description or f"fitted to {self.n:,} measured batches",
            self.model,
            self.batches.source,
            licence,
            fit={name: facts[name] for name in _IN_FILE},
        )


def fit(
    batches: MeasuredBatches,
    model: str = "auto",
    *,
    b0: int | None = None,
    confidence: float = 0.95,
    folds: int = 5,
    seed: int = 0,
) -> Fit:
    """Fit a batch-time model to measured batches.

    Squares of relative errors, coefficients not negative, outliers left out
    (`penstock.measuring.fitting.robust`).

    Parameters
    ----------
    batches
        What was measured.
    model
        ``affine``, ``hinge``, ``steps``, ``table``, ``composition-affine`` ...; ``composition``:
        the best of these by cross-validation; ``auto``: the best of all. See
        `penstock.measuring.fitting.choose`.
    b0
        Step width or bend, of ``steps`` and ``hinge``. Default: searched.
    confidence
        Of the intervals.
    folds
        Blocks of the cross-validation.
    seed
        Of the bootstrap. It also deals out the rows of a sweep.

    Raises
    ------
    InputError
        If there is no such model, or the batches are too few or tell no cost of a token.
    """
    confidence = checks.number(
        "confidence", confidence, 0.5, 0.99, "", "400 resamples tell no more"
    )
    seed = checks.whole("seed", seed, 0, 2**63, "", "a seed is a whole number")
    if b0 is not None and model in ("auto", "composition"):
        raise InputError(
            f"b0 is {checks.shown(b0)}, but which model has it is open; name it: steps, hinge"
        )
    candidates = _candidates(batches, model, folds, seed)
    name = next((candidate.name for candidate in candidates if candidate.chosen), model)
    fitted = estimate(batches, name, b0)
    return Fit(
        name=fitted.name,
        model=_model(fitted, batches),
        parameters=_parameters(batches, fitted, confidence, seed),
        batches=batches,
        predicted=fitted.predicted(batches),
        outliers=fitted.solution.outliers,
        candidates=tuple(candidates),
        confidence=confidence,
        warnings=tuple(cautions_of(batches, fitted)),
    )


def _candidates(batches: MeasuredBatches, model: str, folds: int, seed: int) -> list[Candidate]:
    """Return the families that were compared; none where one is named, or none is possible."""
    if model not in ("auto", "composition"):
        return []
    families = [
        family for family in families_for(batches) if model == "auto" or family.startswith(COMPOSED)
    ]
    return choose(batches, families, folds=folds, seed=seed) if families else []


def _model(fitted: Estimate, batches: MeasuredBatches) -> BatchTime:
    try:
        return fitted.model(0.0 if batches.gap is None else batches.gap.seconds)
    except InputError:
        raise InputError(
            f"{batches.source}: fitted to these batches, {fitted.name} leaves no time for a batch "
            "of few tokens, and that is no batch time; measure smaller batches, or ask for "
            "another model"
        ) from None


def _parameters(
    batches: MeasuredBatches, fitted: Estimate, confidence: float, seed: int
) -> dict[str, Interval]:
    """Return the parameters by name, with percentiles of a bootstrap as ends of their intervals."""
    # The cost of a step is for its width.
    bends = np.array(fitted.likely if fitted.linear.family == "hinge" else ())
    few = bends[np.linspace(0, max(bends.size - 1, 0), min(bends.size, _BENDS)).astype(int)]
    candidates = [fitted.columns(batches), *(fitted.columns(batches, float(b0)) for b0 in few)]
    blocks = batches.blocks(_BLOCKS, seed)
    samples = resampled(candidates, batches.seconds, fitted.solution, blocks, seed)
    values = fitted.solution.coefficients.copy()
    if fitted.linear.family == "table":  # seconds at the knots, not the rises between them
        knots = len(fitted.linear.names)
        for rises in (samples, values[None]):
            rises[:, :knots] = np.cumsum(rises[:, :knots], axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, [tail, 1 - tail], axis=0)
    low, high = np.minimum(low, values), np.maximum(high, values)
    names = [*fitted.linear.names, *([] if fitted.terms is None else fitted.terms.names)]
    intervals = dict(
        zip(names, zip(values.tolist(), low.tolist(), high.tolist(), strict=True), strict=True)
    )
    if fitted.likely:
        intervals["b0"] = (fitted.linear.shape[0], fitted.likely[0], fitted.likely[-1])
    elif fitted.linear.family in ("hinge", "steps"):
        intervals["b0"] = (fitted.linear.shape[0],) * 3  # given, not searched
    if batches.gap is not None:
        intervals["gap"] = (*batches.gap,)
    widened = _widened(intervals, batches.blurred_context)
    return {name: Interval(*ends) for name, ends in widened.items()}


def _widened(
    intervals: dict[str, tuple[float, float, float]], context: float | None
) -> dict[str, tuple[float, float, float]]:
    """Widen the intervals of a request's cost and its context's, where blocks blur the context."""
    # Then all of what a request seems to cost may be what its mean context costs.
    attention = [name for name in ("decode_attention", "mixed_attention") if name in intervals]
    if context is None or not attention or "per_request" not in intervals:
        return intervals
    value, _, high = intervals["per_request"]
    widened = intervals | {"per_request": (value, 0.0, high)}
    for name in attention:
        cost, least, most = intervals[name]
        widened[name] = (cost, least, most + high / context)
    return widened
