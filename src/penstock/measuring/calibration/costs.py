"""A calibration without a shape: the costs of a batch, and what holds requests back.

A closed loop that keeps fewer streams going than it may can have three reasons: its prompts queue
for the token budget, which a simulation without further limits shows by itself; memory is full; or
fewer requests may run than was stated. Each is fitted, and one is believed only if the rows speak
for it and against the others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from penstock.errors import InputError
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.equations import solution_of
from penstock.measuring.calibration.loads import (
    Row,
    held_back,
    measured,
    saturated,
    streams_of,
    tokens_held,
)
from penstock.measuring.calibration.posterior import FITTED, Fit, as_sent, fit_of, widened
from penstock.measuring.calibration.priors import Prior, cost_priors
from penstock.measuring.calibration.quantities import COST_UNITS
from penstock.simulation.progress import Progress, counting

# Logarithms of odds from which on a limit is believed, and a cost.
_SURE = 3.0
_LIKELY = 1.0
_MORE = {"knee", "per_token_below", "with_prefill"}  # only where rows fit better with them
_FITS, _ROUNDS = 3, 6  # that are usual, for the progress bar
_LIMITS = {"kv_tokens": tokens_held, "max_batch_size": streams_of}


def cost_fit(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    build: Build,
    names: Sequence[str],
    seed: int,
    progress: Progress | None,
) -> Fit:
    """Fit costs to all runs together, and what else holds requests back."""
    to_fit = [row for row, use in zip(rows, fitted, strict=True) if use]
    if not all(any(measured(row, metric) for row in to_fit) for metric in FITTED):
        raise InputError(
            f"{len(to_fit)} rows to fit have no inter-token latency or no time to first token, so "
            "steps cannot be told from prompts; choose rows with both, benchmark with streaming, "
            "or give the model and its GPU (--model, --gpu)"
        )
    priors = cost_priors(min(itl for row in to_fit if (itl := measured(row, "itl"))))
    asked = priors.only(names).of
    simple = priors.only(asked.keys() - _MORE)
    sent = as_sent(to_fit, build, simple, seed)
    server, _ = build(simple.values(simple.normal.mean))
    step = counting(progress, _FITS * _ROUNDS * (len(asked) + 2))
    budget, ahead = build.limit("token_budget"), bool(server.policy.batching.ahead)
    start = solution_of(to_fit, list(simple.of), simple.normal, ahead=ahead, token_budget=budget)
    fit = fit_of(sent, build, simple, step, start)
    held = dict.fromkeys((name for name in COST_UNITS if name not in names), "not asked for")
    places = build.limit("max_batch_size")
    waiting = [row for row in to_fit if held_back(row, places)]
    warning = None
    if build.kv_tokens is not None:
        held["kv_tokens"] = f"given: {build.kv_tokens:,}"
    elif "kv_tokens" in names:
        nothing = (
            f"no limit seen: at least {max(map(tokens_held, rows)):,.0f} tokens were held at a time"
        )
        fit, reason, warning = _limit(fit, waiting, step, nothing)
        held |= {"kv_tokens": reason} if reason else {}
    # Two loads say nothing of a bend, nor does one that was not carried.
    carried = sum(not saturated(row) for row in to_fit)
    more = {name: prior for name, prior in asked.items() if name in _MORE}
    held |= dict.fromkeys(more, "rows fit no better with it")
    if more and carried > 2 and fit.posterior.unexplained > _LIKELY:
        wider = widened(fit, more, step)
        if fit.posterior.cost - wider.posterior.cost > _LIKELY:
            fit = wider
            held = {name: reason for name, reason in held.items() if name not in more}
    if "max_batch_size" not in fit.values:
        held["max_batch_size"] = f"stated: {places:,}"
        if "max_batch_size" in build.assumed:
            held["max_batch_size"] = f"{places:,} assumed, give --max-batch-size"
    return fit._replace(held=held, warning=warning)


def _limit(
    free: Fit, waiting: Sequence[Row], step: Callable[[], None], nothing: str
) -> tuple[Fit, str | None, str | None]:
    """Return the fit to take, why KV memory has no limit in it, and what is not certain of it."""
    if not waiting:
        return free, nothing, None
    fits = {}
    for name, held in _LIMITS.items():
        around = Prior(
            float(np.median([held(row) for row in waiting])),
            4,
            "rows that wait although there is room",
        )
        fits[name] = widened(free, {name: around}, step)
    memory, places = fits["kv_tokens"], fits["max_batch_size"]
    for_memory, for_places = (free.posterior.cost - fit.posterior.cost for fit in (memory, places))
    if max(for_memory, for_places) < _SURE:
        return free, nothing, None
    if for_memory - for_places > _SURE:
        return memory, None, None
    requests = round(places.values["max_batch_size"])
    waits = f"rows wait as if at most {requests:,} requests ran"
    if for_places - for_memory > _SURE:
        return places, nothing, f"{waits}, fewer than was stated"
    warning = (
        f"{waits}, or as if KV memory held {memory.values['kv_tokens']:,.0f} tokens: they cannot "
        "tell which, and the first is taken. Give the one that you know; other lengths hinge on it"
    )
    reason = f"a max batch size of {requests:,} explains the rows as well; {nothing}"
    return places, reason, warning
