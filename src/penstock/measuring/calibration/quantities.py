"""Parameters and times of a calibration with their units, in words and for JSON."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from penstock.show.answers import Meaning

COSTS = {
    "step": ("ms", 1e3, "a batch, whatever is in it"),
    "per_token": ("us per token", 1e6, "a token in a batch"),
    "per_token_below": ("us per token up to the knee", 1e6, "one of the first tokens"),
    "knee": ("tokens", 1.0, "tokens from which on each costs more"),
    "per_request": ("us per request", 1e6, "a request in a batch"),
    "decode_attention": ("ns per token of context", 1e9, "a token before a decode"),
    "self_attention": ("ns per pair of tokens", 1e9, "a pair of prompt tokens"),
    "with_prefill": ("ms per batch with prompts", 1e3, "a batch with prompts, beside"),
    "overhead": ("ms per request", 1e3, "beside the engine, until the first token"),
    "overhead_per_stream": ("us per stream", 1e6, "beside the engine, for each other stream"),
    "idle": ("ms per request", 1e3, "beside the engine, where nobody else is there"),
    "kv_tokens": ("tokens", 1.0, "what the KV memory holds"),
    "max_batch_size": ("requests", 1.0, "requests that run at most"),
    "front_end": ("ms per request", 1e3, "before the engine, one request after another"),
    "front_end_per_token": ("us per output token", 1e6, "there, for each token to put out"),
}
"""What is fitted without a shape, in the order of tables: the unit to print, how many of it there
are in a second, and what it is the cost of.
"""

_OF_SHAPE = "x the shape's", 1.0
ADJUSTMENTS = {
    "small_batches": (*_OF_SHAPE, "time of batches of up to 8 tokens"),
    "medium_batches": (*_OF_SHAPE, "of 64 tokens, attention aside"),
    "large_batches": (*_OF_SHAPE, "of 2,048 tokens and more, attention aside"),
    "decode_kernel": (*_OF_SHAPE, "attention of decodes"),
    "prompt_kernel": (*_OF_SHAPE, "attention of prompts"),
    "host": ("ms per batch", 1e3, "a batch outside the model: composing it, the gap before it"),
    "per_stream": ("us per request", 1e6, "a request in a batch, on the host"),
    "overhead": COSTS["overhead"],
    "kv_memory": (*_OF_SHAPE, "tokens that the KV memory holds"),
}
"""What is fitted to a shape, as in `COSTS`."""

PARAMETERS = COSTS | ADJUSTMENTS
"""All that is fitted."""

SHOWN = {"ttft": ("ms", 1e3), "itl": ("ms", 1e3), "e2e": ("s", 1.0)}
"""Metrics of each row that are shown: the unit, and how many there are in a second."""


def quantity(name: str, value: float) -> str:
    """Return a parameter with its unit, in words."""
    unit, per, _ = PARAMETERS[name]
    unit = unit.split(" ")[0]
    if unit == "us" and value * per >= 1_000:
        unit, per = "ms", 1e3
    return f"{value * per:,.4g} {unit}"


def time_shown(metric: str, value: float | None) -> str:
    """Return one of `METRICS` with its unit; None: no request ended."""
    if value is None:
        return "none"
    if metric == "requests_per_s":
        return f"{value:,.4g}/s"
    return f"{value * 1e3:,.4g} ms" if value < 1 else f"{value:,.4g} s"


class Quantity(NamedTuple):
    """A parameter with its unit."""

    value: Annotated[float, Meaning("In its unit.")]
    unit: Annotated[str, Meaning("Such as ``ms``.")]


def with_units(values: Mapping[str, float]) -> dict[str, Quantity]:
    """Return parameters as a JSON document says them."""
    units = {name: PARAMETERS[name] for name in values}
    return {name: Quantity(values[name] * per, unit) for name, (unit, per, _) in units.items()}
