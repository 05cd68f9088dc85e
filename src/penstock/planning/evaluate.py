"""One deployment simulated: whether it is stable, its latency with intervals, the targets judged,
its goodput.

Routers that do not look at queues split the stream, so one replica with its share of the requests
tells everything, under any policy, with KV memory and any batch times. Others, and replicas for
prompts alone, are simulated as a network. All deployments are judged on the same requests (common
random numbers).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np

from penstock.checking.batch_means import GAP_SECTIONS
from penstock.checking.enough_requests import estimate
from penstock.checking.flood_test import flood_test
from penstock.checking.goodput import goodput, goodput_share, own_latency, statistic_s, within
from penstock.checking.latency import steady_state
from penstock.checking.stability import Outcome
from penstock.checking.targets import Estimate, JudgedData, Judgement, share
from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.inputs.arrays import Floats
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
from penstock.planning.share import share_of
from penstock.show.answers import Meaning, computed
from penstock.simulation.intervals import merged
from penstock.simulation.jobs_in_ticks import never_served
from penstock.simulation.progress import Progress, part_of, silent
from penstock.simulation.run import Run
from penstock.simulation.simulate import RunOptions, run_network
from penstock.system.network import Network
from penstock.system.network_checks import refuse_in_vain
from penstock.system.pool import Pool
from penstock.system.server import Server
from penstock.theory.certificate import Certificate
from penstock.theory.certify import certify
from penstock.theory.kv_blocks import drawn, served
from penstock.workload.workflow import Workflow
from penstock.workload.workload import Workload

_MOST_TOGETHER = 4_000_000  # requests of all replicas together, each of which keeps a row
_MOST_DRIFT = 0.999
_UNCOUNTED = 0.1  # share of a short run, which begins empty
_RESOLUTION = 0.02  # of the test from floods
_RECORDING_ALONE = "the recording alone: it is got through, and what would follow is not known"
_RECORDING_SHORT = "the recording alone: it is too short, or latency rises all through it"


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """One deployment, simulated."""

    deployment: Annotated[Deployment, Meaning("What was simulated.")]
    verdict: Annotated[Outcome, Meaning("Whether it is stable.")]
    known_by: Annotated[str, Meaning("The theorem that says so, or the test.")]
    answer: Annotated[Judgement, Meaning("Whether it does what it has to.")]
    # One for each target.
    estimates: tuple[Estimate, ...]
    judgements: tuple[Judgement, ...]
    goodput: Annotated[Estimate, Meaning("Share of the requests within all limits.")]
    latency: Annotated[Mapping[str, Mapping[str, Estimate]], Meaning(
        "By metric (`ttft_s` ...) and statistic (`mean`, `p50` ...); empty if it is unstable."
    )]  # fmt: skip
    requests: Annotated[int, Meaning(
        "Simulated in the last run, of one replica or of all together; 0 where theory knows."
    )]  # fmt: skip
    rate: float  # requests/s that the deployment is offered
    notices: Annotated[tuple[str, ...], Meaning("What to know besides.")] = ()

    @property
    def is_measured(self) -> bool:
        """Whether it is stable, and has the latency that the first target limits."""
        return self.verdict == "stable" and self.estimates[0].value is not None

    @property
    def may_do(self) -> bool:
        """Whether it is stable, and longer runs would tell whether it does."""
        return self.verdict == "stable" and self.answer == "undecided"

    def margins(self, aim: Aim) -> tuple[float, ...]:
        """Return (limit - value) / limit for each target; NaN where the value is not measured."""
        return tuple(
            math.nan if estimate.value is None else 1 - estimate.value / target.limit_s
            for target, estimate in zip(aim.targets, self.estimates, strict=True)
        )

    @property
    def first_value(self) -> float:
        """Latency that the first target limits, seconds; infinite where it is not known."""
        value = self.estimates[0].value
        return math.inf if value is None else value

    @computed()
    def throughput(self) -> float:
        """Requests/s that are carried; 0 where it is not known to be stable."""
        return self.rate if self.verdict == "stable" else 0.0

    @computed()
    def targets(self) -> list[JudgedData]:
        """The estimate of each target, and whether it is met."""
        judged = zip(self.estimates, self.judgements, strict=True)
        return [{**estimate.as_dict(), "answer": answer} for estimate, answer in judged]


@dataclasses.dataclass(frozen=True)
class _Stability:
    """Whether it is stable, by what, and the rate over the rate that can be carried."""

    outcome: Outcome
    known_by: str
    rho: float = math.nan


@dataclasses.dataclass(frozen=True)
class _Look:
    """What one run says; nothing where there is none."""

    goodput: Estimate
    latency: Mapping[str, Mapping[str, Estimate]] = dataclasses.field(default_factory=dict)
    requests: int = 0
    notices: tuple[str, ...] = ()
    too_short: bool = False

    def of(
        self, workload: Workload, deployment: Deployment, aim: Aim, stability: _Stability
    ) -> Evaluation:
        """Return what it says of a deployment; without a run each target is judged as the whole."""
        estimates = tuple(
            self.latency.get(target.metric, {}).get(target.statistic, Estimate(None))
            for target in aim.targets
        )
        judgements: tuple[Judgement, ...] = tuple(
            "missed" if stability.outcome == "unstable" else target.judge(estimate)
            for target, estimate in zip(aim.targets, estimates, strict=True)
        )
        return Evaluation(
            deployment, stability.outcome, stability.known_by,
            aim.judge(stability.outcome, judgements, self.goodput), estimates, judgements,
            self.goodput, self.latency, self.requests, workload.rate, self.notices,
        )  # fmt: skip


def evaluate(
    workload: Workload, deployment: Deployment, aim: Aim, *, progress: Progress | None = None
) -> Evaluation:
    """Simulate a deployment until it is known whether it will do, or the requests are spent."""
    # Stability is by theorem where one applies, else by the sequential test (`penstock.verdict`).
    # While undecided the run doubles, the same requests first; looks have confidences such that all
    # together have the one asked for (Bonferroni).
    report = progress or (lambda share: None)
    # what one replica finds of its prompts depends on which requests the others get
    alone = deployment.splits and (workload.prefixes is None or deployment.replicas == 1)
    simulated = _alone if alone else _together
    stability, sizes, look = simulated(workload, deployment, aim)
    if stability.outcome == "unstable":
        nothing = _Look(Estimate(0.0, 0.0, 0.0))
        return nothing.of(workload, deployment, aim, stability)
    level = 1 - (1 - aim.confidence) / len(sizes)
    for index, size in enumerate(sizes):
        run = look(size, level, part_of(report, index / len(sizes), (index + 1) / len(sizes)))
        if run.too_short and stability.known_by == _RECORDING_ALONE:
            stability = _Stability("undecided", _RECORDING_SHORT)
        evaluation = run.of(workload, deployment, aim, stability)
        if evaluation.answer != "undecided" or stability.outcome != "stable":
            break
    return evaluation


def sketched(workload: Workload, deployment: Deployment, aim: Aim, requests: int) -> Evaluation:
    """Take what one run of so many requests shows for true: no interval, no test of stability."""
    network = _network_of(workload, deployment)
    count = min(requests, workload.rows or requests)
    tbt = any(target.metric == "tbt_s" for target in aim.targets)
    options = RunOptions(drain=True)
    run = run_network(network, count, workload.seed, options, gap_sections=int(tbt)).served
    times = _of_network_run(run, int(_UNCOUNTED * count))
    samples = dict(zip(("ttft_s", "tpot_s", "e2e_s"), times, strict=True))
    latency: dict[str, dict[str, Estimate]] = {}
    for target in aim.targets:
        if target.metric == "tbt_s":
            value = statistic_s(merged(run.gap_sections), target.statistic, run.tick_s)
        elif target.statistic == "mean":
            value = float(samples[target.metric].mean())
        else:
            value = float(np.quantile(samples[target.metric], share(target.statistic)))
        latency.setdefault(target.metric, {})[target.statistic] = Estimate(value, value, value)
    good = float(within(aim.targets, *times).mean())
    look = _Look(Estimate(good, good, good), latency, count)
    return look.of(workload, deployment, aim, _Stability("stable", "a short run"))


def not_simulated(workload: Workload, deployment: Deployment, aim: Aim, reason: str) -> Evaluation:
    """Return what is known of a deployment that cannot be simulated: why, and nothing else."""
    return _Look(Estimate(None)).of(workload, deployment, aim, _Stability("undecided", reason))


_Simulated = tuple[_Stability, Sequence[int], Callable[[int, float, Progress], _Look]]
"""What is known before, how many requests each look has, and what looks."""


def _alone(workload: Workload, deployment: Deployment, aim: Aim) -> _Simulated:
    """Simulate one replica with its share of the requests."""
    server = deployment.server
    alone = share_of(workload, deployment.router, deployment.replicas)
    certificate = certify(alone, server)
    rate = certificate.certified_rate if certificate.verdict == "stable" else certificate.max_rate

    def tested() -> _Stability:
        test = verdict(alone, server, seed=alone.seed)
        return _Stability(test.verdict, "simulation", 1 / (1 - min(test.drift, _MOST_DRIFT)))

    stability = _stability(certificate, alone.rate / rate if rate else math.inf, tested)
    # a recording has no more to give, so that all of it is looked at once
    sizes = aim.looks if alone.rows is None else (min(alone.rows, aim.most_requests),)

    def look(size: int, level: float, part: Progress) -> _Look:
        run, steady = estimate(
            alone, server, requests=size, targets=aim.targets, confidence=level, rho=stability.rho,
            most_requests=size, progress=part,
        )  # fmt: skip
        share = goodput(aim.targets, run, steady, level)
        return _Look(share, steady.estimates, run.arrived, steady.notices, steady.too_short)

    return stability, sizes, look


def _stability(
    certificate: Certificate, rho: float, tested: Callable[[], _Stability]
) -> _Stability:
    """Return what a theorem says, else what the test says; a load at the limit is not tested."""
    if certificate.verdict in ("stable", "unstable"):
        return _Stability(certificate.verdict, str(certificate.theorem), rho)
    if certificate.verdict == "critical":
        return _Stability("undecided", "no theorem: the load is at the limit", 1.0)
    return tested()


def _together(workload: Workload, deployment: Deployment, aim: Aim) -> _Simulated:
    """Simulate all replicas as a network."""
    network = network_of(workload, deployment)
    certificate = certify(network)

    def tested() -> _Stability:
        if network.ends:
            return _of_recording(workload, deployment)
        # so near the limit that it takes larger floods to tell, latency meets no target
        test = flood_test(network, _RESOLUTION, workload.seed, None, silent, tries=1)
        return _Stability(test.verdict, "simulation")

    # as many at each replica as where one is simulated alone
    sizes_of_one = aim.looks if workload.rows is None else (aim.most_requests,)
    most = min(workload.rows or _MOST_TOGETHER, _MOST_TOGETHER)
    # loads that prompts found in a cache may lessen do not say how long a run must be
    loads = [1 - pool.margin for pool in certificate.pools] if network.reuse_is_certain else None
    replicas = deployment.total_replicas
    sizes = list(dict.fromkeys(min(replicas * size, most) for size in sizes_of_one))

    def look(size: int, level: float, part: Progress) -> _Look:
        options = RunOptions(drain=True, progress=part)
        run = run_network(network, size, workload.seed, options, gap_sections=GAP_SECTIONS)
        steady = steady_state(run, rho=loads, confidence=level, targets=aim.targets)
        latency = {"ttft_s": steady.stages[network.stages[0]]["ttft_s"], **steady.estimates}
        good = within(aim.targets, *_of_network_run(run, steady.warmup_jobs))
        share = goodput_share(good, level, steady.too_short)
        return _Look(share, latency, size, steady.notices, steady.too_short)

    return _stability(certificate, certificate.rho, tested), sizes, look


def _of_recording(workload: Workload, deployment: Deployment) -> _Stability:
    """Return whether replicas keep up with recorded requests."""
    # Recorded requests end, so nothing grows for ever. Drawn from them at random they do not, and
    # stability goes by rates and lengths. What prompts have in common is lost then, which leaves
    # more to do: what is stable without it is so with it, unless the router goes by it. Elsewhere
    # the recording is judged alone, by its latency.
    alone = _Stability("stable", _RECORDING_ALONE)
    reuses = workload.prefixes is not None
    try:
        drawn_anew = _network_of(workload.with_rate(workload.rate, "poisson"), deployment)
    except InputError:  # such as requests that have priorities of their own
        return alone
    if reuses and deployment.router.looks_up:
        return alone
    test = flood_test(drawn_anew, _RESOLUTION, workload.seed, None, silent, tries=1)
    if reuses and test.verdict != "stable":
        return alone
    return _Stability(test.verdict, "simulation of its requests drawn at random")


def network_of(workload: Workload, deployment: Deployment) -> Network:
    """Return a deployment whose replicas are simulated together, as a network of ``workload``."""
    network = _network_of(workload, deployment)
    refuse_in_vain(network)
    return network


def refuse_idle_router(workload: Workload, deployment: Deployment) -> None:
    """Raise an `InputError` if a router can never see what it looks for."""
    # What else may be wrong with replicas together is found when they are simulated.
    if deployment.splits:
        return
    try:
        network = _network_of(workload, deployment)
    except InputError:
        return
    refuse_in_vain(network)


def _network_of(workload: Workload, deployment: Deployment) -> Network:
    """Return the network, whether or not its router can see what it looks for."""
    router = deployment.router
    servers = [(kind.server, count) for kind, count in deployment.kinds]
    for server, _ in servers:
        _refuse_what_pools_drop(workload, server)
    if not deployment.prefill_replicas:
        return Network({"pool": Pool(servers, router=router)}, [Workflow.single(workload, "pool")])
    prefill, decode = servers
    pools = {"prefill": Pool(*prefill, router), "decode": Pool(*decode, router)}
    apart = Workflow.disaggregated(
        workload, prefill="prefill", decode="decode",
        transfer_ms=deployment.transfer_ms, transfer_ms_per_token=deployment.transfer_ms_per_token,
    )  # fmt: skip
    return Network(pools, [apart])


def _refuse_what_pools_drop(workload: Workload, server: Server) -> None:
    """Refuse requests that a server never serves: a pool leaves none out."""
    work = served(workload, server)
    if work.share == 1:
        return
    prompt, output = (tokens.astype(np.int32) for tokens in drawn(workload.lengths))
    for never, reason in never_served(server, prompt, output, output):
        if never.any():
            raise InputError(
                f"{never.mean():.2%} of the requests are never served, and none can be left "
                f"out behind a router that looks at queues: {reason}; raise the limit"
            )


def _of_network_run(run: Run, warmup: int) -> tuple[Floats, Floats, Floats]:
    """Return TTFT, mean time per output token, E2E of jobs after the warm-up, s; inf: none."""
    assert run.rows is not None
    jobs = run.rows.jobs
    first_token = run.rows.first_token[jobs.first_request[:-1]]
    output = np.bincount(jobs.job, jobs.output, run.arrived)
    ttft, gaps, e2e = own_latency(run.arrival, first_token, run.finish, output, run.tick_s)
    return ttft[warmup:], gaps[warmup:], e2e[warmup:]
