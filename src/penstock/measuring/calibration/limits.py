"""What holds requests back: KV memory, a limit on the batch size, or neither.

A closed loop that keeps fewer streams going than it may can have three reasons: its prompts queue for the token budget,
which a simulation without further limits shows by itself; memory is full; or fewer requests may run than was stated.
Each is fitted, and one is believed only if the rows speak for it and against the others, those not fitted among them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.measuring.calibration.equations import held_back, streams_of, tokens_held
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import Build, Fit, Sent, misfits, refine

Floats = npt.NDArray[np.float64]

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
    nothing = f"no limit seen: at least {max(map(tokens_held, rows)):,.0f} tokens were held at a time"
    waiting = [(row, load) for row, load in fitted if held_back(row, max_batch_size)]
    if not waiting or np.abs(_off(waiting, build, free)).max() < _MISSED:
        return Limit(free, nothing, None)

    # -- fit either limit beside the costs
    starts = {
        "kv_tokens": float(np.median([tokens_held(row) for row, _ in waiting])),
        "max_batch_size": float(np.median([streams_of(row) for row, _ in waiting])),
    }
    fits = {}
    for name, start in starts.items():
        beside = {**priors, name: Prior(start, 4, "rows that wait although there is room")}
        fits[name] = refine(fitted, build, free.values | {name: start}, beside)

    # -- hold them against each other, and against the rows that were not fitted
    unused = {name: np.abs(_off(others, build, fit)) for name, fit in {"": free, **fits}.items()}
    total = {name: np.abs(fit.misfits).sum() + unused[name].sum() for name, fit in {"": free, **fits}.items()}
    sure = _SURE + _EACH * (free.misfits.size + unused[""].size)
    unlimited = {name: _without(name, fit, (*fitted, *others), build) for name, fit in fits.items()}
    better = {
        name: min(total[""], unlimited[name]) - total[name] > sure
        and unused[name].sum() <= unused[""].sum() + _EACH * unused[name].size
        for name in fits
    }
    memory, places = fits["kv_tokens"], fits["max_batch_size"]
    if better["kv_tokens"] and total["max_batch_size"] - total["kv_tokens"] > sure:
        return Limit(memory, None, None)
    if not better["max_batch_size"]:
        return Limit(free, nothing, None)
    tokens, requests = memory.values["kv_tokens"], round(places.values["max_batch_size"])
    if not better["kv_tokens"] or total["kv_tokens"] - total["max_batch_size"] > sure:
        return Limit(places, nothing, f"rows wait as if at most {requests:,} requests ran, fewer than was stated")
    warning = (
        f"rows wait as if at most {requests:,} requests ran, or as if KV memory held {tokens:,.0f} tokens: they cannot "
        "tell which, and the first is taken. Give the one that you know; other lengths hinge on it"
    )
    return Limit(places, f"a max batch size of {requests:,} explains the rows as well; {nothing}", warning)


def _without(name: str, fit: Fit, rows: Sequence[Sent], build: Build) -> float:
    """Return the sum of misfits that a fit's costs alone have: a limit that these do without explains nothing."""
    costs = {cost: value for cost, value in fit.values.items() if cost != name}
    return float(np.abs(misfits(rows, *build(costs))).sum())


def _off(rows: Sequence[Sent], build: Build, fit: Fit) -> Floats:
    return misfits(rows, *build(fit.values))
