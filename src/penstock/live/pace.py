"""How long batches really take: the batch time given, and the host's time that it leaves out.

An engine that has requests at both ends of an interval hardly stopped between, and counts its
batches: seconds over batches is the mean time from one batch to the next, host and gaps included.
The batch time given says how long batches of so many tokens and contexts take; what is left is the
host's. Contexts are known from counters: the prompts of those that run, and the tokens that have
come out of requests not yet finished.
"""

import dataclasses
import math

import numpy as np

from penstock.inputs.arrays import Floats
from penstock.live.history import Interval
from penstock.live.reading import Z95, Estimate
from penstock.live.scrape import Scrape
from penstock.system.batch_time import BatchTime

_BUSY = 3.0  # requests that run at both ends, for an engine not to have stopped between
_FEWEST = 20.0  # batches of an interval
_INTERVALS = 4  # before a standard error is believed
_OF_FEW = 0.125  # of a batch, within which the mean of fewer is taken to be
_LOOK_BACK = 240  # intervals
_SAMPLED = 0.01  # of a batch: contexts are known at both ends of an interval only


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds between batches while busy, and the host's part (below 0: faster than said)."""

    batch_s: Estimate
    host_s: Estimate | None

    @property
    def error(self) -> float:
        """Standard error of a batch, as a share of it."""
        if self.host_s is None:
            return 0.0
        return self.host_s.error / self.batch_s.value


def pace(intervals: list[Interval], batch_time: BatchTime | None, prompt: float) -> Pace | None:
    """Return how long batches took, None if the engine was never busy or counts no batches."""
    # ``prompt``: mean tokens.
    busy = [interval for interval in intervals[-_LOOK_BACK:] if _is_busy(interval)]
    if not busy:
        return None
    seconds = np.array([interval.seconds for interval in busy])
    batches = np.array([interval.change("batches") for interval in busy], np.float64)
    per_batch = _interval(seconds / batches, batches, float(np.mean(seconds / batches)))
    busy = [interval for interval in busy if _knows_contents(interval)]
    if batch_time is None or not busy:
        return Pace(per_batch, None)
    seconds = np.array([interval.seconds for interval in busy])
    batches = np.array([interval.change("batches") for interval in busy], np.float64)
    said = _said(busy, batch_time, prompt)
    host = _interval(seconds / batches - said, batches, per_batch.value)
    reach = math.hypot((host.high - host.low) / 2, _SAMPLED * per_batch.value)
    return Pace(per_batch, Estimate(host.value, host.value - reach, host.value + reach))


def tokens_in_flight(scrape: Scrape) -> float | None:
    """Return the tokens that have come out of requests that have not finished."""
    if scrape.output_tokens is None or scrape.finished_output_tokens is None:
        return None
    return max(scrape.output_tokens - scrape.finished_output_tokens, 0.0)


def _is_busy(interval: Interval) -> bool:
    """Return whether the engine did not stop in an interval, as far as one can tell."""
    running = (interval.begin.running or 0.0, interval.end.running or 0.0)
    batches = interval.change("batches")
    return min(running) >= _BUSY and batches is not None and batches >= _FEWEST


def _knows_contents(interval: Interval) -> bool:
    """Return whether the engine says what was in its batches."""
    needed = ("output_tokens", "prompt_tokens", "first_tokens", "finished_output_tokens")
    return all(interval.change(name) is not None for name in needed)


def _said(intervals: list[Interval], batch_time: BatchTime, prompt: float) -> Floats:
    """Return how long the mean batch of each interval takes by the batch time given."""

    def grown(counter: str) -> Floats:
        return np.array([interval.change(counter) or 0.0 for interval in intervals])

    batches, first = grown("batches"), grown("first_tokens")
    decodes = np.maximum(grown("output_tokens") - first, 0.0) / batches
    prefill = np.maximum(grown("prompt_tokens") - grown("cached_tokens"), 0.0) / batches
    said = np.array([interval.mean("context_tokens") or math.nan for interval in intervals])
    ages = np.array([_age(interval) for interval in intervals])
    context = np.where(np.isnan(said), decodes * prompt + ages, said)
    requests, pairs = decodes + first / batches, prefill * prompt / 2
    return batch_time.of_batches(prefill, decodes, requests, prefill**2, pairs, context)


def _age(interval: Interval) -> float:
    """Return the tokens that have come out of those that run, halfway between both ends."""
    return sum(tokens_in_flight(scrape) or 0.0 for scrape in (interval.begin, interval.end)) / 2


def _interval(values: Floats, weights: Floats, batch_s: float) -> Estimate:
    """Return the weighted mean of intervals, and its error; of few by a share of a batch."""
    mean = float(np.average(values, weights=weights))
    if len(values) < _INTERVALS:
        return Estimate(mean, mean - _OF_FEW * batch_s, mean + _OF_FEW * batch_s)
    scatter = np.average((values - mean) ** 2, weights=weights) * np.sum(
        (weights / weights.sum()) ** 2
    )
    reach = Z95 * float(np.sqrt(scatter * len(values) / (len(values) - 1)))
    return Estimate(mean, mean - reach, mean + reach)
