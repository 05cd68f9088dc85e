"""Is a network stable? Flood each stage in turn and see whether the work drains.

The test of one server watches a slope. A network needs barriers: on its way to empty, its work can
rise, and then fall, by a multiple of what it began with, as queues move from pool to pool. So each
stage in turn is flooded with jobs that begin there, beside those that arrive as they do, and the
work that the jobs in the network still need, requests to come included, is watched until it has
fallen to half of what it was, or has risen to a multiple. Stable if it falls from every flood;
unstable if it rises from any: a priority order may be safe after one flood and not after another.

Pools differ. So work is counted in seconds of the pool that is to do it, and the work of a large
pool can drain while a small one fails: from each flood the work of the flooded stage's own pool has
to fall to half as well, for what a pool that gets more than it can do still has to do never falls.
Of replicas that differ the slow ones may get more than they can do while the others empty, so there
it has to fall to half of what the fewest that are alike got.
The jobs that queue up behind a flood may need more of other pools than those in it, so the upper
barrier is four times the start over the pool's share of all loads.

Work that is done again is no progress: what preempted requests lose, and drafts that are wrong, are
taken off what a pool has processed. A policy that lets decodes wait for prompts can work down a
flood of prompts while decodes pile up, so where batches need not be full and any number of requests
may decode, a stage is flooded a second time, with requests whose prompts are done but for a token.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from penstock.checking.stability import (
    Flood,
    Outcome,
    Stability,
    up_to_unstable,
    with_front_end,
)
from penstock.errors import InputError
from penstock.inputs.arrays import Floats, Ints
from penstock.kernel.due_epochs import NEVER
from penstock.simulation.event_session import EventSession
from penstock.simulation.progress import Progress
from penstock.simulation.run import TICK_S
from penstock.system.network import Network
from penstock.system.network_model import NetworkModel
from penstock.theory.network.demand import network_demand
from penstock.workload.jobs import Jobs

FALLEN = 0.5
"""The lower barrier, in units of the work at the start."""

_RISEN = 4.0  # the upper barrier times the share of all loads that the flooded pool has
_PASSES = 8  # initial work, in what fills every batch while a request is decoded
_NORMAL = 2.0  # of what a network holds anyway, in its batches and delays, what may be left of it
_DELAYS = 4  # initial work, in that of the jobs which delays alone keep in the network
_FEWEST_JOBS = 200
_MOST_JOBS = 2**20
_MOST_FOR_OTHERS = 20_000  # jobs, if only what other pools hold asks for so many
_SAMPLE = 2_000  # jobs, for how their work varies
_LOG_ERROR = math.log(100)  # of a wrong barrier by chance, 1%
# That arrive: half of them in the first flood, half of the rest ...
_MOST_REQUESTS, _LEAST_REQUESTS = (4 * 10**7, 10**6)
_MOST_LOAD = 4.0
_LARGER, _TRIES = 8, 3  # times the flood, where a queue may be normal that is as long
# initial work over the resolution that has arrived when a level that has not risen is taken for
# normal
_LEVEL = 2.0
_PATIENCE = 10.0  # initial work over the resolution: what may arrive before the answer is undecided
_STEPS = 256  # batches between two looks, at first
_STEPS_OF_ONE = 64  # of each replica, where there are so many that it comes to more
_LOOKS = 256  # at the path, about, before it is thinned


def flood_test(
    network: Network,
    resolution: float,
    seed: int,
    most_jobs: int | None,
    progress: Progress,
    *,
    tries: int = _TRIES,
) -> Stability:
    """Flood each stage of a network in turn: see `penstock.verdict`."""
    # With one of ``tries`` a load near its limit whose work stays level is left undecided, in a
    # fraction of the time that larger floods take.
    if network.ends:
        raise InputError(
            "the jobs are recorded and come to an end, so nothing can grow for ever; give them a "
            "rate"
        )
    # The limit of a front end is exact: floods are of what it let in.
    whole, network = network, network.behind_front_ends
    has_front_ends = whole is not network
    model = network.model()
    most = float(model.rho.max())
    if most > _MOST_LOAD:  # more is as unstable, and takes as many more arrivals to see
        network = network.with_load(_MOST_LOAD / most)
        model = network.model()
    visited = np.flatnonzero((model.visits > 0) & (model.prefill + model.decode > 0))
    # Where it fails first.
    stages = sorted(visited.tolist(), key=lambda stage: -model.rho[model.pool[stage]])
    test = _Test(network, model, resolution, seed, most_jobs, tries)
    floods = [functools.partial(test.flood, stage, False) for stage in stages]
    floods += [
        functools.partial(test.flood, stage, True)
        for stage in stages
        if _decodes_may_starve(network, stage)
    ]
    outcome, seen = up_to_unstable(floods, progress)
    stability = Stability(outcome, resolution, floods=seen)
    if not has_front_ends:
        return stability
    return with_front_end(stability, network_demand(whole)[1])


def _decodes_may_starve(network: Network, stage: int) -> bool:
    """Return whether any number of requests of a stage may wait in decode behind prompts."""
    # Not where batches are filled whenever they can be, so that all work counts alike, and not
    # where KV memory or a max batch size bounds those that decode.
    pool = network.pool_list[network.stage_pool[stage]]
    bounded = all(
        server.memory is not None
        or (server.scope == "running" and server.most_requests is not None)
        for server, _ in pool.servers
    )
    if pool.work_conserving or bounded:
        return False
    return bool(network.prefill_means[stage] > 0 and network.decode_means[stage] > 0)


def _flood_of(network: Network, stage: str, count: int, seed: int, decodes: bool) -> Jobs:
    """Return jobs that begin at a stage, if asked for with all of a prompt done but a token."""
    jobs = network.flooded(stage, count, seed)
    if not decodes:
        return jobs
    prompt = jobs.prompt.copy()
    first = jobs.first_request[:-1]
    prompt[first] = np.minimum(prompt[first], 1)
    return dataclasses.replace(jobs, prompt=prompt)


@dataclasses.dataclass
class _Test:
    """What all stages are flooded with, and the requests that may arrive yet."""

    network: Network
    model: NetworkModel
    resolution: float
    seed: int
    most_jobs: int | None
    tries: int
    requests: int = _MOST_REQUESTS

    def flood(self, stage: int, decodes: bool, report: Progress) -> Flood:
        """Flood a stage, again with more if work stays level, with half of the requests left."""
        requests = NEVER
        if self.most_jobs is None:
            requests = max(self.requests // 2, _LEAST_REQUESTS)
        self.requests -= requests
        for times in range(self.tries):
            flooded = _Flooded(
                self.network, self.model, stage, self.resolution, self.seed, _LARGER**times, decodes
            )
            if times and flooded.requests >= requests:
                break
            flood = flooded.watch(self.most_jobs, requests, report)
            requests -= flooded.requests
            if not flooded.level or self.most_jobs is not None or requests <= 0:
                break
        report(1.0)
        return flood


class _Flooded:
    """A network of which one stage is flooded. Work is counted in seconds of its pools."""

    def __init__(
        self,
        network: Network,
        model: NetworkModel,
        stage: int,
        resolution: float,
        seed: int,
        times: int,
        decodes: bool,
    ) -> None:
        self.network = network
        self.decodes = decodes
        self.stage = network.stages[stage]
        self.pool = int(network.stage_pool[stage])
        self.capacity = model.capacity
        self.jobs_rate = float(model.external.sum())
        self.source: Iterator[Jobs] = network.blocks(seed)
        first = next(self.source)
        count = min(_SAMPLE, model.sampled or _SAMPLE)
        sample = first.first(count) if count <= first.count else network.jobs(count, seed)
        self.initial, self.normal = self._size(model, resolution, seed, times, sample)
        self.session = EventSession(network, TICK_S, True, NEVER)
        # Seconds that the jobs known bring to each pool, summed up.
        self.known = np.zeros((1, len(network.pools)))
        self.requests = 0
        self.level = False
        keep = self.session.keep  # those that can be served
        flood = keep(_flood_of(network, self.stage, self.initial, seed, decodes))
        if not flood.count:
            raise InputError(
                f"none of {self.initial:,} jobs that begin at {self.stage!r} can ever be served; "
                "raise the KV memory of its pool, or shorten the requests"
            )
        self.initial = flood.count
        self._add(Jobs.joined([flood, keep(first)]))
        brought = self.known[self.initial]
        self.work, self.work_here = float(brought.sum()), float(brought[self.pool])
        self.fallen_here = FALLEN / _fewest_alike(network, self.pool)
        share = float(model.rho[self.pool] / model.rho.sum())
        # Jobs behind the flood may need more of other pools than the flooded ones did.
        self.risen = _RISEN / share
        self.patience_s = (
            _PATIENCE / resolution * max(self.work_here / model.rho[self.pool], share * self.work)
        )

    def _size(
        self, model: NetworkModel, resolution: float, seed: int, times: int, sample: Jobs
    ) -> tuple[int, float]:
        """Return how many jobs flood the stage, and the seconds of work that is held anyway."""
        # The flood brings its pool a multiple of what that holds in batches and delays, and so much
        # that chance moves it to a barrier against a drift of the resolution with a probability of
        # 1% at most: exp(-resolution W E[S]/E[S^2]), S what an arriving job brings.
        network, pool = self.network, self.pool
        trial = _flood_of(network, self.stage, _FEWEST_JOBS, seed, self.decodes)
        brought = _tokens(network, trial).mean(axis=0)
        arriving = _tokens(network, sample)[:, pool]
        delay_s = float(trial.wait_s.sum()) / trial.count  # of tools, while jobs wait in no batch
        pipeline = _pipeline(network)
        held = np.minimum(model.rho, 1.0) * (pipeline + model.offered * delay_s) / model.capacity
        normal = _NORMAL * float(held.sum())
        chance = _LOG_ERROR / resolution * float((arriving**2).sum() / max(arriving.sum(), 1.0))
        work = max(
            _PASSES * float(pipeline[pool]), _DELAYS * float(model.offered[pool]) * delay_s, chance
        )
        times *= math.ceil(_fewest_alike(network, pool))
        jobs = max(
            times * work / max(float(brought[pool]), 1.0),
            min(_PASSES * normal / float((brought / model.capacity).sum()), _MOST_FOR_OTHERS),
        )
        return min(max(math.ceil(jobs), _FEWEST_JOBS), _MOST_JOBS), normal

    def _add(self, jobs: Jobs) -> None:
        """Let jobs arrive, and note what they bring to each pool."""
        self.session.add(jobs)
        self.requests += jobs.requests
        seconds = np.cumsum(_tokens(self.network, jobs), axis=0) / self.capacity
        self.known = np.concatenate([self.known, self.known[-1] + seconds])

    def watch(self, most_jobs: int | None, most_requests: int, report: Progress) -> Flood:
        """Run until the work has reached a barrier."""
        patience_s = self.patience_s if most_jobs is None else most_jobs / self.jobs_rate
        level_s = patience_s * _LEVEL / _PATIENCE
        path = [(0.0, 1.0)]
        steps = max(_STEPS, _STEPS_OF_ONE * int(self.network.replicas.sum()))
        highest = 1.0
        outcome: Outcome = "undecided"
        while path[-1][0] < patience_s and self.requests < most_requests:
            self._go_on(steps)
            time_s, ratio, here, fallen = self._look()
            path.append((time_s, ratio))
            highest = max(highest, ratio)
            if here <= self.fallen_here and fallen:
                outcome = "stable"
                break
            if ratio >= self.risen:
                outcome = "unstable"
                break
            # What stays level may be a normal queue: then the flood was too small to tell.
            half_the_resolution = _LEVEL / 2 * time_s / level_s
            self.level = time_s > level_s and max(ratio, here) < 1 + half_the_resolution
            if self.level:
                break
            # Ever more batches to a look, so that the looks stay few.
            if len(path) > 2 * _LOOKS:
                path = path[::2]
                steps *= 2
            report(time_s / patience_s)
        arrivals = max(self.session.arrived - self.initial, 0)
        return Flood(
            self.stage, outcome, self.initial, arrivals, path[-1][1], highest, self.risen,
            np.array(path), self.decodes,
        )  # fmt: skip

    def _go_on(self, steps: int) -> None:
        if self.session.run(False, steps=steps):
            rows, _ = self.session.fold(everything=False)
            self.known = self.known[rows.jobs.count :]
            self._add(self.session.keep(next(self.source)))

    def _look(self) -> tuple[float, float, float, bool]:
        """Return the time, the share of work left in all and for the pool, and whether it fell."""
        time_s = self.session.now * TICK_S
        left = self.known[self.session.arrived_jobs] - useful_tokens(self.session) / self.capacity
        # What pools were spared shows when requests arrive.
        if not self.network.reuse_is_certain:
            left *= self.session.future_tokens / max(float(left @ self.capacity), 1.0)
        total = float(left.sum())
        fallen = total <= FALLEN * self.work + self.normal
        return time_s, total / self.work, float(left[self.pool]) / self.work_here, fallen


def useful_tokens(session: EventSession) -> Ints:
    """Return the tokens that each pool has processed for good, shape (pools,)."""
    # Not what preempted requests lose and wrong drafts: a pool may be busy with both for ever. What
    # an engine found computed is done.
    useless = (
        session.by_replica("lost") + session.by_replica("rejections") - session.by_replica("reused")
    )
    of_pools = np.bincount(session.pool_of_replica, useless, len(session.pools))
    return np.asarray(session.processed - of_pools.astype(np.int64), np.int64)


def _fewest_alike(network: Network, pool: int) -> float:
    """Return how many times as many replicas a pool has as it has of the kind with the fewest."""
    counts = [count for _, count in network.pool_list[pool].servers]
    return sum(counts) / min(counts)


def _tokens(network: Network, jobs: Jobs) -> Floats:
    """Return each job's forward tokens at each pool, without what its context surely spares."""
    jobs = network.within_context(jobs)
    tokens = jobs.prompt.astype(np.int64) + network.decodes(jobs)
    tokens -= network.surely_found(jobs)
    pool, count = network.stage_pool[jobs.stage], len(network.pools)
    brought = np.bincount(jobs.job * count + pool, tokens, jobs.count * count).astype(np.float64)
    return brought.reshape(jobs.count, count)


def _pipeline(network: Network) -> Floats:
    """Return the tokens that each pool's full batches process while a mean request decodes."""
    tokens = []
    for index, pool in enumerate(network.pools.values()):
        decodes = float(network.decode_means[network.stage_pool == index].max())
        budget = sum(count * server.token_budget for server, count in pool.servers)
        tokens.append(budget * max(decodes, 1.0))
    return np.array(tokens)
