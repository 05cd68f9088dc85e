"""Steady-state latency: what a run says of the long run, how surely, and if it was long enough."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.checking.batch_means import (
    BATCHES,
    DOUBT,
    LEAST_REQUESTS,
    RELAXATIONS,
    Batches,
    Statistics,
    Waits,
    before_unfinished,
    checked_confidence,
    ends,
    few_bursts,
    unsteady,
    values,
)
from penstock.checking.binding_work import relaxation_of, works
from penstock.checking.targets import Estimate, Judgement, Target
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import Rows, recorded
from penstock.simulation.run import Run


@dataclasses.dataclass(frozen=True)
class SteadyState:
    """Latency in the long run, as far as one run tells.

    Attributes
    ----------
    estimates
        By metric (``ttft_s``, ``tbt_s``, ``e2e_s``, and ``tpot_s`` where a target limits it) and
        statistic (``mean``, ``p50``, ...).
    requests, warmup_requests
        Requests used, and removed before them.
    confidence
        With which each interval holds its value.
    too_short
        Whether the run is too short to bound latency from above. It starts empty, so what it misses
        lies above.
    notices
        What the user should know besides, a sentence each.
    """

    estimates: Mapping[str, Statistics]
    requests: int
    warmup_requests: int
    confidence: float
    too_short: bool
    notices: tuple[str, ...]

    def judge(self, target: Target) -> Judgement:
        """Judge a target by the interval of its statistic.

        Raises
        ------
        InputError
            If that was not estimated.
        """
        statistics = self.estimates[target.metric]
        if target.statistic not in statistics:
            raise InputError(
                f"{target} needs the {target.statistic}, but only {', '.join(statistics)} were "
                "estimated; "
                "give the target to steady_state or estimate"
            )
        return target.judge(statistics[target.statistic])

    @property
    def precision(self) -> float:
        """Largest relative half-width of the interval of a mean; infinite where one has no end."""
        means = [of["mean"] for of in self.estimates.values() if of["mean"].value]
        return max((_half_width(mean) for mean in means), default=math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``latency`` and ``intervals`` by metric and statistic, and what
        they rest on.
        """
        return {
            "requests": self.requests,
            "warmup_requests": self.warmup_requests,
            "confidence": self.confidence,
            "latency": {metric: values(of) for metric, of in self.estimates.items()},
            "intervals": {metric: ends(of) for metric, of in self.estimates.items()},
            "notices": list(self.notices),
        }


def steady_state(
    run: Run,
    *,
    targets: Sequence[Target] = (),
    rho: float | None = None,
    confidence: float = 0.95,
) -> SteadyState:
    """Estimate the latency of the steady state from one run.

    The methods are those of `penstock.simulation.intervals`, on requests in order of arrival up to
    the first unfinished one. The warm-up is the longer of those found in TTFT and E2E. Intervals of
    a recording are for it gone on with.

    Parameters
    ----------
    run
        Simulated with a row per request; one of `estimate` has times between tokens in parts, too,
        without which the percentiles of ``tbt_s`` have no interval.
    targets
        Whose statistics are to be estimated besides the usual ones.
    rho
        Rate over the rate that the server can carry, to say whether the run is long enough
        (`relaxation_requests`). Without it only warm-up and batches tell.
    confidence
        Of each interval.

    Raises
    ------
    InputError
        If the run did not keep its requests, or a number cannot be used.
    """
    if not isinstance(run, Run):
        raise InputError(
            f"steady_state takes a Run, not {checks.shown(run)}; give it what simulate returned"
        )
    confidence = checked_confidence(confidence)
    if rho is not None:
        rho = checks.number(
            "rho", rho, 0.0, 1e9, "", "it is the rate over the rate that can be carried"
        )
    rows, notices = _finished(recorded(run.rows, "requests"))
    # The warm-up goes, and what is left is cut to equal batches.
    count = rows.arrival.size
    removed, still_warming = max(
        intervals.warmup(rows.first_token - rows.arrival),
        intervals.warmup(rows.finish - rows.arrival),
    )
    used = (count - removed) // BATCHES * BATCHES
    batched = _in_batches(run, rows, used)
    if any(target.metric == "tpot_s" for target in targets):
        batched["tpot_s"] = _tpot_batches(rows, used)
    # Near saturation a queue forgets slowly: the run must see many of its relaxation times.
    relaxation = 0.0
    if rho is not None and used >= LEAST_REQUESTS:
        asked = works(run.server, rows.prompt_tokens, rows.output_tokens)
        relaxation = relaxation_of(rho, rows.arrival, asked, np.ptp(rows.arrival) * run.tick_s)
    short = _shortness(count, used, still_warming, batched, rho, relaxation)

    waits = Waits.of(batched["ttft_s"], used, relaxation)
    estimates = {
        metric: waits.estimates(metric, batches, targets, confidence, run.tick_s, bool(short))
        for metric, batches in batched.items()
    }
    if not short:
        by_name = {
            metric.removesuffix("_s"): statistics for metric, statistics in estimates.items()
        }
        notices += few_bursts(by_name, confidence, used, "requests")
    return SteadyState(estimates, used, count - used, confidence, bool(short), (*notices, *short))


def _in_batches(run: Run, rows: Rows, used: int) -> dict[str, Batches]:
    """Put the samples of the last requests used into batches, or all in one if too few."""
    if used < LEAST_REQUESTS:
        samples = {"ttft_s": run.ttft, "tbt_s": run.gaps, "e2e_s": run.e2e}
        return {metric: Batches.none(whole) for metric, whole in samples.items()}
    removed = rows.arrival.size - used

    def equal(ticks: Ints) -> Batches:
        return Batches.of([Distribution.of(part) for part in np.split(ticks[removed:], BATCHES)])

    return {
        "ttft_s": equal(rows.first_token - rows.arrival),
        "tbt_s": _gap_batches(run, rows, removed),
        "e2e_s": equal(rows.finish - rows.arrival),
    }


def _finished(rows: Rows) -> tuple[Rows, list[str]]:
    """Return the requests before the first unfinished one, those that were dropped left out."""
    if rows.dropped is not None:
        rows = rows.where(~rows.dropped)
    count, notices = before_unfinished(rows.finish, "request", "finished")
    return rows.where(slice(count)), notices


def _gap_batches(run: Run, rows: Rows, removed: int) -> Batches:
    """Put times between tokens in batches: sections after warm-up in pairs, else by request."""
    if run.gap_sections:
        return Batches.of_sections(run.gap_sections, removed / rows.arrival.size)
    decoding = (rows.finish - rows.first_token)[removed:].reshape(BATCHES, -1)
    counts = (rows.output_tokens[removed:].astype(np.int64) - 1).reshape(BATCHES, -1)
    return Batches(
        decoding.sum(axis=1).astype(float), counts.sum(axis=1).astype(float), (), run.gaps
    )


def _tpot_batches(rows: Rows, used: int) -> Batches:
    """Put times per output token of the last requests used into batches, or in one if too few."""
    if used < LEAST_REQUESTS:
        return Batches.none(Distribution.of(rows.tpot))
    size = rows.arrival.size
    cuts = range(size - used, size, used // BATCHES)
    parts = (rows.where(slice(cut, cut + used // BATCHES)) for cut in cuts)
    return Batches.of([Distribution.of(part.tpot) for part in parts])


def _shortness(
    requests: int,
    used: int,
    still_warming: bool,
    batched: Mapping[str, Batches],
    rho: float | None,
    relaxation: float,
) -> list[str]:
    """Say why the run is too short, if so: for intervals, by latency, or for such a queue."""
    if used < LEAST_REQUESTS:
        return [
            f"{used:,} requests are too few for intervals, which need {LEAST_REQUESTS:,} after "
            "the warm-up"
        ]
    reasons = unsteady(
        "latency", still_warming, [batched["ttft_s"], batched["e2e_s"]], requests, "requests"
    )
    enough = DOUBT * RELAXATIONS * relaxation
    if relaxation == math.inf:
        reasons.append(
            "as far as can be told, no less arrives than can be carried: there may be no steady "
            "state"
        )
    elif requests < enough:
        would_do = f"{enough:,.0f} would do" if enough < 1e8 else "no run is long enough"
        reasons.append(
            f"at {rho:.3f} of what can be carried the queue forgets its past over "
            f"{relaxation:,.0f} requests (its "
            f"relaxation time), so {requests:,} are too few; {would_do}"
        )
    return reasons


def _half_width(mean: Estimate) -> float:
    if not mean.value or mean.low is None or mean.high is None:
        return math.inf
    return (mean.high - mean.low) / 2 / mean.value
