"""Whole days simulated on one replica of a fleet whose size follows the day."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import statistic_s
from penstock.planning.rates import RateProfile
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.words import STATISTICS
from penstock.workload.arrivals import Replay
from penstock.workload.workload import Workload

REQUESTS = 20_000
"""Requests that the simulated days have at least, by as many days as that takes."""

_MOST_DAYS = 100
_MOST_SIMULATED = 5_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class DayCheck:
    """Whole days simulated, one after another, on a replica that gets its share of requests."""

    days: int
    requests: int
    # For each interval, by metric and statistic, seconds, of the requests that arrive in it;
    # `tbt_s` has its mean.
    latency: tuple[Mapping[str, Mapping[str, float]], ...]
    gaps: Mapping[str, float]  # `tbt_s` of whole days, by statistic, seconds
    # (interval, target, value) where a target is exceeded.
    above: tuple[tuple[int, Target, float], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "days": self.days,
            "requests": self.requests,
            "latency": [
                {metric: dict(values) for metric, values in of.items()} for of in self.latency
            ],
            "tbt_s": dict(self.gaps),
            "above": [
                {"period": index, "target": str(target), "value": value}
                for index, target, value in self.above
            ],
        }


def resampled(workload: Workload, rate: float) -> Workload:
    """Return the workload at a rate; recorded requests, or lengths alone, as Poisson arrivals."""
    recorded = workload.arrivals is None or isinstance(workload.arrivals, Replay)
    return workload.with_rate(rate, "poisson" if recorded else "scaled")


def simulate_day(
    profile: RateProfile,
    workload: Workload,
    deployment: Deployment,
    replicas: Sequence[int],  # those that serve in each interval
    targets: Sequence[Target] = (),
) -> DayCheck:
    """Simulate whole days on one replica that is there all day, with its share of the requests."""
    # Poisson arrivals at each interval's rate over its replicas, by thinning the highest: what a
    # router that splits the stream at random leaves for a replica.
    shares = profile.rates / np.asarray(replicas, np.float64)
    per_day = float(shares.sum() * profile.interval_s)
    days = min(max(math.ceil(REQUESTS / per_day), 1), _MOST_DAYS)
    if days * per_day > _MOST_SIMULATED:
        raise InputError(
            f"{days:,} days have {days * per_day:,.0f} requests for one replica, above "
            f"{_MOST_SIMULATED:,}, each of "
            "which keeps a row in memory; leave out the check"
        )
    times, interval, rng = _arrivals(shares, profile, days, workload.seed)
    prompt, output = resampled(workload, profile.peak).lengths.sample(rng, times.size)
    run = simulate(Workload.from_arrays(times, prompt, output), deployment.server, drain=True)
    latency = tuple(_latency(run, interval == index, targets) for index in range(shares.size))
    gaps = _statistics(run.gaps, "tbt_s", targets, run.tick_s)
    above = tuple(
        (index, target, of[target.metric][target.statistic])
        for index, of in enumerate(latency)
        for target in targets
        if of[target.metric].get(target.statistic, 0.0) > target.limit_s
    )
    return DayCheck(days, times.size, latency, gaps, above)


def _arrivals(
    shares: Floats, profile: RateProfile, days: int, seed: int
) -> tuple[Floats, Any, np.random.Generator]:
    """Return the times at one replica, each one's interval of the day, and what draws the rest."""
    rng = np.random.default_rng((seed, 24))
    times = np.sort(
        rng.random(rng.poisson(shares.max() * days * profile.span_s)) * days * profile.span_s
    )
    interval = (times // profile.interval_s).astype(np.int64) % shares.size
    kept = rng.random(times.size) * shares.max() < shares[interval]
    if not kept.any():
        raise InputError(
            f"no request arrives in {days:,} days for one replica; simulate more days, or a "
            "higher rate"
        )
    return times[kept], interval[kept], rng


def _latency(run: Run, chosen: Any, targets: Sequence[Target]) -> dict[str, dict[str, float]]:
    """Return the latency of some requests, s, by metric and statistic; nothing if none."""
    assert run.rows is not None
    rows = run.rows.where(chosen)
    ends = {"ttft_s": rows.first_token, "e2e_s": rows.finish}
    latency: dict[str, dict[str, float]] = {"ttft_s": {}, "tbt_s": {}, "e2e_s": {}}
    if any(target.metric == "tpot_s" for target in targets):
        latency["tpot_s"] = _statistics(Distribution.of(rows.tpot), "tpot_s", targets, run.tick_s)
    for metric, end in ends.items() if rows.arrival.size else ():
        latency[metric] = _statistics(
            Distribution.of(end - rows.arrival), metric, targets, run.tick_s
        )
    gaps = int(rows.output_tokens.sum(dtype=np.int64)) - rows.arrival.size
    if gaps:
        latency["tbt_s"] = {
            "mean": float((rows.finish - rows.first_token).sum() / gaps * run.tick_s)
        }
    return latency


def _statistics(
    samples: Distribution, metric: str, targets: Sequence[Target], tick_s: float
) -> dict[str, float]:
    if not samples.size:
        return {}
    limited = (target.statistic for target in targets if target.metric == metric)
    return {
        name: statistic_s(samples, name, tick_s) for name in dict.fromkeys((*STATISTICS, *limited))
    }
