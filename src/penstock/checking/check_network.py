"""What `penstock.check` simulates of a network, and what it notes of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.checking.answer import MOST_JOBS, Answer, latency_warnings, no_steady_state
from penstock.checking.batch_means import GAP_SECTIONS
from penstock.checking.doubt import beyond_rows, doubt_of
from penstock.checking.enough_requests import MOST_TIMES_LONGER, checked_precision, until_known
from penstock.checking.latency import SteadyState, judged, steady_state
from penstock.checking.outages import OutageWindow, outage_windows
from penstock.checking.pools import pool_answers, pool_warnings
from penstock.checking.stability import Stability
from penstock.checking.targets import Target
from penstock.errors import InputError
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.run import TICK_S, Run, stop_tick
from penstock.simulation.simulate import RunOptions, jobs_of_run, refuse_late_outages, run_network
from penstock.system.network import Network
from penstock.system.outages import Outage, checked_outages
from penstock.system.prefix_cache import network_notes
from penstock.theory.certificate import Certificate

_RUN_SHARE = 0.5  # of the work, where there are outages, for the progress bar


@dataclasses.dataclass(frozen=True)
class JobsAsked:
    """The run of a network that a user wants: how long, and what it should decide."""

    network: Network
    jobs: int | None
    until: float | None
    seed: int | None
    targets: Sequence[Target] = ()
    precision: float | None = None
    outages: Sequence[Outage] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated, and rows of so many requests."""
        network, until = self.network, self.until
        network.check_rates()
        each = "each keeps a row per request in memory"
        jobs = jobs_of_run(network, self.jobs, until, MOST_JOBS, each)
        checked_precision(self.precision)
        if until is not None:
            longest_s = MOST_JOBS / sum(workflow.rate for workflow in network.workflows)
            why = f"a row per request is kept, of up to {MOST_JOBS:,} jobs"
            checks.number("until", until, 1e-9, longest_s, "s", why)
            if self.targets or self.precision is not None:
                raise InputError(
                    "targets and precision need a run that can be made longer; give `jobs`, and "
                    "no `until`"
                )
        refuse_between_calls(network, self.targets)
        outages = checked_outages(self.outages, network.pools)
        vars(self).update(jobs=jobs, outages=outages)
        refuse_late_outages(network, jobs, self.seed, self._options(None), outages)

    def _options(self, progress: Progress | None, **more: Any) -> RunOptions:
        return RunOptions(
            stop_tick(self.until, TICK_S), progress=part_of(progress, 0.0, 1.0), **more
        )

    def simulated(
        self, loads: Sequence[float] | None, steady: bool, progress: Progress
    ) -> tuple[Run, SteadyState | None]:
        """Simulate it, with the steady state's latency; None: there is no steady state.

        ``loads`` are those of the pools over what they carry; None: not known.
        """
        network, seed = self.network, self.seed
        # Times between tokens say most of replicas that do nothing else.
        sections = GAP_SECTIONS if self.targets or len(network.stages) == 1 else 0
        aims = bool(self.targets) or self.precision is not None
        if steady and aims and self.jobs is not None and not network.ends:

            def run_of(jobs: int, part: Progress) -> Run:
                options = RunOptions(drain=True, progress=part)
                return run_network(network, jobs, seed, options, gap_sections=sections).served

            return until_known(
                run_of, self.jobs, min(MOST_TIMES_LONGER * self.jobs, MOST_JOBS), self.targets,
                loads, self.precision, progress=progress,
            )  # fmt: skip
        run = run_network(network, self.jobs, seed, self._options(progress), gap_sections=sections)
        run = run.served
        return run, steady_state(run, targets=self.targets, rho=loads) if steady else None

    def with_outages(self, progress: Progress) -> Run:
        """Simulate the same jobs while replicas die and come back."""
        options = self._options(progress, outages=self.outages)
        return run_network(self.network, self.jobs, self.seed, options).served


def refuse_between_calls(network: Network, targets: Sequence[Target]) -> None:
    """Refuse a limit on times per token of jobs of several calls."""
    calls = np.count_nonzero(network.prefill_means)
    if calls > len(network.workflows) and any(one.metric == "tpot_s" for one in targets):
        raise InputError(
            "a target limits tpot, which in jobs of several calls counts what lies between these; "
            "limit tbt"
        )


def answer_of_network(
    asked: JobsAsked,
    resolution: float | None,
    stability: Stability | None,
    certificate: Certificate,
    progress: Progress,
) -> Answer:
    """Answer for a network: see `check`."""
    network = asked.network
    steady = not no_steady_state(certificate, stability)
    loads = _loads(certificate, stability) if network.reuse_is_certain else None
    alone = _RUN_SHARE if asked.outages else 1.0
    run, latency = asked.simulated(loads, steady, part_of(progress, 0.0, alone))
    windows: tuple[OutageWindow, ...] = ()
    if asked.outages:
        windows = outage_windows(asked.with_outages(part_of(progress, alone, 1.0)), run)
    warnings = [notice for workflow in network.workflows for notice in workflow.notices]
    if network.ends:
        warnings.append(
            "jobs are recorded: latency is that of the recording, its intervals are for it gone "
            "on with; for jobs that are independent, draw them from it with arrivals 'poisson'"
        )
    warnings += pool_warnings(network, pool_answers(network, certificate, run), run)
    warnings += latency_warnings(certificate, stability, latency)
    return Answer(
        network,
        certificate,
        stability,
        run,
        latency,
        targets=tuple(judged(target, latency) for target in asked.targets),
        front=(*beyond_rows(network), *network_notes(network)),
        warnings=tuple(dict.fromkeys(warnings)),
        outages=windows,
        calibration=doubt_of(network, asked.seed, resolution),
    )


def _loads(certificate: Certificate, stability: Stability | None) -> list[float]:
    """Return each pool's load over what it carries: by its limits, and its virtual station."""
    # Of a single stage the flood says what its policy and KV memory carry.
    virtual = certificate.virtual_station
    least = dict.fromkeys(virtual.pools, 1 / virtual.max_load) if virtual else {}
    pools = certificate.pools
    if (
        stability is not None
        and len(pools) == len({flood.stage for flood in stability.floods}) == 1
    ):
        least[pools[0].name] = 1 / (1 - min(stability.drift, 0.0))
    return [max(1 - pool.margin, least.get(pool.name, 0.0)) for pool in pools]
