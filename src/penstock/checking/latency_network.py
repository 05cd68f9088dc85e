"""Steady-state latency of a network: E2E of jobs, TTFT and E2E at stages, waits at joins, each with an interval.

The methods are those of `penstock.checking.intervals`. A batch is a number of jobs in order of arrival, so the samples
of a workflow or a stage differ in number from batch to batch, and each mean is a ratio of sums.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.checking import intervals
from penstock.checking.latency import (
    BATCHES,
    LEAST_REQUESTS,
    MOST_CORRELATION,
    RELAXATIONS,
    few_bursts,
    relaxation_requests,
    rounded_up,
)
from penstock.checking.targets import Estimate
from penstock.errors import InputError
from penstock.simulation.network_run import NetworkRun, RequestRows
from penstock.simulation.run import Distribution
from penstock.words import QUANTILES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Samples = tuple[Ints, Ints]
"""Of each sample the place of its job, and ticks."""
Statistics = Mapping[str, Estimate]
"""By ``mean``, ``p50``, ``p90``, ``p95``, ``p99``; seconds."""

LEAST_JOBS = 1_000
"""Jobs after the warm-up below which no interval is given."""

FILLING = 2.0
"""Mean E2E from the start over which jobs are left out: the first ones meet a network that is not yet full."""

_FORESIGHT = 10
"""Times as long as it is itself that a run can say a run should be; a shorter one names a least."""
_GROUPS = 100
"""Of jobs, over which the variability of what they bring is measured."""
_NO_RUN = 1e8
"""Jobs that no run has."""


@dataclasses.dataclass(frozen=True)
class NetworkSteadyState:
    """Latency in the long run, as far as one run tells.

    Attributes
    ----------
    workflows
        E2E of the jobs of each workflow, by its name.
    stages
        By stage and metric: ``ttft_s`` and ``e2e_s`` from arrival at a replica, and at joins ``join_wait_s``, what a
        branch that is done waits for the others.
    jobs, warmup_jobs
        Jobs used, and removed before them.
    confidence
        With which each interval holds its value.
    too_short
        Whether the run is too short to bound latency from above. It starts empty, so what it misses lies above.
    notices
        What the user should know besides, a sentence each.
    """

    workflows: Mapping[str, Statistics]
    stages: Mapping[str, Mapping[str, Statistics]]
    jobs: int
    warmup_jobs: int
    confidence: float
    too_short: bool
    notices: tuple[str, ...]


def network_steady_state(
    run: NetworkRun, *, loads: npt.ArrayLike | None = None, confidence: float = 0.95
) -> NetworkSteadyState:
    """Estimate the latency of the steady state from one run.

    The warm-up is found in the E2E of all jobs, each over the mean of its workflow, and is `FILLING` times the mean E2E
    at least. Jobs from the first unfinished one on are left out, since behind it only the quick ones have ended.
    Intervals of a recording are for it gone on with.

    Parameters
    ----------
    run
        Simulated with its requests kept.
    loads
        Shape (pools,), load of each pool over what it can carry, to say whether the run is long enough
        (`relaxation_requests`). Without it only warm-up and batches tell.
    confidence
        Of each interval.

    Raises
    ------
    InputError
        If the run did not keep its requests, or a number cannot be used.
    """
    if not isinstance(run, NetworkRun):
        raise InputError(f"network_steady_state takes a NetworkRun, not {checks.shown(run)}; give simulate_network's")
    confidence = checks.number("confidence", confidence, 0.5, 0.99999, "", "it is how often an interval holds")
    if run.rows is None:
        raise InputError("steady-state latency needs a row per request; simulate with record='requests'")
    unfinished = np.flatnonzero(run.finish < 0)
    count = int(unfinished[0]) if unfinished.size else run.arrived
    notices = []
    if count < run.arrived / 2:
        notices.append(
            f"job {count:,} of {run.arrived:,} is unfinished, and those behind it are left out; simulate until all "
            "have ended"
        )
    e2e = (run.finish - run.arrival)[:count]
    removed, still_warming = intervals.warmup(_relative(e2e, run.workflow[:count]))
    filling = _filling(run.arrival[:count], e2e)
    used = max(count - max(removed, filling), 0) // BATCHES * BATCHES
    removed = count - used
    span = max(int(np.ptp(run.arrival[:count])), 1) if count else 1
    at_once = min(float(e2e.sum()) / span, float(count))  # Little's law
    short = _shortness(run, run.rows, count, count - filling, used, at_once, loads)
    if few := used < LEAST_JOBS:
        used, removed = count, 0
    batch = np.full(run.arrived, -1)  # of each job; -1: left out
    batch[removed:count] = np.arange(used) * (1 if few else BATCHES) // max(used, 1)
    workflows = {
        w.name: _Batched(batch, (np.flatnonzero(run.workflow[:count] == place), e2e[run.workflow[:count] == place]))
        for place, w in enumerate(run.network.workflows)
    }
    job = run.rows.jobs.job
    stages = {
        name: {
            metric: _Batched(batch, (job[requests], ticks.astype(np.int64)))
            for metric, (requests, ticks) in run.samples(place).items()
            if metric != "tpot_s"  # which is no whole number of ticks
        }
        for place, name in enumerate(run.network.stages)
    }
    if not few:
        alike = max(found.correlation for found in workflows.values())
        short += _unsteady(count, still_warming, alike)

    def estimated(found: "_Batched") -> Statistics:
        return found.estimates(confidence, run.tick_s, bool(short))

    of_workflows = {name: estimated(found) for name, found in workflows.items()}
    of_stages = {name: {metric: estimated(found) for metric, found in of.items()} for name, of in stages.items()}
    if not short:
        by_name = {f"{name} e2e {s}": e for name, of in of_workflows.items() for s, e in of.items()}
        for name, metrics in of_stages.items():
            by_name |= {f"{name} {metric[:-2]} {s}": e for metric, of in metrics.items() for s, e in of.items()}
        notices += few_bursts(by_name, confidence, used, "jobs")
    return NetworkSteadyState(
        workflows=of_workflows,
        stages=of_stages,
        jobs=used,
        warmup_jobs=removed,
        confidence=confidence,
        too_short=bool(short),
        notices=(*notices, *short),
    )


def _relative(e2e: Ints, workflow: npt.NDArray[np.int32]) -> Floats:
    """Return E2E over the mean of its workflow, so that long workflows do not drown the others."""
    counts = np.maximum(np.bincount(workflow), 1)
    means = np.bincount(workflow, e2e) / counts
    relative: Floats = e2e / np.maximum(means, 1.0)[workflow]
    return relative


def _filling(arrival: Ints, e2e: Ints) -> int:
    """Return how many jobs begin before the network has filled."""
    if not e2e.size:
        return 0
    return int(np.searchsorted(arrival, arrival[0] + FILLING * e2e.mean()))


class _Batched:
    """Samples by the batch of their job."""

    def __init__(self, batch: Ints, samples: Samples) -> None:
        job, ticks = samples
        of = batch[job]
        size = max(int(batch.max(initial=0)) + 1, 1)
        self.parts = [Distribution.of(ticks[of == place]) for place in range(size)]
        self.whole = intervals.merged(self.parts)
        self.sums = np.array([part.total for part in self.parts], np.float64)
        self.counts = np.array([part.size for part in self.parts], np.float64)
        self.enough = size > 1 and self.whole.size >= LEAST_REQUESTS

    @property
    def correlation(self) -> float:
        """Of neighbouring batches, in what each brings above or below the mean; 0 where there are too few samples."""
        if not self.enough:
            return 0.0
        return intervals.correlation(self.sums - self.sums.sum() / self.counts.sum() * self.counts)

    def estimates(self, confidence: float, tick_s: float, too_short: bool) -> Statistics:
        """Return every statistic; not bounded from above where the run is too short."""
        if not self.whole.size:
            return dict.fromkeys(("mean", *QUANTILES), Estimate(None))

        def seconds(
            value: float, low: float | None = None, high: float | None = None, bursts: float | None = None
        ) -> Estimate:
            return Estimate(
                value * tick_s,
                None if low is None else max(low, 0.0) * tick_s,
                None if high is None or too_short else high * tick_s,
                bursts,
            )

        if not self.enough:
            quantiles = {name: self.whole.quantile(share) for name, share in QUANTILES.items()}
            return {name: seconds(value) for name, value in {"mean": self.whole.mean, **quantiles}.items()}
        found = {"mean": seconds(self.whole.mean, *intervals.ratio_interval(self.sums, self.counts, confidence))}
        for name, share in QUANTILES.items():
            held = intervals.quantile_interval(self.parts, self.whole, share, confidence)
            found[name] = seconds(self.whole.quantile(share), *held)
        return found


def _unsteady(count: int, still_warming: bool, alike: float) -> list[str]:
    """Say what E2E itself tells of a run that is too short."""
    why = []
    if still_warming:
        why.append(f"E2E still rises half-way through this run of {count:,} jobs; simulate more")
    if alike > MOST_CORRELATION:
        why.append(
            f"successive {BATCHES}ths of the run depend on each other (correlation {alike:.2f}), so intervals are too "
            f"narrow; simulate more than {count:,} jobs"
        )
    return why


def _shortness(
    run: NetworkRun, rows: RequestRows, count: int, seen: int, used: int, at_once: float, loads: npt.ArrayLike | None
) -> list[str]:
    """Say why the jobs are too few, if they are, and how many would do."""
    few, never = [], []
    # Jobs of a batch. Relaxation times of pools add up, since work of the one is work of the next, and twice, since
    # batches of one relaxation time are correlated by .54, of two by .33.
    batch = at_once
    if used < LEAST_JOBS:
        few = [f"{used:,} jobs after the warm-up are too few for intervals, which need {LEAST_JOBS:,}"]
    elif seen < BATCHES * at_once:
        few = [
            f"{at_once:,.0f} jobs are in the network at once, and each {BATCHES}th of the run must have as many, so "
            f"{seen:,} after the warm-up are too few"
        ]
    for place, load in enumerate([] if loads is None else np.asarray(loads, np.float64).tolist()):
        relaxation = relaxation_requests(load, _variability(run, rows, place, count))
        name = list(run.network.pools)[place]
        if load >= 1:
            never.append(
                f"as far as can be told, no less arrives at pool {name} than it carries: it may never be steady"
            )
            continue
        batch += 2 * relaxation
        if seen < RELAXATIONS * relaxation:
            few.append(
                f"at {load:.3f} of what pool {name} can carry its queue forgets its past over {relaxation:,.0f} jobs "
                f"(its relaxation time), so {seen:,} after the warm-up are too few"
            )
    if never:
        return [*few, *never]
    # Three standard errors of a variance are added. A warm-up that is found in E2E is half the run at most.
    doubt = 1 + 3 * math.sqrt(2 / max(min(count // 10, _GROUPS), 1))
    enough = max(2 * LEAST_JOBS, doubt * (BATCHES * batch + FILLING * at_once))
    if enough >= _NO_RUN:
        return [f"{why}; no run is long enough" for why in few]
    told = count >= enough / _FORESIGHT  # else too little was seen of the steady state to promise anything
    would_do = f"{rounded_up(enough):,} would do" if told else f"simulate {rounded_up(enough):,} or more"
    return [f"{why}; {would_do}" for why in few]


def _variability(run: NetworkRun, rows: RequestRows, pool: int, count: int) -> float:
    """Measure V of `relaxation_requests` for the tokens that jobs bring to a pool, over hundredths of the run."""
    jobs = rows.jobs
    here = run.network.stage_pool[jobs.stage] == pool
    brought = (jobs.prompt - rows.cached + jobs.output)[here]
    tokens = np.bincount(jobs.job[here], brought, run.arrived)[:count]
    gaps = np.diff(run.arrival[:count]).astype(float)
    if not gaps.any() or not tokens.any():
        return 0.0
    size = count // _GROUPS if count >= 10 * _GROUPS else 10
    drift = tokens[:-1] / tokens.mean() - gaps / gaps.mean()
    groups = drift[: drift.size // size * size].reshape(-1, size).sum(axis=1)
    return float(groups.var(ddof=1)) / size if groups.size > 1 and math.isfinite(groups.sum()) else 0.0
