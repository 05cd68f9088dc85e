"""A finite job on one fleet: each replica simulated to its end, and what theory asks at least."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.checking.targets import Estimate, Judgement, Target, share
from penstock.inputs.arrays import Bools
from penstock.planning.aim import together
from penstock.planning.deployment import Deployment
from penstock.simulation.distribution import Distribution
from penstock.simulation.intervals import merged, student
from penstock.simulation.run import Run, recorded
from penstock.simulation.simulate import simulate
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.workload.arrivals import BLOCK
from penstock.workload.lengths import Tokens
from penstock.workload.pairs import Empirical, Recorded
from penstock.workload.workload import Requests, Workload

Mode = Literal["alone", "priority", "paced"]

PACED_SHARE = 0.95
"""Of the time until the deadline, over which a paced job is let in at most."""

_MOST_KEPT = (
    30_000_000  # lengths of requests, 16 bytes each, that are not drawn anew for each fleet
)


@dataclasses.dataclass(frozen=True, eq=False)
class JobResult:
    """One fleet that works on the job."""

    deployment: Deployment
    mode: Mode  # `alone`, or how it works beside online traffic: `priority` or `paced`
    # Seconds until the last request is done: the mean of the runs, and an interval that holds the
    # next one.
    makespan: Estimate
    lower_bound_s: float  # that no policy on as many replicas can undercut
    tokens_per_s: float  # forward tokens of the job over its makespan, all replicas
    online: tuple[Estimate, ...]  # for each target, of the requests that arrive while the job lasts
    answer: Judgement  # whether the deadline, and the targets of the online traffic, are met
    runs: int
    beside: int = 0  # runs in which online requests came while the job lasted

    @property
    def accelerator_hours(self) -> float:
        """Accelerator-hours from the start until the job is done."""
        return self.deployment.total_accelerators * (self.makespan.value or math.inf) / 3600

    @property
    def cost(self) -> float:
        """Price of the accelerators until the job is done."""
        return self.accelerator_hours * self.deployment.price

    @property
    def tightness(self) -> float:
        """The lower bound as a share of the makespan."""
        return self.lower_bound_s / (self.makespan.value or math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "deployment": self.deployment.as_dict(),
            "mode": self.mode,
            "makespan_s": self.makespan.as_dict(),
            "lower_bound_s": self.lower_bound_s,
            "tightness": self.tightness,
            "tokens_per_s": self.tokens_per_s,
            "accelerator_hours": self.accelerator_hours,
            "price": self.cost,
            "online": [estimate.as_dict() for estimate in self.online],
            "answer": self.answer,
            "runs": self.runs,
            "runs_with_online": self.beside,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What has to be done."""

    workload: Workload
    requests: int
    deadline_s: float
    online: Workload | None
    targets: tuple[Target, ...]
    runs: int
    confidence: float

    @property
    def recorded(self) -> bool:
        """Whether the job is a recording, taken as it is."""
        return isinstance(self.workload.lengths, Recorded) and self.workload.rows == self.requests

    @property
    def seeds(self) -> range:
        """Of the runs."""
        return range(1 if self.recorded and self.online is None else self.runs)

    def lengths(self, seed: int) -> tuple[Tokens, Tokens]:
        """Return prompt and output tokens of the job, shape (requests,) each."""
        if seed not in self._drawn:
            drawn = self._draw(seed)
            if self.runs * self.requests > _MOST_KEPT:
                return drawn
            self._drawn[seed] = drawn
        return self._drawn[seed]

    @functools.cached_property
    def _drawn(self) -> dict[int, tuple[Tokens, Tokens]]:
        return {}

    def _draw(self, seed: int) -> tuple[Tokens, Tokens]:
        lengths = self.workload.lengths
        if isinstance(lengths, Recorded):
            if self.recorded:
                return lengths.prompt_tokens, lengths.output_tokens
            lengths = Empirical(lengths.prompt_tokens, lengths.output_tokens)
        return lengths.sample(np.random.default_rng((self.workload.seed, 8, seed)), self.requests)

    def likely(self, server: Server, work: float) -> int:
        """Return the replicas that such work and online traffic take in the long run, at least."""
        load = (
            0.0 if self.online is None else self.online.rate / certify(self.online, server).max_rate
        )
        return max(1, math.ceil((work / self.deadline_s + load) * (1 - 1e-12)))

    def work_s(self, server: Server) -> float:
        """Return the seconds that one replica takes at least for all of the job, in any run."""
        return min(work_s(*self.lengths(seed), server) for seed in self.seeds)


def work_s(prompt: npt.NDArray[Any], output: npt.NDArray[Any], server: Server) -> float:
    """Return the seconds that one replica takes for some requests at least, under any policy."""
    # Token budget, max batch size and KV memory each bound requests/s by what a server conserves
    # (`penstock.theory.bounds`), whenever they arrive: so many take so many seconds.
    rows = max(prompt.size, 2)  # one has no arrival rate
    even = Workload.from_arrays(
        np.arange(rows, dtype=np.float64), np.resize(prompt, rows), np.resize(output, rows)
    )
    return float(prompt.size / certify(even, server).max_rate)


def longest_s(prompt: npt.NDArray[Any], output: npt.NDArray[Any], server: Server) -> float:
    """Return the seconds that the longest of some requests takes at least, alone on a replica."""
    seconds = server.batch_time.table(server.most_tokens)[1:]
    decodes = output - (1 if server.convention == "engine" else 0)
    per_token = float((seconds / np.arange(1, seconds.size + 1)).min())
    return float((prompt * per_token + decodes * float(seconds.min())).max())


def simulate_job(job: Job, deployment: Deployment, mode: Mode) -> JobResult:
    """Simulate every replica of a fleet until the job is done, once for each seed."""
    server = deployment.server
    if mode == "priority":
        server = dataclasses.replace(server, order="priority")
    replicas = deployment.replicas
    makespans: list[float] = []
    statistics: list[list[float]] = []
    tokens = 0.0
    least = math.inf
    beside = 0
    for seed in job.seeds:
        prompt, output = job.lengths(seed)
        # each replica gets its turn of the job, and its share of the online requests
        ends: list[float] = []
        samples: list[_Sample] = []
        for replica in range(min(replicas, job.requests)):
            part = slice(replica, None, replicas)
            end, online = _replica(
                job, server, mode, prompt[part], output[part], (seed, replica, replicas)
            )
            ends.append(end)
            samples += online
        makespans.append(max(ends))
        beside += any(chosen.any() for _, chosen in samples)
        statistics.append([_statistic(samples, target) for target in job.targets])
        tokens += (
            float(server.tokens_per_request(prompt.mean(), output.mean()))
            * job.requests
            / max(ends)
        )
        least = min(
            least, max(work_s(prompt, output, server) / replicas, longest_s(prompt, output, server))
        )
    makespan = _estimate(makespans, job.confidence, of_next=True)
    low = max(makespan.low or 0.0, min(least, *makespans))  # theory allows no less
    makespan = dataclasses.replace(makespan, low=low)
    estimates = tuple(_estimate(values, job.confidence) for values in zip(*statistics, strict=True))
    judgements = [Target("e2e_s", "mean", job.deadline_s).judge(makespan)]
    for target, estimate in zip(job.targets, estimates, strict=True):
        if estimate.value is not None:  # where no online request came, none was too slow
            judgements.append(target.judge(estimate))
    runs = len(makespans)
    fleet = dataclasses.replace(deployment, server=server)
    answer = together(judgements)
    return JobResult(fleet, mode, makespan, least, tokens / runs, estimates, answer, runs, beside)


_Sample = tuple[Run, npt.NDArray[np.bool_]]
"""A run of a replica, and which of its requests are the online ones while the job lasts."""


def _replica(
    job: Job,
    server: Server,
    mode: Mode,
    prompt: npt.NDArray[Any],
    output: npt.NDArray[Any],
    draw: tuple[int, int, int],
) -> tuple[float, "list[_Sample]"]:
    """Return when a replica is done with its part, s, and its run with online requests beside."""
    size = prompt.size
    if job.online is None:
        run = simulate(
            Workload.from_arrays(np.zeros(size), prompt, output), server, record="summary"
        )
        return run.seconds, []
    seed, replica, n = draw
    online = job.online.with_rate(job.online.rate / n)
    arrived = arrivals_within(online, job.deadline_s, (job.online.seed, seed, replica))
    released: npt.NDArray[np.floating[Any]] = np.zeros(size)
    if mode == "paced":  # the last ones need time to finish
        left = max(job.deadline_s - 2 * longest_s(prompt, output, server), 0.0)
        released = np.arange(size) * (min(PACED_SHARE * job.deadline_s, left) / size)
    times = np.concatenate([released, arrived.arrival_s])
    order = np.argsort(times, kind="stable")
    urgent = np.concatenate([np.ones(size, np.int32), np.zeros(arrived.arrival_s.size, np.int32)])
    columns = (
        np.concatenate([prompt, arrived.prompt_tokens]),
        np.concatenate([output, arrived.output_tokens]), urgent,
    )  # fmt: skip
    run = simulate(
        Workload.from_arrays(times[order], *(column[order] for column in columns)),
        server,
        drain=True,
    )
    rows = run.rows
    assert rows is not None
    mine = urgent[order] == 1
    end = int(rows.finish[mine].max())
    return end * run.tick_s, [(run, ~mine & (rows.arrival <= end) & (rows.finish >= 0))]


def arrivals_within(workload: Workload, seconds: float, seeds: tuple[int, ...]) -> Requests:
    """Return the requests of a stream that arrive in so many seconds from 0."""
    # A stream's first is at 0, which traffic that goes on has not: so they begin at a random time
    # of the first half block.
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    start = np.random.default_rng((seed, 1)).uniform(0, BLOCK / 2) / workload.rate
    parts = []
    for block in workload.with_seed(seed).blocks():
        first, end = np.searchsorted(block.arrival_s, [start, start + seconds])
        part = block.where(slice(int(first), int(end)))
        parts.append(part._replace(arrival_s=part.arrival_s - start))
        if block.arrival_s[-1] >= start + seconds:
            break
    return Requests.joined(parts)


def _statistic(parts: Sequence[_Sample], target: Target) -> float:
    """Return a statistic of online requests, seconds; NaN where there are none."""
    tick_s = parts[0][0].tick_s
    if target.metric == "tbt_s" and target.statistic == "mean":
        ticks, gaps = (sum(both) for both in zip(*(decoding(*part) for part in parts), strict=True))
        return ticks / gaps * tick_s if gaps else math.nan
    whole = merged([samples(*part, target.metric) for part in parts])
    return statistic_s(whole, target.statistic, tick_s) if whole.size else math.nan


def decoding(run: Run, chosen: Bools) -> tuple[int, int]:
    """Return the ticks between output tokens of some requests, all together, and how many."""
    rows = recorded(run.rows, "requests").where(chosen)
    gaps = int(rows.output_tokens.sum(dtype=np.int64)) - rows.arrival.size
    return int((rows.finish - rows.first_token).sum()), gaps


def samples(run: Run, chosen: Bools, metric: str) -> Distribution:
    """Return latencies of some requests in ticks; times between tokens are those of all."""
    if metric == "tbt_s":
        return run.gaps
    rows = recorded(run.rows, "requests").where(chosen)
    if metric == "tpot_s":
        return Distribution.of(rows.tpot)
    until = rows.first_token if metric == "ttft_s" else rows.finish
    return Distribution.of(until - rows.arrival)


def statistic_s(samples: Distribution, statistic: str, tick_s: float) -> float:
    """Return the mean or a percentile of samples in ticks, seconds."""
    return (samples.mean if statistic == "mean" else samples.quantile(share(statistic))) * tick_s


def _estimate(values: Sequence[float], confidence: float, *, of_next: bool = False) -> Estimate:
    """Return the mean of runs with its interval, or the next run's; exact where all agree."""
    finite = np.array(values)[np.isfinite(values)]
    if not finite.size:
        return Estimate(None)
    mean = float(finite.mean())
    if finite.size == 1:
        return Estimate(mean, mean, mean)
    spread = float(finite.std(ddof=1)) * math.sqrt((1 if of_next else 0) + 1 / finite.size)
    half = student(confidence, finite.size) * spread
    return Estimate(mean, max(mean - half, 0.0), mean + half)
