"""What holds requests back: KV memory, a limit on the batch size, or neither.

A closed loop that keeps fewer streams going than it may can have three reasons: its prompts queue
for the token budget, which a simulation without further limits shows by itself; memory is full; or
fewer requests may run than was stated. Each is fitted, and one is believed only if the rows speak
for it and against the others, those not fitted among them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.equations import Row, held_back, streams_of, tokens_held
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import Build, Fit, Sent, misfits, refine

_MISSED = 0.1  # logarithm by which a simulation without limits must miss a row that is held back
_SURE = 0.1  # sum of such logarithms by which one explanation must be better than another
_EACH = 0.002  # and as much more for each time that was measured


class Limit(NamedTuple):
    """What holds requests back.

    Attributes
    ----------
    fit
        With ``kv_tokens``, ``max_batch_size`` or neither among its values.
    reason
        Why the KV memory has no limit; None: it has.
    warning
        What is not certain of it; None: nothing.
    """

    fit: Fit
    reason: str | None
    warning: str | None


def limit_of(
    free: Fit,
    fitted: Sequence[Sent],
    others: Sequence[Sent],
    build: Build,
    priors: Mapping[str, Prior],
    max_batch_size: int | None,
) -> Limit:
    """Return what holds requests back in some rows.

    Parameters
    ----------
    free
        What was fitted without a limit.
    fitted, others
        Rows that were fitted, and rows that were not, with their requests.
    build
        Makes a server and an overhead of values.
    priors
        Of the costs.
    max_batch_size
        As it was stated.
    """
    rows = [row for row, _ in (*fitted, *others)]
    nothing = (
        f"no limit seen: at least {max(map(tokens_held, rows)):,.0f} tokens were held at a time"
    )
    waiting = [(row, load) for row, load in fitted if held_back(row, max_batch_size)]
    if not waiting or np.abs(_off(waiting, build, free)).max() < _MISSED:
        return Limit(free, nothing, None)
    fits = _fits(free, fitted, [row for row, _ in waiting], build, priors)
    total, better, sure = _evidence(free, fits, fitted, others, build)
    memory, places = fits["kv_tokens"], fits["max_batch_size"]
    for_memory = total["max_batch_size"] - total["kv_tokens"]
    if better["kv_tokens"] and for_memory > sure:
        return Limit(memory, None, None)
    if not better["max_batch_size"]:
        return Limit(free, nothing, None)
    tokens = memory.values["kv_tokens"]
    requests = round(places.values["max_batch_size"])
    waits = f"rows wait as if at most {requests:,} requests ran"
    if not better["kv_tokens"] or -for_memory > sure:
        return Limit(places, nothing, f"{waits}, fewer than was stated")
    warning = (
        f"{waits}, or as if KV memory held {tokens:,.0f} tokens: they cannot tell which, and the "
        "first is taken. Give the one that you know; other lengths hinge on it"
    )
    reason = f"a max batch size of {requests:,} explains the rows as well; {nothing}"
    return Limit(places, reason, warning)


def _fits(
    free: Fit,
    fitted: Sequence[Sent],
    waiting: Sequence[Row],
    build: Build,
    priors: Mapping[str, Prior],
) -> dict[str, Fit]:
    """Fit either limit beside the costs, from what the rows that wait held."""
    fits = {}
    for name, held in (("kv_tokens", tokens_held), ("max_batch_size", streams_of)):
        start = float(np.median([held(row) for row in waiting]))
        beside = {**priors, name: Prior(start, 4, "rows that wait although there is room")}
        fits[name] = refine(fitted, build, free.values | {name: start}, beside)
    return fits


def _evidence(
    free: Fit,
    fits: Mapping[str, Fit],
    fitted: Sequence[Sent],
    others: Sequence[Sent],
    build: Build,
) -> tuple[dict[str, float], dict[str, bool], float]:
    """Hold limits against each other, and against the rows that were not fitted.

    Returns
    -------
    The sum of misfits of each, whether it is better than none, and by how much one must be better.
    """
    unused = {name: np.abs(_off(others, build, fit)) for name, fit in {"": free, **fits}.items()}
    total = {
        name: float(np.abs(fit.misfits).sum() + unused[name].sum())
        for name, fit in {"": free, **fits}.items()
    }
    sure = _SURE + _EACH * (free.misfits.size + unused[""].size)
    better = {}
    for name, fit in fits.items():
        # A limit that its own costs do without explains nothing.
        costs = {cost: value for cost, value in fit.values.items() if cost != name}
        without = float(np.abs(misfits((*fitted, *others), *build(costs))).sum())
        gain = min(total[""], without) - total[name]
        allowed = unused[""].sum() + _EACH * unused[name].size
        better[name] = bool(gain > sure and unused[name].sum() <= allowed)
    return total, better, sure


def _off(rows: Sequence[Sent], build: Build, fit: Fit) -> Floats:
    return misfits(rows, *build(fit.values))
