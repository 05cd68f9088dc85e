"""Steady-state latency: what a run says of the long run, how surely, and if it was long enough.

The methods are those of `penstock.simulation.intervals`. A batch is a number of jobs in order of
arrival (at a server each request is a job), so the samples of a workflow or a stage differ in
number from batch to batch, and each mean is a ratio of sums.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
    ends,
    few_bursts,
    rounded_up,
    unsteady,
    values,
)
from penstock.checking.binding_work import relaxation_of, works
from penstock.checking.targets import Estimate, Judgement, Target, TargetAnswer
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints, Ints32
from penstock.simulation import intervals
from penstock.simulation.distribution import Distribution
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.system.server import Server

LEAST_JOBS = 1_000
"""Jobs of a network after the warm-up below which no interval is given."""

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
class SteadyState:
    """Latency in the long run, as far as one run tells.

    Attributes
    ----------
    estimates
        By metric and statistic (``mean``, ``p50``, ...), of all requests: ``ttft_s`` where there is
        one stage, ``tbt_s`` where it was counted in parts, ``e2e_s`` of jobs where there is one
        workflow, and ``tpot_s`` of jobs, from the first token of their first request, where a
        target limits it. A server has them all.
    stages
        By stage and metric: ``ttft_s`` and ``e2e_s`` from arrival at a replica, and at joins
        ``join_wait_s``, what a branch that is done waits for the others.
    workflows
        E2E of the jobs of each workflow, by statistic.
    priorities
        By workflow and stage (None: E2E of jobs, by the priority of their first request), then by
        priority and metric; empty where requests have none, or more than `MOST_PRIORITIES`.
    calls
        The stages that have a prompt, whose first tokens somebody waits for.
    jobs, warmup_jobs
        Jobs used, and removed before them; at a server each request is a job.
    confidence
        With which each interval holds its value.
    too_short
        Whether the run is too short to bound latency from above. It starts empty, so what it misses
        lies above.
    notices
        What the user should know besides, a sentence each; those of ``bursts_notice`` among them.
    bursts_notice
        Which percentiles have no upper end, as few bursts lie beyond them.
    relaxation
        By pool, the relaxation time of its queue in jobs; empty: not known.
    """

    estimates: Mapping[str, Statistics]
    stages: Mapping[str, Mapping[str, Statistics]]
    workflows: Mapping[str, Statistics]
    priorities: Mapping[tuple[str, str | None], Mapping[int, Mapping[str, Statistics]]]
    calls: tuple[str, ...]
    jobs: int
    warmup_jobs: int
    confidence: float
    too_short: bool
    notices: tuple[str, ...]
    bursts_notice: tuple[str, ...] = ()
    relaxation: Sequence[float] = ()

    def judge(self, target: Target) -> Judgement:
        """Judge a target by the interval of its statistic, where it is furthest from being met.

        Raises
        ------
        InputError
            If that was not estimated.
        """
        return judged(target, self).judgement

    def places(self, metric: str) -> Mapping[str, Statistics]:
        """Return the statistics of a metric by where they are of: of all requests (an empty name),
        or else at each stage with a prompt, or of each workflow; empty where there are none.
        """
        if metric in self.estimates:
            return {"": self.estimates[metric]}
        if metric == "ttft_s":
            return {call: self.stages[call][metric] for call in self.calls}
        return self.workflows if metric == "e2e_s" else {}

    def answers(self, target: Target) -> list[TargetAnswer]:
        """Judge a target at each of its `places`."""
        answers = []
        for place, of in (self.places(target.metric) or {"": {}}).items():
            if target.statistic not in of:
                known = ", ".join(of) or "none"
                raise InputError(
                    f"{target} needs the {target.statistic}, but only {known} were estimated; give "
                    "the target to steady_state or estimate"
                )
            estimate = of[target.statistic]
            answers.append(TargetAnswer(target, estimate, target.judge(estimate), place))
        return answers

    @property
    def precision(self) -> float:
        """Largest relative half-width of the interval of a mean; infinite where one has no end."""
        known = [*self.estimates.values(), *self.workflows.values()]
        known += [of for metrics in self.stages.values() for of in metrics.values()]
        means = [of["mean"] for of in known if of["mean"].value]
        return max((_half_width(mean) for mean in means), default=math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``latency`` and ``intervals`` by metric and statistic, and what
        they rest on.
        """
        return {
            "requests": self.jobs,
            "warmup_requests": self.warmup_jobs,
            "confidence": self.confidence,
            "latency": {metric: values(of) for metric, of in self.estimates.items()},
            "intervals": {metric: ends(of) for metric, of in self.estimates.items()},
            "notices": list(self.notices),
        }


def judged(target: Target, latency: SteadyState | None) -> TargetAnswer:
    """Judge a target where it is furthest from being met; without a steady state it is missed."""
    if latency is None:
        return TargetAnswer(target, None, "missed")
    return max(latency.answers(target), key=lambda answer: answer.excess)


def steady_state(
    run: Run,
    *,
    targets: Sequence[Target] = (),
    rho: npt.ArrayLike | None = None,
    confidence: float = 0.95,
) -> SteadyState:
    """Estimate the latency of the steady state from one run.

    The methods are those of `penstock.simulation.intervals`, on jobs in order of arrival up to the
    first unfinished one, since behind it only quick ones ended. At a server the warm-up is the
    longer of those found in TTFT and E2E; in a network it is found in the E2E of all jobs, each
    over its workflow's mean, and has `FILLING` mean E2E at least. Intervals of a recording are for
    it gone on with.

    Parameters
    ----------
    run
        Simulated with a row per request; one of `estimate` has times between tokens in parts, too,
        without which the percentiles of ``tbt_s`` have no interval.
    targets
        Whose statistics are to be estimated besides the usual ones.
    rho
        Rate over the rate that can be carried, of each pool, to say whether the run is long enough
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
    loads = _checked_loads(rho)
    recorded(run.rows, "requests")
    run = run.served
    used = _Used.of(run, loads)
    samples = _of_stages(run, used.batch)
    if used.alone:
        of_jobs = [samples[0]["e2e_s"]]
        steady = [samples[0]["ttft_s"], samples[0]["e2e_s"]]
    else:
        of_jobs = steady = _of_workflows(run, used)
    short = used.shortness(loads, steady)

    network = run.network
    queues = Queues(run, used.batch, used.jobs, used.relaxation)

    def estimated(metric: str, batches: Batches, waits: Waits) -> Statistics:
        return waits.estimates(metric, batches, targets, confidence, run.tick_s, bool(short))

    stages = {
        name: {
            metric: estimated(metric, batches, queues.of_stage(index, metric, metrics))
            for metric, batches in metrics.items()
        }
        for index, (name, metrics) in enumerate(zip(network.stages, samples, strict=True))
    }
    if used.alone:  # a request is a job
        (workflow,), (stage,) = network.workflows, stages.values()
        workflows = {workflow.name: stage["e2e_s"]}
        waits = queues.of_stage(0, "ttft_s", samples[0])
    else:
        waits = queues.of_all()
        workflows = {
            workflow.name: estimated("e2e_s", batches, queues.of_workflow(index))
            for index, (workflow, batches) in enumerate(
                zip(network.workflows, of_jobs, strict=True)
            )
        }
    # What one number says of all requests.
    estimates: dict[str, Statistics] = {}
    if len(stages) == 1:
        estimates["ttft_s"] = next(iter(stages.values()))["ttft_s"]
    if used.alone or run.gap_sections:
        estimates["tbt_s"] = estimated("tbt_s", _of_gaps(run, used), waits)
    if len(workflows) == 1:
        estimates["e2e_s"] = next(iter(workflows.values()))
    if any(target.metric == "tpot_s" for target in targets):
        estimates["tpot_s"] = estimated("tpot_s", batched(used.batch, *_tpot(run)), waits)
    few = []
    if not short:
        few = few_bursts(_by_name(estimates, stages, workflows), confidence, used.jobs, used.unit)
    return SteadyState(
        estimates,
        stages,
        workflows,
        {
            where: {
                priority: {metric: estimated(metric, *sample) for metric, sample in of.items()}
                for priority, of in of_priorities.items()
            }
            for where, of_priorities in _of_priorities(run, used.batch, queues).items()
        },
        tuple(itertools.compress(network.stages, network.prefill_means > 0)),
        used.jobs,
        used.count - used.jobs,
        confidence,
        bool(short),
        (*used.notices, *few, *short),
        tuple(few),
        used.relaxation,
    )


def _checked_loads(rho: npt.ArrayLike | None) -> list[float]:
    """Return the load of each pool; none where it is not known."""
    if rho is None:
        return []
    why = "it is the rate over the rate that can be carried"
    return [checks.number("rho", one, 0.0, 1e9, "", why) for one in np.atleast_1d(rho).tolist()]


@dataclasses.dataclass(frozen=True, eq=False)
class _Used:
    """Jobs of which the steady state is told: those after the warm-up."""

    run: Run
    alone: bool  # at a server, where each job is a request
    count: int  # jobs before the first unfinished one
    filling: int  # jobs that begin before the network has filled
    after_warmup: int  # jobs, as many as batches of one size have
    few: bool  # too few for batches
    jobs: int  # after the warm-up; where they are few, all that there are
    batch: Ints  # shape (jobs of the run,), the batch of each; -1: left out
    still_warming: bool  # the warm-up may go on half-way through the run
    relaxation: Sequence[float]  # by pool, `relaxation_requests` in jobs; empty: not known
    notices: list[str]

    @classmethod
    def of(cls, run: Run, loads: Sequence[float]) -> "_Used":
        """Leave out the warm-up, and what comes from the first unfinished job on."""
        alone = isinstance(run.system, Server)
        ended = ("request", "finished") if alone else ("job", "ended")
        count, notices = before_unfinished(run.finish, *ended)
        e2e = (run.finish - run.arrival)[:count]
        if alone:
            rows = recorded(run.rows, "requests")
            ttft = (rows.first_token - rows.arrival)[:count]
            filling, least = 0, LEAST_REQUESTS
            removed, still_warming = max(intervals.warmup(ttft), intervals.warmup(e2e))
        else:
            filling, least = _filling(run.arrival[:count], e2e), LEAST_JOBS
            removed, still_warming = intervals.warmup(_relative(e2e, run.workflow[:count]))
        after_warmup = max(count - max(removed, filling), 0) // BATCHES * BATCHES
        few = after_warmup < least
        jobs = count if few else after_warmup
        batch = in_batches(run.finish.size, count - jobs, count, few)
        relaxation = _relaxations(run, count, loads)
        return cls(
            run, alone, count, filling, after_warmup, few, jobs, batch, still_warming, relaxation,
            notices,
        )  # fmt: skip

    @property
    def unit(self) -> str:
        """What jobs are called."""
        return "requests" if self.alone else "jobs"

    def shortness(self, loads: Sequence[float], steady: Sequence[Batches]) -> list[str]:
        """Say why the run is too short, if so: for intervals, by latency, or for such queues."""
        if self.alone:
            return self._short_at_server(loads, steady)
        short = self._short_in_network(loads)
        if not self.few:
            short += unsteady("E2E", self.still_warming, steady, self.count, self.unit)
        return short

    def _short_at_server(self, loads: Sequence[float], steady: Sequence[Batches]) -> list[str]:
        """Say whether the requests are too few."""
        if self.few:
            return [
                f"{self.after_warmup:,} requests are too few for intervals, which need "
                f"{LEAST_REQUESTS:,} after the warm-up"
            ]
        reasons = unsteady("latency", self.still_warming, steady, self.count, self.unit)
        for rho, relaxation in zip(loads, self.relaxation, strict=True):
            enough = DOUBT * RELAXATIONS * relaxation
            if relaxation == math.inf:
                reasons.append(
                    "as far as can be told, no less arrives than can be carried: there may be no "
                    "steady state"
                )
            elif self.count < enough:
                would_do = (
                    f"{enough:,.0f} would do" if enough < _NO_RUN else "no run is long enough"
                )
                reasons.append(
                    f"at {rho:.3f} of what can be carried the queue forgets its past over "
                    f"{relaxation:,.0f} requests (its relaxation time), so {self.count:,} are too "
                    f"few; {would_do}"
                )
        return reasons

    def _short_in_network(self, loads: Sequence[float]) -> list[str]:
        """Say whether the jobs are too few, and how many would do."""
        few = []
        never = []
        remaining = self.count - self.filling
        # Jobs of a batch. Relaxation times of pools add up, since work of the one is work of the
        # next, and twice, since batches of one relaxation time are correlated by .54, of two by
        # .33.
        batch = at_once = self._at_once
        if self.few:
            few = [
                f"{self.after_warmup:,} jobs after the warm-up are too few for intervals, which "
                f"need {LEAST_JOBS:,}"
            ]
        elif remaining < BATCHES * at_once:
            few = [
                f"{at_once:,.0f} jobs are in the network at once, and each {BATCHES}th of the run "
                f"must have as many, so {remaining:,} after the warm-up are too few"
            ]
        for name, load, relaxation in zip(
            self.run.network.pools, loads, self.relaxation, strict=False
        ):
            if load >= 1:
                never.append(
                    f"as far as can be told, no less arrives at pool {name} than it carries: it "
                    "may never be steady"
                )
                continue
            batch += 2 * relaxation
            if remaining < DOUBT * RELAXATIONS * relaxation:
                few.append(
                    f"at {load:.3f} of what pool {name} can carry its queue forgets its past over "
                    f"{relaxation:,.0f} jobs (its relaxation time), so {remaining:,} after the "
                    "warm-up are too few"
                )
        if never:
            return [*few, *never]
        # Three standard errors of a variance are added. A warm-up that is found in E2E is half the
        # run at most.
        doubt = 1 + 3 * math.sqrt(2 / max(min(self.count // 10, _GROUPS), 1))
        enough = max(2 * LEAST_JOBS, doubt * (BATCHES * batch + FILLING * at_once))
        if enough >= _NO_RUN:
            return [f"{reason}; no run is long enough" for reason in few]
        would_do = f"{rounded_up(enough):,} would do"
        # Too little may have been seen of the steady state to promise anything.
        if self.count < enough / _FORESIGHT:
            would_do = f"simulate {rounded_up(enough):,} or more"
        return [f"{reason}; {would_do}" for reason in few]

    @property
    def _at_once(self) -> float:
        """Jobs in the network at once, on average (Little's law)."""
        arrival = self.run.arrival[: self.count]
        e2e = self.run.finish[: self.count] - arrival
        span = max(int(np.ptp(arrival)), 1) if self.count else 1
        return min(float(e2e.sum()) / span, float(self.count))


def _relaxations(run: Run, count: int, loads: Sequence[float]) -> list[float]:
    """Return the relaxation time of each pool, in jobs; none where loads are not known."""
    arrival = run.arrival[:count]
    span = float(np.ptp(arrival)) * run.tick_s if count else 0.0
    replicas = [pool.replicas for pool in run.network.pools.values()] if loads else []
    return [
        relaxation_of(load, arrival, _asked(run, pool, count), span * replicas[pool])
        for pool, load in enumerate(loads)
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
        self.waited = np.bincount(rows.jobs.job[begun], wait, run.finish.size).astype(np.int64)

    def of_stage(self, stage: int, metric: str, samples: Mapping[str, Batches]) -> Waits:
        """Return the waits behind a metric at a stage, by number, given all its metrics."""
        if metric == "join_wait_s":  # for branches, wherever they are
            workflow = int(np.searchsorted(self.run.network.first_stage, stage, "right")) - 1
            return self._at(samples[metric], workflow=workflow)
        return self._at(samples["ttft_s"], stage=stage)

    def of_workflow(self, workflow: int) -> Waits:
        """Return the waits of the jobs of a workflow, by its number."""
        return self.of_jobs(np.flatnonzero(self.run.workflow == workflow), workflow)

    def of_jobs(self, jobs: Ints, workflow: int) -> Waits:
        """Return the waits of some jobs of a workflow."""
        return self._at(batched(self.batch, jobs, self.waited[jobs]), workflow=workflow)

    def of_all(self) -> Waits:
        """Return the waits of all jobs."""
        return self._at(batched(self.batch, np.arange(self.waited.size), self.waited))

    def _at(
        self, batches: Batches, *, stage: int | None = None, workflow: int | None = None
    ) -> Waits:
        """Return waits at the pool of a stage, at those of a workflow, or at all."""
        relaxation = self.relaxation
        if relaxation.size > 1:
            network, stages = self.run.network, slice(None)
            if stage is not None:
                stages = slice(stage, stage + 1)
            elif workflow is not None:
                stages = slice(*network.first_stage[workflow : workflow + 2])
            relaxation = relaxation[network.stage_pool[stages]]
        return Waits.of(batches, self.used, float(relaxation.max(initial=0.0)))


def in_batches(arrived: int, begin: int, end: int, few: bool) -> Ints:
    """Return each job's batch, -1 for those before and after some; all in one if they are few."""
    batch = np.full(arrived, -1)
    batch[begin:end] = np.arange(end - begin) * (1 if few else BATCHES) // max(end - begin, 1)
    return batch


def _by_name(
    estimates: Mapping[str, Statistics],
    stages: Mapping[str, Mapping[str, Statistics]],
    workflows: Mapping[str, Statistics],
) -> dict[str, Statistics]:
    """Return estimates by the names that notices call them."""
    whole = {metric.removesuffix("_s"): of for metric, of in estimates.items()}
    if len(stages) == 1:
        return whole
    named = {f"{name} e2e": statistics for name, statistics in workflows.items()} | {
        f"{stage} {metric.removesuffix('_s')}": statistics
        for stage, metrics in stages.items()
        for metric, statistics in metrics.items()
    }
    return named | {"tbt": whole["tbt"]} if "tbt" in whole else named


def _of_workflows(run: Run, used: _Used) -> list[Batches]:
    """Return E2E of the jobs of each workflow."""
    e2e = (run.finish - run.arrival)[: used.count]
    chosen = [
        np.flatnonzero(run.workflow[: used.count] == index)
        for index in range(len(run.network.workflows))
    ]
    return [batched(used.batch, jobs, e2e[jobs]) for jobs in chosen]


def _of_stages(run: Run, batch: Ints) -> list[dict[str, Batches]]:
    """Return the samples of each metric at each stage."""
    rows = recorded(run.rows, "requests")
    return [
        {
            metric: batched(batch, rows.jobs.job[requests], ticks.astype(np.int64))
            for metric, (requests, ticks) in run.samples(index).items()
            if metric != "tpot_s"  # which is no whole number of ticks
        }
        for index in range(len(run.network.stages))
    ]


def _tpot(run: Run) -> tuple[Ints, Ints]:
    """Return the jobs that ended with several tokens, and their ticks per token after the first."""
    rows = recorded(run.rows, "requests")
    output = np.bincount(rows.jobs.job, rows.jobs.output, run.finish.size)
    several = np.flatnonzero((run.finish >= 0) & (output > 1))
    first_token = rows.first_token[rows.jobs.first_request[:-1][several]]
    ticks = (run.finish[several] - first_token) / (output[several] - 1)
    return several, np.rint(ticks).astype(np.int64)


def _of_gaps(run: Run, used: _Used) -> Batches:
    """Put times between tokens in batches: sections after warm-up in pairs, or else by request."""
    if run.gap_sections:
        sections = _with_transfers(run)
        whole = intervals.merged(sections)
        if used.few or not whole.size:
            return Batches.none(whole)
        return Batches.of_sections(sections, (used.count - used.jobs) / max(used.count, 1))
    if used.few:
        return Batches.none(run.gaps)
    rows = recorded(run.rows, "requests").where(slice(used.count - used.jobs, used.count))
    decoding = (rows.finish - rows.first_token).reshape(BATCHES, -1)
    counts = (rows.output_tokens.astype(np.int64) - 1).reshape(BATCHES, -1)
    return Batches(
        decoding.sum(axis=1).astype(float), counts.sum(axis=1).astype(float), (), run.gaps
    )


def _with_transfers(run: Run) -> Sequence[Distribution]:
    """Return times between tokens in sections, with the time to a second token that another replica
    makes where lines serve, which engines count themselves.
    """
    sections, rows = run.gap_sections, recorded(run.rows, "requests")
    if isinstance(run.system, Server) or not (rows.jobs.prompt == 0).any():
        return sections
    jobs, network = rows.jobs, run.network
    lines = np.array([pool.server.by_lines for pool in network.pools.values()])
    decodes = 1 + np.flatnonzero((jobs.prompt[1:] == 0) & (jobs.job[1:] == jobs.job[:-1]))
    decodes = decodes[lines[network.stage_pool[jobs.stage[decodes]]]]
    decodes = decodes[(jobs.prompt[decodes - 1] > 0) & (rows.first_token[decodes] >= 0)]
    ticks = rows.first_token[decodes] - rows.first_token[decodes - 1]
    section = jobs.job[decodes] * len(sections) // jobs.count
    return [
        intervals.merged([counted, Distribution.of(ticks[section == index])])
        for index, counted in enumerate(sections)
    ]


def _of_priorities(
    run: Run, batch: Ints, queues: Queues
) -> dict[tuple[str, str | None], dict[int, dict[str, tuple[Batches, Waits]]]]:
    """Return samples of each metric, of jobs and by stage, apart by priority, with their waits."""
    jobs_of = recorded(run.rows, "requests").jobs
    priority, job = jobs_of.priority, jobs_of.job
    samples: dict[tuple[str, str | None], dict[int, dict[str, tuple[Batches, Waits]]]] = {}
    if priority is None or not 1 < np.unique(priority).size <= MOST_PRIORITIES:
        return samples
    workflows = [workflow.name for workflow in run.network.workflows]
    for workflow, stage, metric, requests, ticks in run.samples_by_priority():
        by_priority = samples.setdefault((workflow, stage), {})
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
    return samples


def batched(batch: Ints, job: Ints, ticks: Ints) -> Batches:
    """Put samples into the batches of their jobs, or together if they are too few."""
    of_job = batch[job]
    size = int(batch.max(initial=0)) + 1
    order = np.argsort(of_job, kind="stable")
    begins = np.searchsorted(of_job[order], np.arange(size))
    parts = np.split(ticks[order], begins)[1:]  # before them are those left out
    batches = Batches.of([Distribution.of(part) for part in parts])
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


def _asked(run: Run, pool: int, count: int) -> list[Floats]:
    """Return what each of the first jobs asks of each limit of a pool."""
    rows = recorded(run.rows, "requests")
    jobs = rows.jobs
    here = run.network.stage_pool[jobs.stage] == pool
    server = run.network.pool_list[pool].servers[0][0]
    asked = works(server, (jobs.prompt - rows.found)[here], jobs.output[here])
    job = jobs.job[here]
    return [np.bincount(job, work, run.finish.size)[:count].astype(np.float64) for work in asked]


def _half_width(mean: Estimate) -> float:
    if not mean.value or mean.low is None or mean.high is None:
        return math.inf
    return (mean.high - mean.low) / 2 / mean.value
