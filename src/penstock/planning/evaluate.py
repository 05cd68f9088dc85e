"""One deployment simulated: whether it is stable, its latency with intervals, the targets judged, its goodput.

Routers that do not look at queues split the stream, so one replica with its share of the requests tells everything,
under any policy, with KV memory and any batch times. Others, and replicas for prompts alone, are simulated as a
network. All deployments are judged on the same requests (common random numbers).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.checking import intervals
from penstock.checking.drift_test import Outcome, verdict
from penstock.checking.flood_test import network_verdict
from penstock.checking.latency import BATCHES, LEAST_REQUESTS, SteadyState, estimate
from penstock.checking.latency_network import network_steady_state
from penstock.checking.targets import Estimate, Judgement, Target
from penstock.errors import InputError, nearest
from penstock.planning.share import share_of
from penstock.planning.space import SPLITTING, Deployment
from penstock.simulation.network_run import NetworkRun
from penstock.simulation.run import Run
from penstock.simulation.simulate_network import simulate_network
from penstock.system.network import Network
from penstock.system.pool import Pool
from penstock.theory.certificate import certify
from penstock.theory.network.certificate import certify_network
from penstock.words import STATISTICS
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload

Objective = Literal["cost", "goodput"]
OBJECTIVES: tuple[Objective, ...] = ("cost", "goodput")
Progress = Callable[[float], None]
Floats = npt.NDArray[np.float64]

REQUESTS = 5_000
"""Of one replica, to begin with."""

MOST_TIMES_LONGER = 16
"""How many times longer a run becomes while it decides nothing."""

MOST_ROWS = 20_000_000
"""Requests of a run at most, each of which keeps a row in memory."""

_MOST_TOGETHER = 4_000_000  # requests of all replicas that are simulated together, each of which keeps a row too

_MOST_DRIFT = 0.999


@dataclasses.dataclass(frozen=True)
class Aim:
    """What a deployment has to do.

    Attributes
    ----------
    targets
        Upper limits of latencies.
    objective
        ``cost``: meet every target. ``goodput``: let a share of the requests stay within all limits.
    goodput
        That share: of requests whose own TTFT, mean time per output token and E2E are within the limits given,
        whatever the statistic of the target.
    confidence
        How often an interval holds its value, whenever the simulation stops.
    requests, most_requests
        To begin with, and at most, on the replica that is simulated, or in a network on average on each (fewer where
        all replicas together would have more than four million).
    """

    targets: tuple[Target, ...]
    objective: Objective = "cost"
    goodput: float = 0.99
    confidence: float = 0.95
    requests: int = REQUESTS
    most_requests: int = REQUESTS * MOST_TIMES_LONGER

    @classmethod
    def of(
        cls,
        targets: Sequence[Target | str],
        *,
        objective: str = "cost",
        goodput: float = 0.99,
        confidence: float = 0.95,
        requests: int | None = None,
        most_requests: int | None = None,
    ) -> Self:
        """Check and return an aim; targets may be text such as ``ttft_p99<2s``.

        Raises
        ------
        InputError
            If there is no target, or a value cannot be used.
        """
        if isinstance(targets, str) or not targets:
            raise InputError("no target is given, so any stable fleet would do; give a list such as ['ttft_p99<2s']")
        known = tuple(given if isinstance(given, Target) else Target.parse(given) for given in targets)
        for place, target in enumerate(known):
            if any((target.metric, target.statistic) == (t.metric, t.statistic) for t in known[:place]):
                raise InputError(f"two targets limit {target.metric[:-2]}_{target.statistic}; keep the lower one")
        if objective not in OBJECTIVES:
            raise InputError(f"unknown objective {checks.shown(objective)}{nearest(str(objective), OBJECTIVES)}")
        share = checks.number("the goodput", goodput, 0.01, 0.9999, "", "it is a share of the requests; 0.99 is 99%")
        sure = checks.number("confidence", confidence, 0.5, 0.99999, "", "it is how often an interval holds its value")
        first = REQUESTS if requests is None else requests
        why = "fewer give no interval, and each keeps a row in memory"
        first = checks.whole("requests", first, LEAST_REQUESTS, MOST_ROWS, "", why)
        most = min(MOST_TIMES_LONGER * max(first, REQUESTS), MOST_ROWS) if most_requests is None else most_requests
        why = "the first run already has `requests`, and each keeps a row in memory"
        most = checks.whole("most_requests", most, first, MOST_ROWS, "", why)
        return cls(known, objective, share, sure, first, most)

    @property
    def looks(self) -> tuple[int, ...]:
        """Requests of each look."""
        sizes = [self.requests]
        while sizes[-1] < self.most_requests:
            sizes.append(min(2 * sizes[-1], self.most_requests))
        return tuple(sizes)

    def judge(self, outcome: Outcome, judgements: Sequence[Judgement], goodput: Estimate) -> Judgement:
        """Return whether a deployment does what it has to."""
        if outcome == "unstable":
            return "missed"
        if self.objective == "cost":
            found = _all(judgements)
        else:
            found = "undecided"
            if goodput.low is not None and goodput.low >= self.goodput:
                found = "met"
            elif goodput.high is not None and goodput.high < self.goodput:
                found = "missed"
        return "undecided" if found == "met" and outcome != "stable" else found


def _all(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement of several targets together."""
    return next((word for word in ("missed", "undecided") if word in judgements), "met")


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """One deployment, simulated.

    Attributes
    ----------
    deployment
        What was simulated.
    verdict
        ``stable``, ``unstable`` or ``undecided``.
    known_by
        The theorem that says so, or the test.
    answer
        Whether it does what it has to: ``met``, ``missed`` or ``undecided``.
    estimates, judgements
        One for each target.
    goodput
        Share of the requests within all limits.
    latency
        By metric (``ttft_s``, ``tbt_s``, ``e2e_s``) and statistic (``mean``, ``p50`` ...); empty if it is unstable.
    requests
        Simulated in the last run, all replicas together where they were simulated together; 0 where theory knows.
    rate
        Requests/s that the deployment is offered.
    notices
        What the user should know besides.
    """

    deployment: Deployment
    verdict: Outcome
    known_by: str
    answer: Judgement
    estimates: tuple[Estimate, ...]
    judgements: tuple[Judgement, ...]
    goodput: Estimate
    latency: Mapping[str, Mapping[str, Estimate]]
    requests: int
    rate: float
    notices: tuple[str, ...] = ()

    @property
    def throughput(self) -> float:
        """Requests/s that are carried; 0 where it is not known to be stable."""
        return self.rate if self.verdict == "stable" else 0.0

    @property
    def goodput_rate(self) -> float:
        """Requests/s that are carried within all limits."""
        return self.throughput * (self.goodput.value or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        cost = self.deployment.cost
        return {
            "deployment": self.deployment.as_dict(),
            "verdict": self.verdict,
            "known_by": self.known_by,
            "answer": self.answer,
            "targets": [
                {"value": found.value, "interval": [found.low, found.high], "answer": judgement}
                for found, judgement in zip(self.estimates, self.judgements, strict=True)
            ],
            "goodput": {"value": self.goodput.value, "interval": [self.goodput.low, self.goodput.high]},
            "latency": {
                metric: {name: {"value": e.value, "interval": [e.low, e.high]} for name, e in of.items()}
                for metric, of in self.latency.items()
            },
            "requests": self.requests,
            "throughput": self.throughput,
            "throughput_per_cost": self.throughput / cost,
            "goodput_per_cost": self.goodput_rate / cost,
            "notices": list(self.notices),
        }


def evaluate(workload: Workload, deployment: Deployment, aim: Aim, *, progress: Progress | None = None) -> Evaluation:
    """Simulate one deployment until it is known whether it does what it has to, or the requests are spent.

    Stability is by theorem where one applies, else by the sequential test (`penstock.verdict`). While the judgement is
    undecided the run doubles, the same requests first; each look has a confidence such that all together have the one
    asked for (Bonferroni).

    Parameters
    ----------
    workload
        What arrives at the whole deployment.
    deployment
        What serves.
    aim
        What it has to do.
    progress
        Called now and then with the share of the longest run that is done.

    Raises
    ------
    InputError
        If a target needs what is not measured of such a deployment (`unmeasured`).
    """
    if why := unmeasured(deployment, aim):
        raise InputError(f"{deployment.name}: {why}")
    report = progress or (lambda share: None)
    known, looked = (_alone if deployment.splits else _together)(workload, deployment, aim, report)
    if known.outcome == "unstable":
        many = len(aim.targets)
        missed: list[Judgement] = ["missed"] * many
        return Evaluation(
            deployment, "unstable", known.by, "missed", (Estimate(None),) * many, tuple(missed),
            Estimate(0.0, 0.0, 0.0), {}, 0, workload.rate,
        )  # fmt: skip
    for look in looked:
        # networks measure no times between tokens but each request's own, which goodput goes by
        estimates = tuple(look.latency.get(t.metric, {}).get(t.statistic, Estimate(None)) for t in aim.targets)
        judgements = tuple(target.judge(found) for target, found in zip(aim.targets, estimates, strict=True))
        answer = aim.judge(known.outcome, judgements, look.goodput)
        found = Evaluation(
            deployment, known.outcome, known.by, answer, estimates, judgements, look.goodput, look.latency,
            look.requests, workload.rate, look.notices,
        )  # fmt: skip
        if answer != "undecided" or known.outcome != "stable":
            break
    return found


def not_simulated(workload: Workload, deployment: Deployment, aim: Aim, why: str) -> Evaluation:
    """Return what is known of a deployment that cannot be simulated: why, and nothing else."""
    many = len(aim.targets)
    unknown: list[Judgement] = ["undecided"] * many
    return Evaluation(
        deployment, "undecided", why, "undecided", (Estimate(None),) * many, tuple(unknown), Estimate(None), {}, 0,
        workload.rate,
    )  # fmt: skip


def unmeasured(deployment: Deployment, aim: Aim) -> str | None:
    """Say which target needs what is not measured of such a deployment, or None."""
    if deployment.router in SPLITTING and not deployment.prefill_replicas:
        return None
    for target in aim.targets:
        if target.metric == "tbt_s" and aim.objective == "cost":
            how = "where prefill and decode are apart" if deployment.prefill_replicas else f"behind {deployment.router}"
            other = "do not take them apart" if deployment.prefill_replicas else "take the router random or round-robin"
            return (
                f"{target} cannot be judged, since replicas {how} are simulated as a network, which measures TTFT and "
                f"E2E; leave it out, or {other}"
            )
        if target.statistic not in STATISTICS and aim.objective == "cost":
            return f"{target} cannot be judged, since networks give {', '.join(STATISTICS)}; take one of them"
    return None


@dataclasses.dataclass(frozen=True)
class _Known:
    """Whether it is stable, by what that is known, and the rate over the rate that can be carried."""

    outcome: Outcome
    by: str
    rho: float


@dataclasses.dataclass(frozen=True)
class _Look:
    """What one run says."""

    latency: Mapping[str, Mapping[str, Estimate]]
    goodput: Estimate
    requests: int
    notices: tuple[str, ...]


def _alone(workload: Workload, deployment: Deployment, aim: Aim, report: Progress) -> tuple[_Known, Iterator[_Look]]:
    """Simulate one replica with its share of the requests."""
    server = deployment.server
    alone = share_of(workload, deployment.router, deployment.replicas)
    certificate = certify(alone, server)
    if certificate.verdict in ("stable", "unstable"):
        rate = certificate.certified_rate if certificate.verdict == "stable" else certificate.max_rate
        known = _Known(certificate.verdict, str(certificate.theorem), alone.rate / rate if rate else math.inf)
    elif certificate.verdict == "critical":
        known = _Known("undecided", "no theorem: the load is at the limit", 1.0)
    else:
        tested = verdict(alone, server, seed=alone.seed)
        known = _Known(tested.verdict, "the sequential test", 1 / (1 - min(tested.drift, _MOST_DRIFT)))
    # a recording has no more to give, so that all of it is looked at once
    sizes = aim.looks if alone.rows is None else (min(alone.rows, aim.most_requests),)
    level = 1 - (1 - aim.confidence) / len(sizes)

    def looks() -> Iterator[_Look]:
        for place, size in enumerate(sizes):
            run, steady = estimate(
                alone, server, requests=size, targets=aim.targets, confidence=level, rho=known.rho, most_requests=size,
                progress=_part(report, place, len(sizes)),
            )  # fmt: skip
            good = _within(aim.targets, *_of_run(run, steady))
            yield _Look(steady.estimates, _share(good, level, steady.too_short), run.arrived, steady.notices)

    return known, looks()


def _of_run(run: Run, steady: SteadyState) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, mean time per output token and E2E of each request after the warm-up, s; inf where it has none."""
    assert run.rows is not None
    rows = run.rows.where(slice(steady.warmup_requests, None))
    return _own_latency(rows.arrival, rows.first_token, rows.finish, rows.output_tokens, run.tick_s)


def _own_latency(
    arrival: npt.NDArray[np.int64],
    first_token: npt.NDArray[np.int64],
    finish: npt.NDArray[np.int64],
    output_tokens: npt.NDArray[Any],
    tick_s: float,
) -> tuple[Floats, Floats, Floats]:
    ttft = np.where(first_token < 0, np.inf, (first_token - arrival) * tick_s)
    e2e = np.where(finish < 0, np.inf, (finish - arrival) * tick_s)
    gaps = np.where(finish < 0, np.inf, (finish - first_token) * tick_s / np.maximum(output_tokens - 1, 1))
    return ttft, gaps, e2e


def _within(targets: Sequence[Target], ttft: Floats, gaps: Floats, e2e: Floats) -> npt.NDArray[np.bool_]:
    """Return which requests are within all limits; of several limits on a metric the lowest counts."""
    good = np.ones(ttft.size, np.bool_)
    for target in targets:
        good &= {"ttft_s": ttft, "tbt_s": gaps, "e2e_s": e2e}[target.metric] <= target.limit_s
    return good


def _share(good: npt.NDArray[np.bool_], confidence: float, too_short: bool) -> Estimate:
    """Return the share that is good, with an interval; no lower end where the run is too short to know the worst."""
    size = good.size // BATCHES * BATCHES
    if size < LEAST_REQUESTS:
        return Estimate(float(good.mean()) if good.size else None)
    batches = good[good.size - size :].reshape(BATCHES, -1).sum(axis=1).astype(np.float64)
    low, high = intervals.ratio_interval(batches, np.full(BATCHES, size / BATCHES), confidence)
    # where none or all are good there is no spread: as for so many independent requests (Clopper and Pearson)
    unseen = ((1 - confidence) / 2) ** (1 / size)
    value = float(good[good.size - size :].mean())
    low, high = min(max(low, 0.0), unseen), max(min(high, 1.0), 1 - unseen)
    return Estimate(value, None if too_short else low, high)


def network_of(workload: Workload, deployment: Deployment) -> Network:
    """Return a deployment whose replicas have to be simulated together, as a network with ``workload``."""
    server, router, prefill = deployment.server, deployment.router, deployment.prefill_replicas
    if not prefill:
        return Network.single(workload, server, deployment.replicas, router)
    pools = {"prefill": Pool(server, prefill, router), "decode": Pool(server, deployment.replicas - prefill, router)}
    apart = Workflow.disaggregated(
        workload, prefill="prefill", decode="decode",
        transfer_ms=deployment.transfer_ms, transfer_ms_per_token=deployment.transfer_ms_per_token,
    )  # fmt: skip
    return Network(pools, [apart])


def _together(workload: Workload, deployment: Deployment, aim: Aim, report: Progress) -> tuple[_Known, Iterator[_Look]]:
    """Simulate all replicas as a network."""
    network = network_of(workload, deployment)
    certificate = certify_network(network)
    if certificate.verdict in ("stable", "unstable"):
        known = _Known(certificate.verdict, str(certificate.theorem), certificate.rho)
    elif certificate.verdict == "critical":
        known = _Known("undecided", "no theorem: the load is at the limit", 1.0)
    else:
        known = _Known(network_verdict(network, seed=workload.seed).verdict, "the test from floods", certificate.rho)
    # as many at each replica as where one is simulated alone
    sizes_of_one = aim.looks if workload.rows is None else (aim.most_requests,)
    most = min(workload.rows or _MOST_TOGETHER, _MOST_TOGETHER)
    sizes = list(dict.fromkeys(min(deployment.replicas * size, most) for size in sizes_of_one))
    level = 1 - (1 - aim.confidence) / len(sizes)

    def looks() -> Iterator[_Look]:
        for place, size in enumerate(sizes):
            part = _part(report, place, len(sizes))
            run = simulate_network(network, jobs=size, seed=workload.seed, drain=True, progress=part)
            steady = network_steady_state(run, loads=[pool.rho for pool in certificate.pools], confidence=level)
            first, workflow = steady.stages[network.stages[0]], network.workflows[0].name
            latency = {"ttft_s": first["ttft_s"], "e2e_s": steady.workflows[workflow]}
            good = _within(aim.targets, *_of_network_run(run, steady.warmup_jobs))
            yield _Look(latency, _share(good, level, steady.too_short), size, steady.notices)

    return known, looks()


def _of_network_run(run: NetworkRun, warmup: int) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, mean time per output token and E2E of each job after the warm-up, s; inf where it has none."""
    assert run.rows is not None
    jobs = run.rows.jobs
    first_token = run.rows.first_token[jobs.first_request[:-1]]
    output = np.bincount(jobs.job, jobs.output, run.arrived)
    found = _own_latency(run.arrival, first_token, run.finish, output, run.tick_s)
    return found[0][warmup:], found[1][warmup:], found[2][warmup:]


def _part(report: Progress, place: int, of: int) -> Progress:
    return lambda share: report((place + share) / of)
