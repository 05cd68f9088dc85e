"""From measured batches to a batch-time model, with intervals and errors."""

import dataclasses
from typing import Any

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
from penstock.show.page import Page, Shown
from penstock.system.batch_time import BatchTime
from penstock.system.batch_time_file import BatchTimeFile

_BLOCKS = 100  # of batches, at most, that a bootstrap draws
_BENDS = 9  # of the bends that fit as well, how many a bootstrap tries

# What a batch-time file says of a fit.
_IN_FILE = (
    "model", "batches", "outliers", "tokens", "parameters", "confidence", "r2",
    "r2_without_outliers", "mean_absolute_error", "bias", "warnings",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Judged, Shown):
    """A batch-time model fitted to measured batches.

    Attributes
    ----------
    name
        Family: ``affine``, ``hinge``, ``steps``, ``table``, or ``composition-`` and one of them.
    model
        The model; each batch takes the ``gap`` to the next one, too, where that was measured.
    parameters
        By name: value, and the ends of its interval. Seconds, per token, per step of ``b0`` tokens,
        per request, or per pair of tokens. A step width or bend stands with the widths that fit as
        well (95% likelihood).
    batches
        What was fitted.
    predicted
        Shape (n,), seconds, without the gap, as they were measured.
    outliers
        Shape (n,), batches far from similar ones, which the fit leaves out.
    candidates
        The families compared, if one was chosen.
    confidence
        Of the intervals.
    warnings
        What to mind, in words.
    """

    name: str
    model: BatchTime
    parameters: dict[str, tuple[float, float, float]]
    batches: MeasuredBatches
    predicted: Array
    outliers: npt.NDArray[np.bool_]
    candidates: tuple[Candidate, ...]
    confidence: float
    warnings: tuple[str, ...]

    @property
    def n(self) -> int:
        """Number of batches."""
        return len(self.batches)

    @property
    def r2_without_outliers(self) -> float:
        """The same without them."""
        kept = ~self.outliers
        return r2(self.batches.seconds[kept], self.predicted[kept])

    def page(self) -> Page:
        """Return the fit as a page."""
        from penstock.measuring.fitting.view import fit_page

        return fit_page(self)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON says of it; seconds and tokens."""
        tokens = self.batches.tokens
        return {
            "model": self.name,
            "batches": self.n,
            "left_out_rows": self.batches.left_out,
            "outliers": int(self.outliers.sum()),
            "tokens": [float(tokens.min()), float(tokens.max())],
            "parameters": {
                name: {"value": value, "low": low, "high": high}
                for name, (value, low, high) in self.parameters.items()
            },
            "confidence": self.confidence,
            "r2": self.r2,
            "r2_without_outliers": self.r2_without_outliers,
            "mean_absolute_error": self.mean_absolute_error,
            "bias": self.bias,
            "error_quantiles": {
                f"p{share * 100:g}": value for share, value in self.quantiles.items()
            },
            "candidates": [_finite(dataclasses.asdict(candidate)) for candidate in self.candidates],
            "warnings": list(self.warnings),
            "source": self.batches.source,
        }

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
        the best of these by cross-validation; ``auto``: the best of all
        (`penstock.measuring.fitting.choose`).
    b0
        Step width or bend, of ``steps`` and ``hinge``; None: searched.
    confidence
        Of the intervals.
    folds
        Blocks of the cross-validation.
    seed
        Of the bootstrap, and for dealing out the rows of a sweep.

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
) -> dict[str, tuple[float, float, float]]:
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
    return _widened(intervals, batches.blurred_context)


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


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return the same with None for what is not finite, as JSON wants it."""
    return {
        name: None if isinstance(v, float) and not np.isfinite(v) else v
        for name, v in values.items()
    }
