"""The answer where requests may be refused, or clients leave: who is served, and at what latency.

Such a system is stable at any rate: nobody waits for ever. A stable rate is no good one, so the
answer says who is served. What no scheduler can carry is lost, whatever the limits are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np

from penstock.checking.batch_means import OfLatency
from penstock.checking.goodput import good_jobs, goodput_share
from penstock.checking.latency import SteadyState, judged, steady_state
from penstock.checking.storm import Storm, storm
from penstock.checking.targets import Estimate, Target, TargetAnswer
from penstock.inputs.arrays import Bools
from penstock.kernel.records import LEFT, REFUSED
from penstock.show.answers import AsData, Meaning, Shown, computed
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import OfSystem, System, asked_about, unguarded
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.theory.overload import least_lost
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

_CONFIDENCE = 0.95
_LOST = (-REFUSED, -LEFT)  # as rows have it


@dataclasses.dataclass(frozen=True)
class Fates(AsData):
    """What becomes of those who come, per second, however often they come again."""

    name: Annotated[str, Meaning("All, a stage, or a priority of requests.", name="Per second")]
    arriving: Annotated[float, Meaning("That come for the first time.", name="arriving")]
    carried: Annotated[float, Meaning("Served to the end.", name="carried")]
    refused: Annotated[float, Meaning("Lost, as they were refused at last.", name="refused")]
    left: Annotated[float, Meaning("Lost, as their clients left at last.", name="left")]


@dataclasses.dataclass(frozen=True)
class TriesPerS(AsData):
    """How often requests come, those that come again included, per second."""

    offered: Annotated[float, Meaning("All of them.")]
    admitted: Annotated[float, Meaning("Let in.")]
    refused: Annotated[float, Meaning("Refused on arrival.")]
    left: Annotated[float, Meaning("Let in, and left by their clients.")]


@dataclasses.dataclass(frozen=True, eq=False)
class OverloadAnswer(OfSystem, OfLatency, Shown):
    """What is known about a system that refuses some, or whose clients leave."""

    system: Annotated[
        "Network | tuple[Workload, Server]", Meaning("What was asked about.", key=None)
    ]
    run: Annotated[Run, Meaning("What was simulated from empty.", key=None)]
    latency: Annotated[
        SteadyState, Meaning("Of those who are served, from their first arrival.", key=None)
    ]
    rates: Annotated[Fates, Meaning("What becomes of all who come.")]
    tries: Annotated[TriesPerS, Meaning("How often they come.")]
    stages: Annotated[tuple[Fates, ...], Meaning("The same at each stage of a network.")]
    priorities: Annotated[
        tuple[Fates, ...], Meaning("The same by priority, the most urgent first.")
    ]
    goodput: Annotated[
        Estimate | None,
        Meaning("Share of all that come that is served within the targets; null without targets."),
    ]
    wasted: Annotated[float, Meaning("Share of the tokens that were for clients who left.")]
    most: Annotated[float, Meaning("Requests or jobs/s that no scheduler exceeds, by theorem.")]
    targets: Annotated[tuple[TargetAnswer, ...], Meaning("Each, of those who are served.")] = ()
    storm: Annotated[
        Storm | None,
        Meaning("Where a burst turns into a storm of retries that does not end: both states."),
    ] = None
    warnings: Annotated[tuple[str, ...], Meaning("What to know besides.")] = ()

    @computed()
    def verdict(self) -> str:
        """``stable``, or ``metastable`` where a burst brings about a state that lasts."""
        return "stable" if self.storm is None else "metastable"

    @computed()
    def reason(self) -> str:
        """Why it is stable, and what that is worth."""
        if self.storm is not None:
            return self.storm.reason
        return (
            "by construction, as nobody waits for ever: a stable rate is not a good one, see who "
            "is served"
        )

    @computed()
    def lost(self) -> float:
        """Share of all that come that is not served."""
        return 1 - self.rates.carried / self.rates.arriving

    @computed()
    def lost_at_least(self) -> float:
        """Share that is lost whatever the limits and the scheduler: 1 - most / arriving."""
        return least_lost(self.rates.arriving, self.most)

    @property
    def unit(self) -> str:
        """What arrives is counted in."""
        return "jobs" if self.is_network else "requests"

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    def next_step(self, file: str) -> str | None:
        """Return what to do about those who are lost, or None."""
        if self.is_network or self.lost <= self.lost_at_least + 0.01:
            return None
        return f"`penstock recommend {file} --target ... --queue` looks for the limit that is right"


def overload_answer(
    system: System,
    count: int | None,
    until: float | None,
    seed: int | None,
    targets: Sequence[Target],
    progress: Progress | None,
    certified: Callable[[None], object] | None,
) -> OverloadAnswer:
    """Simulate a system that refuses some, or whose clients leave."""
    plain = certify(*asked_about(unguarded(_at_a_rate(system))))
    if certified is not None:
        certified(None)
    shown = part_of(progress, 0.0, 0.5)
    if isinstance(system, tuple):
        run = simulate(*system, requests=count, until=until, drain=True, progress=shown)
    else:
        run = simulate(system, jobs=count, until=until, seed=seed, drain=True, progress=shown)
    served = np.flatnonzero(run.finish >= 0)
    told = dataclasses.replace(run.where(served), arrived=served.size)
    latency = steady_state(told, targets=targets)
    good = None
    if targets:
        good = goodput_share(good_jobs(run, targets) & (run.finish >= 0), _CONFIDENCE, False)
    tries = run.tries
    assert tries is not None
    offered, refused, left = (
        int(counts.sum()) / _seconds(run) for counts in (tries.offered, tries.refused, tries.left)
    )
    network = None if isinstance(system, tuple) else system
    most = plain.max_rate if network is None else plain.max_load * _jobs_per_s(network)
    return OverloadAnswer(
        system,
        run,
        latency,
        _of_all(run),
        TriesPerS(offered, offered - refused, refused, left),
        () if network is None else _by_stage(run, network),
        _by_priority(run),
        good,
        int(tries.wasted.sum()) / max(run.tokens, 1),
        most,
        tuple(judged(target, latency) for target in targets),
        storm(system, part_of(progress, 0.5, 1.0)),
        (*latency.notices,),
    )


def _jobs_per_s(network: "Network") -> float:
    """Return the jobs of all workflows that arrive per second."""
    return sum(workflow.rate for workflow in network.workflows)


def _at_a_rate(system: System) -> System:
    """Return a system as theory speaks of it: clients who wait for answers come at some rate."""
    if isinstance(system, tuple) and isinstance(system[0], ClosedLoop):
        return system[0].at_rate(1.0), system[1]
    return system


def _fates(run: Run, name: str, here: Bools) -> Fates:
    """Return what became of some requests."""
    rows = recorded(run.rows, "requests")
    failed = rows.failed[here] if rows.failed is not None else np.zeros(0)
    counts = [int((rows.arrival[here] >= 0).sum()), int((rows.finish[here] >= 0).sum())]
    counts += [int((failed == code).sum()) for code in _LOST]
    return Fates(name, *(count / _seconds(run) for count in counts))


def _of_all(run: Run) -> Fates:
    """Return what became of all jobs: of a server they are its requests."""
    rows = recorded(run.rows, "requests")
    assert rows.failed is not None
    lost = (np.unique(rows.jobs.job[rows.failed == code]).size for code in _LOST)
    counts = (run.arrived, run.finished, *lost)
    return Fates("all", *(count / _seconds(run) for count in counts))


def _seconds(run: Run) -> float:
    """Return how long something arrived."""
    return max(run.last_arrival, 1) * run.tick_s


def _by_stage(run: Run, network: "Network") -> tuple[Fates, ...]:
    """Return what became of the requests of each stage."""
    stage = recorded(run.rows, "requests").jobs.stage
    return tuple(_fates(run, name, stage == index) for index, name in enumerate(network.stages))


def _by_priority(run: Run) -> tuple[Fates, ...]:
    """Return what became of the requests of each priority, where they have some."""
    priority = recorded(run.rows, "requests").jobs.priority
    if priority is None:
        return ()
    values = np.unique(priority).tolist()
    return tuple(_fates(run, f"priority {value}", priority == value) for value in values)
