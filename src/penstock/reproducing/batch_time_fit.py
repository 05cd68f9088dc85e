"""How well a staircase by token load fits batch times."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import altair as alt
import numpy as np
import polars as pl
from pydantic import Field

from penstock.document import Section, Whole
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.fit import Fit, fit
from penstock.measuring.fitting.layers.profiles import read_vidur
from penstock.measuring.fitting.relative_errors import r2
from penstock.reproducing.item import (
    Claim,
    Milliseconds,
    Reproduction,
    Setup,
    Share,
    Some,
    profile_in,
    refuse,
)
from penstock.reproducing.looks import STROKES, channels, cycled
from penstock.show.charts import on_grid
from penstock.system.batch_time import BatchTime, PiecewiseConstant

_SHAPES = ("circle", "square", "triangle-up", "diamond")
_LONGEST_LOAD = 65_536


class _Constants(Section):
    c_ms: Milliseconds
    a_ms: Milliseconds
    b0: Some = 128


class _Case(Section):
    model: str
    tensor_parallel: Some
    layers: Some
    file: str
    published: _Constants | None = None

    @property
    def name(self) -> str:
        return f"{self.model} TP{self.tensor_parallel}"


class _Fits(Section):
    source: Literal["vidur"] = "vidur"
    largest: Annotated[Whole, Field(ge=1, le=_LONGEST_LOAD)] = 512
    b0: Some = 128
    r2: Share = 0.97
    cases: list[_Case]


@dataclasses.dataclass(frozen=True, eq=False)
class _Fitted:
    """A case: its batch times, and the staircase of the width asked for."""

    case: _Case
    batches: MeasuredBatches
    stairs: Fit

    @property
    def published(self) -> PiecewiseConstant | None:
        """The paper's staircase, of its own width."""
        constants = self.case.published
        if constants is None:
            return None
        return PiecewiseConstant(constants.c_ms / 1e3, constants.a_ms / 1e3, constants.b0)


def run(setup: Setup) -> Reproduction:
    """Fit a staircase to the batch times of each case."""
    settings = setup.settings(_Fits, sections=())
    refuse(
        not settings.cases or settings.largest <= settings.b0,
        f"fig-batch-time-fit has {len(settings.cases)} cases, loads up to largest "
        f"{settings.largest:,} and steps of b0 {settings.b0:,} tokens, but fits a staircase of "
        "two steps or more to a case or more; give a case, and a largest above b0",
    )
    folder = setup.profile(settings.source)
    fits, missing = [], []
    for index, case in setup.each(list(enumerate(settings.cases))):
        profile = profile_in(folder, case.file, f"reproduce.cases.{index}.file")
        if profile is None:
            missing.append(case.name)
        else:
            fits.append(_fitted(case, profile, settings))
    claims = [claim for fitted in fits for claim in _claims_of(fitted, settings)]
    assumed = []
    if fits:
        assumed += [
            "Batch times are Vidur's medians, summed over all layers without attention, up to "
            f"{settings.largest:,} tokens. The paper does not say what it measured",
            "These times leave out attention and the exchange between GPUs, so those of TP2 and "
            "TP4 are too short",
        ]
    if missing:
        assumed.append(
            f"Layer profiles of {', '.join(missing)} are not here (--data), so nothing is fitted "
            "to them"
        )
    rows = _rows(fits, settings)
    text = (
        "Batch time by token load with the fitted staircases, by tensor-parallel degree, a panel "
        "per model."
    )
    return setup.answer(
        claims, rows, {text: _stairs_chart(rows)} if fits else {},
        "Points: measured batch times. Coloured lines: the staircase "
        "fitted to these "
        "points. Thin black lines: the published staircase.", (), (_near(settings), *assumed),
    )  # fmt: skip


def _near(settings: _Fits) -> str:
    """Say what counts as same, and which batches an R^2 is of."""
    return (
        f"Same means: R^2 is above {settings.r2:g}; a published constant or step lies inside the "
        "95% interval of the "
        "one fitted here. No batch is held out: each R^2 is of the same batches that were fitted"
    )


def _fitted(case: _Case, file: Path, settings: _Fits) -> _Fitted:
    profile = read_vidur(file, layers=case.layers, tensor_parallel=case.tensor_parallel)
    batches = profile.without_attention().up_to(settings.largest)
    return _Fitted(case, batches, fit(batches, "steps", b0=settings.b0))


def _claims_of(fitted: _Fitted, settings: _Fits) -> list[Claim]:
    case = fitted.case
    reached = fitted.stairs.r2
    claims = [
        Claim.judged(
            f"R^2, {case.name}", f"above {settings.r2:g}", f"{reached:.3f}",
            reached > settings.r2,
            _SMALLER_STEPS,
        )
    ]  # fmt: skip
    published = fitted.published
    if published is not None:
        kept = r2(fitted.batches.seconds, published(fitted.batches.tokens))
        claims.append(
            Claim.judged(
                f"R^2 of the published constants, {case.name}", f"above {settings.r2:g}",
                f"{kept:.3f}",
                kept > settings.r2,
                _why_low(fitted, published),
            )
        )  # fmt: skip
    return claims + _parameters(fitted, published, settings)


_SMALLER_STEPS = "on more GPUs the times also have smaller steps, of 64 tokens (see the figure)"


def _why_low(fitted: _Fitted, published: PiecewiseConstant) -> str:
    bias = float(published(fitted.batches.tokens).sum() / fitted.batches.seconds.sum() - 1)
    reason = (
        f"summed, the published times are {bias:+.1%} off these, of linear layers only; fitted "
        "anew, R^2 is "
    )
    return f"{reason}{fitted.stairs.r2:.3f}"


def _parameters(
    fitted: _Fitted, published: PiecewiseConstant | None, settings: _Fits
) -> list[Claim]:
    """Compare c, a and the width of a step, with their 95% intervals."""
    claims = []
    name = fitted.case.name
    if published is not None:
        parameters = {
            key: [1e3 * value for value in fitted.stairs.parameters[key]] for key in ("c", "a")
        }
        inside = {
            key: low <= 1e3 * getattr(published, key) <= high
            for key, (_, low, high) in parameters.items()
        }
        constants = ", ".join(
            f"{key} {v:.2f} ({low:.2f}..{high:.2f})" for key, (v, low, high) in parameters.items()
        )
        outside = " and ".join(key for key, held in inside.items() if not held)
        claims.append(
            Claim(
                f"constants, {name}", f"c {1e3 * published.c:.2f}, a {1e3 * published.a:.2f} ms",
                f"{constants} ms",
                not outside,
                f"{outside} outside the 95% interval; {_SMALLER_STEPS}" if outside else "",
            )
        )  # fmt: skip
    free = fit(fitted.batches, "steps")
    width, low, high = free.parameters["b0"]
    expected = settings.b0 if published is None else published.b0
    same = low <= expected <= high
    claims.append(
        Claim.judged(
            f"tokens of a step, {name}", f"{expected}", f"{width:.0f} ({low:.0f}..{high:.0f})",
            same,
            f"R^2 {free.r2:.3f} with this step, {fitted.stairs.r2:.3f} with {settings.b0}: "
            f"{_SMALLER_STEPS}",
        )
    )  # fmt: skip
    return claims


def _rows(fits: list[_Fitted], settings: _Fits) -> pl.DataFrame:
    """Return measured times, and at the ends of the steps those of the staircases."""
    rows: list[tuple[str, str, str, float, float]] = []
    for fitted in fits:
        about = (fitted.case.model, f"TP{fitted.case.tensor_parallel}")
        times = zip(fitted.batches.tokens.tolist(), fitted.batches.seconds.tolist(), strict=True)
        rows += [(*about, "measured", load, 1e3 * seconds) for load, seconds in times]
        models: dict[str, BatchTime] = {"fitted": fitted.stairs.model}
        if fitted.published is not None:
            models["published"] = fitted.published
        for kind, model in models.items():
            width = model.b0 if isinstance(model, PiecewiseConstant) else settings.b0
            ends = np.append(np.arange(0, settings.largest, width), settings.largest).astype(float)
            ms = 1e3 * model(np.maximum(ends, 1.0))
            rows += [(*about, kind, *step) for step in zip(ends.tolist(), ms.tolist(), strict=True)]
    return pl.DataFrame(rows, ["model", "degree", "kind", "tokens", "ms"], orient="row")


def _stairs_chart(rows: pl.DataFrame) -> Any:
    degrees = sorted(rows["degree"].unique())
    look = channels("degree", degrees, "Tensor parallel", **STROKES)
    shape = alt.Shape("degree:N", scale=cycled(degrees, _SHAPES), legend=None)
    largest = float(rows["tokens"].cast(pl.Float64).to_numpy().max())
    x = alt.X(
        "tokens:Q", title="Token load (tokens in the batch)",
        axis=alt.Axis(format=",d", tickCount=5),
        scale=alt.Scale(domain=[0, largest], nice=False),
    )  # fmt: skip
    slowest = float(rows["ms"].to_numpy().max())
    y = alt.Y(
        "ms:Q",
        title="Batch time (ms)",
        axis=alt.Axis(tickCount=6),
        scale=alt.Scale(domain=[0, 1.06 * slowest], nice=False),
    )
    named = alt.Opacity(
        "kind:N", scale=alt.Scale(domain=["published"], range=[1]),
        legend=alt.Legend(title="Thin black lines", symbolType="stroke", symbolStrokeColor="black",
        symbolSize=300),
    )  # fmt: skip
    panels = []
    for model in rows["model"].unique(maintain_order=True):
        here = rows.filter(model=model)
        points = alt.Chart(here.filter(kind="measured"))
        fitted, published = (alt.Chart(here.filter(kind=kind)) for kind in ("fitted", "published"))
        layers = [
            points.mark_point(size=22, opacity=0.8, strokeWidth=1).encode(
                x=x, y=y, color=look["color"], shape=shape
            ),
            fitted.mark_line(strokeWidth=2.2, interpolate="step-before").encode(x=x, y=y, **look),
        ]
        if here.filter(kind="published").height:
            thin = published.mark_line(strokeWidth=0.9, color="black", interpolate="step-before")
            layers.append(thin.encode(x=x, y=y, detail="degree:N", opacity=named))
        panels.append(alt.layer(*layers).properties(width=330, height=300, title=model))
    return on_grid(alt.hconcat(*panels).resolve_scale(y="shared"))
