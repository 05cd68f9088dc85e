"""The steps of a calibration: one server for all runs, what holds requests back, and what each run
says of its own.

A closed loop that keeps fewer streams going than it may can have three reasons: its prompts queue
for the token budget, which a simulation without further limits shows by itself; memory is full; or
fewer requests may run than was stated. Each is fitted, and one is believed only if the rows speak
for it and against the others, those not fitted among them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.measuring.calibration.build import Build
from penstock.measuring.calibration.equations import (
    Row,
    column_of,
    first_guess,
    held_back,
    measured,
    streams_of,
    tokens_held,
)
from penstock.measuring.calibration.predict import Overhead, predict, requests_of
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import Fit, Sent, misfits, refine
from penstock.simulation.progress import Progress
from penstock.system.server import Server

_MISSED = 0.1  # logarithm by which a simulation without limits must miss a row that is held back
_SURE = 0.1  # sum of such logarithms by which one explanation must be better than another
_EACH = 0.002  # and as much more for each time that was measured


class Limit(NamedTuple):
    """What holds requests back."""

    fit: Fit  # with `kv_tokens`, `max_batch_size` or neither among its values
    reason: str | None  # why the KV memory has no limit; None: it has
    warning: str | None  # what is not certain of it


def limit_of(
    free: Fit,
    fitted: Sequence[Sent],
    others: Sequence[Sent],
    build: Build,
    priors: Mapping[str, Prior],
    max_batch_size: int | None,
) -> Limit:
    """Return what holds requests back in some rows."""
    # ``free``: what was fitted without a limit. ``others``: rows that were not fitted.
    # ``max_batch_size``: as it was stated.
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
    free: Fit, fits: Mapping[str, Fit], fitted: Sequence[Sent], others: Sequence[Sent], build: Build
) -> tuple[dict[str, float], dict[str, bool], float]:
    """Return each limit's sum of misfits, whether it beats none, and by how much it must."""
    # They are held against each other, and against the rows that were not fitted.
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


_MOST_REQUESTS = 10_000  # of a row, while it is fitted: the rest tells little more
_NEAR = 0.1  # standard deviation of a parameter's logarithm between runs of one server


class Common(NamedTuple):
    """One server for all runs: what was fitted to which requests, and what was left out."""

    fit: Fit
    sent: list[Sent]
    priors: Mapping[str, Prior]
    held: Mapping[str, str]
    warning: str | None


def common_fit(
    rows: Sequence[Row],
    fitted: Sequence[bool],
    build: Build,
    names: Sequence[str],
    seed: int,
    progress: Progress | None,
) -> Common:
    """Fit costs to all runs together, then what else holds requests back."""
    to_fit = [row for row, use in zip(rows, fitted, strict=True) if use]
    if not all(any(measured(row, metric) for row in to_fit) for metric in ("ttft", "itl")):
        raise InputError(
            f"{len(to_fit)} rows to fit have no inter-token latency or no time to first token, so "
            "steps cannot be told from prompts; choose rows with both, benchmark with streaming, "
            "or give the model and its GPU (--model, --gpu)"
        )
    budget = build.limit("token_budget")
    ahead = build({"step": 1.0})[0].policy.batching.ahead
    guesses = [
        first_guess(to_fit, names, budget, loss, ahead=ahead) for loss in ("soft_l1", "linear")
    ]
    guessed = build(guesses[0].values)[0]

    def as_sent(rows: Iterable[Row]) -> list[Sent]:
        return [(row, requests_of(row, guessed, seed, _MOST_REQUESTS)) for row in rows]

    sent = as_sent(to_fit)
    guess = min(guesses, key=lambda guess: np.abs(misfits(sent, *build(guess.values))).sum())
    fit = refine(sent, build, guess.values, guess.priors, progress)
    held = dict(guess.held)
    warning = None
    if build.kv_tokens is not None:
        held["kv_tokens"] = f"given: {build.kv_tokens:,}"
    elif "kv_tokens" in names:
        others = as_sent(row for row, use in zip(rows, fitted, strict=True) if not use)
        fit, reason, warning = limit_of(
            fit, sent, others, build, guess.priors, build.limit("max_batch_size")
        )
        if reason is not None:
            held["kv_tokens"] = reason
    if "max_batch_size" not in fit.values:
        held["max_batch_size"] = f"stated: {build.limit('max_batch_size'):,}"
    if "max_batch_size" in build.assumed and "max_batch_size" in held:
        places = build.limit("max_batch_size")
        held["max_batch_size"] = f"{places:,} assumed, give --max-batch-size"
    return Common(fit, sent, guess.priors, held, warning)


def values_of_runs(
    rows: Sequence[Row], common: Common, build: Build, per_run: str
) -> dict[str, dict[str, float]]:
    """Return the values of each run: those of all, but for what its own rows say."""
    values = common.fit.values
    values_of = {row["run"]: values for row in rows}
    if len(values_of) == 1 or per_run == "nothing":
        return values_of
    near = {
        name: Prior(value, math.exp(_NEAR), "the server of all runs")
        for name, value in values.items()
    }
    for run in values_of:
        own = [(row, load) for row, load in common.sent if row["run"] == run]
        if len(own) < 2:
            continue
        if per_run == "all":
            values_of[run] = refine(own, build, values, near).values
        if "overhead" in values:
            overhead = _own_overhead(own, *build(values_of[run]))
            values_of[run] = values_of[run] | {"overhead": overhead}
    return values_of


def _own_overhead(rows: Sequence[Sent], server: Server, overhead: Overhead) -> float:
    """Return the overhead, s, with the median of what the fitted rows of a run lack."""
    # Rows whose closed loop queues say little of it, and count only where there are no others.
    lacks: dict[bool, list[float]] = {False: [], True: []}
    for row, load in rows:
        known = measured(row, "ttft")
        predicted = predict(load, server, overhead)[column_of(row, "ttft")]
        if known is not None and np.isfinite(predicted):
            lacks[(load.in_flight or 1) > 1].append(known - predicted)
    lack = lacks[False] or lacks[True] or [0.0]
    return max(overhead.fixed + float(np.median(lack)), 0.0)
