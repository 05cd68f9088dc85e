"""What holds requests back beside batch times: fewer run than was stated, a front end takes no more
in, or KV memory is full.

Rows that wait may have such a reason, or prompts that queue for the token budget, which a
simulation without further limits shows by itself. Each limit is fitted beside everything else, and
one is believed only if the rows speak for it and against the others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.measuring.calibration.loads import Row, held_back, rate_of, streams_of, tokens_held
from penstock.measuring.calibration.posterior import Fit, fit_of, widened
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.quantities import quantity

_SURE = 3.0  # logarithm of odds from which on a limit is believed
_ONE_LENGTH = 1.2  # factor within which outputs tell nothing of a token's time


class _Limit(NamedTuple):
    """A reason why requests wait."""

    load: Callable[[Row], float]  # of a row: the highest load is nearest to the limit
    parameters: Callable[[Row], dict[str, float]]  # of a limit that a row is at
    words: Callable[[Mapping[str, float]], str]  # what rows look like, given its parameters


_LIMITS = {
    "max_batch_size": _Limit(
        streams_of,
        lambda row: {"max_batch_size": max(streams_of(row), 1.0)},
        lambda values: f"at most {round(values['max_batch_size']):,} requests ran",
    ),
    # Half of its time may be each request's, the other half its tokens'.
    "front_end": _Limit(
        rate_of,
        lambda row: {
            "front_end": 0.5 / rate_of(row),
            "front_end_per_token": 0.5 / rate_of(row) / row["output_tokens"],
        },
        lambda values: (
            f"a front end worked {quantity('front_end', values['front_end'])} on a request and "
            f"{quantity('front_end_per_token', values['front_end_per_token'])} on each output token"
        ),
    ),
    "kv_tokens": _Limit(
        tokens_held,
        lambda row: {"kv_tokens": max(tokens_held(row), row["prompt_tokens"])},
        lambda values: f"KV memory held {values['kv_tokens']:,.0f} tokens",
    ),
}
LIMITS = tuple(_LIMITS)
"""What may hold requests back."""


def no_limit_seen(name: str, rows: Sequence[Row]) -> dict[str, str]:
    """Say of each parameter of a limit how far requests went without being held back by it."""
    if name == "kv_tokens":
        most = f"{max(map(tokens_held, rows)):,.0f} tokens were held at a time"
    else:
        most = f"{max(map(rate_of, rows)):,.4g} requests/s came in"
    return dict.fromkeys(_LIMITS[name].parameters(rows[0]), f"no limit seen: at least {most}")


def limited(free: Fit, places: int, possible: Sequence[str], step: Callable[[], None]) -> Fit:
    """Return the fit with the limit that rows wait for, and what is not certain of it.

    ``places``: the max batch size as it was stated.
    """
    waiting = [row for row, _ in free.sent if held_back(row, places)] + free.waiting
    if not waiting or free.posterior.unexplained < _SURE:
        return free
    fits = {}
    for name in possible:
        limit = _LIMITS[name]
        at = limit.parameters(max(waiting, key=limit.load))
        reason = "it is near what the row that is held back most has"
        around = {each: Prior(value, 4, reason) for each, value in at.items()}
        # Without the limit other costs have taken what it takes, so it is looked for from the
        # priors, too.
        anew = fit_of(free.sent, free.build, free.priors.with_priors(around), step)
        both = widened(free, around, step), anew
        fits[name] = min(both, key=lambda fit: fit.posterior.cost)
    by_cost = sorted(fits, key=lambda name: fits[name].posterior.cost)
    if not by_cost or free.posterior.cost - fits[by_cost[0]].posterior.cost < _SURE:
        return free
    taken = fits[by_cost[0]]
    alike = [name for name in by_cost if fits[name].posterior.cost - taken.posterior.cost <= _SURE]
    words = [f"as if {_LIMITS[name].words(fits[name].values)}" for name in alike]
    outputs = [row["output_tokens"] for row, _ in free.sent]
    warning = None
    if len(words) > 1:
        warning = (
            f"rows wait {', or '.join(words)}: they cannot tell which, and the likeliest is taken. "
            "Give what you know; other lengths hinge on it"
        )
    elif "max_batch_size" in alike:
        warning = f"rows wait {words[0]}, fewer than {places:,}"
    elif "front_end" in alike and max(outputs) < _ONE_LENGTH * min(outputs):
        seconds = taken.values["front_end"] + taken.values["front_end_per_token"] * outputs[0]
        warning = (
            f"a front end works {quantity('front_end', seconds)} on a request with "
            f"{outputs[0]:,.0f} output tokens; what of that each token takes is not told by one "
            "output length, so half is assumed: fit rows of another, too"
        )
    return taken._replace(warning=warning)
