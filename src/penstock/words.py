"""Numbers and names of figures as words, the same in messages, tables and pages."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Said = TypeVar("Said", bound=Hashable)

METRICS = {"ttft_s": "Time to first token", "tbt_s": "Time between tokens", "e2e_s": "End to end"}
LIMITED = METRICS | {"tpot_s": "Time per output token"}
"""Latencies that targets may limit, the last over the tokens of each request."""
NOUNS = {"ttft_s": "time to first token", "tbt_s": "time per token", "e2e_s": "whole call"}
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", *QUANTILES)

_YEAR_S = 366 * 86_400.0
NO_LIMIT = "none"
"""What is said of a limit that is not set."""


def counted(count: int, noun: str) -> str:
    """Return a number with what it counts: ``1 replica``, ``2 replicas``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(low: int, high: int, noun: str) -> str:
    """Return a number of things, or from how many to how many: ``1 to 4 replicas``."""
    return counted(low, noun) if low == high else f"{low:,} to {counted(high, noun)}"


def between(low: str, high: str) -> str:
    """Return the ends of an interval, or the one that both are: ``7 to 8``, ``8``."""
    return low if low == high else f"{low} to {high}"


def amount(value: float) -> str:
    """Return money or accelerators: four digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def whole(value: float) -> str:
    """Return a number without decimals: ``2,160``."""
    return f"{value:,.0f}"


def share(value: float | None, decimals: int = 0) -> str:
    """Return a share in percent: ``42%``; a dash if it is not known."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{decimals}%}"


def digits(value: float) -> str:
    """Return a number with three digits, and all before the point: ``0.0467``, ``2,160``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def near(value: float, limit: float = 0.0) -> str:
    """Return a margin with three digits, or five near its limit."""
    return f"{value:.{3 if abs(limit - value) > 0.01 else 5}f}"


def near_one(value: float) -> str:
    """Return a load with three digits, or five near 1."""
    return near(value, 1.0)


def seconds(value: float | None) -> str:
    """Return seconds with as many decimals as matter, or a dash."""
    if value is None:
        return "-"
    decimals = next((count for count, limit in enumerate((100, 10, 1)) if value >= limit), 3)
    return f"{value:,.{decimals}f}"


def duration(value: float | None) -> str:
    """Return seconds with their unit, or milliseconds where they are less than one."""
    if value is None:
        return "-"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{seconds(value)} s"


def span_of_time(value: float) -> str:
    """Return seconds as people say them: ``45 s``, ``12 min``, ``5.5 h``, ``3 days``, ``over a
    year``; ``never`` if infinite.
    """
    if math.isinf(value):
        return "never"
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if value < most:
            return f"{value / size:.3g} {unit}"
    return f"{value / 86_400:,.0f} days" if value < _YEAR_S else "over a year"


def gathered(said: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each sentence once, after the names of what it is about, unless that is all."""
    return [
        text if len(names) == len(said) else f"{', '.join(names)}: {text}"
        for text, names in sharing(said).items()
    ]


def sharing(said: Mapping[str, Iterable[Said]]) -> dict[Said, list[str]]:
    """Return each thing that is said once, with the names of those of which it is said."""
    names_of: dict[Said, list[str]] = {}
    for name, things in said.items():
        for thing in dict.fromkeys(things):
            names_of.setdefault(thing, []).append(name)
    return names_of


def sentence(text: str) -> str:
    """Return a clause as a sentence: with a capital, and a full stop."""
    return f"{text[0].upper()}{text[1:]}."
