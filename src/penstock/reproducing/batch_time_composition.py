"""How little the batch time depends on what is in a batch of so many tokens."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import altair as alt
import numpy as np
import polars as pl
from pydantic import Field

from penstock.document import Section, Whole
from penstock.inputs.arrays import Floats, Ints
from penstock.measuring.fitting.layers.batch_contents import BatchContents, draw_batches
from penstock.measuring.fitting.layers.profiles import read_llmservingsim, read_vidur
from penstock.reproducing.item import (
    Claim,
    Milliseconds,
    Reproduction,
    Seed,
    Setup,
    Share,
    Some,
    profile_in,
    refuse,
)
from penstock.reproducing.looks import STROKES, channels
from penstock.show.charts import on_grid
from penstock.system.batch_time import BatchTime, PiecewiseConstant
from penstock.system.presets import hardware
from penstock.workload.workload import Workload, read_trace

_DRAWN_LENGTHS = 20_000


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
    seed: Seed = 0
    relatively_constant: _Stairs
    pairs: list[list[_Model]]


def run(setup: Setup) -> Reproduction:
    """Measure how much the time of batches with equally many tokens varies."""
    settings = setup.settings(_Composition, sections=())
    odd = next((len(pair) for pair in settings.pairs if len(pair) != 2), None)
    refuse(
        odd is not None or not settings.token_loads,
        f"reproduce has {len(settings.token_loads)} token_loads and pairs of {odd or 2} models, "
        "but a comparison takes a load or more, and a smaller and a larger model; give those",
    )
    # what is served, and how long each model takes for it; pairs without times are left out
    prompt, output, origin = _lengths(setup, settings)
    times = {model.name: _times(setup, model) for pair in settings.pairs for model in pair}
    pairs = [
        pair for pair in settings.pairs if all(times[model.name] is not None for model in pair)
    ]
    refuse(
        not pairs,
        "no pair of models has layer profiles or a preset here; give --data, or `hardware` for "
        "both",
    )
    # at each token load the same batches for all models
    loads = sorted(set(settings.token_loads))
    full = loads[-1]
    rows = _varied(setup, settings, pairs, times, loads, (prompt, output))
    variation = {(name, load): cv for name, load, _, _, cv in rows}
    most = room_for_composition(settings.relatively_constant)
    claims = _claims(pairs, variation, full, most)
    table = pl.DataFrame(rows, ["model", "token_load", "batches", "mean_s", "cv"], orient="row")
    (worst, at), cv = max(variation.items(), key=lambda cell: cell[1])
    assumed = (
        "The paper does not publish its times (SGLang): " + _what_for_times(setup, pairs, settings),
        f"{origin}, prompts of at most {settings.longest_prompt:,} and requests of at most "
        f"{settings.longest:,} tokens"
        f": {prompt.size:,} of them, means {prompt.mean():,.0f} and {output.mean():,.0f}",
        "The paper gives no number for 'relatively constant'. Here it means a CV of at most "
        f"{most:.1%}: the error of a staircase with R^2 = {settings.relatively_constant.r2:g}, "
        f"divided by the mean batch time. Full load means {full:,} tokens",
        "The number of decodes in a batch is drawn evenly from 1 to the max batch size; in one "
        "run it varies less",
    )
    text = "Coefficient of variation of the batch time by token load, a line per model."
    return setup.answer(
        claims, table, {text: _variation_chart(table, most)},
        "All batches at one token load have the same number of tokens, in other mixes of prefill "
        f"and decode. CV: standard deviation over mean. Black line: {most:.1%}, the most that "
        "counts as relatively constant. The paper speaks of the full token load only. Over all "
        f"loads, the batch time of {worst.replace(', ', ' on ')} varies most: {cv:.1%} at {at:,} "
        "tokens. There attention, which reads the tokens before each decode, takes much of the "
        "time.",
        (), assumed,
    )  # fmt: skip


def _claims(
    pairs: list[list[_Model]], variation: Mapping[tuple[str, int], float], full: int, most: float
) -> list[Claim]:
    """Compare the variation at full load with what a good fit leaves, and the larger model with the
    smaller.
    """
    claims = [
        Claim.judged(
            f"CV at {full:,} tokens, {model.name}", f"relatively constant (up to {most:.1%})",
            f"{variation[model.name, full]:.1%}", variation[model.name, full] <= most,
            "attention, which reads the tokens before each decode, takes too much of the batch "
            "time",
        )
        for model in itertools.chain.from_iterable(pairs)
    ]  # fmt: skip
    for smaller, larger in pairs:
        small, large = (variation[model.name, full] for model in (smaller, larger))
        claims.append(
            Claim.judged(
                f"CV of the larger model, {smaller.card}", "smaller",
                f"{larger.model} {large:.1%}, {smaller.model} {small:.1%}", large < small,
                "attention grew at least as much as the linear layers from one model to the other",
            )
        )  # fmt: skip
    return claims


def _varied(
    setup: Setup,
    settings: _Composition,
    pairs: list[list[_Model]],
    times: Mapping[str, Callable[[BatchContents], Floats] | None],
    loads: list[int],
    lengths: tuple[Ints, Ints],
) -> list[tuple[str, int, int, float, float]]:
    """Return of each model and token load how many batches there are, their mean time and its
    coefficient of variation.
    """
    rows = []
    for load in setup.each(loads):
        batches = _batches_of(*lengths, load, settings)
        for model in itertools.chain.from_iterable(pairs):
            of = times[model.name]
            assert of is not None
            seconds = of(batches)
            cv = float(seconds.std() / seconds.mean())
            rows.append((model.name, load, len(batches), float(seconds.mean()), cv))
    return rows


def room_for_composition(stairs: "_Stairs") -> float:
    """Return the error that a staircase with some R^2 leaves over loads up to the largest, over the
    mean batch time.
    """
    model = PiecewiseConstant(stairs.c_ms / 1e3, stairs.a_ms / 1e3, stairs.b0)
    seconds = model(np.arange(1, stairs.largest + 1))
    return float(np.sqrt((1 - stairs.r2) / stairs.r2) * seconds.std() / seconds.mean())


def _lengths(setup: Setup, settings: _Composition) -> tuple[Ints, Ints, str]:
    """Return prompts and outputs of the conversations that are short enough."""
    file = profile_in(setup.data, settings.lengths.file, "reproduce.lengths.file")
    origin = "ShareGPT's lengths"
    if file is None:
        preset = settings.lengths.preset
        origin += f" are not here (--data), so those of {preset} were drawn"
    workload = Workload.preset(settings.lengths.preset) if file is None else read_trace(file)
    rows = workload.with_rate(1.0, "poisson").with_seed(settings.seed).requests(_DRAWN_LENGTHS)
    prompt = rows.prompt_tokens.astype(np.int64)
    output = rows.output_tokens.astype(np.int64)
    short = (prompt <= settings.longest_prompt) & (prompt + output <= settings.longest)
    refuse(
        not short.any(),
        f"no request has a prompt of at most {settings.longest_prompt:,} and at most "
        f"{settings.longest:,} tokens in all, so no batch can be drawn; raise longest_prompt or "
        "longest",
    )
    return prompt[short], output[short], origin


def _times(setup: Setup, model: _Model) -> Callable[[BatchContents], Floats] | None:
    """Return what gives the seconds of batches: the layer profile, else the preset, else
    nothing.
    """
    file = _profiled(setup, model)
    if file is not None and model.source == "vidur":
        attention = None
        if model.attention is not None:
            folder = setup.profile(model.source)
            attention = profile_in(folder, model.attention, f"attention of {model.name}")
        degree = model.tensor_parallel
        return read_vidur(file, attention, layers=model.layers, tensor_parallel=degree).of
    if file is not None:
        return read_llmservingsim(file, model.layers, tensor_parallel=model.tensor_parallel).of
    if model.hardware is None:
        return None
    return functools.partial(_by_preset, hardware(model.hardware).batch_time)


def _by_preset(batch_time: BatchTime, batches: BatchContents) -> Floats:
    """Return the seconds of batches by the batch time of a preset."""
    return batch_time.of_batches(
        batches.prefill,
        batches.decodes,
        batches.prompts + batches.decodes,
        batches.per_batch(batches.new**2),
        batches.per_batch(batches.new * batches.before),
        batches.context,
    )


def _profiled(setup: Setup, model: _Model) -> Path | None:
    """Return the layer profile of a model, if it is in the data."""
    of_files = model.source == "llmservingsim"
    return profile_in(
        setup.profile(model.source), model.file, f"file of {model.name}", of_files=of_files
    )


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
    refuse(
        chosen.sum() < 2,
        f"{'only one' if chosen.any() else 'no'} batch of {load:,} tokens was drawn, and a "
        f"variation takes two; raise batches, now {settings.batches:,}, or leave this load out",
    )
    inside = chosen[drawn.batch]
    renamed = np.cumsum(chosen) - 1
    sums = (drawn.decodes[chosen], drawn.context[chosen], drawn.longest[chosen])
    return BatchContents(
        *sums, renamed[drawn.batch[inside]], drawn.new[inside], drawn.before[inside]
    )


def _what_for_times(setup: Setup, pairs: list[list[_Model]], settings: _Composition) -> str:
    """Say where the times of each model are from."""

    def named(models: Iterable[_Model]) -> str:
        return " and ".join(f"{model.model} on {model.card}" for model in models)

    measured = list(itertools.chain.from_iterable(pairs))
    profiled = [model for model in measured if _profiled(setup, model) is not None]
    parts = []
    for source in dict.fromkeys(model.source for model in profiled):
        models = (model for model in profiled if model.source == source)
        parts.append(
            f"{named(models)} by {_SOURCES[source]}'s layer profiles, without exchange between "
            "GPUs and the engine's own work"
        )
    if len(profiled) < len(measured):
        others = (model for model in measured if model not in profiled)
        parts.append(
            f"{named(others)} by presets of `penstock hardware`, as their layer profiles are not "
            "here (--data)"
        )
    left = [model for pair in settings.pairs if pair not in pairs for model in pair]
    if left:
        parts.append(f"{named(left)} left out, as a layer profile or a preset is missing")
    return "batches are timed for " + "; ".join(parts)


_SOURCES = {"llmservingsim": "LLMServingSim", "vidur": "Vidur"}


def _variation_chart(table: pl.DataFrame, most: float) -> Any:
    names = table["model"].unique(maintain_order=True).to_list()
    x = alt.X(
        "token_load:Q", title="Token load (tokens in the batch)",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=table["token_load"].unique().to_list(), format=",d"),
    )  # fmt: skip
    y = alt.Y(
        "cv:Q",
        title="CV of the batch time",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domainMin=0),
    )
    lines = (
        alt.Chart(table)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=45, filled=True))
        .encode(x=x, y=y, **channels("model", names, "Model", **STROKES))
    )
    rule = alt.Chart(pl.DataFrame({"cv": [most]})).mark_rule(strokeWidth=1.2).encode(y=y)
    return on_grid(alt.layer(rule, lines).properties(width=420, height=300))
