"""The answer for a network: theorem, flood test and run side by side."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import checks
from penstock.checking.any_answer import AnyAnswer, latency_warnings, no_steady_state
from penstock.checking.batch_means import GAP_SECTIONS, Statistics
from penstock.checking.doubt import Doubt
from penstock.checking.doubt_network import beyond_rows_of_network, doubt_of_network
from penstock.checking.latency import SteadyState, steady_state
from penstock.checking.outages import OutageWindow, outage_windows
from penstock.checking.pools import PoolAnswer, pool_answers, pool_warnings
from penstock.checking.stability import RECORDED, Stability
from penstock.checking.verdict import checked_of_network, verdict
from penstock.show.page import Page
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.run import TICK_S, Run, stop_tick
from penstock.simulation.simulate import RunOptions, jobs_of_run, refuse_late_outages, run_network
from penstock.system.network import Network, own_seed
from penstock.system.network_model import NetworkModel
from penstock.system.outages import Outage, checked_outages
from penstock.system.prefix_cache import network_notes
from penstock.theory.certificate import SPIRAL, VIRTUAL, Certificate, certify
from penstock.theory.latency_bounds import earliest_of_jobs
from penstock.theory.network.cyclic_pools import CERTIFIED
from penstock.theory.network.hypotheses import CARRIED

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario

MOST_JOBS = 10_000_000
"""Of a run: each keeps a row per request in memory."""

_TEST_SHARE, _RUN_SHARE = 0.5, 0.75  # of the work that is then done, for the progress bar


@dataclasses.dataclass(frozen=True)
class WorkflowAnswer:
    """What arrives of a workflow, and how long its jobs take."""

    name: str
    jobs_per_s: float  # that arrive in the long run
    # That arrived in the run, and that had not ended when it did.
    jobs: int
    unfinished: int
    e2e: Statistics | None  # in the steady state, by statistic; None where latency is refused
    # Mean over the jobs of the run of the least that each takes, whatever serves it and whatever
    # else there is (`penstock.theory.latency_bounds`).
    earliest_s: float


@dataclasses.dataclass(frozen=True)
class StageAnswer:
    """What a stage asks of its pool, and how long it takes there."""

    name: str  # `workflow.stage`
    pool: str
    visits_per_s: float  # requests/s in the long run
    # Forward tokens of a request in each phase, on average.
    prefill_tokens: float
    decode_tokens: float
    # In the steady state, by metric (`ttft_s`, `e2e_s`, `tbt_s` of the only stage, at joins
    # `join_wait_s`) and statistic; None where it is refused.
    latency: Mapping[str, Statistics] | None


@dataclasses.dataclass(frozen=True)
class PriorityAnswer:
    """How long requests of one priority take."""

    workflow: str
    stage: str | None  # None: whole jobs, by the priority of their first request
    priority: int  # the smaller is served first
    latency: Mapping[str, Statistics]  # in the steady state, by metric and statistic


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkAnswer(AnyAnswer):
    """What is known about a network.

    Attributes
    ----------
    certificate, stability, latency, warnings
        As in `AnyAnswer`.
    network
        What was asked about.
    run
        What was simulated from empty.
    pools, workflows, stages
        The tables.
    priorities
        Latency by priority; none where requests have no priorities, or latency is refused.
    outages
        What replicas that die and come back do to latency.
    calibration
        As in `AnyAnswer`.
    """

    network: Network
    certificate: Certificate
    stability: Stability | None
    run: Run
    pools: tuple[PoolAnswer, ...]
    workflows: tuple[WorkflowAnswer, ...]
    stages: tuple[StageAnswer, ...]
    latency: SteadyState | None
    warnings: tuple[str, ...]
    priorities: tuple[PriorityAnswer, ...] = ()
    outages: tuple[OutageWindow, ...] = ()
    calibration: Doubt | None = None

    @property
    def front(self) -> list[str]:
        """What to know before the verdict is read: what no row has seen, and prefix caches."""
        return [*beyond_rows_of_network(self.network), *network_notes(self.network)]

    @property
    def stability_skipped(self) -> str | None:  # type: ignore[override]
        """Why there is no test, or None."""
        return None if self.stability else RECORDED

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        from penstock.checking.view_network import network_page

        return network_page(self, scenario)

    @property
    def bottleneck(self) -> PoolAnswer:
        """The pool with the least margin."""
        return min(self.pools, key=lambda pool: round(pool.margin, 9))

    @property
    def loads(self) -> dict[str, float] | None:
        """Load of each pool as the run measured it; None where none depends on the run."""
        if self.network.reuse_is_certain:
            return None
        return {pool.name: pool.rho for pool in self.pools}

    @property
    def max_load(self) -> float:
        """Factor on all rates above which no policy is stable."""
        margin = min(pool.margin for pool in self.certificate.pools)
        return 1 / (1 - margin) if margin < 1 else math.inf

    @property
    def order_fails(self) -> bool:
        """Whether a priority order is what makes the network unstable, by theorem."""
        return self.certificate.theorem in (VIRTUAL, SPIRAL)

    def cycles_in_words(self) -> list[tuple[float, str]]:
        """Return of each cycle of pools the certified factor on all rates, and its meaning."""
        anyone = self.certificate.any_policy
        others = all(
            h.held for h in self.certificate.hypotheses if h.name not in (CERTIFIED, CARRIED)
        )
        certifies = "certifies" if others else "would, if the other hypotheses held, certify"
        rows = []
        for cycle in anyone.cycles if anyone else ():
            what = "nothing is known of every work-conserving order of the stages"
            if cycle.max_load > 0:
                what = (
                    f"the linear program {certifies} every work-conserving order of the stages up "
                    "to so many times this load"
                )
                if cycle.max_load >= cycle.overload * (1 - 1e-5):
                    what += ", where a pool is overloaded"
                elif cycle.exact and others:
                    what += "; above it some order fails"
            rows.append(
                (cycle.max_load, f"jobs go round between {' - '.join(cycle.pools)}: {what}")
            )
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``network``."""
        from penstock.checking.json_documents import network_as_dict

        return network_as_dict(self)


def of_network(
    network: Network,
    jobs: int | None,
    until: float | None,
    seed: int | None,
    resolution: float | None,
    progress: Progress | None,
    outages: Sequence[Outage] = (),
    stability: Stability | None = None,
    certified: Callable[[Certificate], object] | None = None,
) -> NetworkAnswer:
    """Answer for a network: see `penstock.check`."""
    # What cannot be done is refused before the test, not after.
    jobs = _length_of_run(network, jobs, until)
    outages = checked_outages(outages, network.pools)
    alone = _RUN_SHARE if outages else 1.0
    options = RunOptions(stop_tick(until, TICK_S), progress=part_of(progress, _TEST_SHARE, alone))
    refuse_late_outages(network, jobs, seed, options, outages)
    checked_of_network(resolution)
    certificate = certify(network)
    if certified is not None:
        certified(certificate)
    if stability is None and not network.ends:
        stability = flooded(network, seed, resolution, part_of(progress, 0.0, _TEST_SHARE))
    # times between tokens say most of replicas that do nothing else
    sections = GAP_SECTIONS if len(network.stages) == 1 else 0
    run = run_network(network, jobs, seed, options, gap_sections=sections).served
    windows: tuple[OutageWindow, ...] = ()
    if outages:
        shown = part_of(progress, _RUN_SHARE, 1.0)
        options = dataclasses.replace(options, progress=shown, outages=outages)
        windows = outage_windows(run_network(network, jobs, seed, options).served, run)
    model = network.model()
    pools = pool_answers(network, certificate, run)
    latency = None
    if not no_steady_state(certificate, stability):
        latency = steady_state(
            run, rho=_loads(certificate, pools, stability) if network.reuse_is_certain else None
        )
    warnings = [notice for workflow in network.workflows for notice in workflow.notices]
    if network.ends:
        warnings.append(
            "jobs are recorded: latency is that of the recording, its intervals are for it gone "
            "on with; for jobs that "
            "are independent, draw them from it with arrivals 'poisson'"
        )
    warnings += pool_warnings(network, pools, run)
    warnings += latency_warnings(certificate, stability, latency)
    return NetworkAnswer(
        network=network,
        certificate=certificate,
        stability=stability,
        run=run,
        pools=pools,
        workflows=tuple(_workflows(network, run, latency)),
        stages=_stages(model, latency),
        latency=latency,
        warnings=tuple(dict.fromkeys(warnings)),
        priorities=_priorities(latency),
        outages=windows,
        calibration=doubt_of_network(network, seed, resolution),
    )


def flooded(
    network: Network,
    seed: int | None = None,
    resolution: float | None = None,
    progress: Progress | None = None,
) -> Stability:
    """Return the verdict of the floods, under the seed of the network where none is given."""
    of_floods = own_seed(network.workflows[0]) if seed is None else seed
    return verdict(network, resolution=resolution, seed=of_floods, progress=progress)


def _length_of_run(network: Network, jobs: int | None, until: float | None) -> int | None:
    """Check what was asked for, and that a row per request of so many jobs is no burden."""
    network.check_rates()
    jobs = jobs_of_run(network, jobs, until, MOST_JOBS, "each keeps a row per request in memory")
    if until is not None:
        checks.number(
            "until",
            until,
            1e-9,
            MOST_JOBS / sum(workflow.rate for workflow in network.workflows),
            "s",
            f"a row per request is kept, of up to {MOST_JOBS:,} jobs",
        )
    return jobs


def _loads(
    certificate: Certificate, pools: Sequence[PoolAnswer], stability: Stability | None
) -> list[float]:
    """Return each pool's load over what it carries: by its limits, and its virtual station."""
    # Of a single stage the flood says what its policy and KV memory carry.
    virtual = certificate.virtual_station
    least = dict.fromkeys(virtual.pools, 1 / virtual.max_load) if virtual else {}
    if (
        stability is not None
        and len(pools) == len({flood.stage for flood in stability.floods}) == 1
    ):
        least[pools[0].name] = 1 / (1 - min(stability.drift, 0.0))
    return [max(1 - pool.margin, least.get(pool.name, 0.0)) for pool in pools]


def _workflows(network: Network, run: Run, latency: SteadyState | None) -> Iterator[WorkflowAnswer]:
    assert run.rows is not None
    earliest = earliest_of_jobs(network, run.rows.jobs)
    for index, workflow in enumerate(network.workflows):
        mine = run.workflow == index
        yield WorkflowAnswer(
            workflow.name,
            workflow.rate,
            int(mine.sum()),
            int((mine & (run.finish < 0)).sum()),
            latency.workflows[workflow.name] if latency else None,
            float(earliest[mine].mean()) if mine.any() else 0.0,
        )


def _stages(model: NetworkModel, latency: SteadyState | None) -> tuple[StageAnswer, ...]:
    between = {}
    if latency and "tbt_s" in latency.estimates:
        between["tbt_s"] = latency.estimates["tbt_s"]
    return tuple(
        StageAnswer(
            name,
            model.pools[model.pool[index]],
            float(model.visits[index]),
            float(model.prefill[index]),
            float(model.decode[index]),
            {**latency.stages[name], **between} if latency else None,
        )
        for index, name in enumerate(model.stages)
    )


def _priorities(latency: SteadyState | None) -> tuple[PriorityAnswer, ...]:
    return tuple(
        PriorityAnswer(workflow, stage, priority, metrics)
        for (workflow, stage), by_priority in (latency.priorities if latency else {}).items()
        for priority, metrics in by_priority.items()
    )
