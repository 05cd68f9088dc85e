"""Is a network stable? Flood each stage in turn and see whether the work drains.

The test of one server watches a slope. A network needs barriers: on its way to empty, its work can rise, and then fall,
by a multiple of what it began with, as queues move from pool to pool. So each stage in turn is flooded with jobs that
begin there, beside those that arrive as they do, and the work that the jobs in the network still need, requests to come
included, is watched until it has fallen to half of what it was, or has risen to eight times of it. Stable if it falls
from every flood; unstable if it rises from any: a priority order may be safe after one flood and not after another.

As for one server, work arrives at its mean rate instead of as it came (a control variate), where that rate is known.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.analysis.stability import Outcome
from penstock.errors import InputError
from penstock.kernel import network_arrays as kernel
from penstock.kernel.server import NEVER
from penstock.network_session import NetworkSession
from penstock.run import TICK_S, Progress
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.workload.jobs import Jobs

FALLEN, RISEN = 0.5, 8.0
"""Barriers, in units of the work at the start."""

_GONE = 0.125  # what is left when everything there was has left, whatever arrived
_PASSES = 8  # initial work, in what fills every batch while a request is decoded
_DELAYS = 4  # initial work, in that of the jobs which delays alone keep in the network
_FEWEST_JOBS = 200
_MOST_JOBS = 2**20
_LARGER, _TRIES = 8, 3  # times the flood, where a queue may be normal that is as long
_PATIENCE = 10.0  # initial work over the resolution: what may arrive before the answer is undecided
_STEPS = 256  # batches between two looks, at first
_LOOKS = 256  # at the path, about, before it is thinned


@dataclasses.dataclass(frozen=True, eq=False)
class Flood:
    """The test with one stage flooded.

    Attributes
    ----------
    stage
        The stage.
    outcome
        ``stable``: the work fell to half. ``unstable``: it rose to eight times. ``undecided``: neither.
    initial, arrivals
        Jobs that began there, and that arrived while it was watched.
    ratio
        Work at the end over that at the start.
    highest
        The most that the work ever was over that at the start.
    path
        Shape (looks, 2): seconds, and work over that at the start.
    """

    stage: str
    outcome: Outcome
    initial: int
    arrivals: int
    ratio: float
    highest: float
    path: npt.NDArray[np.float64] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class NetworkStability:
    """Whether the work of a network drains.

    Attributes
    ----------
    verdict
        ``stable``, ``unstable`` or ``undecided``.
    resolution
        Networks whose loads are at least so far from the critical ones are decided.
    floods
        One for each stage; those after one from which the work rises are left out.
    """

    verdict: Outcome
    resolution: float
    floods: tuple[Flood, ...]

    @property
    def deciding(self) -> Flood:
        """Of the floods that gave the verdict, the one whose work rose highest."""
        return max((flood for flood in self.floods if flood.outcome == self.verdict), key=lambda flood: flood.highest)

    @property
    def reason(self) -> str:
        """One sentence."""
        flood = self.deciding
        seen = f"{flood.initial:,} jobs at {flood.stage}, {flood.arrivals:,} more arriving"
        match self.verdict:
            case "stable":
                rose = f", after rising to {flood.highest:.2f} times" if flood.highest > 1.05 else ""
                return f"whichever stage is flooded, the work falls to half{rose} ({seen})"
            case "unstable":
                return f"with {flood.stage} flooded, the work rises to {flood.ratio:.1f} times what it was ({seen})"
        return (
            f"with {flood.stage} flooded, the work went to {flood.ratio:.2f} times what it was ({seen}): too little to "
            "tell at this resolution"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = ("stage", "outcome", "initial", "arrivals", "ratio", "highest")
        floods = [{name: getattr(flood, name) for name in names} for flood in self.floods]
        return {"verdict": self.verdict, "reason": self.reason, "resolution": self.resolution, "floods": floods}


def network_verdict(
    network: Network,
    resolution: float = 0.02,
    seed: int = 0,
    *,
    most_jobs: int | None = None,
    progress: Progress | None = None,
) -> NetworkStability:
    """Say by simulation whether a network is stable.

    Parameters
    ----------
    network
        What arrives and what serves, under any policies, orders and routers.
    resolution
        The smallest distance of a load from a critical one that must be told.
    seed
        For everything random.
    most_jobs
        Jobs that may arrive during one flood before it is undecided. Default: as many as bring ten times the initial
        work over the resolution.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, or the jobs are recorded and come to an end.
    """
    if not isinstance(network, Network):
        raise InputError(f"network_verdict takes a Network, not {checks.shown(network)}; for one server use verdict")
    resolution = checks.number("resolution", resolution, 1e-3, 0.5, "", "it is a share of the load; finer takes days")
    if most_jobs is not None:
        most_jobs = checks.whole("most_jobs", most_jobs, 1, 10**9, "", "so many arrive at most")
    if network.ends:
        raise InputError("the jobs are recorded and come to an end, so nothing can grow for ever; give them a rate")
    model = network.model()
    stages = [stage for stage, visits in enumerate(model.visits) if visits > 0]
    floods: list[Flood] = []
    for index, stage in enumerate(stages):

        def report(share: float, done: int = index) -> None:
            if progress is not None:
                progress((done + min(share, 1.0)) / len(stages))

        for times in range(_TRIES):
            found = _Flooded(network, model, stage, resolution, seed, _LARGER**times).watch(most_jobs, report)
            if found.outcome != "undecided" or most_jobs is not None:
                break
        floods.append(found)
        report(1.0)
        if found.outcome == "unstable":
            break
    outcomes = {flood.outcome for flood in floods}
    verdict: Outcome = "unstable" if "unstable" in outcomes else "undecided" if "undecided" in outcomes else "stable"
    return NetworkStability(verdict, resolution, tuple(floods))


class _Flooded:
    """A network of which one stage is flooded."""

    def __init__(
        self, network: Network, model: NetworkModel, stage: int, resolution: float, seed: int, times: int
    ) -> None:
        self.network, self.stage, self.resolution = network, network.stages[stage], resolution
        self.offered = float(model.offered.sum())
        self.jobs_rate = float(model.external.sum())
        self.session = NetworkSession(network, TICK_S, True, NEVER)
        trial = network.flooded(self.stage, _FEWEST_JOBS, seed)
        waits = self.offered * float(trial.delay_s.sum()) / _FEWEST_JOBS  # tokens of jobs that wait for a tool
        work = times * max(_PASSES * _pipeline(network), _DELAYS * waits)
        self.initial = min(max(math.ceil(work / (_tokens(network, trial) / _FEWEST_JOBS)), _FEWEST_JOBS), _MOST_JOBS)
        flood = network.flooded(self.stage, self.initial, seed)
        self.source: Iterator[Jobs] = network.blocks(seed)
        self.session.add(Jobs.joined([flood, next(self.source)]))
        self.work = float(_tokens(network, flood))
        # tokens that are found in a cache, and how many a sampled mean really is, only the run can say
        self.controlled = model.sampled is None and network.reuse_is_certain
        self.dropped = 0
        self.steps = _STEPS

    def watch(self, most_jobs: int | None, report: Progress) -> Flood:
        """Run until the work has reached a barrier."""
        patience = _PATIENCE * self.work / self.resolution / self.offered  # seconds
        if most_jobs is not None:
            patience = most_jobs / self.jobs_rate
        path = [(0.0, 1.0)]
        highest, outcome = 1.0, "undecided"
        while path[-1][0] < patience:
            self._go_on()
            time_s, ratio = self._look()
            path.append((time_s, ratio))
            highest = max(highest, ratio)
            if ratio <= FALLEN or self.session.future_tokens <= _GONE * self.work:
                outcome = "stable"
                break
            if ratio >= RISEN:
                outcome = "unstable"
                break
            if len(path) > 2 * _LOOKS:
                path, self.steps = path[::2], 2 * self.steps
            report(time_s / patience)
        arrivals = self.dropped + int(self.session.net.state[kernel.NEXT_JOB]) - self.initial
        return Flood(self.stage, outcome, self.initial, arrivals, path[-1][1], highest, np.array(path))  # type: ignore[arg-type]

    def _go_on(self) -> None:
        if self.session.run(False, steps=self.steps):
            self.dropped += self.session.fold(everything=False).jobs.count
            self.session.add(next(self.source))

    def _look(self) -> tuple[float, float]:
        session = self.session
        time_s = session.now * TICK_S
        if not self.controlled:
            return time_s, session.future_tokens / self.work
        processed = int(session.net.servers[:, kernel.PROCESSED].sum())
        return time_s, 1 + (self.offered * time_s - processed) / self.work


def _tokens(network: Network, jobs: Jobs) -> int:
    """Return the forward tokens of some jobs, without what is sure to be found of their contexts."""
    engine = np.array([pool.server.convention == "engine" for pool in network.pools.values()])
    saved = engine[network.stage_pool[jobs.stage]] & (jobs.prompt > 0) & (jobs.output > 0)
    tokens = jobs.prompt.sum(dtype=np.int64) + jobs.output.sum(dtype=np.int64) - saved.sum()
    if network.reuse_is_certain:
        tokens -= np.minimum(jobs.reuse, np.maximum(jobs.prompt - 1, 0)).sum(dtype=np.int64)
    return int(tokens)


def _pipeline(network: Network) -> float:
    """Return the tokens that full batches of all replicas process while a mean request decodes."""
    tokens = 0.0
    for place, pool in enumerate(network.pools.values()):
        decodes = network.decode_means[network.stage_pool == place].max()
        tokens += pool.replicas * pool.server.token_budget * max(float(decodes), 1.0)
    return tokens
