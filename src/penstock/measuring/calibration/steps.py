"""The steps of a calibration: one server for all runs, then what each run says of its own."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.errors import InputError
from penstock.measuring.calibration.equations import Row, column_of, first_guess, measured
from penstock.measuring.calibration.limits import limit_of
from penstock.measuring.calibration.predict import Overhead, predict, requests_of
from penstock.measuring.calibration.priors import Prior
from penstock.measuring.calibration.refine import Fit, Sent, misfits, refine
from penstock.measuring.calibration.servers import Build
from penstock.simulation.progress import Progress
from penstock.system.server import Server

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
            "steps cannot be told from prompts; choose rows with both, or benchmark with streaming"
        )
    budget = build.limit("token_budget")
    ahead = build({"step": 1.0})[0].policy.ahead
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
    """Return the overhead, in seconds, with the median of what the fitted rows of a run lack.

    Rows whose closed loop queues say little of it, and count only where there are no others.
    """
    lacks: dict[bool, list[float]] = {False: [], True: []}
    for row, load in rows:
        known = measured(row, "ttft")
        predicted = predict(load, server, overhead)[column_of(row, "ttft")]
        if known is not None and np.isfinite(predicted):
            lacks[(load.in_flight or 1) > 1].append(known - predicted)
    lack = lacks[False] or lacks[True] or [0.0]
    return max(overhead.fixed + float(np.median(lack)), 0.0)
