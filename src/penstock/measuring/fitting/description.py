"""Parameters of a fit in words, with units that people read."""

from dataclasses import dataclass

from penstock.measuring.fitting.families import COMPOSED
from penstock.measuring.fitting.fit import Fit

FAMILIES = {
    "affine": "c + a b",
    "hinge": "c + a max(b - b0, 0)",
    "steps": "c + a ceil(b / b0)",
    "table": "straight lines between measured loads",
}
"""Formulas by token load b."""

_COSTS = {
    "per_request": ("us", 1e6, "each request in the batch"),
    "self_attention": ("ns", 1e9, "each pair of new tokens of a request"),
    "cross_attention": ("ns", 1e9, "each new token of a prompt and token before it"),
    "decode_attention": ("ns", 1e9, "each token before a decode"),
    "mixed_attention": ("ns", 1e9, "the same in a batch with prefill"),
    "with_prefill": ("ms", 1e3, "each batch with prefill"),
}


@dataclass(frozen=True)
class Parameter:
    """A parameter to be shown: value and interval in ``unit``, and what it is the cost of."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    meaning: str


def formula(fit: Fit) -> str:
    """Return the formula of a fit, its linear part first."""
    linear = FAMILIES[fit.name.removeprefix(COMPOSED)]
    return f"{linear} + attention and requests" if fit.name.startswith(COMPOSED) else linear


def parameters(fit: Fit) -> list[Parameter]:
    """Return the parameters in the units of people; knots of a table as they are."""
    steps = fit.name.endswith("steps")
    said = []
    for name, ends in fit.parameters.items():
        unit, scale, meaning = _COSTS.get(name, ("ms", 1e3, ""))
        if name == "c":
            meaning = "every batch"
        elif name == "a" and steps:
            meaning = f"each step of {fit.parameters['b0'][0]:,.0f} tokens"
        elif name == "a":
            unit, scale = "us", 1e6
            meaning = "each token beyond b0" if "b0" in fit.parameters else "each token"
        elif name == "b0":
            unit, scale = "tokens", 1.0
            others = "; others fit as well" if ends[1] < ends[2] else ""
            meaning = f"width of a step{others}" if steps else "tokens at no extra cost"
        elif name.startswith("t_"):
            meaning = f"a batch of {float(name[2:]):,.0f} tokens"
        value, low, high = (end * scale for end in ends)
        said.append(Parameter(name, value, low, high, unit, meaning))
    return said


def quality(fit: Fit) -> list[tuple[str, str, str]]:
    """Return name, figure and explanation of how well it fits."""
    low, middle, high = (fit.quantiles[share] for share in (0.05, 0.5, 0.95))
    return [
        ("Batches", f"{fit.n:,}", _left_out(int(fit.outliers.sum()))),
        ("Error", f"{fit.mean_absolute_error:.2%}", "mean of |predicted / measured - 1|, all batches"),
        ("", f"{low:+.1%} .. {high:+.1%}", f"in nine batches of ten; median {middle:+.2%}"),
        ("All seconds", f"{fit.bias:+.2%}", "predicted against measured, all batches together"),
        ("R^2", f"{fit.r2:.4f}", f"of seconds, all batches; {fit.r2_without_outliers:.4f} without those left out"),
    ]


def _left_out(count: int) -> str:
    if not count:
        return "none far from similar ones"
    return f"{count:,} far from similar ones, left out of the fit"
