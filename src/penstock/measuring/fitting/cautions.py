"""What to mind in a fit, in plain words."""

import math

import numpy as np

from penstock.measuring.fitting.batches import Array, MeasuredBatches
from penstock.measuring.fitting.estimate import Estimate
from penstock.measuring.fitting.families import table_knots
from penstock.measuring.fitting.robust import Rows

_FEW = 10  # batches for each parameter, below which intervals mean little
_MANY_OUTLIERS = 0.1
_FALLS = 0.05
# Share of all seconds that the model misses, beyond which a capacity is noticeably wrong.
_BIASED = 0.02
_SURE = 4.0  # standard errors
_FEWEST = 8  # batches of similar token loads whose median says something
_OF_MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean
_MAD_TO_SD = 1.4826


def cautions_of(batches: MeasuredBatches, fitted: Estimate) -> list[str]:
    """Return what to mind, most important first."""
    low, high = float(batches.tokens.min()), float(batches.tokens.max())
    cautions = _biased(batches, fitted)
    if not fitted.solution.coefficients[1 : len(fitted.linear.names)].any():
        cautions.append(
            "a token costs nothing in this model, as these batches show no cost of prefill: do "
            "not ask it for a capacity; measure batches with long prompts"
        )
    cautions += batches.notes
    if len(batches) < _FEW * fitted.size:
        cautions.append(
            f"{len(batches):,} batches for {fitted.size} parameters are few; measure more"
        )
    cautions += _left_out(batches, fitted.solution.outliers)
    if (
        batches.context is None
        and batches.decode_tokens is not None
        and batches.decode_tokens.any()
    ):
        cautions.append(
            "no context is known of these batches, so a token of context costs nothing in this "
            "model: with long contexts batches take longer"
        )
    if batches.blurred_context is not None:
        cautions.append(
            f"context was counted in KV blocks of {batches.context_block:,.0f} tokens, of which a "
            f"decode has {batches.blurred_context:,.0f} before it on average: what a request costs "
            "and what its context costs can hardly be told apart, which their intervals allow for"
        )
    if fitted.terms is not None:
        cautions += [
            f"{_IN_WORDS[name]} is left out: {reason}"
            for name, reason in fitted.terms.left_out.items()
        ]
    beyond = "a token budget beyond is extrapolated"
    if fitted.linear.family == "table":
        beyond = "a table refuses a token budget beyond"
    cautions.append(f"batches of {low:,.0f} to {high:,.0f} tokens were measured; {beyond}")
    if fitted.terms is not None:
        cautions += _attention(batches, fitted.terms.names)
    cautions += _sparse(batches)
    cautions += _falling(batches)
    if batches.left_out:
        cautions.append(f"{batches.left_out:,} rows of the file could not be used")
    return cautions


_IN_WORDS = {
    "per_request": "The cost of a request",
    "self_attention": "The cost of a pair of new tokens",
    "cross_attention": "The cost of a new token and one before it",
    "decode_attention": "The cost of context in decode",
    "mixed_attention": "The cost of context in a decode beside prefill",
    "with_prefill": "What a batch with prefill takes beside",
}


def _biased(batches: MeasuredBatches, fitted: Estimate) -> list[str]:
    """Warn where all seconds are not what the model says: a server loses those of stalls, too."""
    took = float(batches.seconds.sum() / fitted.predicted(batches).sum()) - 1
    if abs(took) <= _BIASED:
        return []
    out = float(fitted.solution.outliers.mean())
    reason = f", as {out:.1%} of them, far from similar ones, were left out" if out else ""
    more, high = ("longer", "high") if took > 0 else ("less", "low")
    return [
        f"all batches together took {abs(took):.1%} {more} than this model says{reason}: a "
        f"capacity computed with it is too {high} by about as much, unless what caused it goes away"
    ]


def _left_out(batches: MeasuredBatches, outliers: Rows) -> list[str]:
    """Warn where many batches were left out, or many of those with prompts."""
    share = float(outliers.mean())
    cautions = []
    if share > _MANY_OUTLIERS:
        cautions.append(
            f"{share:.0%} of the batches are far from similar ones and were left out; look for "
            "what else the machine did"
        )
    if batches.prefill_tokens is not None:
        prompts = batches.prefill_tokens > 0
        many, expected = float(outliers[prompts].sum()), share * float(prompts.sum())
        if many > max(2 * expected, expected + _SURE * math.sqrt(expected + 1)):
            cautions.append(
                f"{many / prompts.sum():.0%} of the batches with prefill were left out, of all "
                f"{share:.0%}: what a prompt costs may be understated; look at their errors, or "
                "give more columns"
            )
    return cautions


def _attention(batches: MeasuredBatches, names: tuple[str, ...]) -> list[str]:
    """Say up to which lengths attention was measured."""

    def most(total: Array | None, by: Array | None) -> float:
        return 0.0 if total is None or by is None else float(np.max(total / np.maximum(by, 1)))

    lengths = []
    if "self_attention" in names:
        piece = most(batches.squares, batches.prefill_tokens)
        lengths.append(f"{piece:,.0f} tokens of a prompt at once")
    if "cross_attention" in names:
        lengths.append(f"{most(batches.pairs, batches.prefill_tokens):,.0f} tokens before them")
    if {"decode_attention", "mixed_attention"} & set(names):
        lengths.append(
            f"{most(batches.context, batches.decode_tokens):,.0f} tokens before a decode"
        )
    if not lengths:
        return []
    return [
        f"attention was measured up to {', '.join(lengths)} (means of a batch); longer ones are "
        "extrapolated"
    ]


def _sparse(batches: MeasuredBatches) -> list[str]:
    """Warn where nearly all batches are small, so that large ones rest on few."""
    upper = float(batches.tokens.max()) / 2
    above = int((batches.tokens > upper).sum())
    if above >= max(5, 0.01 * len(batches)):
        return []
    return [
        f"only {above:,} of {len(batches):,} batches have more than {upper:,.0f} tokens: large "
        "ones rest on few"
    ]


def _falling(batches: MeasuredBatches) -> list[str]:
    """Warn where larger batches took less time, by more than their medians are uncertain."""
    knots = np.array(table_knots(batches.tokens))
    index = np.searchsorted(knots, batches.tokens, side="right") - 1
    held = [(k, batches.seconds[index == k]) for k in range(knots.size)]
    held = [(k, seconds) for k, seconds in held if seconds.size >= _FEWEST]
    if len(held) < 2:
        return []
    load = np.array([k for k, _ in held])
    middle = np.array([np.median(seconds) for _, seconds in held])
    spread = np.array([np.median(np.abs(seconds / np.median(seconds) - 1)) for _, seconds in held])
    # Of few batches it may come out small.
    spread = np.maximum(spread, np.median(spread)) * _MAD_TO_SD
    error = _OF_MEDIAN * spread * middle / np.sqrt([seconds.size for _, seconds in held])
    fall = 1 - middle / middle[:, None]  # [a, b]: how much less b takes than a
    uncertain = np.hypot(error, error[:, None]) / middle[:, None]
    fall[np.tril_indices(load.size)] = 0.0
    fall[fall <= np.maximum(_FALLS, _SURE * uncertain)] = 0.0
    if not fall.any():
        return []
    a, b = np.unravel_index(np.argmax(fall), fall.shape)
    return [
        f"batches of about {knots[load[b]]:,.0f} tokens take {fall[a, b]:.0%} less time than those "
        f"of {knots[load[a]]:,.0f}: something other than the token load decides, such as context "
        "or CUDA graphs"
    ]
