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
from typing import Any

from penstock import checks
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import PACED_SHARE, Job, JobResult, Mode, longest_s, simulate_job
from penstock.planning.search import Question, Search, Theory
from penstock.planning.space import Discarded, Family
from penstock.show.page import Page, Shown
from penstock.system.pool import MOST_REPLICAS
from penstock.system.server import Server
from penstock.words import amount, counted
from penstock.workload.workload import Workload

TOKEN_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Those that are tried where none are given, beside the server's own."""

MOST = 1_024
"""Replicas of a fleet, where nothing else is said."""

Fleets = Deployment | Family
"""Any number of replicas, or those that a search allows."""

_MOST_REQUESTS = 5_000_000
_LONGEST = "the longest request alone"
_GAIN = 0.02  # of the time, by twice the fleet; below it no larger one is tried

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share that is."""


@dataclasses.dataclass(frozen=True, eq=False)
class JobPlan(Shown):
    """How to finish a job."""

    requests: int
    deadline_s: float
    targets: tuple[Target, ...]  # of the online traffic
    online_rate: float | None  # requests/s of the whole fleet; None: no online traffic
    # The least cost per hour that meets the deadline and the targets, of several the shortest.
    best: JobResult | None
    nearest: JobResult | None  # `best`, or else the one that misses the least
    unreachable: str  # why there is no best, and what to change; empty where there is one
    results: tuple[JobResult, ...]  # all that was simulated
    discarded: tuple[Discarded, ...]  # all others, and why
    notices: tuple[str, ...]

    @property
    def margin(self) -> float | None:
        """What the best leaves until the deadline, as a share, at the high end of its interval."""
        return None if self.best is None else 1 - (self.best.makespan.high or 0.0) / self.deadline_s

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "requests": self.requests,
            "deadline_s": self.deadline_s,
            "targets": [str(target) for target in self.targets],
            "online_rate": self.online_rate,
            "unreachable": self.unreachable or None,
            "best": self.best and self.best.as_dict(),
            "nearest": self.nearest and self.nearest.as_dict(),
            "margin": self.margin,
            "results": [result.as_dict() for result in self.results],
            "discarded": [discarded.as_dict() for discarded in self.discarded],
            "notices": list(self.notices),
        }

    def page(self) -> Page:
        """Return the job as a page."""
        from penstock.planning.view import plan_page

        return plan_page("job", job=self)


def plan_job(
    workload: Workload,
    fleets: Fleets | Sequence[Fleets],
    *,
    requests: int,
    deadline_s: float,
    token_budgets: Sequence[int] = (),
    online: Workload | None = None,
    targets: Sequence[Target | str] = (),
    most_replicas: int | None = None,
    runs: int = 5,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> JobPlan:
    """Find the least fleet that finishes a job by its deadline, and its fastest token budget.

    A recording is taken as it is if it has as many requests, else rows are drawn. Fleets are
    families with their numbers of replicas, or deployments with any up to ``most_replicas`` (by
    default `MOST`); each server's own budget and `TOKEN_BUDGETS` are
    tried, or those given. Online traffic comes at the rate of the whole fleet, and must meet the
    targets; ``tbt`` percentiles are of online requests and job together. Each of ``runs`` draws
    requests anew (a recording as it is: one run), for an interval that holds the next with this
    confidence.
    """
    job, notices = checked_job(
        workload, requests, deadline_s, online, targets, most_replicas, runs, confidence
    )
    families, refused = families_of(fleets, token_budgets, most_replicas, job)
    question = ByDeadline(job)
    report = progress or (lambda what, share: None)
    search = Search(question, families, lambda share, what: report(what, share))
    search.run()
    best = None if search.best is None else search.best[0]
    nearest = best or min(search.results, key=lambda result: _excess(result, job), default=None)
    discarded = (*refused, *search.discarded())
    if not token_budgets:
        notices.insert(
            0,
            "token budgets are tried beside the server's own; give plan.job.token_budgets to fix "
            "them",
        )
    return JobPlan(
        job.requests, job.deadline_s, job.targets, None if job.online is None else job.online.rate,
        best, nearest,
        "" if best is not None else _unreachable(job, nearest, discarded), search.results,
        discarded,
        (*_notices(job, best, nearest), *notices),
    )  # fmt: skip


def checked_job(
    workload: Workload,
    requests: int,
    deadline_s: float,
    online: Workload | None = None,
    targets: Sequence[Target | str] = (),
    most_replicas: int | None = None,
    runs: int = 5,
    confidence: float = 0.95,
) -> tuple[Job, list[str]]:
    """Return a job whose values can be used, and what to say of it; parameters of `plan_job`."""
    keeps = "each keeps a row in memory; of a longer job plan a part, with its part of the time"
    requests = checks.whole("the requests of the job", requests, 1, _MOST_REQUESTS, "", keeps)
    deadline_s = checks.number(
        "deadline_s", deadline_s, 1e-3, 1e9, "s", "the job has to be done by then"
    )
    if most_replicas is not None:
        checks.whole("most_replicas", most_replicas, 1, MOST_REPLICAS, "", "the fleet has no more")
    runs = checks.whole("runs", runs, 2, 1_000, "", "an interval takes at least two")
    confidence = checks.number(
        "confidence", confidence, 0.5, 0.99999, "", "it is how often the interval is right"
    )
    limits = tuple(
        target if isinstance(target, Target) else Target.parse(target) for target in targets
    )
    if bool(limits) != (online is not None):
        raise InputError(
            "targets of a job are those of its online traffic; give both `online` and `targets`, "
            "or none"
        )
    notices = []
    if online is not None:
        if online.rows is not None:
            online = online.with_rate(online.rate, "poisson")
            notices.append(
                "online traffic is not the recording as it is: its requests are drawn at random, "
                "as Poisson arrivals "
                f"of {amount(online.rate)} requests/s"
            )
        if online.rate * deadline_s > _MOST_REQUESTS:
            raise InputError(
                f"{online.rate:g} online requests/s until the deadline are "
                f"{online.rate * deadline_s:,.0f}, above "
                f"{_MOST_REQUESTS:,}, each of which keeps a row in memory; plan a shorter part of "
                "the job"
            )
    return Job(workload, requests, deadline_s, online, limits, runs, confidence), notices


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

    def theory(self, family: Family) -> Theory:
        """Say how many replicas the work takes at least, and where the longest request is late."""
        assert isinstance(family, JobFamily)
        job, counts, server = self.job, family.counts, family.smallest.server
        alone = self._longest_s(server)
        if alone > job.deadline_s:
            late = (
                f"{_LONGEST} takes {alone:,.4g} s, beyond the deadline of {job.deadline_s:,.4g} s"
            )
            return Theory(len(counts), 0, late)
        fewest = math.ceil(family.work_s / job.deadline_s * (1 - 1e-12))
        least = bisect.bisect_left(counts, fewest)
        likely = bisect.bisect_left(counts, job.likely(server, family.work_s))
        guess = min(max(likely, least), len(counts) - 1)
        over = f", above {counts[-1]:,}" if least == len(counts) else ""
        return Theory(least, guess, f"the work takes at least {counted(fewest, 'replica')}{over}")

    def judge(self, family: Family, count: int, report: Callable[[float], None]) -> JobResult:
        """Simulate so many replicas until the job is done."""
        assert isinstance(family, JobFamily)
        return simulate_job(self.job, family.at(count), family.mode)

    def worth(self, result: JobResult) -> float:
        """Return when it is done, s."""
        return result.makespan.value or math.inf

    def worth_at_least(self, family: Family, count: int) -> float:
        """Return before when no policy of so many replicas is done, s."""
        assert isinstance(family, JobFamily)
        return max(family.work_s / count, self._longest_s(family.smallest.server))

    def lacks(self, result: JobResult) -> str:
        """Say when so many replicas are done."""
        replicas = counted(result.deployment.replicas, "replica")
        return f"with {replicas} it is done after {result.makespan.value or math.inf:,.4g} s"

    def in_vain(self, results: Sequence[JobResult]) -> bool:
        """Return whether twice as many replicas, or more, hardly helped: long requests decide."""
        last = results[-1]
        return any(
            _excess(last, self.job) > (1 - _GAIN) * _excess(fewer, self.job)
            for fewer in results
            if 2 * fewer.deployment.replicas <= last.deployment.replicas
        )

    def _longest_s(self, server: Server) -> float:
        return max(longest_s(*self.job.lengths(seed), server) for seed in self.job.seeds)


def families_of(
    fleets: Fleets | Sequence[Fleets], budgets: Sequence[int], most: int | None, job: Job
) -> tuple[list[JobFamily], list[Discarded]]:
    """Return what to try, and what cannot serve the job."""
    families: dict[str, JobFamily] = {}
    refused: list[Discarded] = []
    for fleet in (fleets,) if isinstance(fleets, Deployment | Family) else fleets:
        deployment = fleet.smallest if isinstance(fleet, Family) else fleet
        counts: Sequence[int] = range(1, (most or MOST) + 1)
        if isinstance(fleet, Family) and most is None:
            counts = fleet.counts
        counts = counts[: bisect.bisect_left(counts, job.requests) + 1]  # more have nothing to do

        def refuse(name: str, why: str, counts: Sequence[int] = counts) -> None:
            one = Discarded(name, (counts[0], counts[-1]), len(counts), "impossible", why)
            refused.append(one)

        if deployment.prefill_replicas:
            refuse(deployment.family, "replicas for prompts alone are not simulated for jobs")
            continue
        if deployment.others:
            refuse(deployment.family, "two kinds in one pool are not simulated for jobs")
            continue
        for budget in dict.fromkeys(budgets or (deployment.server.token_budget, *TOKEN_BUDGETS)):
            try:
                server = dataclasses.replace(deployment.server, token_budget=budget)
                single = dataclasses.replace(
                    deployment, server=server, replicas=counts[0], router="round-robin",
                    router_settings=(),
                )  # fmt: skip
                work = job.work_s(server)
                for mode in _modes(server, job):
                    family = JobFamily(single, tuple(counts), mode, work)
                    families.setdefault(family.name, family)
            except InputError as error:
                refuse(f"{deployment.family} with budget {checks.shown(budget)}", str(error))
    if not families:
        raise InputError(
            f"no server can serve the job: {refused[0].why if refused else 'none was given'}"
        )
    return list(families.values()), refused


def _modes(server: Server, job: Job) -> tuple[Mode, ...]:
    if job.online is None:
        return ("alone",)
    if "priority" in server.policy.orders:
        return ("priority", "paced")
    return ("paced",)


def _excess(result: JobResult, job: Job) -> float:
    """Return by how much the worst of deadline and targets is exceeded."""
    over = [(result.makespan.value or math.inf) / job.deadline_s]
    over += [
        (estimate.value or 0.0) / target.limit_s
        for target, estimate in zip(job.targets, result.online, strict=True)
    ]
    return max(over)


def _unreachable(job: Job, nearest: JobResult | None, discarded: Sequence[Discarded]) -> str:
    """Say why no fleet does, and what to change."""
    later = "give a later deadline (plan.job.deadline_h), or faster hardware"
    more = (
        "allow more (plan.search.replicas, plan.max_cost, plan.job.most_replicas), or give a "
        "later deadline"
    )
    if nearest is None:
        alone = next((one.why for one in discarded if one.why.startswith(_LONGEST)), "")
        return f"{alone}; {later}" if alone else f"{discarded[-1].why}; {more}"
    # the longest requests, and not the work, take the time
    work = job.work_s(nearest.deployment.server) / nearest.deployment.replicas
    if work < 0.5 * (nearest.makespan.value or 0.0) and not job.targets:
        return f"more replicas hardly help, since the longest requests decide; {later}"
    if nearest.makespan.high is None or nearest.makespan.high >= job.deadline_s:
        return f"no fleet allowed is sure to be done by then; {more}"
    return f"no fleet allowed is sure to meet the targets of online requests by then; {more}"


def _notices(job: Job, best: JobResult | None, nearest: JobResult | None) -> Iterator[str]:
    """Yield what the user should know of the answer."""
    if best is None and nearest is not None:
        yield (
            f"nearest is {nearest.deployment.name}, which takes "
            f"{nearest.makespan.value:,.4g} s, at most {nearest.makespan.high:,.4g} s, of "
            f"{job.deadline_s:,.4g} s"
        )
    if best is not None and best.mode == "priority":
        yield (
            "online requests go first: the servers serve by priority, and the job is sent with a "
            "larger number"
        )
    if best is not None and best.mode == "paced":
        yield (
            "the job shares the queue with online requests, let in evenly over at most "
            f"{PACED_SHARE:.0%} of the "
            "time: sent at once it would go before them, and all later ones would wait"
        )
    if job.online is None and job.workload.arrivals is not None:
        yield (
            "all of the job is there at the start: the arrivals of the workload play no part in it"
        )
    shown = best or nearest
    if shown is not None and shown.deployment.replicas > 1:
        yield (
            "requests of the job are dealt to the replicas in turn (round-robin), whatever the "
            "search's router"
        )
    if shown is not None and job.targets and shown.beside < shown.runs:
        few = f"only {shown.beside:,}" if shown.beside else "none"
        yield (
            f"online requests came while the job lasted in {few} of {counted(shown.runs, 'run')}, "
            "so "
            "their targets are hardly tested; more runs (plan.job.runs) tell more"
        )
    if job.workload.prefixes is not None:
        yield ("shared prefixes of the job's prompts are not counted, so it may be done sooner")
    if any(target.metric == "tbt_s" and target.statistic != "mean" for target in job.targets):
        yield "percentiles of tbt are of online requests and job together"
