"""Batch times: how little they depend on what is in a batch, and how well a staircase by token load fits them."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import altair as alt
import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field

from penstock import checks, plotting
from penstock.document import Section, Whole
from penstock.errors import InputError
from penstock.fitting.batches import MeasuredBatches
from penstock.fitting.fit import Fit, fit
from penstock.fitting.judged import r2
from penstock.fitting.layers.batch_contents import BatchContents, draw_batches
from penstock.fitting.layers.profiles import read_llmservingsim, read_vidur
from penstock.reproducing.asked import Asked
from penstock.reproducing.catalogue import Item
from penstock.reproducing.claims import Claim, Reproduction
from penstock.system.batch_time import BatchTime, PiecewiseConstant
from penstock.system.presets import hardware
from penstock.workload.workload import Workload, read_trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LOADS_APART = 8
_DRAWN_LENGTHS = 20_000
_LONGEST_LOAD = 65_536

Some = Annotated[Whole, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Milliseconds = Annotated[float, Field(ge=0, le=1e6)]


def _refuse_other_sections(asked: Asked) -> None:
    """Refuse sections of a scenario, which these items have no use for."""
    other = [checks.shown(key) for key in asked.document if key != "reproduce"]
    if other:
        raise InputError(
            f"the scenario has {', '.join(other)}, but {asked.document['reproduce']['item']} simulates nothing and "
            "reads the section `reproduce` only; leave the rest out"
        )


# How much the batch time depends on composition


class _Lengths(Section):
    file: str
    preset: str


class _Stairs(Section):
    c_ms: Milliseconds
    a_ms: Annotated[float, Field(gt=0, le=1e6)]
    b0: Some
    largest: Some
    r2: Share


class _Model(Section):
    model: str
    card: str
    source: Literal["llmservingsim", "vidur"]
    layers: Some
    file: str
    attention: str | None = None
    tensor_parallel: Some = 1
    hardware: str | None = None

    @property
    def name(self) -> str:
        return f"{self.model}, {self.card}"


class _Composition(Section):
    lengths: _Lengths
    longest_prompt: Some
    longest: Some
    token_loads: list[Annotated[Whole, Field(ge=2, le=1_000_000)]]
    max_batch_size: Some
    batches: Annotated[Whole, Field(ge=1, le=100_000)] = 2_000
    seed: Annotated[Whole, Field(ge=0)] = 0
    relatively_constant: _Stairs
    pairs: list[list[_Model]]


def _composition(asked: Asked, item: Item) -> Reproduction:
    _refuse_other_sections(asked)
    settings = asked.settings(_Composition)
    odd = next((len(pair) for pair in settings.pairs if len(pair) != 2), None)
    if odd is not None or not settings.token_loads:
        raise InputError(
            f"reproduce has {len(settings.token_loads)} token_loads and pairs of {odd or 2} models, but a comparison "
            "takes a load or more, and a smaller and a larger model; give those"
        )
    prompt, output, said = _lengths(asked, settings)
    times = {model.name: _times(asked, model) for pair in settings.pairs for model in pair}
    pairs = [pair for pair in settings.pairs if all(times[model.name] is not None for model in pair)]
    if not pairs:
        raise InputError("no pair of models has layer profiles or a preset here; give --data, or `hardware` for both")
    loads = sorted(set(settings.token_loads))
    rows, full = [], loads[-1]
    variation: dict[tuple[str, int], float] = {}
    for place, load in enumerate(loads):
        batches = _batches_of(prompt, output, load, settings)
        for model in itertools.chain.from_iterable(pairs):
            of = times[model.name]
            assert of is not None
            seconds = of(batches)
            cv = float(seconds.std() / seconds.mean())
            variation[model.name, load] = cv
            rows.append((model.name, load, len(batches), float(seconds.mean()), cv))
        asked.progress((place + 1) / len(loads))
    most = room_for_composition(settings.relatively_constant)
    claims = [_constant(model, variation[model.name, full], full, most) for pair in pairs for model in pair]
    claims += [_smaller(pair, variation, full) for pair in pairs]
    table = pl.DataFrame(rows, ["model", "token_load", "batches", "mean_s", "cv"], orient="row")
    (worst, at), cv = max(variation.items(), key=lambda each: each[1])
    assumed = (
        "SGLang's times and their figures are not published: " + _what_for_times(asked, pairs, settings),
        f"{said}, prompts of at most {settings.longest_prompt:,} and requests of at most {settings.longest:,} tokens: "
        f"{prompt.size:,} of them, means {prompt.mean():,.0f} and {output.mean():,.0f}",
        f"'Relatively constant' has no number: taken as at most {most:.1%}, the error that a staircase with "
        f"R^2 = {settings.relatively_constant.r2:g} leaves, over the mean batch time; full load: {full:,} tokens",
        "Decodes in a batch are drawn evenly from 1 to the max batch size, more widely than in one run",
    )
    text = "Coefficient of variation of the batch time by token load, a line per model."
    return Reproduction(
        item.name, item.title, item.source, tuple(claims), table, {text: _variation_chart(table, most)},
        "All batches at a load hold the same number of tokens, and differ in what they are. Black: the error that the "
        "fit of the batch time leaves. The paper speaks of full token load; at any, "
        f"{worst.replace(', ', ' on ')} varies most, by {cv:.1%} at {at:,} tokens, where "
        "attention, which reads the tokens before each decode, takes much of the time.",
        (), assumed,
    )  # fmt: skip


def room_for_composition(stairs: "_Stairs") -> float:
    """Return the error that a staircase with some R^2 leaves over loads up to the largest, over the mean batch time."""
    model = PiecewiseConstant(stairs.c_ms / 1e3, stairs.a_ms / 1e3, stairs.b0)
    seconds = model(np.arange(1, stairs.largest + 1))
    return float(np.sqrt((1 - stairs.r2) / stairs.r2) * seconds.std() / seconds.mean())


def _lengths(asked: Asked, settings: _Composition) -> tuple[Ints, Ints, str]:
    """Return prompts and outputs of the conversations that are short enough."""
    file = None if asked.data is None else asked.data / settings.lengths.file
    if file is not None and file.is_file():
        recorded = read_trace(file)
        workload, said = recorded, "ShareGPT's lengths"
    else:
        workload = Workload.preset(settings.lengths.preset)
        said = f"ShareGPT's lengths are not here (--data), so those of {settings.lengths.preset} were drawn"
    rows = workload.with_rate(1.0, "poisson").with_seed(settings.seed).requests(_DRAWN_LENGTHS)
    prompt, output = rows.prompt_tokens.astype(np.int64), rows.output_tokens.astype(np.int64)
    short = (prompt <= settings.longest_prompt) & (prompt + output <= settings.longest)
    if not short.any():
        raise InputError(
            f"no request has a prompt of at most {settings.longest_prompt:,} and at most {settings.longest:,} tokens "
            "in all, so no batch can be drawn; raise longest_prompt or longest"
        )
    return prompt[short], output[short], said


def _times(asked: Asked, model: _Model) -> Callable[[BatchContents], Floats] | None:
    """Return what gives the seconds of batches: the layer profile, else the preset, else nothing."""
    folder = _profiled(asked, model)
    if folder is not None:
        attention = None if model.attention is None else folder / model.attention
        if model.source == "vidur":
            return read_vidur(
                folder / model.file, attention, layers=model.layers, tensor_parallel=model.tensor_parallel
            ).of
        return read_llmservingsim(folder / model.file, model.layers, tensor_parallel=model.tensor_parallel).of
    if model.hardware is None:
        return None
    known = hardware(model.hardware).batch_time

    def of(batches: BatchContents) -> Floats:
        return known.of_batches(
            batches.prefill,
            batches.decodes,
            batches.prompts + batches.decodes,
            batches.per_batch(batches.new**2),
            batches.per_batch(batches.new * batches.before),
            batches.context,
        )

    return of


def _profiled(asked: Asked, model: _Model) -> Path | None:
    """Return the folder that holds the layer profile of a model, if it is in the data."""
    folder = asked.profile(model.source)
    return folder if folder is not None and (folder / model.file).exists() else None


def _batches_of(prompt: Ints, output: Ints, load: int, settings: _Composition) -> BatchContents:
    """Return batches that hold exactly so many tokens."""
    drawn = draw_batches(
        prompt,
        output,
        token_budget=load,
        max_batch_size=settings.max_batch_size,
        count=settings.batches,
        seed=settings.seed,
    )
    chosen = drawn.prefill + drawn.decodes == load
    if chosen.sum() < 2:
        raise InputError(
            f"{'only one' if chosen.any() else 'no'} batch of {load:,} tokens was drawn, and a variation takes two; "
            f"raise batches, now {settings.batches:,}, or leave this load out"
        )
    inside = chosen[drawn.batch]
    renamed = np.cumsum(chosen) - 1
    sums = (drawn.decodes[chosen], drawn.context[chosen], drawn.longest[chosen])
    return BatchContents(*sums, renamed[drawn.batch[inside]], drawn.new[inside], drawn.before[inside])


def _constant(model: _Model, cv: float, full: int, most: float) -> Claim:
    """Compare how much the batch time varies at the full token load with what a good fit leaves."""
    why = (
        "attention, which reads the tokens before each decode, takes more beside the linear layers than a fit leaves "
        "room for"
    )
    return Claim(
        f"CV at {full:,} tokens, {model.name}", f"relatively constant (up to {most:.1%})", f"{cv:.1%}", cv <= most,
        "" if cv <= most else why,
    )  # fmt: skip


def _smaller(pair: list[_Model], variation: dict[tuple[str, int], float], full: int) -> Claim:
    """Compare the variation of a smaller and a larger model."""
    small, large = (variation[model.name, full] for model in pair)
    return Claim(
        f"CV of the larger model, {pair[0].card}", "smaller",
        f"{pair[1].model} {large:.1%}, {pair[0].model} {small:.1%}", large < small,
        "" if large < small else "attention grew at least as much as the linear layers from one model to the other",
    )  # fmt: skip


def _what_for_times(asked: Asked, pairs: list[list[_Model]], settings: _Composition) -> str:
    """Say where the times of each model are from."""
    by_source: dict[str, list[str]] = {}
    for model in itertools.chain.from_iterable(pairs):
        profiled = _profiled(asked, model) is not None
        by_source.setdefault(_SOURCES[model.source] if profiled else "", []).append(f"{model.model} on {model.card}")
    told = [
        f"{' and '.join(names)} by {source}'s layer profiles, without exchange between GPUs and the engine's own work"
        for source, names in by_source.items()
        if source
    ]
    if "" in by_source:
        told.append(
            f"{' and '.join(by_source[''])} by presets of `penstock hardware`, as their layer profiles are not here "
            "(--data)"
        )
    left = [f"{model.model} on {model.card}" for pair in settings.pairs if pair not in pairs for model in pair]
    if left:
        told.append(f"{' and '.join(left)} left out, as a layer profile or a preset is missing")
    return "batches are timed for " + "; ".join(told)


_SOURCES = {"llmservingsim": "LLMServingSim", "vidur": "Vidur"}


def _variation_chart(table: pl.DataFrame, most: float) -> alt.LayerChart:
    names = table["model"].unique(maintain_order=True).to_list()
    x = alt.X(
        "token_load:Q", title="Token load (tokens in the batch)",
        scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=table["token_load"].unique().to_list(), format=",d"),
    )  # fmt: skip
    y = alt.Y("cv:Q", title="CV of the batch time", axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0))
    lines = (
        alt.Chart(table)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=45, filled=True))
        .encode(x=x, y=y, **_channels("model", names, "Model"))
    )
    rule = alt.Chart(pl.DataFrame({"cv": [most]})).mark_rule(strokeWidth=1.2).encode(y=y)
    chart: alt.LayerChart = (
        alt.layer(rule, lines).properties(width=420, height=300).configure_axis(gridColor=plotting.GRID)
    )
    return chart


def _channels(field: str, names: list[str], title: str) -> dict[str, Any]:
    """Colour and dash by a field, one legend for both."""
    legend = alt.Legend(title=title, symbolType="stroke", symbolStrokeWidth=2.5, symbolSize=300, labelLimit=260)
    colours = [plotting.COLOURS[i % len(plotting.COLOURS)] for i in range(len(names))]
    dashes = [list(plotting.DASHES[i % len(plotting.DASHES)]) for i in range(len(names))]
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=names, range=dashes), legend=legend),
    }


# The staircase


class _Constants(Section):
    c_ms: Milliseconds
    a_ms: Milliseconds
    b0: Some = 128


class _Case(Section):
    model: str
    tensor_parallel: Some
    layers: Some
    file: str
    hardware: str
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
    """A case: its batch times, measured or as a preset has them, and the staircase of the width asked for."""

    case: _Case
    batches: MeasuredBatches
    stairs: Fit
    measured: bool

    @property
    def published(self) -> PiecewiseConstant | None:
        """The paper's staircase, of its own width."""
        given = self.case.published
        return None if given is None else PiecewiseConstant(given.c_ms / 1e3, given.a_ms / 1e3, given.b0)


def _fits(asked: Asked, item: Item) -> Reproduction:
    _refuse_other_sections(asked)
    settings = asked.settings(_Fits)
    if not settings.cases or settings.largest <= settings.b0:
        raise InputError(
            f"fig-batch-time-fit has {len(settings.cases)} cases, loads up to largest {settings.largest:,} and steps "
            f"of b0 {settings.b0:,} tokens, but fits a staircase of two steps or more to a case or more; give a case, "
            "and a largest above b0"
        )
    folder = asked.profile(settings.source)
    found = []
    for place, case in enumerate(settings.cases):
        found.append(_fitted(case, folder, settings))
        asked.progress((place + 1) / len(settings.cases))
    claims = [claim for each in found for claim in _claims_of(each, settings)]
    assumed, missing = [], [each.case.name for each in found if not each.measured]
    if len(missing) < len(found):
        assumed += [
            f"Batch times are Vidur's medians of all layers but attention, up to {settings.largest:,} tokens: the "
            "paper does not say what was measured, and its constants fit these",
            "Attention and the exchange between GPUs are not in these times, which shortens those of TP2 and TP4",
        ]
    if missing:
        assumed.append(
            f"Layer profiles of {', '.join(missing)} are not here (--data), so those batch times are of `penstock "
            "hardware`, linear layers only, which were themselves fitted to loads up to 4,096 tokens: the R^2 of a fit "
            "to measured times needs --data, and only published constants can be compared"
        )
    rows = _rows(found, settings)
    text = "Batch time by token load with the fitted staircases, by tensor-parallel degree, a panel per model."
    return Reproduction(
        item.name, item.title, item.source, tuple(claims), rows, {text: _stairs_chart(rows)},
        "Points: measured, or as the catalogue has them. Coloured lines: the staircase fitted to them. Thin black: the "
        "published one.", (), tuple(assumed),
    )  # fmt: skip


def _fitted(case: _Case, folder: Path | None, settings: _Fits) -> _Fitted:
    measured = folder is not None and (folder / case.file).exists()
    if measured:
        assert folder is not None
        profile = read_vidur(folder / case.file, layers=case.layers, tensor_parallel=case.tensor_parallel)
        batches = profile.without_attention().up_to(settings.largest)
    else:
        loads = np.append(1.0, np.arange(_LOADS_APART, settings.largest + 1, _LOADS_APART, dtype=np.float64))
        seconds = hardware(case.hardware).batch_time(loads)
        batches = MeasuredBatches(seconds, loads, source=case.hardware, sweep=True, averaged=True)
    return _Fitted(case, batches, fit(batches, "steps", b0=settings.b0), measured)


def _claims_of(found: _Fitted, settings: _Fits) -> list[Claim]:
    case = found.case
    claims, reached = [], found.stairs.r2
    if found.measured:
        claims.append(
            Claim(
                f"R^2, {case.name}", f"above {settings.r2:g}", f"{reached:.3f}", reached > settings.r2,
                "" if reached > settings.r2 else _SMALLER_STEPS,
            )
        )  # fmt: skip
    published = found.published
    if published is not None:
        kept = r2(found.batches.seconds, published(found.batches.tokens))
        claims.append(
            Claim(
                f"R^2 of the published constants, {case.name}", f"above {settings.r2:g}", f"{kept:.3f}",
                kept > settings.r2,
                "" if kept > settings.r2 else _why_low(found, published),
            )
        )  # fmt: skip
    if found.measured:
        claims += _parameters(found, published, settings)
    return claims


_SMALLER_STEPS = "on more GPUs the times show smaller steps, of 64 tokens, beside those of 128 (see the figure)"

_ROUNDED_OFF = "the catalogue has straight lines between some loads there, which round steps off; give --data"


def _why_low(found: _Fitted, published: PiecewiseConstant) -> str:
    bias = float(published(found.batches.tokens).sum() / found.batches.seconds.sum() - 1)
    said = f"in sum the published times are {bias:+.1%} off these, which hold linear layers only; refitted, R^2 is "
    return f"{said}{found.stairs.r2:.3f}" + ("" if found.measured else f", as {_ROUNDED_OFF}")


def _parameters(found: _Fitted, published: PiecewiseConstant | None, settings: _Fits) -> list[Claim]:
    """Compare c, a and the width of a step, with their 95% intervals."""
    claims, name = [], found.case.name
    if published is not None:
        parameters = {key: [1e3 * value for value in found.stairs.parameters[key]] for key in ("c", "a")}
        inside = {key: low <= 1e3 * getattr(published, key) <= high for key, (_, low, high) in parameters.items()}
        said = ", ".join(f"{key} {v:.2f} ({low:.2f}..{high:.2f})" for key, (v, low, high) in parameters.items())
        outside = " and ".join(key for key, held in inside.items() if not held)
        claims.append(
            Claim(
                f"constants, {name}", f"c {1e3 * published.c:.2f}, a {1e3 * published.a:.2f} ms", f"{said} ms",
                not outside, f"{outside} outside the 95% interval; {_SMALLER_STEPS}" if outside else "",
            )
        )  # fmt: skip
    free = fit(found.batches, "steps")
    width, low, high = free.parameters["b0"]
    expected = settings.b0 if published is None else published.b0
    same = low <= expected <= high
    claims.append(
        Claim(
            f"tokens of a step, {name}", f"{expected}", f"{width:.0f} ({low:.0f}..{high:.0f})", same,
            "" if same else f"by relative error; R^2 {free.r2:.3f} against {found.stairs.r2:.3f}: {_SMALLER_STEPS}",
        )
    )  # fmt: skip
    return claims


def _rows(found: list[_Fitted], settings: _Fits) -> pl.DataFrame:
    """Return measured times, and at the ends of the steps those of the staircases."""
    rows: list[tuple[str, str, str, float, float]] = []
    for each in found:
        about = (each.case.model, f"TP{each.case.tensor_parallel}")
        parts: list[tuple[str, BatchTime | None]] = [
            ("fitted", each.stairs.model),
            ("published", each.published),
        ]
        points = zip(each.batches.tokens.tolist(), (1e3 * each.batches.seconds).tolist(), strict=True)
        rows += [(*about, "measured" if each.measured else "catalogue", load, ms) for load, ms in points]
        for kind, model in parts:
            if model is not None:
                width = model.b0 if isinstance(model, PiecewiseConstant) else settings.b0
                ends = np.append(np.arange(0, settings.largest, width), settings.largest).astype(np.float64)
                steps = zip(ends.tolist(), (1e3 * model(np.maximum(ends, 1.0))).tolist(), strict=True)
                rows += [(*about, kind, load, ms) for load, ms in steps]
    return pl.DataFrame(rows, ["model", "degree", "kind", "tokens", "ms"], orient="row")


def _stairs_chart(rows: pl.DataFrame) -> alt.HConcatChart:
    degrees = sorted(rows["degree"].unique())
    channels = _channels("degree", degrees, "Tensor parallel")
    marks = ["circle", "square", "triangle-up", "diamond"]
    shape = alt.Shape(
        "degree:N", scale=alt.Scale(domain=degrees, range=[marks[i % 4] for i in range(len(degrees))]), legend=None
    )
    largest = float(rows["tokens"].cast(pl.Float64).to_numpy().max())
    x = alt.X(
        "tokens:Q", title="Token load (tokens in the batch)", axis=alt.Axis(format=",d", tickCount=5),
        scale=alt.Scale(domain=[0, largest], nice=False),
    )  # fmt: skip
    y = alt.Y("ms:Q", title="Batch time (ms)", scale=alt.Scale(domainMin=0))
    panels = []
    for model in rows["model"].unique(maintain_order=True):
        here = rows.filter(model=model)
        points = alt.Chart(here.filter(pl.col("kind").is_in(["measured", "catalogue"])))
        fitted, published = (alt.Chart(here.filter(kind=kind)) for kind in ("fitted", "published"))
        layers = [
            points.mark_point(size=22, opacity=0.8, strokeWidth=1).encode(
                x=x, y=y, color=channels["color"], shape=shape
            ),
            fitted.mark_line(strokeWidth=2.2, interpolate="step-before").encode(x=x, y=y, **channels),
            published.mark_line(strokeWidth=0.9, color="black", interpolate="step-before").encode(
                x=x, y=y, detail="degree:N"
            ),
        ]
        panels.append(alt.layer(*layers).properties(width=330, height=300, title=model))
    chart: alt.HConcatChart = alt.hconcat(*panels).configure_axis(gridColor=plotting.GRID)
    return chart


RUN: dict[str, Callable[[Asked, Item], Reproduction]] = {
    "fig-batch-time-composition": _composition,
    "fig-batch-time-fit": _fits,
}
