"""Parameters and times of a calibration with their units, in words and for JSON."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from penstock.show.answers import Meaning

COST_UNITS = {
    "step": ("ms", 1e3),
    "per_token": ("us per token", 1e6),
    "per_token_below": ("us per token up to the knee", 1e6),
    "knee": ("tokens", 1.0),
    "per_request": ("us per request", 1e6),
    "decode_attention": ("ns per token of context", 1e9),
    "self_attention": ("ns per pair of tokens", 1e9),
    "with_prefill": ("ms per batch with prompts", 1e3),
    "overhead": ("ms per request", 1e3),
    "overhead_per_stream": ("us per stream", 1e6),
    "idle": ("ms per request", 1e3),
    "kv_tokens": ("tokens", 1.0),
    "max_batch_size": ("requests", 1.0),
    "front_end": ("ms per request", 1e3),
    "front_end_per_token": ("us per output token", 1e6),
}
"""What is fitted without a shape, in the order of tables: the unit to print, and how many of it
there are in a second.
"""

SHAPE_UNITS = {
    **dict.fromkeys(
        ("small_batches", "medium_batches", "large_batches", "decode_kernel", "prompt_kernel"),
        ("x the shape's", 1.0),
    ),
    "host": ("ms per batch", 1e3),
    "per_stream": ("us per request", 1e6),
    "overhead": ("ms per request", 1e3),
    "kv_memory": ("x the shape's", 1.0),
}
"""What is fitted to a shape, in the order of tables, as in `COST_UNITS`."""

ALL_UNITS = COST_UNITS | SHAPE_UNITS


def quantity(name: str, value: float) -> str:
    """Return a parameter with its unit, in words."""
    unit, per = ALL_UNITS[name]
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
    units = {name: ALL_UNITS[name] for name in values}
    return {name: Quantity(values[name] * per, unit) for name, (unit, per) in units.items()}
