"""Variants side by side: a server under policies, on the same requests; networks with other
routers, policies or orders between stages, on the same jobs.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from penstock import checks
from penstock.checking.answer import Answer
from penstock.checking.batch_means import BATCHES, Statistics, few_bursts
from penstock.checking.check import check
from penstock.checking.differences import Sample, difference
from penstock.checking.goodput import good_jobs, goodput_share
from penstock.checking.latency import LEAST_JOBS, Queues, batched, in_batches
from penstock.checking.pools import reuse_warnings
from penstock.checking.targets import Estimate, Target, parsed_targets
from penstock.checking.variants import OrderChoice, ask, with_order
from penstock.errors import InputError
from penstock.inputs.arrays import Bools, Ints
from penstock.show.answers import Meaning, Shown, computed, texts
from penstock.show.page import Page
from penstock.simulation.distribution import Distribution
from penstock.simulation.progress import Progress, in_parts
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.system.kinds import refuse_guarded
from penstock.system.network import Network
from penstock.system.orders import resolve_order
from penstock.theory.load import refuse_no_rate
from penstock.words import gathered

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario
    from penstock.system.kinds import System


@dataclasses.dataclass(frozen=True, eq=False)
class ServerComparison(Shown):
    """A server under several policies, which the same requests went to."""

    answers: Annotated[
        Mapping[str, Answer],
        Meaning(
            "What is known under each policy, the one that others are compared with first.",
            key="policies",
        ),
    ]
    left_out: Annotated[
        Mapping[str, str], Meaning("Policies that cannot serve the workload, and why.", key=None)
    ]


@dataclasses.dataclass(frozen=True, eq=False)
class ComparedWorkflow:
    """Latency of a workflow in one of the networks."""

    network: Annotated[str, Meaning("The name of the network.")]
    workflow: Annotated[str, Meaning("The name of the workflow.")]
    latency: Annotated[
        Mapping[str, Statistics],
        Meaning(
            "By metric and statistic, seconds: `ttft_s` of its calls that have a prompt, each "
            "from its arrival at a replica; `e2e_s` of its jobs."
        ),
    ]
    difference: Annotated[
        Mapping[str, Statistics] | None,
        Meaning("How much more each is than at the first network; None at the first."),
    ]
    goodput: Annotated[
        Estimate | None,
        Meaning(
            "Share of its jobs that end within all limits, and whose calls do; None without limits."
        ),
    ]
    samples: Mapping[str, Distribution]  # by metric, what the latency is of, in ticks
    tick_s: float


@dataclasses.dataclass(frozen=True)
class RunOfNetwork:
    """What a network did."""

    preemptions: Annotated[int, Meaning("How often a request had to make room.")]
    found_share: Annotated[float | None, Meaning("Of the tokens of prompts, that requests found.")]


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkComparison(Shown):
    """Networks that the same jobs went through."""

    answers: Annotated[
        Mapping[str, Answer],
        Meaning(
            "What is known of each network, by its name. Differences are to the first that has a "
            "steady state.",
            key="networks",
        ),
    ]
    targets: Annotated[tuple[Target, ...], Meaning("Limits that goodput counts.", data=texts)]
    rows: Annotated[
        tuple[ComparedWorkflow, ...],
        Meaning("Latencies of workflows, of networks that have a steady state.", key="latency"),
    ]
    jobs: Annotated[int, Meaning("Jobs that latencies are of, at all networks.")]
    warmup_jobs: Annotated[int, Meaning("Jobs before them that are left out.")]
    confidence: Annotated[float, Meaning("With which each interval holds its value.")]

    @computed()
    def first(self) -> str | None:
        """The network that the others are compared with; None where none has a steady state."""
        return self.rows[0].network if self.rows else None

    @computed()
    def warnings(self) -> list[str]:
        """What the user should know besides, after the names of the networks that it is about."""
        return [*gathered({name: self._warnings(name) for name in self.answers}), *self._few]

    def _warnings(self, name: str) -> list[str]:
        """Return what is to know of a network and is not said of all, or in the tables."""
        answer = self.answers[name]
        bursts = answer.latency.bursts_notice if answer.latency else ()
        said = (*reuse_warnings(answer.network, answer.run), *bursts)
        known = [*answer.front, *answer.warnings]
        return [warning for warning in known if warning not in said]

    @property
    def _few(self) -> list[str]:
        """Say how many jobs tell what these cannot."""
        steady = {name: answer.latency for name, answer in self.answers.items() if answer.latency}
        estimates = {
            f"{row.workflow} {metric.removesuffix('_s')} at {row.network}": statistics
            for row in self.rows
            for metric, statistics in row.latency.items()
            if not steady[row.network].too_short
        }
        return few_bursts(estimates, self.confidence, self.jobs, "jobs")

    def by_workflow(self) -> dict[str, list[ComparedWorkflow]]:
        """Return the rows of each workflow, the first network's first."""
        grouped = itertools.groupby(self.rows, key=lambda row: row.workflow)
        return {workflow: list(rows) for workflow, rows in grouped}

    def page(self, scenario: "Scenario | None" = None, what: str = "Network") -> Page:
        """Return the comparison as a page; a scenario says how the question is called, ``what``
        how the networks are.
        """
        return super().page(scenario, what)

    @computed(key="runs")
    def _runs(self) -> dict[str, "RunOfNetwork"]:
        """What each network did, by its name."""
        runs = {name: answer.run for name, answer in self.answers.items()}
        return {name: RunOfNetwork(run.preemptions, run.found_share) for name, run in runs.items()}


def compare(
    systems: "Mapping[str, System]", *, optional: Collection[str] = (), **options: Any
) -> ServerComparison | NetworkComparison:
    """Put servers or networks side by side, with options of `check` or `compare_networks`.

    Servers that are ``optional`` are left out where they cannot serve the workload.
    """
    networks = {name: one for name, one in systems.items() if isinstance(one, Network)}
    if networks:
        return compare_networks(networks, **options)
    progress = options.pop("progress", None)
    servers = {name: one for name, one in systems.items() if isinstance(one, tuple)}
    refuse_guarded(*servers.values())
    answers: dict[str, Answer] = {}
    left_out = {}
    for (name, (workload, server)), part in in_parts(progress, servers.items()):
        refuse_no_rate(workload)
        try:
            answers[name] = check(workload, server, **options, progress=part)
        except InputError as error:
            if name not in optional:
                raise
            left_out[name] = str(error)
    return ServerComparison(answers, left_out)


def compare_networks(
    networks: Mapping[str, Network],
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    resolution: float | None = None,
    targets: Sequence[Target | str] = (),
    progress: Progress | None = None,
) -> NetworkComparison:
    """Put networks side by side that the same jobs go through.

    Jobs are drawn before anything is simulated, so networks with the same workflows get the same
    ones, and two differ by what was changed and by nothing else.

    Parameters
    ----------
    networks
        By names; the first is what the others are compared with. Other routers, policies or orders
        are given by `penstock.checking.variants`, or by ``dataclasses.replace`` of the pools.
    jobs, until, seed, resolution, progress
        As in `penstock.check`.
    targets
        Limits of goodput, such as ``ttft_p99<2s``: TTFT of a call, E2E of a job, and of ``tbt``
        the mean time between the tokens of a call.

    Raises
    ------
    InputError
        If a value cannot be used, or the networks do not have the same workflows.
    """
    limits = tuple(parsed_targets(targets))
    _check_networks(networks)
    refuse_guarded(*networks.values())
    options = {"jobs": jobs, "until": until, "seed": seed, "resolution": resolution}
    return _compared(ask(check, networks, progress, **options), limits)


def compare_orders(
    network: Network,
    orders: Sequence[OrderChoice] | Mapping[str, OrderChoice | Mapping[str, OrderChoice]],
    *,
    jobs: int | None = None,
    until: float | None = None,
    seed: int | None = None,
    resolution: float | None = None,
    progress: Progress | None = None,
) -> NetworkComparison:
    """Put orders between stages side by side.

    Parameters
    ----------
    network, jobs, until, seed, resolution, progress
        As in `penstock.check`.
    orders
        Orders that all pools have, as in `Pool`; or by any names, orders of all pools or a mapping
        from pools to theirs, where pools left out keep their own.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    networks = _reordered(network, orders)
    return compare_networks(
        networks, jobs=jobs, until=until, seed=seed, resolution=resolution, progress=progress
    )


def _check_networks(networks: Mapping[str, Network]) -> None:
    if not isinstance(networks, Mapping) or not networks:
        raise InputError(
            f"networks are {checks.shown(networks)}; give at least one, by name, as "
            "{'jsq': network}"
        )
    for name, network in networks.items():
        if not isinstance(network, Network):
            raise InputError(f"network {name!r} is {checks.shown(network)}; give a Network")
    first_name, first = next(iter(networks.items()))
    for name, network in networks.items():
        if network.stages != first.stages:
            raise InputError(
                f"networks {first_name!r} and {name!r} have other stages, so their jobs are not "
                "the same and nothing can be told of a difference; give both the same workflows"
            )


def _reordered(
    network: Network,
    orders: Sequence[OrderChoice] | Mapping[str, OrderChoice | Mapping[str, OrderChoice]],
) -> dict[str, Network]:
    if not isinstance(network, Network):
        raise InputError(
            f"compare_orders takes a Network, not {checks.shown(network)}; for one server use check"
        )
    if isinstance(orders, str) or not isinstance(orders, Sequence | Mapping) or not orders:
        raise InputError(
            f"orders are {checks.shown(orders)}; give a list of at least one, such as ['fcfs', "
            "'hlpps']"
        )
    if isinstance(orders, Mapping):
        return {name: with_order(network, order) for name, order in orders.items()}
    networks: dict[str, Network] = {}
    for choice in orders:
        order = resolve_order(choice)
        if order.name in networks:
            raise InputError(
                f"two orders are called {order.name}, so which is meant is unclear; leave one out"
            )
        networks[order.name] = with_order(network, order)
    return networks


def _compared(answers: Mapping[str, Answer], targets: tuple[Target, ...]) -> NetworkComparison:
    """Lay latencies side by side, of the jobs that all networks were steady for."""
    steady = {name: answer.latency for name, answer in answers.items() if answer.latency}
    if not steady:
        return NetworkComparison(answers, targets, (), 0, 0, 0.95)
    runs = {name: answers[name].run for name in steady}
    _check_jobs(runs)
    begin = max(latency.warmup_jobs for latency in steady.values())
    end = min(latency.warmup_jobs + latency.jobs for latency in steady.values())
    used = max(end - begin, 0)
    few = used < LEAST_JOBS
    if not few:
        used = used // BATCHES * BATCHES
    first = next(iter(steady))
    batch = in_batches(runs[first].arrived, end - used, end, few)
    confidence = steady[first].confidence
    short = frozenset(name for name, latency in steady.items() if latency.too_short)
    queues = {
        name: Queues(runs[name], batch, used, latency.relaxation)
        for name, latency in steady.items()
    }
    rows = _Question(runs, batch, queues, targets, confidence, short).rows()
    return NetworkComparison(answers, targets, rows, used, end - used, confidence)


def _check_jobs(runs: Mapping[str, Run]) -> None:
    """Refuse runs of which not all had the same jobs."""
    (first_name, first), *others = runs.items()
    for name, run in others:
        here, there = recorded(run.rows, "requests").jobs, recorded(first.rows, "requests").jobs
        if not (
            np.array_equal(run.arrival, first.arrival) and np.array_equal(here.stage, there.stage)
        ):
            raise InputError(
                f"networks {first_name!r} and {name!r} had other jobs, so nothing can be told of "
                "a difference; give both the same workflows, with the same seeds"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class _Question:
    """Runs of the same jobs, the batches that these are put into, and what is asked of them."""

    runs: Mapping[str, Run]
    batch: Ints
    queues: Mapping[str, Queues]
    targets: tuple[Target, ...]
    confidence: float
    short: frozenset[str]

    def rows(self) -> tuple[ComparedWorkflow, ...]:
        """Compare workflow by workflow, network by network."""
        rows = []
        first = next(iter(self.runs.values()))
        for index, workflow in enumerate(first.network.workflows):
            mine = first.workflow == index
            compared: tuple[dict[str, Sample], Mapping[str, Statistics]] | None = None
            for name, run in self.runs.items():
                samples = _samples(run, mine, self.batch)
                waits = self.queues[name].of_workflow(index)
                short = name in self.short
                latency = {
                    metric: waits.estimates(
                        metric, sample.batches, self.targets, self.confidence, run.tick_s, short
                    )
                    for metric, sample in samples.items()
                }
                difference = compared and self._differences(samples, latency, compared)
                goodput = None
                if self.targets:
                    good = good_jobs(run, self.targets)[(self.batch >= 0) & mine]
                    goodput = goodput_share(good, self.confidence, short)
                whole = {metric: sample.batches.whole for metric, sample in samples.items()}
                rows.append(
                    ComparedWorkflow(
                        name, workflow.name, latency, difference, goodput, whole, run.tick_s
                    )
                )
                compared = compared or (samples, latency)
        return tuple(rows)

    def _differences(
        self,
        samples: Mapping[str, Sample],
        latency: Mapping[str, Statistics],
        compared: tuple[Mapping[str, Sample], Mapping[str, Statistics]],
    ) -> dict[str, Statistics]:
        """Return how much more each statistic is than at the first network."""
        first_samples, first_latency = compared
        tick_s = next(iter(self.runs.values())).tick_s
        return {
            metric: {
                statistic: difference(
                    samples[metric], first_samples[metric], statistic, self.confidence, tick_s,
                    _bursts(estimate, first_latency[metric][statistic]),
                )
                for statistic, estimate in statistics.items()
            }
            for metric, statistics in latency.items()
        }  # fmt: skip


def _samples(run: Run, mine: Bools, batch: Ints) -> dict[str, Sample]:
    """Return TTFT of the calls and E2E of the jobs of a workflow, in batches of jobs."""
    rows = recorded(run.rows, "requests")
    job = rows.jobs.job
    prompts = np.flatnonzero(mine[job] & (rows.jobs.prompt > 0) & (rows.first_token >= 0))
    jobs = np.flatnonzero(mine & (run.finish >= 0))
    return {
        "ttft_s": Sample(batched(batch, job[prompts], (rows.first_token - rows.arrival)[prompts])),
        "e2e_s": Sample(batched(batch, jobs, (run.finish - run.arrival)[jobs])),
    }


def _bursts(one: Estimate, other: Estimate) -> float:
    """Return the fewer bursts of two runs beyond a percentile; 0: no upper end; inf: a mean."""
    if one.high is None or other.high is None:
        return 0.0
    return min(np.inf if estimate.bursts is None else estimate.bursts for estimate in (one, other))
