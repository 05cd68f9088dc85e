"""What rows of a benchmark say of batch times, as equations, where prompts do not wait for each
other.

In a row with rate lambda, inter-token latency T, n requests that decode and mean lengths P and O, a
batch holds n decodes and lambda P T prompt tokens on average, so T is linear in the costs of a
step, a token, a request, a token of context, a pair of prompt tokens, and of prompts in a batch at
all. The first token comes after what is left of the batch under way (half of it, where arrivals do
not follow departures), the next one where that is composed already, a batch with the prompt in it
(as many as the token budget cuts it into), and the overhead, and later where nobody else was there:
what idles takes time to wake up. Up to a knee, tokens may cost less, as the weights must be read in
any case. Prompts that wait for each other are left to the simulation.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.laplace import Normal
from penstock.measuring.calibration.loads import (
    Row,
    held_back,
    measured,
    rate_of,
    spread_of,
    streams_of,
    tokens_held,
)

LINEAR = (
    "step", "per_token", "overhead", "per_request", "decode_attention", "per_token_below",
    "overhead_per_stream", "self_attention", "with_prefill", "idle",
)  # fmt: skip
"""Parameters that equations are linear in: the columns of their matrix."""

_FARTHEST = 8.0  # standard deviations of its prior that a cost may be away
_OFF = 0.02  # error of an equation that weighs as much as one standard deviation of a prior


def solution_of(
    rows: Sequence[Row], names: Sequence[str], prior: Normal, *, ahead: bool, token_budget: int
) -> Floats:
    """Return the logarithms of costs that solve the equations of some rows, together with a prior.

    Each cost is positive, and one that the rows say nothing of stays where it was likely to be.
    """
    matrix, constant, _ = equations_of(rows, 0.0, ahead, token_budget)
    matrix = matrix[:, [LINEAR.index(name) for name in names]]
    centre, deviation = np.exp(prior.mean), prior.deviations

    def residuals(z: Floats) -> Floats:
        times = matrix @ (centre * np.exp(deviation * z)) + constant
        return np.concatenate([np.log(times) / _OFF, z])

    def slopes(z: Floats) -> Floats:
        costs = matrix * (centre * np.exp(deviation * z))
        times = costs.sum(axis=1) + constant
        return np.vstack([costs * deviation / (times[:, None] * _OFF), np.eye(z.size)])

    # One odd row does not bend the rest. Costs that can stand for each other have an optimum for
    # each of them to have all of the time, so each begins as the large one.
    within = (-_FARTHEST, _FARTHEST)
    starts = [np.zeros(centre.size), *(3 * np.eye(centre.size) - 1)]
    solutions = [least_squares(residuals, z, slopes, within, loss="soft_l1") for z in starts]
    return np.asarray(prior.mean + deviation * min(solutions, key=lambda each: each.cost).x)


def _nobody_else(row: Row, streams: float) -> float:
    """Return the share of requests that find the server empty."""
    if row["pattern"] == "closed":
        return float(row["in_flight"] == 1)
    under_way = streams + rate_of(row) * (measured(row, "ttft") or 0.0)
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
        prompts = 0.0 if alone else rate_of(row) * gap
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
