"""What rows of a benchmark say of batch times, as equations, where prompts do not wait for each
other.

In a row with rate lambda, inter-token latency T, n requests that decode and mean lengths P and O, a
batch holds n decodes and lambda P T prompt tokens on average, so T is linear in the costs of a
step, a token, a request, a token of context, a pair of prompt tokens, and of prompts in a batch at
all. The first token comes after what is left of the batch under way (half of it, where arrivals do
not follow departures), the next one where that is composed already, a batch with the prompt in it
(as many as the token budget cuts it into), and the overhead, and later where nobody else was there:
what idles takes time to wake up. Up to a knee, tokens may cost less, as the weights must be read in
any case; the knee is searched for. Prompts that wait for each other are left to the
simulation.

The costs solve the equations together with their `priors`: each is positive, and one that the rows
say nothing of stays where it was likely to be.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.priors import Prior, priors

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
    "idle",
)
"""Parameters that equations are linear in: the columns of their matrix."""

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
    "idle": ("ms per request", 1e3),
    "kv_tokens": ("tokens", 1.0),
    "max_batch_size": ("requests", 1.0),
}
"""All that can be fitted, in the order of tables: the unit to print, and how many of it there are
in a second.
"""

_KNEES = (64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 256.0, 320.0, 384.0, 448.0, 512.0)
_LEAST_CARRIED = 0.9  # of what may end: whoever carries less lets a queue grow
_LONGEST_OUTPUT = 3.0  # means of an output that the last of a run takes
_FULL = 0.8  # share of a closed loop that streams at least, unless something holds the others back
_FARTHEST = 8.0  # standard deviations of its prior that a cost may be away
_OFF = (
    0.02  # relative error of an equation that weighs as much as one standard deviation of a prior
)
_KNEE = Prior(0.0, 2, "where the rows bend")  # around the knee that is worth its parameters


class Guess(NamedTuple):
    """A first guess."""

    values: dict[str, float]  # by parameter, in seconds and tokens
    priors: dict[str, Prior]
    held: dict[str, str]  # why the other parameters are left out


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


def first_guess(
    rows: Sequence[Row],
    names: Sequence[str],
    token_budget: int,
    loss: str = "soft_l1",
    *,
    ahead: bool = False,
) -> Guess:
    """Solve the equations of some rows together with the priors of the costs."""
    # A knee, below ``token_budget``, and a cost of prompts in a batch at all are taken in where
    # they are worth their parameters, and equations are more than parameters. With the loss
    # ``soft_l1`` one odd row does not bend the rest; with ``linear`` nor does a group of rows
    # outvote the others. A server that works ``ahead`` composes a batch when the one before it
    # starts.
    likely = priors(min(itl for row in rows if (itl := measured(row, "itl"))))
    held = {name: "not asked for" for name in UNITS if name not in names}
    usual = [
        name for name in LINEAR if name in names and name not in ("with_prefill", "per_token_below")
    ]
    count = sum(measured(row, metric) is not None for row in rows for metric in ("ttft", "itl"))
    values, misfit = _solved(rows, usual, likely, 0.0, loss, ahead, token_budget)
    chosen, knee = usual, 0.0
    if "knee" in names and "per_token" in names:
        below = [*usual, "per_token_below"]
        tried = {
            at: _solved(rows, below, likely, at, loss, ahead, token_budget)
            for at in _KNEES
            if at < token_budget
        }
        best = min(tried, key=lambda at: tried[at][1], default=0.0)
        # its place, too, is chosen among many, so it counts as three parameters
        if best and count > len(below) + 1 and _worth(3, count, misfit, tried[best][1]):
            chosen, knee = below, best
            values, misfit = tried[best]
        else:
            held |= dict.fromkeys(("knee", "per_token_below"), "no knee fits better")
    if "with_prefill" in names:
        more, less = _solved(
            rows, [*chosen, "with_prefill"], likely, knee, loss, ahead, token_budget
        )
        if count > len(chosen) + 1 and _worth(1, count, misfit, less):
            values = more
        else:
            held["with_prefill"] = "rows fit no better with it"
    if knee:
        values["knee"], likely["knee"] = knee, _KNEE._replace(centre=knee)
    return Guess(values, likely, held)


def _worth(parameters: int, count: int, misfit: float, less: float) -> bool:
    """Tell whether so many parameters more are worth a smaller sum of misfits."""
    # Schwarz's criterion for Laplace's errors: a few rows whose prompts wait, which the equations
    # leave out, say little.
    least = 1e-12  # of a misfit: below, an exact fit is as exact as another
    return bool(
        2 * count * np.log(max(misfit, least) / max(less, least)) > parameters * np.log(count)
    )


def spread_of(row: Row, name: str) -> float:
    """Return the squared coefficient of variation of a length, as the tool drew it."""
    mean, low, high, deviation = (
        row[f"{name}_{part}"] for part in ("tokens", "low", "high", "std")
    )
    if deviation:
        return float((deviation / mean) ** 2)
    if low is not None and high > low:
        return float(((high - low) / (low + high)) ** 2 / 3)
    return 0.0


def _rate(row: Row) -> float:
    return float(row["requests_per_s"] or row["completed"] / row["duration_s"])


def streams_of(row: Row) -> float:
    """Return how many requests of a row decode at a time, by Little's law."""
    if row["in_flight"] == 1:
        return 1.0
    gaps = max(float(row["output_tokens"]) - 1, 0.0)
    return _rate(row) * gaps * (measured(row, "itl") or 0.0)


def tokens_held(row: Row) -> float:
    """Return the tokens that the requests of a row hold while they decode, by Little's law."""
    before = row["prompt_tokens"] + row["output_tokens"] * (1 + spread_of(row, "output")) / 2
    return streams_of(row) * float(before)


def held_back(row: Row, max_batch_size: int | None) -> bool:
    """Return whether a closed loop keeps fewer streams going than it may: others have to wait."""
    if row["pattern"] != "closed":
        return False
    places = min(row["in_flight"], max_batch_size or row["in_flight"])
    waits = (measured(row, "ttft") or 0.0) > 2 * (measured(row, "itl") or 0.0)
    return bool(1 < streams_of(row) < _FULL * places and waits)


def saturated(row: Row) -> bool:
    """Return whether more arrived than the server carried: what left says how much that is."""
    if row["pattern"] == "closed" or not row["rate"] or not row["requests_per_s"]:
        return False
    # The last requests end after the last was sent, at any load.
    sending = row["sending_s"] or row["completed"] / row["rate"]
    alone = (measured(row, "itl") or 0.0) * row["output_tokens"] * _LONGEST_OUTPUT
    return bool(row["requests_per_s"] < _LEAST_CARRIED * row["completed"] / (sending + alone))


def _nobody_else(row: Row, streams: float) -> float:
    """Return the share of requests that find the server empty."""
    if row["pattern"] == "closed":
        return float(row["in_flight"] == 1)
    under_way = streams + _rate(row) * (measured(row, "ttft") or 0.0)
    return float(np.exp(-under_way)) if row["pattern"] == "poisson" else max(1 - under_way, 0.0)


def equations_of(
    rows: Sequence[Row], knee: float, ahead: bool, token_budget: int
) -> tuple[Floats, Floats, list[str]]:
    """Return matrix (equations, parameters) and constants, over what was measured, and metrics."""
    # Together they add up to what was measured; ``metrics`` are which each equation is of.
    matrix, known, metrics = [], [], []
    for row in rows:
        ttft, itl = measured(row, "ttft"), measured(row, "itl")
        prompt = row["prompt_tokens"] * (1 - (row["prefix_hits"] or 0.0))  # what is computed
        alone, gap = row["in_flight"] == 1, itl or 0.0
        decodes, context = streams_of(row), tokens_held(row)
        squares = prompt * prompt * (1 + spread_of(row, "prompt"))
        prompts = 0.0 if alone else _rate(row) * gap
        if itl:
            # Share with a prompt.
            pieces = prompts * _pieces(prompt, decodes, token_budget)
            mixed = 1 - np.exp(-pieces) if row["pattern"] == "poisson" else min(pieces, 1.0)
            load = decodes + prompts * prompt / max(mixed, 1e-12)
            below = mixed * min(load, knee) + (1 - mixed) * min(decodes, knee)
            beyond = mixed * max(load - knee, 0) + (1 - mixed) * max(decodes - knee, 0)
            matrix.append(
                [1, beyond, 0, decodes + pieces, context, below, 0, prompts * squares, mixed, 0]
            )
            known.append((0.0, itl))
            metrics.append("itl")
        if ttft and not held_back(row, None):
            beside = 0.0 if alone else 1.0
            empty = _nobody_else(row, decodes)
            batches = 1.0 if row["pattern"] == "closed" else 0.5
            wait = (beside - empty if beside else 0.0) * gap * (batches + ahead)
            others = beside * decodes
            pieces = _pieces(prompt, others, token_budget)
            load = prompt / pieces + others
            below, beyond = min(load, knee), max(load - knee, 0)
            each = np.array([1, beyond, 0, 1 + others, beside * context, below, 0, 0, 1, 0])
            once = np.array([0, 0, 1, 0, 0, 0, others, squares, 0, empty])
            matrix.append((pieces * each + once).tolist())
            known.append((wait, ttft))
            metrics.append("ttft")
    left, right = np.array(matrix, np.float64), np.array(known, np.float64)
    return left / right[:, 1:], right[:, 0] / right[:, 1], metrics


def _pieces(prompt: float, decodes: float, token_budget: int) -> float:
    """Return into how many batches a prompt is cut, where so many requests decode beside it."""
    return float(np.ceil(prompt / max(token_budget - decodes, 1.0)))


def _solved(
    rows: Sequence[Row],
    names: Sequence[str],
    likely: Mapping[str, Prior],
    knee: float,
    loss: str,
    ahead: bool,
    token_budget: int,
) -> tuple[dict[str, float], float]:
    """Return the most probable parameters, by their logarithms, and the equations' misfit."""
    matrix, constant, _ = equations_of(rows, knee, ahead, token_budget)
    matrix = matrix[:, [LINEAR.index(name) for name in names]]
    centre = np.array([likely[name].centre for name in names])
    deviation = np.array([likely[name].deviation for name in names])

    def residuals(z: Floats) -> Floats:
        return np.concatenate(
            [np.log(matrix @ (centre * np.exp(deviation * z)) + constant) / _OFF, z]
        )

    def slopes(z: Floats) -> Floats:
        costs = matrix * (centre * np.exp(deviation * z))
        times = costs.sum(axis=1) + constant
        return np.vstack([costs * deviation / (times[:, None] * _OFF), np.eye(z.size)])

    within = (-_FARTHEST, _FARTHEST)
    solution = least_squares(residuals, np.zeros(centre.size), slopes, within, loss=loss)
    values = centre * np.exp(deviation * solution.x)
    misfit = float(np.abs(solution.fun[: constant.size]).sum())
    return dict(zip(names, values.tolist(), strict=True)), misfit
