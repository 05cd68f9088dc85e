"""Which candidate is best: the first of those whose difference from the best is noise."""

from collections.abc import Sequence

import numpy as np

from penstock.capacity.candidates import SAFE
from penstock.capacity.recommendation import CLEARLY, WORTH, Candidate, Objective, prices
from penstock.checking.batch_means import BATCHES
from penstock.inputs.arrays import Floats
from penstock.simulation import intervals

_CONFIDENCE = 0.99  # that one latency is lower than another; many are compared


def choose(
    found: Sequence[Candidate], rate: float, objective: Objective | None
) -> tuple[Objective, Candidate]:
    """Return what decides, and the best candidate: the first of those that are as good."""
    # A server is changed at no price, where any candidate has none and no objective is asked for.
    stable = [c for c in found if c.answer.verdict == "stable"] or list(found)
    safe = [c for c in stable if rate <= SAFE * c.stable_rate and c.answer.latency]
    if found[0].targets:
        stable = _meeting(safe, stable)
        safe = [c for c in safe if c in stable]
    decided: Objective = objective or ("e2e" if safe else "stable-rate")
    if decided == "stable-rate":
        most = max(c.stable_rate for c in stable)
        stable = [c for c in stable if c.above >= most]
        if found[0] in stable:  # nothing carries more, for sure
            return decided, found[0]
    metric = "e2e_s" if decided == "stable-rate" else f"{decided}_s"
    likely = stable if decided == "stable-rate" or not safe else safe
    known = [c for c in likely if c.mean(metric) is not None]
    if not known:
        return decided, likely[0]
    current = found[0]
    if objective is None:
        known = [c for c in known if not prices(current, c)] or known
    best = min(known, key=lambda c: c.mean(metric) or 0.0)
    alike = [c for c in known if not slower(c, best, metric)]
    if current in known and current not in alike:
        alike = [c for c in alike if slower(current, c, metric)] or [best]
    most = max(c.stable_rate for c in alike)
    return decided, next(c for c in alike if c.stable_rate >= (1 - CLEARLY) * most)


def _meeting(safe: Sequence[Candidate], stable: Sequence[Candidate]) -> list[Candidate]:
    """Return those that may meet the targets, safe ones if there are any, else the nearest one."""
    met = [c for c in safe if c.hopeful] or [c for c in stable if c.hopeful]
    return met or [min(stable, key=lambda c: c.overshoot)]


def slower(one: Candidate, other: Candidate, metric: str) -> bool:
    """Return whether one's mean latency is above the other's, beyond noise and worth a change."""
    if one is other:
        return False
    mean = other.mean(metric)
    sums, counts = _differences(one, other, metric)
    if mean is None or sums.size < BATCHES or not counts.sum():
        return False
    low, _ = intervals.ratio_interval(sums, counts, _CONFIDENCE)
    return low > 0 and float(sums.sum() / counts.sum()) * one.answer.run.tick_s > WORTH * mean


def _differences(one: Candidate, other: Candidate, metric: str) -> tuple[Floats, Floats]:
    """Return how many ticks longer one took for the same samples, and the samples, in batches."""
    a, b = one.answer.run.rows, other.answer.run.rows
    assert a is not None
    assert b is not None
    warm = max(c.answer.latency.warmup_jobs for c in (one, other) if c.answer.latency)
    both = np.flatnonzero((a.finish >= 0) & (b.finish >= 0))
    both = both[both >= warm]
    both = both[both.size % BATCHES :]
    if metric == "ttft_s":
        longer = a.first_token[both] - b.first_token[both]
    elif metric == "e2e_s":
        longer = a.finish[both] - b.finish[both]
    else:
        # Gaps of a request add up to the time from its first token to its finish.
        longer = (a.finish - a.first_token)[both] - (b.finish - b.first_token)[both]
    counts = a.output_tokens[both] - 1 if metric == "tbt_s" else np.ones(both.size)
    shape = (BATCHES, -1)
    return longer.reshape(shape).sum(axis=1).astype(float), counts.reshape(shape).sum(
        axis=1
    ).astype(float)
