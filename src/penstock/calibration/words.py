"""A calibration in words, for the terminal and for pages."""

from penstock.calibration.calibrate import Calibration
from penstock.calibration.equations import UNITS

_SAID = {
    "step": "a batch, whatever is in it",
    "per_token": "a token in a batch",
    "per_token_below": "one of the first tokens, up to the knee",
    "knee": "tokens from which on each costs more",
    "per_request": "a request in a batch",
    "decode_attention": "a token before a decode",
    "self_attention": "a pair of prompt tokens",
    "overhead": "beside the engine, until the first token",
    "overhead_per_stream": "beside the engine, for each other request that streams",
    "kv_tokens": "what the KV memory holds",
}
"""What each parameter is the cost of."""


def parameter_rows(found: Calibration) -> list[tuple[str, str, str]]:
    """Return name, value with unit, and meaning of what was fitted, then of what was not."""
    fitted = [
        (name, f"{found.values[name] * per:,.4g} {unit.split(' ')[0]}", _SAID[name])
        for name, (unit, per) in UNITS.items()
        if name in found.values
    ]
    own = sorted(each.fixed * 1e3 for each in found.overheads.values())
    if len(set(own)) > 1:
        fitted.append(("overhead, by run", f"{own[0]:.3g} to {own[-1]:.3g} ms", f"median {own[len(own) // 2]:.3g} ms"))
    return fitted + [(name, "not fitted", why) for name, why in found.held.items()]


def error_rows(found: Calibration) -> list[tuple[str, ...]]:
    """Return which rows, how many, and the mean relative error of each metric."""
    parts = [("used to fit", True), ("not used", False), ("all", None)]
    counts = {True: found.fitted, False: found.rows.height - found.fitted, None: found.rows.height}
    return [
        (name, f"{counts[which]:,}", *(_share(error) for error in found.errors(which).values()))
        for name, which in parts
        if counts[which]
    ]


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.1%}"
