"""The answer for a network: theorem, flood test and run side by side."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import checks
from penstock.checking.flood_test import NetworkStability, network_verdict
from penstock.checking.latency_network import NetworkSteadyState, network_steady_state
from penstock.checking.pools import PoolAnswer, pool_answers, pool_warnings
from penstock.checking.targets import Estimate
from penstock.errors import InputError
from penstock.show.page import Page, Shown
from penstock.simulation.network_run import NetworkRun
from penstock.simulation.run import Progress
from penstock.simulation.simulate_network import simulate_network
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.theory.network.certificate import CERTIFIED, SPIRAL, VIRTUAL, NetworkCertificate, certify_network
from penstock.theory.network.hypotheses import CARRIED
from penstock.workload.sessions import Sessions

if TYPE_CHECKING:
    from penstock.scenario.network import NetworkScenario

MOST_JOBS = 10_000_000
"""Of a run: each keeps a row per request in memory."""

RECORDED = "all jobs are recorded and come to an end, so nothing can grow for ever; give them a rate to test stability"

_TEST_SHARE = 0.5  # of the work, for the progress bar

Statistics = Mapping[str, Estimate]


@dataclasses.dataclass(frozen=True)
class WorkflowAnswer:
    """What arrives of a workflow, and how long its jobs take.

    Attributes
    ----------
    name
        Of the workflow.
    jobs_per_s
        That arrive in the long run.
    jobs, unfinished
        That arrived in the run, and that had not ended when it did.
    e2e
        In the steady state, by statistic; None where latency is refused.
    """

    name: str
    jobs_per_s: float
    jobs: int
    unfinished: int
    e2e: Statistics | None


@dataclasses.dataclass(frozen=True)
class StageAnswer:
    """What a stage asks of its pool, and how long it takes there.

    Attributes
    ----------
    name, pool
        ``workflow.stage``, and where it is served.
    visits_per_s
        Requests/s in the long run.
    prefill_tokens, decode_tokens
        Forward tokens of a request in each phase, on average.
    latency
        In the steady state, by metric (``ttft_s``, ``e2e_s``, at joins ``join_wait_s``) and statistic; None where it is
        refused.
    """

    name: str
    pool: str
    visits_per_s: float
    prefill_tokens: float
    decode_tokens: float
    latency: Mapping[str, Statistics] | None


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkAnswer(Shown):
    """What is known about a network.

    Attributes
    ----------
    network
        What was asked about.
    certificate
        What a theorem says.
    stability
        What the flood test says; None where it is skipped.
    stability_skipped
        Why it is, or None.
    run
        What was simulated from empty.
    pools, workflows, stages
        The tables.
    latency
        Latency of the steady state, or None where it is refused.
    latency_refused
        Why there is none, or None.
    disagreement
        What to doubt where theorem and test contradict each other, or None.
    warnings
        What the user should know besides.
    """

    network: Network
    certificate: NetworkCertificate
    stability: NetworkStability | None
    stability_skipped: str | None
    run: NetworkRun
    pools: tuple[PoolAnswer, ...]
    workflows: tuple[WorkflowAnswer, ...]
    stages: tuple[StageAnswer, ...]
    latency: NetworkSteadyState | None
    latency_refused: str | None
    disagreement: str | None
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Both in one word: ``contradiction``, or what the theorem says, or where it says nothing the test."""
        if self.disagreement:
            return "contradiction"
        said = self.certificate.verdict
        return self.stability.verdict if said == "unknown" and self.stability else said

    @property
    def reason(self) -> str:
        """Why the verdict is what it is."""
        if self.disagreement:
            return self.disagreement
        if self.certificate.verdict == "unknown" and self.stability:
            return self.stability.reason
        return self.certificate.reason

    def page(self, scenario: "NetworkScenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        from penstock.checking.view_network import network_page

        return network_page(self, scenario)

    @property
    def bottleneck(self) -> PoolAnswer:
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: round(pool.margin, 9))

    @property
    def max_load(self) -> float:
        """Factor on all rates above which no policy is stable."""
        return 1 / (1 - self.bottleneck.margin) if self.bottleneck.margin < 1 else math.inf

    @property
    def order_fails(self) -> bool:
        """Whether a priority order is what makes the network unstable, by theorem."""
        return self.certificate.theorem in (VIRTUAL, SPIRAL)

    def cycles_in_words(self) -> list[tuple[float, str]]:
        """Return of each cycle of pools the factor on all rates that is certified, and what that means."""
        anyone = self.certificate.any_policy
        others = all(h.held for h in self.certificate.hypotheses if h.name not in (CERTIFIED, CARRIED))
        said = []
        for cycle in anyone.cycles if anyone else ():
            if cycle.max_load == 0:
                what = "nothing is known of every work-conserving order of the stages"
            else:
                what = "the linear program " + (
                    "certifies" if others else "would, if the other hypotheses held, certify"
                )
                what += " every work-conserving order of the stages up to so many times this load"
                if cycle.max_load >= cycle.overload * (1 - 1e-5):
                    what += ", where a pool is overloaded"
                elif cycle.exact and others:
                    what += "; above it some order fails"
            said.append((cycle.max_load, f"jobs go round between {' - '.join(cycle.pools)}: {what}"))
        return said

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``network``."""
        certificate, run, steady, bottleneck = self.certificate, self.run, self.latency, self.bottleneck
        growth = run.growth_tokens_per_s
        return {
            "verdict": self.verdict,
            "load": {
                "bottleneck": bottleneck.name,
                "rho": bottleneck.rho,
                "margin": bottleneck.margin,
                "max_load": self.max_load if np.isfinite(self.max_load) else None,
            },
            "certificate": certificate_as_dict(certificate),
            "stability": self.stability.as_dict() if self.stability else None,
            "stability_skipped": self.stability_skipped,
            "simulation": {
                "verdict": self.stability.verdict if self.stability else None,
                "jobs": run.arrived,
                "unfinished": run.arrived - run.finished,
                "requests": run.requests.height,
                "seconds": run.seconds,
                "growth_tokens_per_s": growth if np.isfinite(growth) else None,
            },
            "pools": [dataclasses.asdict(pool) | {"binding": list(pool.binding)} for pool in self.pools],
            "workflows": [
                {
                    "workflow": each.name,
                    "jobs_per_s": each.jobs_per_s,
                    "jobs": each.jobs,
                    "unfinished": each.unfinished,
                    "e2e_s": _values(each.e2e),
                    "e2e_interval": _ends(each.e2e),
                }
                for each in self.workflows
            ],
            "stages": [
                {
                    "stage": each.name,
                    "pool": each.pool,
                    "visits_per_s": each.visits_per_s,
                    "prefill_tokens": each.prefill_tokens,
                    "decode_tokens": each.decode_tokens,
                    "latency": each.latency and {metric: _values(of) for metric, of in each.latency.items()},
                    "latency_interval": each.latency and {metric: _ends(of) for metric, of in each.latency.items()},
                }
                for each in self.stages
            ],
            "steady_state": steady
            and {"jobs": steady.jobs, "warmup_jobs": steady.warmup_jobs, "confidence": steady.confidence},
            "latency_refused": self.latency_refused,
            "disagreement": self.disagreement,
            "warnings": list(self.warnings),
        }


def check_network(
    network: Network,
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    resolution: float = 0.02,
    progress: Progress | None = None,
) -> NetworkAnswer:
    """Certify a network, test it, simulate it, and refuse the latency of a steady state that it has not.

    Parameters
    ----------
    network
        What arrives and what serves.
    jobs, until
        As in `penstock.simulation.simulate_network`; requests are kept, so up to `MOST_JOBS` jobs.
    seed
        For everything random; None: the seeds of the workflows' workloads.
    resolution
        As in `penstock.network_verdict`.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    if not isinstance(network, Network):
        raise InputError(f"check_network takes a Network, not {checks.shown(network)}; for one server use check")
    jobs = _length_of_run(network, jobs, until)
    report = progress or (lambda share: None)
    certificate = certify_network(network)
    stability = None
    if not network.ends:
        of_floods = _own_seed(network) if seed is None else seed
        stability = network_verdict(network, resolution, of_floods, progress=lambda share: report(_TEST_SHARE * share))
    run = simulate_network(
        network, jobs=jobs, until=until, seed=seed,
        progress=lambda share: report(_TEST_SHARE + (1 - _TEST_SHARE) * share),
    )  # fmt: skip
    model = network.model()
    pools = pool_answers(network, certificate, run)
    refused, latency = _refused(certificate, stability), None
    if refused is None:
        latency = network_steady_state(run, loads=_loads(certificate, pools) if network.reuse_is_certain else None)
    warnings = [notice for workflow in network.workflows for notice in workflow.notices]
    if network.ends:
        warnings.append(
            "jobs are recorded: latency is that of the recording, its intervals are for it gone on with; for jobs that "
            "are independent, draw them from it with arrivals 'poisson'"
        )
    warnings += pool_warnings(network, model, pools, run)
    if stability and stability.verdict == "undecided" and not refused:
        warnings.append("whether it is stable is undecided, so there may be no steady state whose latency this is")
    if latency:
        warnings += latency.notices
    return NetworkAnswer(
        network=network,
        certificate=certificate,
        stability=stability,
        stability_skipped=None if stability else RECORDED,
        run=run,
        pools=pools,
        workflows=_workflows(network, run, latency),
        stages=_stages(model, latency),
        latency=latency,
        latency_refused=refused,
        disagreement=_disagreement(certificate, stability),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def certificate_as_dict(certificate: NetworkCertificate) -> dict[str, Any]:
    """Return the JSON form of a certificate."""
    anyone, virtual = certificate.any_policy, certificate.virtual_station
    return {
        "verdict": certificate.verdict,
        "theorem": certificate.theorem,
        "reason": certificate.reason,
        "hypotheses": [dataclasses.asdict(hypothesis) for hypothesis in certificate.hypotheses],
        "certified_load": certificate.certified_load,
        "any_policy": anyone
        and {
            "max_load": anyone.max_load,
            "exact": anyone.exact,
            "cycles": [
                {"pools": list(cycle.pools), "max_load": cycle.max_load, "exact": cycle.exact}
                for cycle in anyone.cycles
            ],
        },
        "virtual_station": virtual
        and {
            "pools": list(virtual.pools),
            "stages": [list(stages) for stages in virtual.classes],
            "pushes": [list(stages) for stages in virtual.pushes],
            "loads": list(virtual.loads),
            "max_load": virtual.max_load,
        },
        "order": [list(pools) for pools in certificate.order],
        "joins": [{"stage": join.stage, "branches": join.branches, "bound": join.bound} for join in certificate.joins],
    }


def _length_of_run(network: Network, jobs: int | None, until: float | None) -> int | None:
    """Refuse a run of no length or too long a one before the test, not after."""
    network.check_rates()
    if jobs is not None and until is not None:
        raise InputError(f"jobs={jobs} and until={until}: give one of them")
    if until is not None:
        longest = MOST_JOBS / sum(workflow.rate for workflow in network.workflows)
        checks.number("until", until, 1e-9, longest, "s", f"a row per request is kept, of up to {MOST_JOBS:,} jobs")
    if jobs is not None:
        return checks.whole("jobs", jobs, 1, MOST_JOBS, "", "each keeps a row per request in memory")
    if until is None and not network.ends:
        raise InputError("the workflows never end; say how much to simulate with `jobs` or `until`")
    return None


def _own_seed(network: Network) -> int:
    first = network.workflows[0]
    return first.seed if isinstance(first, Sessions) else first.arrivals.seed


def _refused(certificate: NetworkCertificate, stability: NetworkStability | None) -> str | None:
    if certificate.verdict == "unstable":
        return f"{certificate.reason}; there is no steady state whose latency could be told"
    if certificate.verdict == "critical":
        return f"{certificate.reason}; there may be no steady state whose latency could be told"
    if stability and stability.verdict == "unstable":
        return f"{stability.reason}; there is no steady state whose latency could be told"
    return None


def _disagreement(certificate: NetworkCertificate, stability: NetworkStability | None) -> str | None:
    """Say what is in doubt where the two contradict each other: what nobody checked, or Penstock itself."""
    if stability is None or {certificate.verdict, stability.verdict} != {"stable", "unstable"}:
        return None
    unchecked = [hypothesis.name for hypothesis in certificate.hypotheses if not hypothesis.checked]
    if certificate.verdict == "stable" and unchecked:
        cause = f"in doubt is what was taken on trust: {', '.join(unchecked)}"
    else:
        cause = (
            "every hypothesis was checked, so the test is wrong at this resolution, or there is a bug: try another "
            "seed and a finer resolution, and if it stays, please report it"
        )
    return (
        f"{certificate.theorem} says {certificate.verdict}, but the test says {stability.verdict} "
        f"({stability.reason}); {cause}"
    )


def _loads(certificate: NetworkCertificate, pools: Sequence[PoolAnswer]) -> list[float]:
    """Return the load of each pool over what it carries: under its limits, and in its virtual station."""
    virtual = certificate.virtual_station
    return [
        max(1 - pool.margin, 1 / virtual.max_load if virtual and pool.name in virtual.pools else 0.0) for pool in pools
    ]


def _workflows(network: Network, run: NetworkRun, latency: NetworkSteadyState | None) -> tuple[WorkflowAnswer, ...]:
    return tuple(
        WorkflowAnswer(
            workflow.name,
            workflow.rate,
            int((run.workflow == place).sum()),
            int(((run.workflow == place) & (run.finish < 0)).sum()),
            latency.workflows[workflow.name] if latency else None,
        )
        for place, workflow in enumerate(network.workflows)
    )


def _stages(model: NetworkModel, latency: NetworkSteadyState | None) -> tuple[StageAnswer, ...]:
    return tuple(
        StageAnswer(
            name,
            model.pools[model.pool[place]],
            float(model.visits[place]),
            float(model.prefill[place]),
            float(model.decode[place]),
            latency.stages[name] if latency else None,
        )
        for place, name in enumerate(model.stages)
    )


def _values(known: Statistics | None) -> dict[str, float | None] | None:
    return None if known is None else {name: estimate.value for name, estimate in known.items()}


def _ends(known: Statistics | None) -> dict[str, list[float | None]] | None:
    return None if known is None else {name: [estimate.low, estimate.high] for name, estimate in known.items()}
