"""A finite job on one fleet: each replica simulated to its end, and what theory asks at least."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from penstock import checks
from penstock.checking.goodput import samples, statistic_s
from penstock.checking.targets import Estimate, Judgement, Target, parsed_targets
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.inputs.arrays import Bools, Floats
from penstock.planning.aim import CONFIDENCE, together
from penstock.planning.deployment import Deployment
from penstock.planning.rates import HOUR_S
from penstock.show.answers import Meaning, computed, texts
from penstock.simulation.intervals import merged, student
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.simulation.simulate import simulate
from penstock.system.pool import MOST_REPLICAS
from penstock.system.server import Server
from penstock.theory.certify import certify
from penstock.workload.arrivals import BLOCK
from penstock.workload.jobs import Requests
from penstock.workload.lengths import Recorded, Tokens
from penstock.workload.workload import Workload

Mode = Literal["alone", "priority", "paced"]

PACED_SHARE = 0.95
"""Of the time until the deadline, over which a paced job is let in at most."""

_MOST_ROWS = 5_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class JobResult:
    """One fleet that works on the job."""

    deployment: Annotated[Deployment, Meaning("The fleet.")]
    mode: Annotated[Mode, Meaning(
        "``alone``, or how it works beside online traffic: ``priority`` or ``paced``."
    )]  # fmt: skip
    makespan: Annotated[Estimate, Meaning(
        "Seconds until the last request is done: the mean of the runs, and an interval that holds "
        "the next one.",
        key="makespan_s",
    )]  # fmt: skip
    lower_bound_s: Annotated[float, Meaning("That no policy on as many replicas can undercut.")]
    tokens_per_s: Annotated[
        float, Meaning("Forward tokens of the job over its makespan, all replicas.")
    ]
    online: Annotated[tuple[Estimate, ...], Meaning(
        "For each target, of the requests that arrive while the job lasts."
    )]  # fmt: skip
    answer: Annotated[Judgement, Meaning(
        "Whether the deadline, and the targets of the online traffic, are met."
    )]  # fmt: skip
    runs: Annotated[int, Meaning("Simulated.")]
    beside: Annotated[int, Meaning(
        "Runs in which online requests came while the job lasted.", key="runs_with_online"
    )] = 0  # fmt: skip

    @property
    def seconds(self) -> float:
        """Mean of the makespans, s."""
        return self.makespan.value or math.inf

    @computed()
    def accelerator_hours(self) -> float:
        """Accelerator-hours from the start until the job is done."""
        return self.deployment.total_accelerators * self.seconds / HOUR_S

    @computed(key="price")
    def cost(self) -> float:
        """Price of the accelerators until the job is done."""
        return self.accelerator_hours * self.deployment.kind.price

    @computed()
    def tightness(self) -> float:
        """The lower bound as a share of the makespan."""
        return self.lower_bound_s / self.seconds


_KEPT = "each keeps a row in memory; of a longer job plan a part, with its part of the time"
_REQUESTS = Range(1, _MOST_ROWS, "", _KEPT, "the requests of the job")
_DEADLINE = Range(1e-3, 1e9, "s", "the job has to be done by then")
_RUNS = Range(2, 1_000, "", "an interval takes at least two")
_REPLICAS = Range(1, MOST_REPLICAS, "", "the fleet has no more")


@dataclasses.dataclass(frozen=True, eq=False)
class Job(Checked):
    """What has to be done, and with what at most."""

    workload: Workload  # a recording of as many requests is taken as it is, else rows are drawn
    requests: Annotated[int, _REQUESTS, Meaning("Of the job.")]
    deadline_s: Annotated[float, _DEADLINE, Meaning("By when it has to be done.")]
    online: Workload | None = None  # traffic beside it, at the rate of the whole fleet
    # Percentiles of `tbt` are of online requests and the job together.
    targets: Annotated[tuple[Target, ...], Meaning("Of online requests.", data=texts)] = ()
    # Each draws requests anew (a recording as it is: one run), for an interval that holds the next
    # with this confidence.
    runs: Annotated[int, _RUNS] = 5
    confidence: Annotated[float, CONFIDENCE] = 0.95
    token_budgets: Sequence[int] = ()  # without any, each server's own and usual ones
    most_replicas: Annotated[int, _REPLICAS] | None = None  # None: as many as the fleets have

    def settle(self) -> None:
        """Refuse more requests than fit, and targets without traffic."""
        object.__setattr__(self, "targets", tuple(parsed_targets(self.targets)))
        if bool(self.targets) != (self.online is not None):
            raise InputError(
                "targets of a job are those of its online traffic; give both `online` and "
                "`targets`, or none"
            )
        drawn = self.runs * self.requests
        checks.number("the requests of all runs", drawn, 1, 5 * _MOST_ROWS, "", _KEPT)
        if self.online is not None:
            beside = self.online.rate * self.deadline_s
            what = "the number of online requests until the deadline"
            checks.number(what, beside, 0, _MOST_ROWS, "", _KEPT)

    @computed()
    def online_rate(self) -> float | None:
        """Requests/s of online traffic of the whole fleet; None: there is none."""
        return None if self.online is None else self.online.rate

    @functools.cached_property
    def stream(self) -> Workload | None:
        """The online traffic; requests of a recording are drawn at random."""
        if self.online is None or self.online.rows is None:
            return self.online
        return self.online.with_rate(self.online.rate, "poisson")

    @functools.cached_property
    def drawn(self) -> tuple[tuple[Tokens, Tokens], ...]:
        """Prompt and output tokens of the job, shape (requests,) each, of every run."""
        lengths, seed = self.workload.lengths, self.workload.seed
        if isinstance(lengths, Recorded) and self.workload.rows == self.requests:
            alike = 1 if self.online is None else self.runs
            return ((lengths.prompt_tokens, lengths.output_tokens),) * alike
        draws = (np.random.default_rng((seed, 8, run)) for run in range(self.runs))
        return tuple(lengths.at_random().sample(draw, self.requests) for draw in draws)

    def likely(self, server: Server, work: float) -> int:
        """Return the replicas that such work and online traffic take in the long run, at least."""
        load = 0.0
        if self.stream is not None:
            load = self.stream.rate / certify(self.stream, server).max_rate
        return max(1, math.ceil((work / self.deadline_s + load) * (1 - 1e-12)))

    def work_s(self, server: Server) -> float:
        """Return the seconds that one replica takes at least for all of the job, in any run."""
        return min(work_s(*lengths, server) for lengths in self.drawn)

    def longest_s(self, server: Server) -> float:
        """Return the seconds that the longest request takes at least, alone, in the worst run."""
        return max(longest_s(*lengths, server) for lengths in self.drawn)


def work_s(prompt: Tokens, output: Tokens, server: Server) -> float:
    """Return the seconds that one replica takes for some requests at least, under any policy."""
    # Token budget, max batch size and KV memory each bound requests/s by what a server conserves
    # (`penstock.theory.limits`), whenever they arrive: so many take so many seconds.
    rows = max(prompt.size, 2)  # one has no arrival rate
    even = Workload.from_arrays(
        np.arange(rows, dtype=np.float64), np.resize(prompt, rows), np.resize(output, rows)
    )
    return float(prompt.size / certify(even, server).max_rate)


def longest_s(prompt: Tokens, output: Tokens, server: Server) -> float:
    """Return the seconds that the longest of some requests takes at least, alone on a replica."""
    seconds = server.batch_time.table(server.most_tokens)[1:]
    decodes = output - server.outputs_of_prefill
    per_token = float((seconds / np.arange(1, seconds.size + 1)).min())
    return float((prompt * per_token + decodes * float(seconds.min())).max())


def simulate_job(job: Job, deployment: Deployment, mode: Mode) -> JobResult:
    """Simulate every replica of a fleet until the job is done, once for each seed."""
    kind = deployment.kind
    if mode == "priority":
        urgent = dataclasses.replace(kind.server, order="priority")
        kind = dataclasses.replace(kind, server=urgent)
    server, replicas = kind.server, deployment.replicas
    makespans: list[float] = []
    bounds: list[float] = []
    rates: list[float] = []
    statistics: list[list[float]] = []
    beside = 0
    for run, (prompt, output) in enumerate(job.drawn):
        # each replica gets its turn of the job, and its share of the online requests
        ends: list[float] = []
        online: list[_Sample] = []
        for replica in range(min(replicas, job.requests)):
            mine = slice(replica, None, replicas)
            draw = run, replica, replicas
            end, sample = _replica(job, server, mode, prompt[mine], output[mine], draw)
            ends.append(end)
            online += sample
        makespans.append(max(ends))
        beside += any(chosen.any() for _, chosen in online)
        statistics.append([_statistic(online, target) for target in job.targets])
        tokens = float(server.tokens_per_request(prompt.mean(), output.mean()))
        rates.append(tokens * job.requests / max(ends))
        work = work_s(prompt, output, server) / replicas
        bounds.append(max(work, longest_s(prompt, output, server)))
    makespan = _estimate(makespans, job.confidence, of_next=True)
    least = min(bounds)
    low = max(makespan.low or 0.0, min(least, *makespans))  # theory allows no less
    makespan = dataclasses.replace(makespan, low=low)
    estimates = tuple(_estimate(values, job.confidence) for values in zip(*statistics, strict=True))
    judgements = [Target("e2e_s", "mean", job.deadline_s).judge(makespan)]
    for target, estimate in zip(job.targets, estimates, strict=True):
        if estimate.value is not None:  # where no online request came, none was too slow
            judgements.append(target.judge(estimate))
    return JobResult(
        dataclasses.replace(deployment, kind=kind), mode, makespan, least,
        sum(rates) / len(rates), estimates, together(judgements), len(makespans), beside,
    )  # fmt: skip


_Sample = tuple[Run, Bools]
"""A run of a replica, and which of its requests are the online ones while the job lasts."""


def _replica(
    job: Job, server: Server, mode: Mode, prompt: Tokens, output: Tokens, draw: tuple[int, int, int]
) -> tuple[float, list[_Sample]]:
    """Return when a replica is done with its part, s, and its run with online requests beside."""
    size = prompt.size
    if job.stream is None:
        alone = Workload.from_arrays(np.zeros(size), prompt, output)
        return simulate(alone, server, record="summary").seconds, []
    seed, replica, n = draw
    share = job.stream.with_rate(job.stream.rate / n)
    arrived = arrivals_within(share, job.deadline_s, (share.seed, seed, replica))
    released: Floats = np.zeros(size)
    if mode == "paced":  # the last ones need time to finish
        left = max(job.deadline_s - 2 * longest_s(prompt, output, server), 0.0)
        lasts = min(PACED_SHARE * job.deadline_s, left)
        released = np.arange(size, dtype=np.float64) * (lasts / size)
    times = np.concatenate([released, arrived.arrival_s])
    order = np.argsort(times, kind="stable")
    urgent = np.repeat(np.array([1, 0], np.int32), [size, arrived.arrival_s.size])[order]
    prompt, output = (
        np.concatenate(both)[order]
        for both in ((prompt, arrived.prompt_tokens), (output, arrived.output_tokens))
    )
    run = simulate(Workload.from_arrays(times[order], prompt, output, urgent), server, drain=True)
    rows = recorded(run.rows, "requests")
    end = int(rows.finish[urgent == 1].max())
    online = (urgent == 0) & (rows.arrival <= end) & (rows.finish >= 0)
    return end * run.tick_s, [(run, online)]


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
