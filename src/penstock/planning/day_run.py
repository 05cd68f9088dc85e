"""Whole days simulated on one replica of a fleet whose size follows the day."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.checking.targets import Target, share
from penstock.errors import InputError
from penstock.planning.rates import RateProfile
from penstock.planning.space import Deployment
from penstock.simulation.run import Distribution, Run
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
    """Whole days simulated, one after the other, on one replica that gets its share of the requests.

    Attributes
    ----------
    days, requests
        Simulated.
    latency
        For each interval, by metric and statistic, seconds, of the requests that arrive in it; ``tbt_s`` has its mean.
    gaps
        ``tbt_s`` of whole days, by statistic, seconds.
    above
        (interval, target, value) where a target is exceeded.
    """

    days: int
    requests: int
    latency: tuple[Mapping[str, Mapping[str, float]], ...]
    gaps: Mapping[str, float]
    above: tuple[tuple[int, Target, float], ...]


def resampled(workload: Workload, rate: float) -> Workload:
    """Return the workload at a rate; recorded requests, or lengths without times, as Poisson arrivals."""
    recorded = workload.arrivals is None or isinstance(workload.arrivals, Replay)
    return workload.with_rate(rate, "poisson" if recorded else "scaled")


def simulate_day(
    profile: RateProfile,
    workload: Workload,
    deployment: Deployment,
    replicas: Sequence[int],
    targets: Sequence[Target] = (),
    *,
    days: int | None = None,
) -> DayCheck:
    """Simulate whole days on one replica that is there all day, with its share of the requests.

    Arrivals are a Poisson process with the rate of each interval over its replicas, by thinning one of the highest such
    rate; that is what a router that splits the stream at random leaves for a replica.

    Parameters
    ----------
    profile
        Rates of the day.
    workload
        Lengths and seed.
    deployment
        Whose server serves; its number of replicas does not matter.
    replicas
        Those that serve in each interval.
    targets
        To be compared with; their statistics are counted besides the usual ones.
    days
        How many; default: as many as `REQUESTS` take, at most 100.

    Raises
    ------
    InputError
        If there are too many requests to keep.
    """
    each = profile.rates / np.asarray(replicas, np.float64)
    per_day = float(each.sum() * profile.interval_s)
    if days is None:
        days = min(max(math.ceil(REQUESTS / per_day), 1), _MOST_DAYS)
    if days * per_day > _MOST_SIMULATED:
        raise InputError(
            f"{days:,} days have {days * per_day:,.0f} requests for one replica, above {_MOST_SIMULATED:,}, each of "
            "which keeps a row in memory; leave out the check"
        )
    rng = np.random.default_rng((workload.seed, 24))
    times = np.sort(rng.random(rng.poisson(each.max() * days * profile.span_s)) * days * profile.span_s)
    place = (times // profile.interval_s).astype(np.int64) % each.size
    kept = rng.random(times.size) * each.max() < each[place]
    times, place = times[kept], place[kept]
    if not times.size:
        raise InputError(f"no request arrives in {days:,} days for one replica; simulate more days, or a higher rate")
    prompt, output = resampled(workload, profile.peak).lengths.sample(rng, times.size)
    run = simulate(Workload.from_arrays(times, prompt, output), deployment.server, drain=True)
    found = tuple(_latency(run, place == at, targets) for at in range(each.size))
    gaps = _statistics(run.gaps, "tbt_s", targets, run.tick_s)
    above = tuple(
        (at, target, of[target.metric][target.statistic])
        for at, of in enumerate(found)
        for target in targets
        if of[target.metric].get(target.statistic, 0.0) > target.limit_s
    )
    return DayCheck(days, times.size, found, gaps, above)


def _latency(run: Run, chosen: Any, targets: Sequence[Target]) -> dict[str, dict[str, float]]:
    """Return the latency of some requests of a run, by metric and statistic, seconds; nothing where there are none."""
    assert run.rows is not None
    rows = run.rows.where(chosen)
    found: dict[str, dict[str, float]] = {"ttft_s": {}, "tbt_s": {}, "e2e_s": {}}
    if not rows.arrival.size:
        return found
    found["ttft_s"] = _statistics(Distribution.of(rows.first_token - rows.arrival), "ttft_s", targets, run.tick_s)
    found["e2e_s"] = _statistics(Distribution.of(rows.finish - rows.arrival), "e2e_s", targets, run.tick_s)
    gaps = int(rows.output_tokens.sum(dtype=np.int64)) - rows.arrival.size
    if gaps:
        found["tbt_s"] = {"mean": float((rows.finish - rows.first_token).sum() / gaps * run.tick_s)}
    return found


def _statistics(samples: Distribution, metric: str, targets: Sequence[Target], tick_s: float) -> dict[str, float]:
    asked = (target.statistic for target in targets if target.metric == metric)
    if not samples.size:
        return {}
    return {
        name: (samples.mean if name == "mean" else samples.quantile(share(name))) * tick_s
        for name in dict.fromkeys((*STATISTICS, *asked))
    }
