"""What rows of a benchmark say of batch times, as linear equations, where prompts do not wait for each other.

In a row with rate lambda, inter-token latency T, n requests that decode and mean lengths P and O, a batch holds n
decodes and lambda P T prompt tokens on average, so T is linear in the costs of a step, a token, a request, a token of
context, a pair of prompt tokens, and of prompts in a batch at all. The first token comes after what is left of the
batch under way (half of it, where arrivals do not follow departures), a batch with the prompt in it, and the overhead.
Up to a knee, tokens may cost less, as the weights must be read in any case; the knee is searched for. Prompts that wait
for each other are left to the simulation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]
Row = Mapping[str, Any]

LINEAR = (
    "step",
    "per_token",
    "overhead",
    "per_request",
    "decode_attention",
    "per_token_below",
    "overhead_per_stream",
    "self_attention",
    "with_prefill",
)
"""Parameters that equations are linear in, in the order in which rows are asked to tell them."""

UNITS = {
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
    "kv_tokens": ("tokens", 1.0),
}
"""All that can be fitted, in the order of tables: the unit to print, and how many of it there are in a second."""

_KNEES = (0.0, 64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 256.0, 320.0, 384.0, 448.0, 512.0)
_NEW = 0.05  # share of a column that the columns before it must leave unexplained, or rows cannot tell it from those
_FULL = 0.8  # share of a closed loop that streams at least, unless memory is what holds the others back


class Guess(NamedTuple):
    """A first guess.

    Attributes
    ----------
    values
        By parameter, in seconds and tokens.
    sizes
        The change of each that would change the measured times by about their own size.
    held
        Why the other parameters are held at 0.
    """

    values: dict[str, float]
    sizes: dict[str, float]
    held: dict[str, str]


MEASURES = {
    "ttft": ("ttft_p50_s", "ttft_mean_s"),
    "itl": ("itl_mean_s", "tpot_mean_s", "itl_p50_s"),
    "e2e": ("e2e_mean_s", "e2e_p50_s"),
    "requests_per_s": ("requests_per_s",),
    "ttft_p99": ("ttft_p99_s",),
    "e2e_p99": ("e2e_p99_s",),
}
"""The columns that a row is judged by: of each, the first that it has."""


def column_of(row: Row, metric: str) -> str:
    """Return the column of `MEASURES` that a row has of a metric; where it has none, the first."""
    columns = MEASURES[metric]
    return next((name for name in columns if row[name]), columns[0])


def measured(row: Row, metric: str) -> float | None:
    """Return what a row has of a metric of `MEASURES`; None: nothing."""
    value = row[column_of(row, metric)]
    return float(value) if value else None


def ttft_of(row: Row) -> float | None:
    """Return the time to first token of a row."""
    return measured(row, "ttft")


def itl_of(row: Row) -> float | None:
    """Return the inter-token latency of a row."""
    return measured(row, "itl")


def first_guess(rows: Sequence[Row], names: Sequence[str], kv_tokens: int | None, max_batch_size: int | None) -> Guess:
    """Solve the equations of some rows by non-negative least squares.

    Parameters
    ----------
    rows
        Rows of `read_benchmarks`.
    names
        Parameters to fit, of `UNITS`.
    kv_tokens, max_batch_size
        Limits of the server; None: not known, or none.
    """
    prompts = {row["prompt_tokens"] for row in rows}
    several = max(prompts) > 2 * min(prompts)
    knees = _KNEES if "knee" in names and several else (0.0,)
    first = [name for name in names if name != "with_prefill"]
    tried = [(*_solved(*_equations(rows, knee), first), knee) for knee in knees]
    guess, misfit, knee = min(tried, key=lambda each: each[1])
    count = sum((ttft_of(row) is not None) + (itl_of(row) is not None) for row in rows)
    if not _worth(2, count, tried[0][1], misfit):
        guess, misfit, knee = tried[0]
    if "with_prefill" in names:
        more, less = _solved(*_equations(rows, knee), names)
        if "with_prefill" in more.held or _worth(1, count, misfit, less):
            guess = more
        else:
            guess.held["with_prefill"] = "rows fit no better with it"
    if knee:
        guess.values["knee"], guess.sizes["knee"] = knee, _KNEES[-1]
    else:
        guess.held["knee"] = "no knee fits better" if len(knees) > 1 else "prompts differ too little"
        guess.held["knee"] = guess.held["knee"] if "knee" in names else "not asked for"
    held = _held_by_memory(rows, max_batch_size)
    if kv_tokens is not None:
        guess.held["kv_tokens"] = f"given: {kv_tokens:,}"
    elif "kv_tokens" not in names:
        guess.held["kv_tokens"] = "not asked for: no limit"
    elif held is None:
        guess.held["kv_tokens"] = "memory holds nothing back in these rows: no limit"
    else:
        guess.values["kv_tokens"] = guess.sizes["kv_tokens"] = held
    return guess


def _worth(parameters: int, count: int, misfit: float, less: float) -> bool:
    """Tell whether so many parameters more are worth a smaller misfit of so many equations (Schwarz's criterion)."""
    least = 1e-12  # of a misfit: below, an exact fit is as exact as another
    return bool(2 * count * np.log(max(misfit, least) / max(less, least)) > parameters * np.log(count))


def spread_of(row: Row, name: str) -> float:
    """Return the squared coefficient of variation of a length, as the tool drew it."""
    mean, low, high, deviation = (row[f"{name}_{part}"] for part in ("tokens", "low", "high", "std"))
    if deviation:
        return float((deviation / mean) ** 2)
    if low is not None and high > low:
        return float(((high - low) / (low + high)) ** 2 / 3)
    return 0.0


def _rate(row: Row) -> float:
    return float(row["requests_per_s"] or row["completed"] / row["duration_s"])


def _streams(row: Row) -> tuple[float, float]:
    """Return how many requests decode at a time, by Little's law, and the tokens before each."""
    streams = 1.0 if row["in_flight"] == 1 else _rate(row) * max(row["output_tokens"] - 1, 0) * (itl_of(row) or 0.0)
    return streams, row["prompt_tokens"] + row["output_tokens"] * (1 + spread_of(row, "output")) / 2


def _equations(rows: Sequence[Row], knee: float) -> tuple[Floats, Floats]:
    """Return a matrix of shape (equations, parameters) and a right-hand side, each divided by what was measured."""
    matrix, known = [], []
    for row in rows:
        ttft, itl, prompt = ttft_of(row), itl_of(row), row["prompt_tokens"]
        alone, (decodes, before) = row["in_flight"] == 1, _streams(row)
        gap, context = itl or 0.0, decodes * before
        squares = prompt * prompt * (1 + spread_of(row, "prompt"))
        prompts = 0.0 if alone else _rate(row) * gap
        if itl:
            mixed = 1 - np.exp(-prompts) if row["pattern"] == "poisson" else min(prompts, 1.0)  # share with a prompt
            load = decodes + prompts * prompt / max(mixed, 1e-12)
            below = mixed * min(load, knee) + (1 - mixed) * min(decodes, knee)
            beyond = mixed * max(load - knee, 0) + (1 - mixed) * max(decodes - knee, 0)
            matrix.append([1, beyond, 0, decodes + prompts, context, below, 0, prompts * squares, mixed])
            known.append((itl, itl))
        if ttft and _held_by_memory([row], None) is None:
            beside = 0.0 if alone else 1.0
            wait = beside * gap * (1.0 if row["pattern"] == "closed" else 0.5)
            others = beside * decodes
            load = prompt + others
            below, beyond = min(load, knee), max(load - knee, 0)
            matrix.append([1, beyond, 1, 1 + others, beside * context, below, others, squares, 1])
            known.append((max(ttft - wait, 0.0), ttft))
    left, right = np.array(matrix, np.float64), np.array(known, np.float64)
    return left / right[:, 1:], right[:, 0] / right[:, 1]


def _solved(matrix: Floats, right: Floats, names: Sequence[str]) -> tuple[Guess, float]:
    """Fit those of the parameters that the equations can tell from the ones before; return the misfit, too."""
    kept: list[str] = []
    held: dict[str, str] = {}
    basis = np.empty((matrix.shape[0], 0))
    for place, name in enumerate(LINEAR):
        if name not in names:
            held[name] = "not asked for"
            continue
        left_over = matrix[:, place] - basis @ (basis.T @ matrix[:, place])
        size, rest = np.linalg.norm(matrix[:, place]), np.linalg.norm(left_over)
        if rest <= _NEW * size or len(kept) == matrix.shape[0]:
            held[name] = f"these rows cannot tell it from {', '.join(kept)}" if size else "no row depends on it"
            continue
        kept.append(name)
        basis = np.column_stack([basis, left_over / rest])
    chosen = matrix[:, [LINEAR.index(name) for name in kept]]
    scales = np.sqrt((chosen**2).mean(axis=0))
    values, misfit = nnls(chosen / scales, right)
    sizes = dict(zip(kept, (1 / scales).tolist(), strict=True))
    return Guess({name: float(x * sizes[name]) for name, x in zip(kept, values, strict=True)}, sizes, held), misfit


def _held_by_memory(rows: Sequence[Row], max_batch_size: int | None) -> float | None:
    """Return the tokens that memory holds, where closed loops keep fewer streams going than they may; else None."""
    found = []
    for row in rows:
        streams, before = _streams(row)
        places = min(row["in_flight"] or 0, max_batch_size or row["in_flight"] or 0)
        waiting = (ttft_of(row) or 0.0) > 2 * (itl_of(row) or 0.0)
        if row["pattern"] == "closed" and 1 < streams < _FULL * places and waiting:
            found.append(streams * before)
    return float(np.median(found)) if found else None
