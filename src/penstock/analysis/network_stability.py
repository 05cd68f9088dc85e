"""Is a network stable? Flood each stage in turn and see whether the work drains.

The test of one server watches a slope. A network needs barriers: on its way to empty, its work can rise, and then fall,
by a multiple of what it began with, as queues move from pool to pool. So each stage in turn is flooded with jobs that
begin there, beside those that arrive as they do, and the work that the jobs in the network still need, requests to come
included, is watched until it has fallen to half of what it was, or has risen to eight times of it. Stable if it falls
from every flood; unstable if it rises from any: a priority order may be safe after one flood and not after another.

Pools differ, and the work of a large one can drain while a small one fails. So from each flood the work of the flooded
stage's own pool has to fall to half as well: what a pool that gets more than it can do still has to do never falls.
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

_PASSES = 8  # initial work, in what fills every batch while a request is decoded
_DELAYS = 4  # initial work, in that of the jobs which delays alone keep in the network
_FEWEST_JOBS = 200
_MOST_JOBS = 2**20
_SAMPLE = 2_000  # jobs, for how their work varies
_LOG_ERROR = math.log(100)  # of a wrong barrier by chance, 1%
_MOST_AGAIN = 2e7  # jobs that may arrive in a larger flood after one that was undecided
_LARGER, _TRIES = 8, 3  # times the flood, where a queue may be normal that is as long
_LEVEL = 2.0  # initial work over the resolution that has arrived when a level that has not risen is taken for normal
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
        work over the resolution; where the work stays level before, the flood is too small to tell, and a larger one is
        tried.
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
            flooded = _Flooded(network, model, stage, resolution, seed, _LARGER**times)
            if times and flooded.most_jobs > _MOST_AGAIN:
                break
            found = flooded.watch(most_jobs, report)
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
        self.network, self.stage, self.pool = network, network.stages[stage], int(network.stage_pool[stage])
        self.jobs_rate = float(model.external.sum())
        self.initial = _initial(network, model, self.stage, self.pool, resolution, seed, times)
        flood = network.flooded(self.stage, self.initial, seed)
        self.source: Iterator[Jobs] = network.blocks(seed)
        self.session = NetworkSession(network, TICK_S, True, NEVER)
        self.gone = np.zeros(len(network.pools))  # tokens of the jobs that are dropped
        self.known = np.zeros((1, len(network.pools)))
        self.jobs = 0
        self._add(Jobs.joined([flood, next(self.source)]))
        self.work, self.work_here = float(self.known[self.initial].sum()), float(self.known[self.initial, self.pool])
        here = self.work_here / float(model.offered[self.pool])
        self.most_jobs = _PATIENCE / resolution * max(here, self.work / float(model.offered.sum())) * self.jobs_rate
        self.steps = _STEPS

    def _add(self, jobs: Jobs) -> None:
        """Let jobs arrive, and note what they bring to each pool."""
        self.session.add(jobs)
        self.known = np.concatenate([self.known, self.known[-1] + np.cumsum(_tokens(self.network, jobs), axis=0)])

    def watch(self, most_jobs: int | None, report: Progress) -> Flood:
        """Run until the work has reached a barrier."""
        patience = (self.most_jobs if most_jobs is None else most_jobs) / self.jobs_rate
        path = [(0.0, 1.0)]
        highest, outcome = 1.0, "undecided"
        level_s = patience * _LEVEL / _PATIENCE
        while path[-1][0] < patience:
            self._go_on()
            time_s, ratio, here = self._look()
            path.append((time_s, ratio))
            highest = max(highest, ratio)
            if max(ratio, here) <= FALLEN:
                outcome = "stable"
                break
            if ratio >= RISEN:
                outcome = "unstable"
                break
            if time_s > level_s and ratio < 1 + _LEVEL / 2 * time_s / level_s:  # less than half of the resolution
                break
            if len(path) > 2 * _LOOKS:
                path, self.steps = path[::2], 2 * self.steps
            report(time_s / patience)
        arrivals = self.jobs + int(self.session.net.state[kernel.NEXT_JOB]) - self.initial
        return Flood(self.stage, outcome, self.initial, arrivals, path[-1][1], highest, np.array(path))  # type: ignore[arg-type]

    def _go_on(self) -> None:
        if self.session.run(False, steps=self.steps):
            done = self.session.fold(everything=False).jobs.count
            self.jobs += done
            self.known = self.known[done:]
            self._add(next(self.source))

    def _look(self) -> tuple[float, float, float]:
        """Return the time, and what work is left over that at the start: in the network, and for the flooded pool."""
        net, time_s = self.session.net, self.session.now * TICK_S
        if not self.network.reuse_is_certain:  # what pools are spared shows when requests arrive
            ratio = self.session.future_tokens / self.work
            return time_s, ratio, ratio
        processed = np.bincount(net.servers[:, kernel.POOL], net.servers[:, kernel.PROCESSED], len(self.gone))
        left = self.known[net.state[kernel.NEXT_JOB]] - processed
        return time_s, float(left.sum()) / self.work, float(left[self.pool]) / self.work_here


def _initial(
    network: Network, model: NetworkModel, stage: str, pool: int, resolution: float, seed: int, times: int
) -> int:
    """Return how many jobs flood a stage.

    So many that their work, at its pool and in all, is a multiple of what the network holds in its batches and delays
    anyway, and that chance moves it to a barrier against a drift of the resolution with a probability of 1% at most:
    exp(-resolution W / (E[S^2] / E[S])), S what an arriving job brings.
    """
    trial = network.flooded(stage, _FEWEST_JOBS, seed)
    brought = _tokens(network, trial).mean(axis=0)
    arriving = _tokens(network, network.jobs(_SAMPLE, seed))
    waits = float(model.offered.sum()) * float(trial.delay_s.sum()) / trial.count  # tokens of jobs that wait for a tool
    pipeline = _pipeline(network)
    jobs = [float(_FEWEST_JOBS)]
    for bring, come, held in (
        (brought.sum(), arriving.sum(axis=1), max(_PASSES * pipeline.sum(), _DELAYS * waits)),
        (brought[pool], arriving[:, pool], _PASSES * pipeline[pool]),
    ):
        chance = _LOG_ERROR / resolution * float((come**2).sum() / max(come.sum(), 1.0))
        jobs.append(times * max(held, chance) / max(float(bring), 1.0))
    return min(math.ceil(max(jobs)), _MOST_JOBS)


def _tokens(network: Network, jobs: Jobs) -> npt.NDArray[np.float64]:
    """Return the forward tokens that each job brings to each pool, without what is sure to be found of its context."""
    engine = np.array([pool.server.convention == "engine" for pool in network.pools.values()])
    pool = network.stage_pool[jobs.stage]
    tokens = jobs.prompt + jobs.output.astype(np.int64) - (engine[pool] & (jobs.prompt > 0) & (jobs.output > 0))
    if network.reuse_is_certain:
        tokens -= np.minimum(jobs.reuse, np.maximum(jobs.prompt - 1, 0))
    count = len(network.pools)
    brought = np.bincount(jobs.job * count + pool, tokens, jobs.count * count).astype(np.float64)
    return brought.reshape(jobs.count, count)


def _pipeline(network: Network) -> npt.NDArray[np.float64]:
    """Return, for each pool, the tokens that its full batches process while a mean request decodes."""
    tokens = []
    for place, pool in enumerate(network.pools.values()):
        decodes = float(network.decode_means[network.stage_pool == place].max())
        tokens.append(pool.replicas * pool.server.token_budget * max(decodes, 1.0))
    return np.array(tokens)
