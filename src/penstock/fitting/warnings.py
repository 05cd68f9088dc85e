"""What to mind in a fit, in plain words."""

import numpy as np

from penstock.fitting.batches import MeasuredBatches
from penstock.fitting.choose import Estimate
from penstock.fitting.families import table_knots

_FEW = 10
"""Batches for each parameter, below which intervals mean little."""
_MANY_OUTLIERS = 0.1
_FALLS = 0.05


def warnings_of(batches: MeasuredBatches, found: Estimate) -> list[str]:
    """Return warnings, most important first."""
    low, high = float(batches.tokens.min()), float(batches.tokens.max())
    said = []
    if not found.solution.coefficients[1 : len(found.linear.names)].any():
        said.append(
            "a token costs nothing in this model, as these batches show no cost of prefill: do not ask it for a "
            "capacity; measure batches with long prompts"
        )
    if len(batches) < _FEW * found.size:
        said.append(f"{len(batches):,} batches for {found.size} parameters are few; measure more")
    share = float(found.solution.outliers.mean())
    if share > _MANY_OUTLIERS:
        said.append(
            f"{share:.0%} of the batches are far from similar ones and were left out; look for what else the machine "
            "did"
        )
    if found.terms is not None:
        said += [f"{_IN_WORDS[name]} is left out: {why}" for name, why in found.terms.left_out.items()]
    said.append(f"batches of {low:,.0f} to {high:,.0f} tokens were measured; a token budget beyond is extrapolated")
    if found.linear.family == "table":
        said[-1] = f"batches of {low:,.0f} to {high:,.0f} tokens were measured; a table refuses a token budget beyond"
    said += _sparse(batches)
    said += _falling(batches)
    said += list(batches.notes)
    if batches.left_out:
        said.append(f"{batches.left_out:,} rows of the file could not be used")
    return said


_IN_WORDS = {
    "per_request": "The cost of a request",
    "self_attention": "The cost of a pair of new tokens",
    "cross_attention": "The cost of a new token and one before it",
    "decode_attention": "The cost of context in decode",
    "mixed_attention": "The cost of context in a decode beside prefill",
}


def _sparse(batches: MeasuredBatches) -> list[str]:
    """Warn where nearly all batches are small, so that large ones rest on few."""
    upper = float(batches.tokens.max()) / 2
    above = int((batches.tokens > upper).sum())
    if above >= max(5, 0.01 * len(batches)):
        return []
    return [f"only {above:,} of {len(batches):,} batches have more than {upper:,.0f} tokens: large ones rest on few"]


def _falling(batches: MeasuredBatches) -> list[str]:
    """Warn where larger batches took less time."""
    knots = np.array(table_knots(batches.tokens))
    place = np.searchsorted(knots, batches.tokens, side="right") - 1
    held = [place == k for k in range(knots.size)]
    middle = [(k, float(np.median(batches.seconds[rows]))) for k, rows in enumerate(held) if rows.sum() >= 5]
    worst = max(
        (((a, b), 1 - later / earlier) for i, (a, earlier) in enumerate(middle) for b, later in middle[i + 1 :]),
        key=lambda pair: pair[1],
        default=((0, 0), 0.0),
    )
    (a, b), fall = worst
    if fall <= _FALLS:
        return []
    return [
        f"batches of about {knots[b]:,.0f} tokens take {fall:.0%} less time than those of {knots[a]:,.0f}: something "
        "other than the token load decides, such as context or CUDA graphs"
    ]
