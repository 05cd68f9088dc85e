"""Is it stable? A sequential test of the drift from a large backlog, with the error probability
asked for.

A slope fitted to a queue that starts empty misleads: near the critical load a stable queue climbs
for hours on its way to its steady state. Under a large backlog the question is simpler: does the
backlog shrink? So the test starts with more work than it will watch come or go, lets everything
leave that was put there (an unnatural start drains at an unnatural rate), and then watches the work
V until it has moved by a barrier,

    h = E[S^2] / E[S] ln(1/alpha - 1) / (2 eps),

Wald's sequential probability ratio test of a drift of +eps against -eps, as a share of the work
that arrives (S the forward tokens of a request, eps the resolution). V counts arriving work at its
mean rate instead of as it came (a control variate: how much arrives has nothing to do with the
policy), so nearly all noise is gone and a tenth of h does.

V counts seconds of the batches that carry the most (the prices of `penstock.theory.region`, and
with attention theorem 1(b) in `penstock.theory.attention`), in units of the mean over the tokens of
a request. Few tokens may be most of the work: a policy that starves decodes gets through tokens
fast, and falls behind; and one that serves one phase for long, then the other (MaxWeight), lets
tokens pile up and fall by turns, but gets through seconds at one pace. Requests of as many tokens
take unequal times of attention: that variance is counted in full.

What noise is left, and the cycles that a policy may run through, are seen in the path itself: it is
watched at least until the requests that were being decoded are replaced, and until the confidence
interval of its slope, from ten segments, does not hold 0, and neither phase goes the other way: if
prompts and decodes are both done faster than they come, the server carries them; if one is, it is
the policy's turn to that one. A backlog that leaves altogether counts as served, unless a lull of
the arrivals explains it; then the test begins anew with a larger one.

It runs from three backlogs: all of it prompts; prompts beside requests at every stage of their
decode in the slots of a batch; and all of it decodes, in step. Stable if all shrink, unstable if
any grows. It needs nothing but arrivals with a rate, so it answers for any policy, limits and
lengths. Recordings are repeated.
"""

import dataclasses
import functools
import math

import numpy as np

from penstock.checking.backlog import (
    FEWEST_LOOKS,
    Backlog,
    Path,
    PerPhase,
    Start,
    endless,
    slots,
    waits_as_prompts,
)
from penstock.checking.stability import (
    Outcome,
    Stability,
    Watch,
    up_to_unstable,
    with_front_end,
)
from penstock.errors import InputError
from penstock.inputs import special_functions as special
from penstock.inputs.arrays import Floats
from penstock.simulation.progress import Progress
from penstock.system.server import Server
from penstock.theory.attention import attention_of, beside_prefill
from penstock.theory.kv_blocks import fits, reuses
from penstock.theory.load import Load, demand_of, load
from penstock.theory.region import region
from penstock.workload.jobs import Requests
from penstock.workload.workload import Workload

MOST_INITIAL = 2**20
"""Most requests in an initial backlog."""

_CONTROLLED = 0.1  # share of h that is needed with the control variate
_LEAST_PATIENCE = 20_000  # arrivals
# what the initial backlog leaves behind is unnatural too: decodes leave prompts, prompts decodes
_GENERATIONS = 2
_SLOTS = 2  # initial requests to every slot of a batch
_SLOTS_WHERE_LONG = 32  # the same, where long queues may be normal
_LEAST_LOAD = 0.1
# of what the best batches carry; more is as unstable, and takes as many more arrivals to see
_MOST_LOAD = 20
_LEAST_SHARE = 1e-3  # of requests that are not dropped
_LARGER = 4  # times the backlog, where one was gone too soon
_PATIENCE = 20  # initial backlogs that may arrive meanwhile: a policy can keep a request for ever
_SEGMENTS = 10  # of the path, for the interval of the drift


def drift_test(
    workload: Workload,
    server: Server,
    alpha: float,
    resolution: float,
    most_arrivals: int | None,
    progress: Progress,
) -> Stability:
    """Test a server from each backlog: see `penstock.verdict`; ``workload`` has the seed."""
    # The limit of a front end is exact: backlogs are of what it let in.
    test = _Test.of(workload, server.behind_front_end, alpha, resolution, most_arrivals)
    starts: tuple[Start, ...] = ("prefill", "mixed", "decode") if test.decodes > 0 else ("prefill",)
    outcome, watches = up_to_unstable(
        [functools.partial(test.watch, start) for start in starts], progress
    )
    stability = Stability(outcome, resolution, watches, alpha=alpha)
    if server.front_end is None:
        return stability
    return with_front_end(stability, [demand_of(load(workload, server))])


@dataclasses.dataclass(frozen=True)
class _Test:
    """What all backlogs are tested with.

    Load; tokens/s offered by phase; tokens of a request in all, in its prompt, in decode; barriers
    without and with the control variate; what tokens of each phase count; how many requests arrive
    while slots full of decodes serve those of one.
    """

    workload: Workload
    server: Server
    alpha: float
    rho: float
    offered: PerPhase
    forward: float
    prompt: float
    decodes: float
    plain_barrier: float
    barrier: float
    most_arrivals: int
    worth: PerPhase
    arrivals_beside: float

    @classmethod
    def of(
        cls,
        workload: Workload,
        server: Server,
        alpha: float,
        resolution: float,
        most_arrivals: int | None,
    ) -> "_Test":
        demand = load(workload, server)
        work = demand.work  # those that are dropped are no load
        if work.share < _LEAST_SHARE:
            raise InputError(
                f"{1 - work.share:.3%} of the requests never fit and are dropped, which leaves too "
                "few to judge; raise the KV memory"
            )
        sample = next(endless(workload))
        output = server.policy.outputs_of(sample.prompt_tokens, sample.output_tokens)
        sample = sample._replace(output_tokens=output)
        sample = sample.where(np.flatnonzero(fits(sample.prompt_tokens, output, server)))
        prompt = work.lengths.mean_prompt
        mean = server.tokens_per_request(prompt, work.lengths.mean_output)
        decodes = max(mean - prompt, 0.0)  # without any, rounding may leave less
        worth, noise, decode_s = _worth_of(sample, server, demand, prompt, decodes)
        variance = float(np.mean(_weighed(sample, server, worth) ** 2))
        # Tokens for a variance of 1 token^2.
        barrier_of = math.log(1 / alpha - 1) / (2 * resolution) / mean
        plain = (variance + noise) * barrier_of
        if most_arrivals is None:
            most_arrivals = max(math.ceil(4 * plain / (resolution * mean)), _LEAST_PATIENCE)
        most_rate = _MOST_LOAD * demand.max_rate
        if workload.rate > most_rate:
            workload = workload.with_rate(most_rate)
        rate = workload.rate * work.share
        return cls(
            workload,
            server,
            alpha,
            rho=demand.rho,
            offered=(rate * prompt, rate * decodes),
            forward=mean,
            prompt=prompt,
            decodes=decodes,
            plain_barrier=plain,
            barrier=(_CONTROLLED * variance + noise) * barrier_of,
            most_arrivals=most_arrivals,
            worth=worth,
            arrivals_beside=rate * decode_s,
        )

    def watch(self, start: Start, report: Progress) -> Watch:
        """Run from one backlog; from a larger one where it was gone before the test could tell."""
        per_slot: float = _SLOTS
        # A cache is quick about long queues of prompts that begin alike.
        if self.server.policy.keeps_queues or reuses(self.workload, self.server):
            # Each generation of the warm-up leaves a share rho of the one before.
            per_slot = _SLOTS_WHERE_LONG / min(max(self.rho, _LEAST_LOAD), 1) ** _GENERATIONS
        work = max(2 * self.plain_barrier, per_slot * self._at_once() * self.forward)
        while True:
            watch = self._watch(start, work, report)
            if (
                watch.outcome != "undecided"
                or watch.arrivals >= self.most_arrivals
                or watch.initial >= MOST_INITIAL
            ):
                return watch
            work *= _LARGER

    def _at_once(self) -> int:
        """Return how many requests run at once: no more than KV memory holds, in any slots."""
        memory = self.server.memory
        most = slots(self.server)
        # A cache shares blocks, nobody knows how many.
        if memory is None or reuses(self.workload, self.server):
            return most
        return min(most, math.ceil(memory.tokens / max(self.prompt, memory.block_size)))

    def _initial(self, start: Start, work: float) -> int:
        """Return how many requests a backlog of so many tokens is."""
        # Where slots are few or decodes short, so many decode tokens would keep prompts out beyond
        # any watch: decodes are no more than full slots serve in a quarter of the test's patience.
        count = work / self.forward
        if start == "decode":
            least = slots(self.server) + (count if waits_as_prompts(self.server) else 0)
            count = min(
                work / self.worth[1] / self.decodes,
                max(_PATIENCE / 4 * count / self.arrivals_beside, least),
            )
        return min(math.ceil(count), MOST_INITIAL)

    def _watch(self, start: Start, work: float, report: Progress) -> Watch:
        """Run from so many tokens until they have moved by the barrier."""
        # A backlog that leaves was served, unless fewer arrivals than the mean explain half of it.
        initial = self._initial(start, work)
        backlog = Backlog(self.workload, self.server, start, initial, self.offered, self.worth)
        gone = [
            backlog.replace(_PATIENCE * math.ceil(work / self.forward)) for _ in range(_GENERATIONS)
        ]
        # While decodes that it began with still leave, they may be what keeps others out.
        grows: Outcome = "unstable" if gone[0] or start != "decode" else "undecided"
        warmup = backlog.arrived - initial
        backlog.begin()
        outcome: Outcome = "undecided"
        while outcome == "undecided" and not backlog.emptied:
            if (
                backlog.arrived - initial - warmup >= self.most_arrivals
                and len(backlog.looks) > FEWEST_LOOKS
            ):
                break
            backlog.look()
            if backlog.seen_enough and abs(backlog.moved) > self.barrier:
                outcome = self._outcome(backlog.path())
                if outcome == "unstable":
                    # What is left must be a large backlog still.
                    outcome = grows if backlog.left(self.decodes) >= work / 2 else "undecided"
            report((backlog.arrived - initial - warmup) / self.most_arrivals)
        if backlog.emptied:
            outcome = "stable" if backlog.served else "undecided"
        if backlog.gone_at_once:
            backlog.remember()
            warmup = backlog.arrived - initial
        path = backlog.path()
        arrivals = backlog.arrived - initial - warmup
        drift, interval = self._drift(path, path.work)
        return Watch(
            start, outcome, initial, warmup, arrivals, drift, interval, self.barrier,
            self._needed(path) if outcome == "undecided" else None, path,
        )  # fmt: skip

    def _outcome(self, path: Path) -> Outcome:
        """Return what a path tells: work moved beyond noise, and neither phase the other way."""
        # Work that rises as decodes are done faster than they arrive, and prompts slower, or the
        # other way about, tells of the policy's turn to one phase, not of the server: such turns
        # may last as long as a backlog is large.
        _, (low, high) = self._drift(path, path.work)
        phases = [self._drift(path, work)[1] for work in (path.prefill, path.decode)]
        if high < 0 and all(phase_low <= 0 for phase_low, _ in phases):
            return "stable"
        if low > 0 and all(phase_high >= 0 for _, phase_high in phases):
            return "unstable"
        return "undecided"

    def _drift(self, path: Path, work: Floats) -> tuple[float, tuple[float, float]]:
        """Return the slope of work and its interval, as shares of what arrives."""
        # From equal segments. Where in a batch a watch ends is chance, so no interval is narrower
        # than a full batch of mean tokens either way.
        length = path.time_s[-1] - path.time_s[0]
        arrives = sum(self.offered) * length
        drift = (work[-1] - work[0]) / arrives
        edges = np.linspace(path.time_s[0], path.time_s[-1], _SEGMENTS + 1)
        shares = np.diff(np.interp(edges, path.time_s, work)) / (arrives / _SEGMENTS)
        noise = (
            special.stdtrit(_SEGMENTS - 1, 1 - self.alpha / 2)
            * shares.std(ddof=1)
            / math.sqrt(_SEGMENTS)
        )
        half = max(noise, self.server.token_budget / arrives)
        return float(drift), (float(drift - half), float(drift + half))

    def _needed(self, path: Path) -> int | None:
        """Return after how many arrivals this drift reaches the barrier, beyond its noise."""
        # Which falls as their root.
        drift, (_, high) = self._drift(path, path.work)
        if not drift:
            return None
        times = max(self.barrier / abs(path.work[-1]), ((high - drift) / drift) ** 2)
        return math.ceil(times * int(path.arrived[-1] - path.arrived[0])) if times < 1e6 else None


def _worth_of(
    sample: Requests, server: Server, demand: Load, prompt: float, decodes: float
) -> tuple[PerPhase, float, float]:
    """Return what tokens count, the variance left out, and the seconds of decodes alone."""
    # A request's prompt and its decodes take the seconds of their tokens in the batches that carry
    # the most of both, and of their attention. With p and d of those to a token of either, it takes
    # p v + d D on average, and varies about that: in units of the seconds of a mean token,
    # tokens^2. In slots full of decodes those of a request take their share of the batches.
    full = slots(server)
    decode_s = decodes * float(server.batch_time.by_tokens(full)) / full
    by_tokens = dataclasses.replace(server, batch_time=server.batch_time.by_tokens)
    of_prompt, of_decode = region(by_tokens, prompt=demand.work.lengths).prices((prompt, decodes))
    last = server.outputs_of_prefill
    v, out = sample.prompt_tokens, sample.output_tokens
    seconds = of_prompt * v + of_decode * (out - last)
    if not server.batch_time.by_load:
        whole = np.mean(attention_of(v, out, server), axis=0)
        alone = np.mean(attention_of(v, np.full_like(out, last), server), axis=0)
        beside = beside_prefill(server.batch_time) / server.token_budget
        seconds = seconds + whole + beside * v
        of_prompt += beside + float(alone.mean() / v.mean())
        if decodes and (out > last).any():
            more = float((whole - alone).mean() / (out - last).mean())
            of_decode += more
            decode_s += decodes * more
    unit = (of_prompt * prompt + of_decode * decodes) / (prompt + decodes)
    worth = of_prompt / unit, of_decode / unit
    return worth, float(np.var(seconds / unit - _weighed(sample, server, worth))), decode_s


def _weighed(sample: Requests, server: Server, worth: PerPhase) -> Floats:
    """Return the tokens of requests, each at its worth; shape (requests,)."""
    decodes = sample.output_tokens - server.outputs_of_prefill
    return worth[0] * sample.prompt_tokens + worth[1] * decodes
