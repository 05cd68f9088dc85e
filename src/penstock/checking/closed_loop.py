"""The answer for clients who wait: at what throughput and latency a server serves them.

No more requests than clients are under way, so any server is stable, and nothing is to be tested.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np

from penstock.checking.answer import Simulation
from penstock.checking.batch_means import BATCHES, LEAST_REQUESTS, OfLatency
from penstock.checking.doubt import FACTOR, Interval, beyond_rows, interval_by_name, latency_factors
from penstock.checking.head import stable_because
from penstock.checking.latency import SteadyState, judged, steady_state
from penstock.checking.targets import Estimate, Target, TargetAnswer
from penstock.errors import InputError
from penstock.show.answers import Meaning, Shown, computed
from penstock.show.page import Page
from penstock.simulation import intervals
from penstock.simulation.progress import Progress
from penstock.simulation.rows import Rows, recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import length_of_run, simulate
from penstock.system.prefix_cache import as_serving, front_notes, unsaid
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.words import counted
from penstock.workload.workload import ClosedLoop

if TYPE_CHECKING:
    from penstock.scenario.scenario import Scenario


_LEAST_ROUNDS = 3
"""Requests of each client that are counted at least: the first ones all come at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClosedAnswer(OfLatency, Shown):
    """What is known about a closed loop of clients on a server; what only arrivals at a rate have
    is null.
    """

    workload: Annotated[ClosedLoop, Meaning("What arrives.", key=None)]
    server: Annotated[Server, Meaning("What serves it.", key=None)]
    run: Annotated[Run, Meaning("What was simulated.", key=None)]
    requests_per_s: Annotated[Estimate, Meaning("Throughput in the long run.")]
    max_rate: Annotated[
        float,
        Meaning(
            "Requests/s of these lengths that no policy exceeds, by `penstock.certify`: what more "
            "clients come near."
        ),
    ]
    latency: Annotated[
        SteadyState, Meaning("Of the requests asked for, after the warm-up.", key=None)
    ]
    factors: Annotated[
        Mapping[str, Interval], Meaning(FACTOR, key="latency_factor", data=interval_by_name)
    ]
    targets: Annotated[tuple[TargetAnswer, ...], Meaning("Each with its judgement.")]
    front: Annotated[tuple[str, ...], Meaning("What to know before the answer.", key=None)]
    warnings: Annotated[tuple[str, ...], Meaning("What to know besides.", key=None)]
    load: Annotated[None, Meaning("Null.")] = None
    certificate: Annotated[None, Meaning("Null.")] = None
    stability: Annotated[None, Meaning("Null.")] = None
    latency_refused: Annotated[None, Meaning("Null.")] = None

    @computed()
    def verdict(self) -> str:
        """``stable``: no more requests than clients are under way."""
        return "stable"

    @computed()
    def reason(self) -> str:
        """Why it is stable."""
        return stable_because(self.workload.clients)

    @computed()
    def clients(self) -> int:
        """Each of which waits for its answer."""
        return self.workload.clients

    @computed()
    def pause_s(self) -> float:
        """Between an answer and the next request of a client."""
        return self.workload.pause_s

    @property
    def missed(self) -> bool:
        """Whether a target is not known to be met."""
        return any(target.judgement != "met" for target in self.targets)

    def next_step(self, file: str) -> str | None:
        """Return what to do about targets that are not met, or None."""
        if not self.missed:
            return None
        if any(target.judgement == "missed" for target in self.targets):
            return "fewer clients, other limits or another server may meet it"
        return f"a longer run may decide it: `penstock check {file} --requests {4 * self.asked}`"

    @property
    def asked(self) -> int:
        """Requests that are counted."""
        return self.latency.jobs + self.latency.warmup_jobs

    @computed(key="simulation")
    def _simulation(self) -> Simulation:
        """The requests asked for, and one more of each client behind them, so that the last are not
        alone.
        """
        return {"verdict": self.verdict, **self.run.as_dict()}

    @computed(key="warnings")
    def _all_warnings(self) -> list[str]:
        """What to know."""
        return [*self.front, *self.warnings]

    def page(self, scenario: "Scenario | None" = None) -> Page:
        """Return the answer as a page; a scenario says how the question is called."""
        return super().page(scenario)


def closed_answer(
    workload: ClosedLoop,
    server: Server,
    requests: int | None,
    targets: Sequence[Target],
    progress: Progress | None,
    certified: Callable[[None], object] | None,
) -> ClosedAnswer:
    """Simulate a closed loop that is not refused, and say what it comes to in the long run."""
    server = as_serving(workload, server)
    rows, clients = workload.rows, workload.clients
    asked = length_of_run(workload, requests, None) or 0
    sent = asked + clients if rows is None else min(asked + clients, rows)
    least = _LEAST_ROUNDS * clients
    if sent - clients < least:
        more = f"give `requests` of {least:,} or more" if rows is None else "take fewer clients"
        raise InputError(
            f"{counted(asked, 'request')} of {counted(clients, 'client')} say how the loop begins, "
            f"all at once, and not how it goes on; {more}, or ask `penstock simulate` what happens "
            "to so few"
        )
    most = certify(workload.at_rate(1.0), server)
    if certified is not None:
        certified(None)
    run = simulate(workload, server, requests=sent, progress=progress)
    kept = recorded(run.rows, "requests")
    told = kept.where(slice(max(kept.finish.size - clients, 0)))
    latency = steady_state(dataclasses.replace(run, rows=told), targets=targets)
    front = [*front_notes(workload, server), *beyond_rows((workload, server))]
    return ClosedAnswer(
        workload,
        server,
        run,
        _throughput(told, latency, run.tick_s),
        most.max_rate * most.load.work.share,  # those that are dropped apart
        latency,
        latency_factors(workload, server),
        targets=tuple(judged(target, latency) for target in targets),
        front=tuple(front),
        warnings=(*unsaid(workload.notices, front), *latency.notices),
    )


def _throughput(rows: Rows, latency: SteadyState, tick_s: float) -> Estimate:
    """Return requests that end per second after the warm-up, with the interval of batch means."""
    ended = np.sort(rows.finish[rows.finish >= 0])[latency.warmup_jobs :] * tick_s
    if ended.size < 2 or ended[-1] <= ended[0]:
        return Estimate(None)
    rate = float((ended.size - 1) / (ended[-1] - ended[0]))
    if ended.size <= LEAST_REQUESTS:
        return Estimate(rate)
    places = np.linspace(0, ended.size - 1, BATCHES + 1).astype(int)
    spans, counts = np.diff(ended[places]), np.diff(places).astype(float)
    low, high = intervals.ratio_interval(spans, counts, latency.confidence)
    return Estimate(rate, 1 / high, 1 / low if low > 0 else None)
