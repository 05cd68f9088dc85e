"""Steady-state latency of a network: E2E of jobs, TTFT and E2E at stages, waits at joins, each with
an interval.

The methods are those of `penstock.simulation.intervals`. A batch is a number of jobs in order of
arrival, so the samples of a workflow or a stage differ in number from batch to batch, and each mean
is a ratio of sums.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

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
    few_bursts,
    rounded_up,
    unsteady,
)
from penstock.checking.binding_work import relaxation_of, works
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import Rows, recorded
from penstock.simulation.run import Run

LEAST_JOBS = 1_000
"""Jobs after the warm-up below which no interval is given."""

FILLING = 2.0
"""Mean E2E from the start over which jobs are left out: the first ones meet a network that is not
yet full.
"""

MOST_PRIORITIES = 12
"""Of which latencies are told apart."""

# times as long as it is itself that a run can say a run should be; a shorter one names a least
_FORESIGHT = 10
_GROUPS = 100  # of jobs, over which the variability of what they bring is measured (`variability`)
_NO_RUN = 1e8  # jobs that no run has


@dataclasses.dataclass(frozen=True)
class NetworkSteadyState:
    """Latency in the long run, as far as one run tells."""

    workflows: Mapping[str, Statistics]  # E2E of jobs
    # By stage and metric: `ttft_s` and `e2e_s` from arrival at a replica, and at joins
    # `join_wait_s`, what a branch that is done waits for the others.
    stages: Mapping[str, Mapping[str, Statistics]]
    tbt_s: Statistics  # pooled over all requests; empty where they were not counted in parts
    # Of jobs, from the first token of their first request; empty where no target limits it.
    tpot_s: Statistics
    # Jobs used, and removed before them.
    jobs: int
    warmup_jobs: int
    confidence: float
    # To bound latency from above. The run starts empty, so what it misses lies above.
    too_short: bool
    notices: tuple[str, ...]  # a sentence each; `bursts_notice` among them
    # Which percentiles have no upper end: few bursts lie beyond them.
    bursts_notice: tuple[str, ...] = ()
    # By pool, the relaxation time of its queue in jobs; empty: not known.
    relaxation: Sequence[float] = ()
    # By workflow and stage (None: E2E of jobs, by the priority of their first request), then by
    # priority and metric; empty where requests have none, or more than `MOST_PRIORITIES`.
    priorities: Mapping[tuple[str, str | None], Mapping[int, Mapping[str, Statistics]]] = (
        dataclasses.field(default_factory=dict)
    )


def network_steady_state(
    run: Run,
    *,
    loads: npt.ArrayLike | None = None,
    confidence: float = 0.95,
    targets: Sequence[Target] = (),
) -> NetworkSteadyState:
    """Estimate the latency of the steady state from one run."""
    # Warm-up: of the E2E of all jobs, each over its workflow's mean, and `FILLING` mean E2E at
    # least. Jobs from the first unfinished one on are left out, since behind it only quick ones
    # ended. Intervals of a recording are for it gone on with. ``loads``, shape (pools,), over what
    # each pool can carry, say whether the run is long enough (`relaxation_requests`); without them
    # only warm-up and batches tell. Statistics of targets are estimated, too.
    if not isinstance(run, Run):
        raise InputError(
            f"network_steady_state takes a Run, not {checks.shown(run)}; simulate a network first"
        )
    confidence = checked_confidence(confidence)
    rows = recorded(run.rows, "requests")
    count, notices = before_unfinished(run.finish, "job", "ended")
    used = _used_jobs(run, rows, count, loads)
    workflows = _of_workflows(run, count, used.batch)
    short = used.short
    if not used.few:
        short = short + unsteady("E2E", used.still_warming, list(workflows.values()), count, "jobs")

    queues = Queues(run, used.batch, used.jobs, used.relaxation)

    def estimated(metric: str, batches: Batches, waits: Waits) -> Statistics:
        return waits.estimates(metric, batches, targets, confidence, run.tick_s, bool(short))

    of_workflows = {
        name: estimated("e2e_s", batches, queues.of_workflow(index))
        for index, (name, batches) in enumerate(workflows.items())
    }
    of_stages = {
        run.network.stages[index]: {
            metric: estimated(metric, batches, queues.of_stage(index, metric, metrics))
            for metric, batches in metrics.items()
        }
        for index, metrics in enumerate(_of_stages(run, rows, used.batch))
    }
    tbt_s: Statistics = {}
    if run.gap_sections:
        removed = (count - used.jobs) / max(run.arrived, 1)
        gaps = _of_gaps(run.gap_sections, removed, used.few)
        tbt_s = estimated("tbt_s", gaps, queues.of_all())
    tpot_s: Statistics = {}
    if any(target.metric == "tpot_s" for target in targets):
        tpot_s = estimated("tpot_s", batched(used.batch, *_tpot(run, rows)), queues.of_all())
    few = []
    if not short:
        few = few_bursts(
            _by_name(of_workflows, of_stages) | {"tbt": tbt_s}, confidence, used.jobs, "jobs"
        )
    return NetworkSteadyState(
        of_workflows, of_stages, tbt_s, tpot_s, used.jobs, count - used.jobs, confidence,
        bool(short),
        (*notices, *few, *short), tuple(few), used.relaxation,
        priorities={
            where: {
                priority: {metric: estimated(metric, *sample) for metric, sample in of.items()}
                for priority, of in of_priorities.items()
            }
            for where, of_priorities in _of_priorities(run, rows, used.batch, queues).items()
        },
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class _UsedJobs:
    """Jobs of which the steady state is told."""

    batch: Ints  # shape (jobs of the run,), the batch of each; -1: left out
    jobs: int
    few: bool  # too few for batches, and so all that there are
    short: list[str]  # why the run is too short, if it is
    still_warming: bool  # the warm-up may go on half-way through the run
    # By pool, `relaxation_requests` in jobs; empty: loads are not known.
    relaxation: Sequence[float]


def _used_jobs(run: Run, rows: Rows, count: int, loads: npt.ArrayLike | None) -> _UsedJobs:
    """Leave out the warm-up of the first ``count`` jobs, and put the others into batches."""
    e2e = (run.finish - run.arrival)[:count]
    removed, still_warming = intervals.warmup(_relative(e2e, run.workflow[:count]))
    filling = _filling(run.arrival[:count], e2e)
    used = max(count - max(removed, filling), 0) // BATCHES * BATCHES
    span = max(int(np.ptp(run.arrival[:count])), 1) if count else 1
    at_once = min(float(e2e.sum()) / span, float(count))  # Little's law
    relaxation = _relaxations(run, rows, count, loads)
    short = _shortness(run, count, count - filling, used, at_once, loads, relaxation)
    few = used < LEAST_JOBS
    if few:
        used = count
    batch = in_batches(run.arrived, count - used, count, few)
    return _UsedJobs(batch, used, few, short, still_warming, relaxation)


def _relaxations(run: Run, rows: Rows, count: int, loads: npt.ArrayLike | None) -> list[float]:
    """Return the relaxation time of each pool, in jobs; none where loads are not known."""
    pool_loads = [] if loads is None else np.asarray(loads, np.float64).tolist()
    arrival = run.arrival[:count]
    span = float(np.ptp(arrival)) * run.tick_s if count else 0.0
    replicas = [pool.replicas for pool in run.network.pools.values()]
    return [
        relaxation_of(load, arrival, _asked(run, rows, pool, count), span * replicas[pool])
        for pool, load in enumerate(pool_loads)
    ]


class Queues:
    """Waits of a run's requests, by stage and over whole jobs, to tell whether it was lucky.

    The batch of each job is -1 where it is left out. ``relaxation`` is by pool, in jobs
    (`relaxation_requests`), empty where unknown; of several pools the longest counts.
    """

    def __init__(self, run: Run, batch: Ints, used: int, relaxation: Sequence[float]) -> None:
        rows = recorded(run.rows, "requests")
        begun = np.flatnonzero(rows.first_token >= 0)
        wait = (rows.first_token - rows.arrival)[begun]
        self.run, self.batch, self.used = run, batch, used
        self.relaxation = np.asarray(relaxation, np.float64)
        self.waited = np.bincount(rows.jobs.job[begun], wait, run.arrived).astype(np.int64)

    def of_stage(self, stage: int, metric: str, samples: Mapping[str, Batches]) -> Waits:
        """Return the waits behind a metric at a stage, by number, given all its metrics."""
        if metric == "join_wait_s":  # for branches, wherever they are
            workflow = int(np.searchsorted(self.run.network.first_stage, stage, "right")) - 1
            return self._at(samples[metric], self._pools(workflow))
        return self._at(samples["ttft_s"], self.run.network.stage_pool[stage : stage + 1])

    def of_workflow(self, workflow: int) -> Waits:
        """Return the waits of the jobs of a workflow, by its number."""
        return self.of_jobs(np.flatnonzero(self.run.workflow == workflow), workflow)

    def of_jobs(self, jobs: Ints, workflow: int) -> Waits:
        """Return the waits of some jobs of a workflow."""
        return self._at(batched(self.batch, jobs, self.waited[jobs]), self._pools(workflow))

    def of_all(self) -> Waits:
        """Return the waits of all jobs."""
        jobs = np.arange(self.run.arrived)
        return self._at(batched(self.batch, jobs, self.waited), self.run.network.stage_pool)

    def _pools(self, workflow: int) -> Ints:
        first, last = self.run.network.first_stage[workflow : workflow + 2]
        return self.run.network.stage_pool[first:last]

    def _at(self, batches: Batches, pools: Ints) -> Waits:
        longest = self.relaxation[pools].max() if self.relaxation.size else 0.0
        return Waits.of(batches, self.used, float(longest))


def in_batches(arrived: int, begin: int, end: int, few: bool) -> Ints:
    """Return each job's batch, -1 for those before and after some; all in one if they are few."""
    batch = np.full(arrived, -1)
    batch[begin:end] = np.arange(end - begin) * (1 if few else BATCHES) // max(end - begin, 1)
    return batch


def _by_name(
    workflows: Mapping[str, Statistics], stages: Mapping[str, Mapping[str, Statistics]]
) -> dict[str, Statistics]:
    """Return estimates by the names that notices call them."""
    return {f"{name} e2e": statistics for name, statistics in workflows.items()} | {
        f"{stage} {metric.removesuffix('_s')}": statistics
        for stage, metrics in stages.items()
        for metric, statistics in metrics.items()
    }


def _of_workflows(run: Run, count: int, batch: Ints) -> dict[str, Batches]:
    """Return E2E of the first ``count`` jobs by workflow, which all have ended."""
    e2e = (run.finish - run.arrival)[:count]
    chosen = [
        np.flatnonzero(run.workflow[:count] == index) for index in range(len(run.network.workflows))
    ]
    return {
        workflow.name: batched(batch, jobs, e2e[jobs])
        for workflow, jobs in zip(run.network.workflows, chosen, strict=True)
    }


def _of_stages(run: Run, rows: Rows, batch: Ints) -> list[dict[str, Batches]]:
    """Return the samples of each metric at each stage."""
    job = rows.jobs.job
    return [
        {
            metric: batched(batch, job[requests], ticks.astype(np.int64))
            for metric, (requests, ticks) in run.samples(index).items()
            if metric != "tpot_s"  # which is no whole number of ticks
        }
        for index in range(len(run.network.stages))
    ]


def _tpot(run: Run, rows: Rows) -> tuple[Ints, Ints]:
    """Return the jobs that ended with several tokens, and their ticks per token after the first."""
    output = np.bincount(rows.jobs.job, rows.jobs.output, run.arrived)
    several = np.flatnonzero((run.finish >= 0) & (output > 1))
    first_token = rows.first_token[rows.jobs.first_request[:-1][several]]
    ticks = (run.finish[several] - first_token) / (output[several] - 1)
    return several, np.rint(ticks).astype(np.int64)


def _of_gaps(sections: Sequence[Distribution], removed: float, few: bool) -> Batches:
    """Put the times between tokens into batches, or together if there are too few jobs."""
    whole = intervals.merged(sections)
    if few or not whole.size:
        return Batches.none(whole)
    return Batches.of_sections(sections, removed)


def _of_priorities(
    run: Run, rows: Rows, batch: Ints, queues: Queues
) -> dict[tuple[str, str | None], dict[int, dict[str, tuple[Batches, Waits]]]]:
    """Return samples of each metric, of jobs and by stage, apart by priority, with their waits."""
    priority, job = rows.jobs.priority, rows.jobs.job
    found: dict[tuple[str, str | None], dict[int, dict[str, tuple[Batches, Waits]]]] = {}
    if priority is None or not 1 < np.unique(priority).size <= MOST_PRIORITIES:
        return found
    workflows = [workflow.name for workflow in run.network.workflows]
    for workflow, stage, metric, requests, ticks in run.samples_by_priority():
        by_priority = found.setdefault((workflow, stage), {})
        for value, mine in run.of_priorities(requests):
            jobs = job[requests[mine]]
            of = batched(batch, jobs, ticks[mine].astype(np.int64))
            metrics = by_priority.setdefault(value, {})
            if stage is None:
                waits = queues.of_jobs(jobs, workflows.index(workflow))
            elif metric == "ttft_s":  # the first of a stage
                waits = queues.of_stage(run.network.stages.index(stage), metric, {metric: of})
            else:
                waits = metrics["ttft_s"][1]
            metrics[metric] = of, waits
    return found


def batched(batch: Ints, job: Ints, ticks: Ints) -> Batches:
    """Put samples into the batches of their jobs, or together if they are too few."""
    own = batch[job]
    size = int(batch.max(initial=0)) + 1
    batches = Batches.of([Distribution.of(ticks[own == index]) for index in range(size)])
    if size == 1 or batches.whole.size < LEAST_REQUESTS:
        return Batches.none(batches.whole)
    return batches


def _relative(e2e: Ints, workflow: Ints32) -> Floats:
    """Return E2E over the mean of its workflow, so that long workflows do not drown the others."""
    counts = np.maximum(np.bincount(workflow), 1)
    means = np.bincount(workflow, e2e) / counts
    return np.asarray(e2e / np.maximum(means, 1.0)[workflow])


def _filling(arrival: Ints, e2e: Ints) -> int:
    """Return how many jobs begin before the network has filled."""
    if not e2e.size:
        return 0
    return int(np.searchsorted(arrival, arrival[0] + FILLING * e2e.mean()))


def _shortness(
    run: Run,
    count: int,
    remaining: int,
    used: int,
    at_once: float,
    loads: npt.ArrayLike | None,
    relaxations: Sequence[float],
) -> list[str]:
    """Say why the jobs are too few, if they are, and how many would do."""
    few = []
    never = []
    # Jobs of a batch. Relaxation times of pools add up, since work of the one is work of the next,
    # and twice, since
    # batches of one relaxation time are correlated by .54, of two by .33.
    batch = at_once
    if used < LEAST_JOBS:
        few = [
            f"{used:,} jobs after the warm-up are too few for intervals, which need {LEAST_JOBS:,}"
        ]
    elif remaining < BATCHES * at_once:
        few = [
            f"{at_once:,.0f} jobs are in the network at once, and each {BATCHES}th of the run "
            "must have as many, so "
            f"{remaining:,} after the warm-up are too few"
        ]
    pool_loads = [] if loads is None else np.asarray(loads, np.float64).tolist()
    for name, load, relaxation in zip(run.network.pools, pool_loads, relaxations, strict=False):
        if load >= 1:
            never.append(
                f"as far as can be told, no less arrives at pool {name} than it carries: it may "
                "never be steady"
            )
            continue
        batch += 2 * relaxation
        if remaining < DOUBT * RELAXATIONS * relaxation:
            few.append(
                f"at {load:.3f} of what pool {name} can carry its queue forgets its past over "
                f"{relaxation:,.0f} jobs "
                f"(its relaxation time), so {remaining:,} after the warm-up are too few"
            )
    if never:
        return [*few, *never]
    # Three standard errors of a variance are added. A warm-up that is found in E2E is half the run
    # at most.
    doubt = 1 + 3 * math.sqrt(2 / max(min(count // 10, _GROUPS), 1))
    enough = max(2 * LEAST_JOBS, doubt * (BATCHES * batch + FILLING * at_once))
    if enough >= _NO_RUN:
        return [f"{reason}; no run is long enough" for reason in few]
    would_do = f"{rounded_up(enough):,} would do"
    if count < enough / _FORESIGHT:  # too little was seen of the steady state to promise anything
        would_do = f"simulate {rounded_up(enough):,} or more"
    return [f"{reason}; {would_do}" for reason in few]


def _asked(run: Run, rows: Rows, pool: int, count: int) -> list[Floats]:
    """Return what each of the first jobs asks of each limit of a pool."""
    jobs = rows.jobs
    here = run.network.stage_pool[jobs.stage] == pool
    server = list(run.network.pools.values())[pool].servers[0][0]
    asked = works(server, (jobs.prompt - rows.found)[here], jobs.output[here])
    job = jobs.job[here]
    return [np.bincount(job, work, run.arrived)[:count].astype(np.float64) for work in asked]
