"""The share of requests within all limits: goodput, with an interval."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.checking.batch_means import BATCHES, LEAST_REQUESTS
from penstock.checking.latency import SteadyState
from penstock.checking.targets import Estimate, Target, share
from penstock.inputs.arrays import Bools, Floats
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run


def own_latency(
    arrival: npt.NDArray[np.int64],
    first_token: npt.NDArray[np.int64],
    finish: npt.NDArray[np.int64],
    output_tokens: npt.NDArray[Any],
    tick_s: float,
) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, mean time per output token and E2E of each request, s; inf where it has none."""
    ttft = np.where(first_token < 0, np.inf, (first_token - arrival) * tick_s)
    e2e = np.where(finish < 0, np.inf, (finish - arrival) * tick_s)
    gaps = np.where(
        finish < 0, np.inf, (finish - first_token) * tick_s / np.maximum(output_tokens - 1, 1)
    )
    return ttft, gaps, e2e


def within(
    targets: Sequence[Target], ttft: Floats, gaps: Floats, e2e: Floats
) -> npt.NDArray[np.bool_]:
    """Return which requests are within all limits; of several on a metric the lowest counts."""
    latency = {"ttft_s": ttft, "tbt_s": gaps, "tpot_s": gaps, "e2e_s": e2e}
    good = np.ones(ttft.size, np.bool_)
    for target in targets:
        good &= latency[target.metric] <= target.limit_s
    return good


def goodput_share(good: npt.NDArray[np.bool_], confidence: float, too_short: bool) -> Estimate:
    """Return the share that is good, with an interval; no lower end if the run is too short."""
    size = good.size // BATCHES * BATCHES
    if size < LEAST_REQUESTS:
        return Estimate(float(good.mean()) if good.size else None)
    batches = good[good.size - size :].reshape(BATCHES, -1).sum(axis=1).astype(np.float64)
    low, high = intervals.ratio_interval(batches, np.full(BATCHES, size / BATCHES), confidence)
    # where none or all are good there is no spread: as for so many independent requests (Clopper
    # and Pearson)
    unseen = ((1 - confidence) / 2) ** (1 / size)
    low, high = min(max(low, 0.0), unseen), max(min(high, 1.0), 1 - unseen)
    return Estimate(float(good[good.size - size :].mean()), None if too_short else low, high)


def goodput(
    targets: Sequence[Target], run: Run, steady: SteadyState, confidence: float
) -> Estimate:
    """Return the share of the jobs after the warm-up that are good, with all their calls."""
    good = good_jobs(run, targets)[steady.warmup_jobs :]
    return goodput_share(good, confidence, steady.too_short)


def good_jobs(run: Run, targets: Sequence[Target]) -> npt.NDArray[np.bool_]:
    """Return which jobs end within all limits, and all of whose calls do."""
    run = run.served
    rows = recorded(run.rows, "requests")
    jobs = rows.jobs
    # What only decodes goes on with the first token of the call before it, and what has no output
    # waits for no token.
    decodes = jobs.prompt == 0
    first_token = np.where(jobs.output == 0, rows.finish, rows.first_token)
    first_token = np.where(decodes, rows.arrival, first_token)
    output = jobs.output + decodes
    ttft, gaps, _ = own_latency(rows.arrival, first_token, rows.finish, output, run.tick_s)
    e2e = np.where(run.finish < 0, np.inf, (run.finish - run.arrival) * run.tick_s)
    good = within(targets, ttft, gaps, e2e[jobs.job])
    return np.asarray(np.bincount(jobs.job[~good], minlength=run.finish.size) == 0)


def samples(run: Run, chosen: Bools, metric: str) -> Distribution:
    """Return latencies of some requests in ticks; times between tokens are those of all."""
    if metric == "tbt_s":
        return run.gaps
    rows = recorded(run.rows, "requests").where(chosen)
    if metric == "tpot_s":
        return Distribution.of(rows.tpot)
    until = rows.first_token if metric == "ttft_s" else rows.finish
    return Distribution.of(until - rows.arrival)


def statistic_s(samples: Distribution, statistic: str, tick_s: float) -> float:
    """Return the mean or a percentile of samples in ticks, seconds."""
    return (samples.mean if statistic == "mean" else samples.quantile(share(statistic))) * tick_s
