"""Offline work: finish so many requests by a deadline, with the least fleet and the best token
budget.

All requests are there at time 0 and are dealt to the replicas in turn; every replica is simulated
until it is done, so the makespan (when the last one finishes) is exact for the requests drawn. The
lower bound is theory: no batch carries more than max over b of b / t_b tokens per second (Theorem
1(a)), nor more than a max batch size or KV memory allow, and no request finishes before its own
iterations.

Beside online traffic there are two ways, and both are tried. ``priority``: all of the job waits at
the replicas, which serve online requests first. ``paced``: the job is let in evenly over most of
the time, and shares the queue; its last requests have 5% of the time left, or twice what the
longest takes alone.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from penstock import checks
from penstock.errors import InputError
from penstock.planning.day import MOST
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import PACED_SHARE, Job, JobResult, Mode, simulate_job
from penstock.planning.search import Prospect, Question, Report, Search
from penstock.planning.space import Discarded, Family
from penstock.show.answers import Meaning, Shown, computed
from penstock.system.server import Server
from penstock.words import amount, counted
from penstock.workload.workload import Workload

TOKEN_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Those that are tried where none are given, beside the server's own."""

Fleets = Deployment | Family
"""Any number of replicas, or those that a search allows."""

_LONGEST = "the longest request alone"
_GAIN = 0.02  # of the time, by twice the fleet; below it no larger one is tried


@dataclasses.dataclass(frozen=True, eq=False)
class JobPlan(Shown):
    """How to finish a job."""

    job: Annotated[Job, Meaning("What has to be done.", key="**")]
    best: Annotated[JobResult | None, Meaning(
        "The least cost per hour that meets the deadline and the targets, of several the shortest."
    )]  # fmt: skip
    nearest: Annotated[JobResult | None, Meaning("`best`, or else what misses the least.")]
    results: Annotated[tuple[JobResult, ...], Meaning("All that was simulated.")]
    discarded: Annotated[tuple[Discarded, ...], Meaning("All others, and why.")]

    @computed()
    def margin(self) -> float | None:
        """What the best leaves until the deadline, as a share, at the high end of its interval."""
        if self.best is None:
            return None
        return 1 - (self.best.makespan.high or 0.0) / self.job.deadline_s

    @computed()
    def unreachable(self) -> str | None:
        """Why there is no best, and what to change; None where there is one."""
        if self.best is not None:
            return None
        job, nearest = self.job, self.nearest
        later = "give a later deadline (plan.job.deadline_h), or faster hardware"
        more = (
            "allow more (plan.search.replicas, plan.max_cost, plan.job.most_replicas), or give a "
            "later deadline"
        )
        if nearest is None:
            reasons = [part.why for part in self.discarded]
            alone = next((why for why in reasons if why.startswith(_LONGEST)), "")
            return f"{alone}; {later}" if alone else f"{reasons[-1]}; {more}"
        work = job.work_s(nearest.deployment.server) / nearest.deployment.replicas
        if work < 0.5 * nearest.seconds and not job.targets:
            return f"more replicas hardly help, since the longest requests decide; {later}"
        late = nearest.makespan.high is None or nearest.makespan.high >= job.deadline_s
        fails = "be done" if late else "meet the targets of online requests"
        return f"no fleet allowed is sure to {fails} by then; {more}"

    @computed()
    def notices(self) -> tuple[str, ...]:
        """What the user should know of the answer, or of the nearest."""
        return tuple(_notices(self.job, self.nearest))


def plan_job(
    job: Job | Workload,
    fleets: Fleets | Sequence[Fleets],
    *,
    progress: Report | None = None,
    **asked: Any,
) -> JobPlan:
    """Find the least fleet that finishes a job by its deadline, and its fastest token budget.

    The job may be a workload, of which what is ``asked`` is as in `Job`: requests, deadline_s ...
    Fleets are families with their numbers of replicas, or deployments with any up to
    ``most_replicas`` (by default `MOST`).
    """
    if isinstance(job, Workload):
        job = Job(job, **asked)
    families, refused = families_of(fleets, job)
    question = ByDeadline(job)
    search = Search(question, families, progress)
    search.run()
    nearest = search.best or min(search.results, key=question.excess, default=None)
    discarded = (*refused, *search.discarded())
    return JobPlan(job, search.best, nearest, search.results, discarded)


@dataclasses.dataclass(frozen=True)
class JobFamily(Family):
    """Fleets for a job that differ in the number of replicas alone."""

    mode: Mode  # how the job is let in
    work_s: float  # seconds of one replica for the whole job, at least

    @property
    def name(self) -> str:
        """What they have in common, and beside online traffic how the job is let in."""
        return super().name if self.mode == "alone" else f"{super().name}, {self.mode}"


class ByDeadline(Question[JobResult]):
    """Finish a job by its deadline, and beside it meet the targets of online traffic."""

    asks_the_most = False  # of a fleet with any number

    def __init__(self, job: Job) -> None:
        self.job = job

    def prospect(self, family: Family) -> Prospect:
        """Say how many replicas the work takes at least, and where the longest request is late."""
        assert isinstance(family, JobFamily)
        job, counts, server = self.job, family.counts, family.smallest.server
        alone = job.longest_s(server)
        if alone > job.deadline_s:
            late = (
                f"{_LONGEST} takes {alone:,.4g} s, beyond the deadline of {job.deadline_s:,.4g} s"
            )
            return Prospect(family, len(counts), 0, late)
        fewest = math.ceil(family.work_s / job.deadline_s * (1 - 1e-12))
        least = bisect.bisect_left(counts, fewest)
        likely = bisect.bisect_left(counts, job.likely(server, family.work_s))
        guess = min(max(likely, least), len(counts) - 1)
        over = f", above {counts[-1]:,}" if least == len(counts) else ""
        why = f"the work takes at least {counted(fewest, 'replica')}{over}"
        return Prospect(family, least, guess, why)

    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> JobResult:
        """Simulate so many replicas until the job is done."""
        assert isinstance(family, JobFamily)
        return simulate_job(self.job, family.at(count), family.mode)

    def worth(self, result: JobResult) -> float:
        """Return when it is done, s."""
        return result.seconds

    def worth_at_least(self, family: Family, count: int) -> float:
        """Return before when no policy of so many replicas is done, s."""
        assert isinstance(family, JobFamily)
        return max(family.work_s / count, self.job.longest_s(family.smallest.server))

    def lacks(self, result: JobResult) -> str:
        """Say when so many replicas are done."""
        replicas = counted(result.deployment.replicas, "replica")
        return f"with {replicas} it is done after {result.seconds:,.4g} s"

    def excess(self, result: JobResult) -> float:
        """Return by how much the worst of deadline and targets is exceeded."""
        online = zip(self.job.targets, result.online, strict=True)
        over = [(estimate.value or 0.0) / target.limit_s for target, estimate in online]
        return max([result.seconds / self.job.deadline_s, *over])

    def in_vain(self, results: Sequence[JobResult]) -> bool:
        """Return whether twice as many replicas, or more, hardly helped: long requests decide."""
        most, hardly = results[-1].deployment.replicas, self.excess(results[-1]) / (1 - _GAIN)
        fewer = [result for result in results if 2 * result.deployment.replicas <= most]
        return any(self.excess(result) < hardly for result in fewer)


def families_of(
    fleets: Fleets | Sequence[Fleets], job: Job
) -> tuple[list[JobFamily], list[Discarded]]:
    """Return what to try, and what cannot serve the job."""
    families: dict[str, JobFamily] = {}
    refused: list[Discarded] = []
    for fleet in (fleets,) if isinstance(fleets, Deployment | Family) else fleets:
        if isinstance(fleet, Deployment):
            fleet = Family(fleet, tuple(range(1, MOST + 1)))
        smallest, counts = fleet.smallest, fleet.counts
        if job.most_replicas is not None:
            counts = tuple(range(1, job.most_replicas + 1))
        counts = counts[: bisect.bisect_left(counts, job.requests) + 1]  # more have nothing to do
        budgets = job.token_budgets or (smallest.server.token_budget, *TOKEN_BUDGETS)
        for budget in dict.fromkeys(budgets):
            try:
                if smallest.prefill_replicas or smallest.others:
                    raise InputError("replicas of one kind, that do all, are simulated for jobs")
                server = dataclasses.replace(smallest.server, token_budget=budget)
                single = Deployment(
                    dataclasses.replace(smallest.kind, server=server), counts[0], "round-robin"
                )
                work = job.work_s(server)
            except InputError as error:
                name = f"{smallest.family} with budget {checks.shown(budget)}"
                refused.append(Discarded.of(name, counts, "impossible", error))
                continue
            for mode in _modes(server, job):
                family = JobFamily(single, counts, mode, work)
                families.setdefault(family.name, family)
    if not families:
        raise InputError(
            f"no server can serve the job: {refused[0].why if refused else 'none was given'}"
        )
    return list(families.values()), refused


def _modes(server: Server, job: Job) -> tuple[Mode, ...]:
    if job.online is None:
        return ("alone",)
    return ("priority", "paced") if "priority" in server.policy.queue.orders else ("paced",)


def _notices(job: Job, shown: JobResult | None) -> Iterator[str]:
    """Yield what the user should know of the answer, or of the nearest."""
    if shown is not None and shown.mode == "priority":
        yield (
            "online requests go first: the servers serve by priority, and the job is sent with a "
            "larger number"
        )
    if shown is not None and shown.mode == "paced":
        yield (
            "the job shares the queue with online requests, let in evenly over at most "
            f"{PACED_SHARE:.0%} of the time: sent at once it would go before them, and all later "
            "ones would wait"
        )
    if shown is not None and job.targets and shown.beside < shown.runs:
        few = f"only {shown.beside:,}" if shown.beside else "none"
        yield (
            f"online requests came while the job lasted in {few} of {counted(shown.runs, 'run')}, "
            "so their targets are hardly tested; more runs (plan.job.runs) tell more"
        )
    if job.workload.prefixes is not None:
        yield "shared prefixes of the job's prompts are not counted, so it may be done sooner"
    if any(target.metric == "tbt_s" and target.statistic != "mean" for target in job.targets):
        yield "percentiles of tbt are of online requests and job together"
    if not job.token_budgets:
        yield (
            "token budgets are tried beside the server's own; give plan.job.token_budgets to fix "
            "them"
        )
    if job.online is not None and job.online.rows is not None:
        yield (
            "online traffic is not the recording as it is: its requests are drawn at random, as "
            f"Poisson arrivals of {amount(job.online.rate)} requests/s"
        )
