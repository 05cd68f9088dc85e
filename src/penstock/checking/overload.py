"""The answer where requests may be refused, or clients leave: who is served, and at what latency.

Such a system is stable at any rate: nobody waits for ever. A stable rate is no good one, so the
answer says who is served. What no scheduler can carry is lost, whatever the limits are.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np

from penstock.checking.batch_means import OfLatency, Statistics
from penstock.checking.doubt import beyond_rows
from penstock.checking.goodput import good_jobs, goodput_share
from penstock.checking.latency import SteadyState, judged, steady_state
from penstock.checking.storm import Storm, has_retries, is_looked_for, storm
from penstock.checking.targets import Estimate, Target, TargetAnswer
from penstock.inputs.arrays import Bools, Ints
from penstock.kernel.records import LEFT, REFUSED
from penstock.show.answers import AsData, Meaning, Shown, computed
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.kinds import OfSystem, System, asked_about, unguarded
from penstock.system.prefix_cache import front_notes, network_notes, unsaid
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.theory.overload import least_lost
from penstock.words import LIMITED
from penstock.workload.workload import ClosedLoop, Workload

if TYPE_CHECKING:
    from penstock.system.network import Network

_CONFIDENCE = 0.95
_WHY = (REFUSED, LEFT)
_LAST = 0.1  # share of the jobs, at the end, that is not counted: fewer and fewer come beside them


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
    admitted: Annotated[float, Meaning("Not refused.")]
    refused: Annotated[
        float, Meaning("On arrival, or later to make way for one that is more urgent.")
    ]
    left: Annotated[float, Meaning("Left by their clients.")]


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
    front: Annotated[tuple[str, ...], Meaning("What to know before the answer.", key=None)] = ()
    warnings: Annotated[tuple[str, ...], Meaning("What to know besides.", key=None)] = ()
    latency_refused: Annotated[None, Meaning("Null.")] = None

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
    def by_metric(self) -> Mapping[str, Statistics]:
        """Latency by metric; of a network by metric at each of its places."""
        return {
            f"{place}.{metric}" if place else metric: of
            for metric in LIMITED
            for place, of in self.latency.places(metric).items()
        }

    @computed(key="warnings")
    def _all_warnings(self) -> list[str]:
        """What to know."""
        return [*self.front, *self.warnings]

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
        front, notices = front_notes(*system), system[0].notices
        run = simulate(*system, requests=count, until=until, drain=True, progress=shown)
    else:
        front = network_notes(system)
        notices = tuple(notice for of in system.workflows for notice in of.notices)
        run = simulate(system, jobs=count, until=until, seed=seed, drain=True, progress=shown)
    run = run.served
    served = np.flatnonzero(run.finish >= 0)
    of_served = dataclasses.replace(run.where(served), arrived=served.size)
    latency = steady_state(of_served, targets=targets)
    # Those who come after the warm-up, and while as many come behind them.
    first = int(served[latency.warmup_jobs]) if latency.jobs else 0
    last = max(round((1 - _LAST) * run.finish.size), first + 1)
    counted = _Counted(run.where(np.arange(first, last)), _seconds(run, first, last))
    of_retries: Storm | str = ""
    if isinstance(system, tuple) and is_looked_for(system):
        of_retries = storm(*system, part_of(progress, 0.5, 1.0))
    elif has_retries(system):
        of_retries = (
            "storms of retries are looked for at one server with arrivals at random, not here: "
            "whether a burst brings about a state that lasts is not known"
        )
    said = [of_retries] if of_retries and isinstance(of_retries, str) else []
    good = None
    if targets:
        in_time = good_jobs(counted.run, targets) & (counted.run.finish >= 0)
        good = goodput_share(in_time, _CONFIDENCE, False)
    return OverloadAnswer(
        system=system,
        run=run,
        latency=latency,
        rates=counted.of_all(),
        tries=counted.tries(),
        stages=() if isinstance(system, tuple) else counted.by_stage(system.stages),
        priorities=counted.by_priority(),
        goodput=good,
        wasted=int(_column(run, "wasted").sum()) / max(run.tokens, 1),
        most=plain.max_rate,
        targets=tuple(judged(target, latency) for target in targets),
        storm=of_retries if isinstance(of_retries, Storm) else None,
        front=(*front, *beyond_rows(system)),
        warnings=(*said, *unsaid(notices, front), *latency.notices),
    )


def _at_a_rate(system: System) -> System:
    """Return a system as theory speaks of it: clients who wait for answers come at some rate."""
    if isinstance(system, tuple) and isinstance(system[0], ClosedLoop):
        return system[0].at_rate(1.0), system[1]
    return system


def _seconds(run: Run, first: int, last: int) -> float:
    """Return how long some of the jobs of a run came."""
    arrival = [*run.arrival, run.last_arrival]
    return max(float(arrival[last] - arrival[first]), 1.0) * run.tick_s


def _column(run: Run, name: str) -> Ints:
    """Return a column that the requests of such a run have."""
    column = getattr(recorded(run.rows, "requests"), name)
    return np.asarray(column)


@dataclasses.dataclass(frozen=True, eq=False)
class _Counted:
    """Jobs that are counted, and how long they came."""

    run: Run
    seconds: float

    def of_all(self) -> Fates:
        """Return what became of the jobs; one fails with the first of its requests that does."""
        failed, jobs = _column(self.run, "failed"), recorded(self.run.rows, "requests").jobs
        failing = np.flatnonzero(np.isin(failed, _WHY))
        _, firsts = np.unique(jobs.job[failing], return_index=True)
        return self._fates("all", self.run.arrival, self.run.finish, failed[failing[firsts]])

    def by_stage(self, names: Sequence[str]) -> tuple[Fates, ...]:
        """Return what became of the requests of each stage."""
        stage = recorded(self.run.rows, "requests").jobs.stage
        return tuple(self._of_requests(name, stage == index) for index, name in enumerate(names))

    def by_priority(self) -> tuple[Fates, ...]:
        """Return what became of the requests of each priority, where they have some."""
        priority = recorded(self.run.rows, "requests").jobs.priority
        if priority is None:
            return ()
        values = np.unique(priority).tolist()
        return tuple(self._of_requests(f"priority {of}", priority == of) for of in values)

    def _of_requests(self, name: str, here: Bools) -> Fates:
        columns = (_column(self.run, column)[here] for column in ("arrival", "finish", "failed"))
        return self._fates(name, *columns)

    def _fates(self, name: str, came: Ints, ended: Ints, failed: Ints) -> Fates:
        """Return what became of some who came, ended (-1: not), or failed for a reason, per s."""
        counts = ((came >= 0).sum(), (ended >= 0).sum(), *((failed == why).sum() for why in _WHY))
        return Fates(name, *(int(count) / self.seconds for count in counts))

    def tries(self) -> TriesPerS:
        """Return how often their requests came."""
        again, refused = _column(self.run, "tries"), _column(self.run, "refusals").sum()
        offered = (again + 1)[_column(self.run, "arrival") >= 0].sum()
        failed = again.sum() + np.isin(_column(self.run, "failed"), _WHY).sum()
        counts = offered, offered - refused, refused, failed - refused
        return TriesPerS(*(int(count) / self.seconds for count in counts))
