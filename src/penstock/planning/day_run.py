"""Whole days simulated on one replica of a fleet whose size follows the day."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from penstock.checking.goodput import samples, statistic_s
from penstock.checking.targets import Target, statistics_of
from penstock.errors import InputError
from penstock.inputs.arrays import Bools
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import decoding
from penstock.planning.rates import RateProfile
from penstock.show.answers import Meaning
from penstock.simulation.distribution import Distribution
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.workload.arrivals import Replay
from penstock.workload.workload import Workload

REQUESTS = 20_000
"""Requests that the simulated days have at least, by as many days as that takes."""

_MOST_DAYS = 100
_MOST_SIMULATED = 5_000_000


@dataclasses.dataclass(frozen=True)
class Above:
    """A target that is exceeded in an interval, numbered from 0."""

    period: Annotated[int, Meaning("The interval.")]
    target: Annotated[Target, Meaning("Its limit.", data=str)]
    value: Annotated[float, Meaning("Seconds.")]


@dataclasses.dataclass(frozen=True, eq=False)
class DayCheck:
    """Whole days simulated, one after another, on a replica that gets its share of requests."""

    days: Annotated[int, Meaning("Simulated.")]
    requests: Annotated[int, Meaning("Simulated.")]
    latency: Annotated[
        tuple[Mapping[str, Mapping[str, float]], ...],
        Meaning(
            "For each interval, by metric and statistic, seconds, of the requests that arrive in "
            "it; `tbt_s` has its mean."
        ),
    ]
    tbt_s: Annotated[Mapping[str, float], Meaning("Of whole days, by statistic.")]
    above: Annotated[tuple[Above, ...], Meaning("Where a target is exceeded.")]


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
    if deployment.prefill_replicas:
        raise InputError(
            "prompts and output tokens are served by replicas of their own, so that one does not "
            "tell the rest"
        )
    if not deployment.splits:
        raise InputError(f"replicas behind {deployment.router_title} see each other's queues")
    shares = profile.rates / np.asarray(replicas, np.float64)
    per_day = float(shares.sum() * profile.interval_s)
    days = min(max(math.ceil(REQUESTS / per_day), 1), _MOST_DAYS)
    if days * per_day > _MOST_SIMULATED:
        raise InputError(
            f"{days:,} days have {days * per_day:,.0f} requests for one replica, above "
            f"{_MOST_SIMULATED:,}, each of which keeps a row in memory; leave out the check"
        )
    rng = np.random.default_rng((workload.seed, 24))
    most = rng.poisson(shares.max() * days * profile.span_s)
    times = np.sort(rng.random(most) * days * profile.span_s)
    interval = (times // profile.interval_s).astype(np.int64) % shares.size
    mine = rng.random(most) * shares.max() < shares[interval]
    times, interval = times[mine], interval[mine]
    prompt, output = resampled(workload, profile.peak).lengths.sample(rng, times.size)
    run = simulate(Workload.from_arrays(times, prompt, output), deployment.server, drain=True)
    latency = tuple(_latency(run, interval == index, targets) for index in range(shares.size))
    above = tuple(
        Above(index, target, of[target.metric][target.statistic])
        for index, of in enumerate(latency)
        for target in targets
        if of[target.metric].get(target.statistic, 0.0) > target.limit_s
    )
    tbt_s = _statistics(run.gaps, "tbt_s", targets, run.tick_s)
    return DayCheck(days, times.size, latency, tbt_s, above)


def _latency(run: Run, chosen: Bools, targets: Sequence[Target]) -> dict[str, dict[str, float]]:
    """Return the latency of some requests, s, by metric and statistic; nothing if none."""
    metrics = dict.fromkeys(["ttft_s", "e2e_s", *(target.metric for target in targets)])
    latency = {
        metric: _statistics(samples(run, chosen, metric), metric, targets, run.tick_s)
        for metric in metrics
    }
    ticks, gaps = decoding(run, chosen)
    return latency | {"tbt_s": {"mean": ticks / gaps * run.tick_s} if gaps else {}}


def _statistics(
    times: Distribution, metric: str, targets: Sequence[Target], tick_s: float
) -> dict[str, float]:
    if not times.size:
        return {}
    return {name: statistic_s(times, name, tick_s) for name in statistics_of(metric, targets)}
