"""Samples of a run in batches, and whether the run is long enough: for servers and networks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.checking.targets import Estimate, Target, share, statistics_of
from penstock.inputs.arrays import Floats, Ints
from penstock.show.answers import AsData, computed
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.words import counted

Statistics = Mapping[str, Estimate]
"""By ``mean``, ``p50``, ``p90``, ``p95``, ``p99``; seconds."""

BATCHES = 20
"""Batches of requests; more would be shorter and more alike their neighbours, fewer would widen the
interval.
"""

GAP_SECTIONS = 2 * BATCHES
"""Parts of a run whose times between tokens are counted apart; those of the warm-up go, the others
are joined two by two.
"""

LEAST_REQUESTS = 10 * BATCHES
"""Requests after the warm-up below which no interval is given."""

RELAXATIONS = 20
"""Relaxation times that a run must see; with 6, intervals held the mean of M/M/1 82 times of 100
instead of 95.
"""

_GROUPS = 100  # of arrivals, over which the variability of what they bring is measured

DOUBT = 1 + 2 * math.sqrt(2 / (_GROUPS - 1))
"""Factor of two standard errors of that variability: a run with short requests by chance waits
less, and measures less.
"""

# of neighbouring batch means, beyond which they are too short; 20 independent ones hardly do
_MOST_CORRELATION = 0.5
_MOST_NAMED = 4  # percentiles in one notice


class Batches(NamedTuple):
    """Samples in batches: sums (ticks), counts, the single samples if known, and all of them."""

    sums: Floats
    counts: Floats
    parts: Sequence[Distribution]
    whole: Distribution

    @classmethod
    def of(cls, parts: Sequence[Distribution]) -> "Batches":
        """Take batches whose samples are known."""
        sums = np.array([float(part.total) for part in parts])
        counts = np.array([float(part.size) for part in parts])
        return cls(sums, counts, parts, intervals.merged(parts))

    @classmethod
    def none(cls, whole: Distribution) -> "Batches":
        """Take samples that are too few for batches."""
        return cls(np.array([float(whole.total)]), np.array([float(whole.size)]), (), whole)

    @classmethod
    def of_sections(cls, sections: Sequence[Distribution], removed: float) -> "Batches":
        """Take parts of a run, without the share of it that is removed before them, two by two."""
        first = math.ceil(removed * len(sections))
        first += (len(sections) - first) % 2
        pairs = zip(sections[first::2], sections[first + 1 :: 2], strict=True)
        return cls.of([intervals.merged(pair) for pair in pairs])

    @property
    def correlation(self) -> float:
        """Of neighbouring batches, in what each is above or below the mean; 0 if there is one."""
        if self.sums.size == 1:
            return 0.0
        return intervals.correlation(self.sums - self.sums.sum() / self.counts.sum() * self.counts)

    def tail(self, statistic: str, confidence: float) -> intervals.QuantileInterval | None:
        """Return the interval of a percentile, where there are samples to tell."""
        if statistic == "mean" or not self.parts:
            return None
        return intervals.quantile_interval(self.parts, self.whole, share(statistic), confidence)

    def estimate(
        self, statistic: str, confidence: float, tick_s: float, too_short: bool,
        most_bursts: float = math.inf, luck: float = 1.0,
    ) -> Estimate:  # fmt: skip
        """Estimate a statistic, in seconds; not bounded from above where the run is too short."""
        # No more than ``most_bursts`` are taken to lie beyond a percentile
        # (`intervals.quantile_interval`), and a mean to be ``luck`` times as far off as its batches
        # say (`Waits`).
        if not self.whole.size or not self.counts.sum():
            return Estimate(None)
        low: float | None = None
        high: float | None = None
        bursts: float | None = None
        if statistic == "mean":
            value = float(self.sums.sum() / self.counts.sum())
            if self.sums.size > 1:
                low, reached = intervals.ratio_interval(self.sums, self.counts, confidence)
                high = value + luck * (reached - value) if luck < math.inf else None
        else:
            value = self.whole.quantile(share(statistic))
            if self.parts:
                low, high, bursts = intervals.quantile_interval(
                    self.parts, self.whole, share(statistic), confidence, most_bursts
                )
        return Estimate(
            value * tick_s,
            None if low is None else max(low, 0.0) * tick_s,
            None if high is None or too_short else high * tick_s,
            bursts,
        )


class Waits(NamedTuple):
    """Waits of a run, and how much of their ups and downs it saw: whether it was just lucky.

    In heavy traffic the work in a queue is a reflected Brownian motion. With drift -1 and variance
    1 it has the mean 1/2 and the relaxation time 2. Over a time T the mean of a run has the
    variance 1/2 / T (Whitt, Management Science 35, 1989), so over R relaxation times its standard
    error is 1 / sqrt(R) of the mean. A share 1 - p of the time is spent beyond percentile p, 1/2 in
    each burst, with E[T]^2 / E[T^2] = 1/4: 1 - p effective bursts to a relaxation time. A run of
    less than some hundred may have seen few bursts: then it finds a low mean and a small spread
    together, neither to be believed by itself.
    """

    batches: Batches  # times to the first token as far as they are known; the least holds no wait
    relaxations: float  # relaxation times of the queue that were seen; inf: not known

    @classmethod
    def of(cls, batches: Batches, samples: int, relaxation: float) -> "Waits":
        """Take waits of so many requests or jobs, and `relaxation_requests`; 0: not known."""
        return cls(batches, samples / relaxation if relaxation > 0 else math.inf)

    def estimates(
        self,
        metric: str,
        samples: Batches,
        targets: Sequence[Target],
        confidence: float,
        tick_s: float,
        too_short: bool,
    ) -> Statistics:
        """Estimate the statistics of a metric that holds these waits, in seconds."""
        luck, names = self.luck(confidence), statistics_of(metric, targets)
        most = dict.fromkeys(names, math.inf)
        if metric != "tbt_s":
            most = {name: self.most_bursts(name, confidence) for name in names}
        estimates = {
            name: samples.estimate(name, confidence, tick_s, too_short, most[name], luck)
            for name in names
        }
        for target in targets if not too_short else ():
            if target.metric == metric and target.statistic != "mean":
                estimate = estimates[target.statistic]
                beyond = estimate.high is None or estimate.high > target.limit_s
                if beyond and self.surely_within(samples, target, confidence, tick_s):
                    estimates[target.statistic] = dataclasses.replace(estimate, high=target.limit_s)
        return estimates

    def surely_within(
        self, samples: Batches, target: Target, confidence: float, tick_s: float
    ) -> bool:
        """Return whether a percentile is below its limit, by the share of samples that are."""
        # Far above the percentile there may be too few samples to bound it, and yet enough to say
        # that more than its share is below the limit. Where all are, there is no spread: as for so
        # many independent looks (Clopper and Pearson), one for each relaxation time.
        if not samples.parts or self.relaxations == math.inf:
            return False
        limit = math.floor(target.limit_s / tick_s)
        within = np.array([part.count_up_to(limit) for part in samples.parts], np.float64)
        sizes = np.array([part.size for part in samples.parts], np.float64)
        low, _ = intervals.ratio_interval(within, sizes, confidence)
        unseen = ((1 - confidence) / 2) ** (1 / min(float(sizes.sum()), self.relaxations))
        return bool(min(low, unseen) > share(target.statistic))

    def most_bursts(self, statistic: str, confidence: float) -> float:
        """Return the most bursts to believe in beyond a percentile of a latency with the wait."""
        # Those expected, and those beyond the same percentile of the wait.
        if statistic == "mean":
            return math.inf
        expected = (1 - share(statistic)) * self.relaxations
        seen = self.batches.tail(statistic, confidence)
        return expected if seen is None else min(expected, seen.bursts)

    def luck(self, confidence: float) -> float:
        """Return how many times as far off as their batches say means may be.

        At least 1; inf: there is no telling.
        """
        # The standard error of the wait is compared with that in heavy traffic: a share of the true
        # mean, so that of the highest mean not ruled out (as in Wilson's interval). The relaxation
        # time may be longer than was measured, by `DOUBT`.
        waits = self.batches
        if waits.sums.size == 1 or self.relaxations == math.inf:
            return 1.0
        seen_at_least = self.relaxations / DOUBT
        surplus = math.sqrt(seen_at_least) - intervals.student(confidence, waits.sums.size)
        if surplus <= 0:
            return math.inf
        mean = waits.sums.sum() / waits.counts.sum()
        residuals = (waits.sums - mean * waits.counts) / waits.counts.mean()
        seen = intervals.standard_error(residuals)
        expected = float(mean - waits.whole.values[0]) / surplus
        if expected <= seen:
            return 1.0
        return expected / seen if seen > 0 else math.inf


def checked_confidence(value: float) -> float:
    """Return the confidence of an interval, if it can be one."""
    return checks.number(
        "confidence", value, 0.5, 0.99999, "", "it is how often an interval holds its value"
    )


def before_unfinished(finish: Ints, unit: str, ended: str) -> tuple[int, list[str]]:
    """Return how many come before the first unfinished one; a notice if that leaves out most."""
    # Behind it only the quick ones have ended.
    unfinished = np.flatnonzero(finish < 0)
    if not unfinished.size:
        return finish.size, []
    count = int(unfinished[0])
    if count >= finish.size / 2:
        return count, []
    return count, [
        f"{unit} {count:,} of {finish.size:,} is unfinished, and those behind it are left out; "
        f"simulate until all have {ended}"
    ]


def unsteady(
    what: str, still_warming: bool, batched: Sequence[Batches], count: int, unit: str
) -> list[str]:
    """Say what latency itself, of so many requests or jobs, tells of a run that is too short."""
    reasons = []
    if still_warming:
        reasons.append(
            f"{what} still rises half-way through this run of {count:,} {unit}; simulate more"
        )
    alike = max(batches.correlation for batches in batched)
    if alike > _MOST_CORRELATION:
        reasons.append(
            f"successive {BATCHES}ths of the run depend on each other (correlation {alike:.2f}), "
            f"so intervals are too narrow; simulate more than {count:,} {unit}"
        )
    return reasons


def few_bursts(
    estimates: Mapping[str, Statistics], confidence: float, samples: int, unit: str
) -> list[str]:
    """Say which percentiles lack an upper end, with few bursts beyond, and the least run needed."""
    # Estimates are by the name to say, and by statistic; ``samples`` are after the warm-up.
    needed = intervals.bursts_needed(confidence, BATCHES)
    few = _without_upper_end(estimates, needed)
    if not few:
        return []
    named = [
        f"{name} ({counted(max(int(bursts), 1), 'burst')})" for bursts, name in few[:_MOST_NAMED]
    ]
    others = f" and {counted(len(few) - _MOST_NAMED, 'other')}" if len(few) > _MOST_NAMED else ""
    least = enough_for_bursts(estimates, confidence, samples)
    return [
        f"no upper end of {', '.join(named)}{others}: it needs about {needed} separate bursts of "
        f"long latencies; simulate {least:,} {unit} or more"
    ]


def enough_for_bursts(
    estimates: Mapping[str, Statistics], confidence: float, samples: int
) -> int | None:
    """Return the least run that would bound them all, as far as this one tells; None: it does."""
    needed = intervals.bursts_needed(confidence, BATCHES)
    few = _without_upper_end(estimates, needed)
    return rounded_up(samples * max(needed / few[0][0], 2.0)) if few else None


def _without_upper_end(
    estimates: Mapping[str, Statistics], needed: float
) -> list[tuple[float, str]]:
    """Return the percentiles that lack one, by the bursts beyond them, the fewest first."""
    # where many samples are equal an end may be missing in spite of enough bursts
    return sorted(
        (min(estimate.bursts, needed), f"{name} {statistic}")
        for name, statistics in estimates.items()
        for statistic, estimate in statistics.items()
        if estimate.high is None and estimate.bursts
    )


def rounded_up(count: float) -> int:
    """Round up to two digits."""
    step = int(10 ** max(int(math.log10(count)) - 1, 0))
    return math.ceil(count / step) * step


def relaxation_requests(rho: float, variability: float) -> float:
    """Return the relaxation time of a queue, in requests: over so many, a deviation from the steady
    state falls to 1/e.

    Near saturation the work in the queue is a reflected Brownian motion with drift -(1 - rho) and
    variance sigma^2 = rho E[S] V per second of service, whose relaxation time is 2 sigma^2 / (1 -
    rho)^2 (Abate and Whitt, Advances in Applied Probability 19, 1987; Whitt, Planning queueing
    simulations, Management Science 35, 1989). Times the rate, that is 2 rho^2 V / (1 - rho)^2.

    ``rho`` is the rate over the rate that can be carried; ``variability`` is V: the squared
    coefficients of variation of the gaps between arrivals and of the forward tokens of a request,
    added. 2 for M/M/1, 1 for M/D/1.

    >>> round(relaxation_requests(0.9, 2.0))
    324
    """
    return 2 * rho**2 * variability / (1 - rho) ** 2 if rho < 1 else math.inf


def variability(arrival: Ints, tokens: npt.NDArray[Any]) -> float:
    """Measure V of `relaxation_requests` over hundredths of a run, so that bursts count."""
    gaps = np.diff(arrival).astype(float)
    if not gaps.any() or not tokens.any():
        return 0.0
    size = arrival.size // _GROUPS if arrival.size >= 10 * _GROUPS else 10
    drift = tokens[:-1] / tokens.mean() - gaps / gaps.mean()
    groups = drift[: drift.size // size * size].reshape(-1, size).sum(axis=1)
    if groups.size < 2 or not math.isfinite(groups.sum()):
        return 0.0
    return float(groups.var(ddof=1)) / size


def values(statistics: Statistics) -> dict[str, float | None]:
    """Return the estimates by statistic, as documents have them."""
    return {name: estimate.value for name, estimate in statistics.items()}


def ends(statistics: Statistics) -> dict[str, list[float | None]]:
    """Return the intervals by statistic, as documents have them."""
    return {name: [estimate.low, estimate.high] for name, estimate in statistics.items()}


class OfLatency(AsData):
    """What has latencies of the steady state, by metric; None: they are refused."""

    latency: Any  # by metric, or a steady state that has them

    @property
    def by_metric(self) -> Mapping[str, Statistics] | None:
        """Latency by metric; None: it is refused."""
        known: Mapping[str, Statistics] | None = getattr(self.latency, "estimates", self.latency)
        return known

    @computed(key="latency")
    def _latency(self) -> dict[str, dict[str, float | None]] | None:
        """In the steady state, by metric and statistic; None: refused."""
        of = self.by_metric
        return None if of is None else {metric: values(of[metric]) for metric in of}

    @computed(key="latency_interval")
    def _intervals(self) -> dict[str, dict[str, list[float | None]]] | None:
        """The ends of each."""
        of = self.by_metric
        return None if of is None else {metric: ends(of[metric]) for metric in of}
