"""A calibration in words, for the terminal and for pages."""

from penstock.measuring.calibration.calibrate import Calibration, quantity
from penstock.measuring.calibration.equations import UNITS

_SAID = {
    "step": "a batch, whatever is in it",
    "per_token": "a token in a batch",
    "per_token_below": "one of the first tokens, up to the knee",
    "knee": "tokens from which on each costs more",
    "per_request": "a request in a batch",
    "decode_attention": "a token before a decode",
    "self_attention": "a pair of prompt tokens",
    "with_prefill": "a batch with prompts, beside",
    "overhead": "beside the engine, until the first token",
    "overhead_per_stream": "beside the engine, for each other request that streams",
    "idle": "beside the engine, where nobody else is there",
    "kv_tokens": "what the KV memory holds",
    "max_batch_size": "requests that run at most",
}
"""What each parameter is the cost of."""


def parameter_rows(found: Calibration) -> list[tuple[str, str, str]]:
    """Return name, value with unit, and meaning of what was fitted, then of what was not."""
    fitted = [
        (name, quantity(name, found.values[name]), _meaning(found, name)) for name in UNITS if name in found.values
    ]
    own = sorted(values.get("overhead", 0.0) * 1e3 for values in found.values_of.values())
    if len(set(own)) > 1:
        fitted.append(("overhead, by run", f"{own[0]:.3g} to {own[-1]:.3g} ms", f"median {own[len(own) // 2]:.3g} ms"))
    return fitted + [(name, "not fitted", why) for name, why in found.held.items()]


def _meaning(found: Calibration, name: str) -> str:
    """Return what a parameter is the cost of; for one that the rows do not identify, its interval, too."""
    if name not in found.unidentified:
        return _SAID[name]
    return f"{_SAID[name]}; assumed within {found.interval(name)}"


def server_words(found: Calibration) -> str:
    """Return the policy and the limits of the server, and which of these were assumed."""
    server = found.server
    limits = f"{server.policy.name}, {server.limits}"
    if not found.assumed:
        return limits
    options = " and ".join(f"--{name.replace('_', '-')}" for name in found.assumed)
    names = " and ".join(name.replace("_", " ") for name in found.assumed)
    return f"{limits}; {names} assumed, give {options}"


def error_rows(found: Calibration) -> list[tuple[str, ...]]:
    """Return which rows, how many, and the mean relative error of each metric; then those of the common server."""
    parts = [("used to fit", True, False), ("not used", False, False), ("all", None, False)]
    if found.adjusted:
        parts += [("not used, one server", False, True), ("all, one server", None, True)]
    counts = {True: found.fitted, False: found.rows.height - found.fitted, None: found.rows.height}
    return [
        (name, f"{counts[which]:,}", *(_share(error) for error in found.errors(which, common=common).values()))
        for name, which, common in parts
        if counts[which]
    ]


def errors_said(found: Calibration) -> str:
    """Return what the errors are of: one server, or one for each run."""
    if not found.adjusted:
        return "One server for all rows."
    what = "Each run has an overhead of its own" if found.per_run == "overhead" else "Each run has its own parameters"
    return f'{what}, adjusted to its fitted rows; "one server" is the common one, which a batch-time file holds.'


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.1%}"
