"""Steady-state latency: what a run says about the long run, how surely, and how long a run has to
be.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.checking import intervals
from penstock.checking.batches import (
    BATCHES,
    LEAST_REQUESTS,
    RELAXATIONS,
    Batches,
    before_unfinished,
    checked_confidence,
    few_bursts,
    relaxation_requests,
    unsteady,
    variability,
)
from penstock.checking.targets import Estimate, Judgement, Target, share
from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.kernel.server import NEVER
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.run import TICK_S, Distribution, Rows, Run, checked_tick, recorded
from penstock.simulation.session_engine import open_session
from penstock.simulation.simulate import length_of_run, windows
from penstock.simulation.window import Window
from penstock.system.kinds import refuse_all_but_a_server
from penstock.system.server import Server
from penstock.theory.load import load
from penstock.words import QUANTILES
from penstock.workload.workload import Workload

GAP_SECTIONS = 2 * BATCHES
"""Parts of a run whose gaps are counted apart; those of the warm-up go, the others are joined two
by two.
"""

MOST_TIMES_LONGER = 16
"""How many times the requests asked for a run may have, to become precise or to decide targets."""

_MOST_DRIFT = 0.999


@dataclasses.dataclass(frozen=True)
class SteadyState:
    """Latency in the long run, as far as one run tells.

    Attributes
    ----------
    estimates
        By metric (``ttft_s``, ``tbt_s``, ``e2e_s``) and statistic (``mean``, ``p50``, ...).
    requests, warmup_requests
        Requests used, and removed before them.
    confidence
        With which each interval holds its value.
    too_short
        Whether the run is too short to bound latency from above. It starts empty, so what it misses
        lies above.
    notices
        What the user should know besides, a sentence each.
    """

    estimates: Mapping[str, Mapping[str, Estimate]]
    requests: int
    warmup_requests: int
    confidence: float
    too_short: bool
    notices: tuple[str, ...]

    def judge(self, target: Target) -> Judgement:
        """Judge a target by the interval of its statistic.

        Raises
        ------
        InputError
            If that was not estimated.
        """
        statistics = self.estimates[target.metric]
        if target.statistic not in statistics:
            raise InputError(
                f"{target} needs the {target.statistic}, but only {', '.join(statistics)} were "
                "estimated; "
                "give the target to steady_state or estimate"
            )
        return target.judge(statistics[target.statistic])

    @property
    def precision(self) -> float:
        """Largest relative half-width of the interval of a mean; infinite where one has no end."""
        means = [of["mean"] for of in self.estimates.values() if of["mean"].value]
        return max((_half_width(mean) for mean in means), default=math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``latency`` and ``intervals`` by metric and statistic, and what
        they rest on.
        """
        return {
            "requests": self.requests,
            "warmup_requests": self.warmup_requests,
            "confidence": self.confidence,
            "latency": {
                metric: {s: e.value for s, e in of.items()} for metric, of in self.estimates.items()
            },
            "intervals": {
                metric: {s: [e.low, e.high] for s, e in of.items()}
                for metric, of in self.estimates.items()
            },
            "notices": list(self.notices),
        }


def estimate(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    precision: float | None = None,
    targets: Sequence[Target] = (),
    confidence: float = 0.95,
    rho: float | None = None,
    most_requests: int | None = None,
    tick_s: float = TICK_S,
    progress: Progress | None = None,
) -> tuple[Run, SteadyState]:
    """Simulate until the latency of the steady state is known well enough, or the budget is spent.

    While a mean is less precise than asked for or a target undecided, the number of requests
    doubles; with the same seed a longer run begins with the shorter one. Return the last run, with
    a row per request, and what it says.

    Parameters
    ----------
    workload, server
        What arrives and what serves. A recording is never longer than it is: intervals are for it
        gone on with.
    requests
        To begin with; default: the whole recording.
    precision
        Largest half-width of the interval of any mean, over its value; 0.05 is 5%.
    targets
        To be decided.
    confidence
        How often the interval of a statistic holds its value, whenever the simulation stops.
    rho
        Rate over the rate that the server can carry under its policy and limits. Default: as
        `penstock.verdict` finds.
    most_requests
        Budget; default: `MOST_TIMES_LONGER` times ``requests``.
    tick_s, progress
        As in `penstock.simulate`.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    refuse_all_but_a_server("estimate", workload, server)
    tick_s = checked_tick(tick_s)
    confidence = checked_confidence(confidence)
    begin = length_of_run(workload, requests, None)
    begin = checks.whole("requests", begin, 1, 10**9, "", "each keeps a row in memory")
    if precision is not None:
        precision = checks.number(
            "precision", precision, 1e-4, 1.0, "", "it is a share of the mean; 0.05 is 5%"
        )
    budget = _budget(workload, begin, most_requests)
    drain = workload.rows is not None or load(workload, server).rho <= 1
    if rho is None:
        rho = 1 / (1 - min(verdict(workload, server, seed=workload.seed).drift, _MOST_DRIFT))
    if rho >= 1 or (precision is None and not targets):
        budget = begin
    search = _Search(workload, server, precision, targets, confidence, rho, drain, tick_s, progress)
    return search.within(begin, budget)


def _budget(workload: Workload, requests: int, most_requests: int | None) -> int:
    """Return the most requests of a run that begins with so many."""
    budget = MOST_TIMES_LONGER * requests if most_requests is None else most_requests
    budget = checks.whole(
        "most_requests", budget, requests, 10**11, "", "the first run already has `requests`"
    )
    if workload.rows is None:
        return budget
    return min(budget, max(workload.rows, requests))


@dataclasses.dataclass(frozen=True)
class _Search:
    """What runs of growing length are to know: see `estimate`."""

    workload: Workload
    server: Server
    precision: float | None
    targets: Sequence[Target]
    confidence: float
    rho: float
    drain: bool
    tick_s: float
    progress: Progress | None

    def within(self, requests: int, budget: int) -> tuple[Run, SteadyState]:
        """Simulate so many requests, and twice as many while that is not enough.

        Who looks several times is wrong more often, so each interval has the confidence 1 - (1 -
        confidence) / looks, and all looks together have the one asked for (Bonferroni).
        """
        looks = 1 + math.ceil(math.log2(budget / requests))
        level = 1 - (1 - self.confidence) / looks
        while True:
            part = part_of(self.progress, 0.0, requests / budget)
            run, gaps = _simulated(
                self.workload, self.server, requests, self.drain, self.tick_s, part
            )
            steady = steady_state(
                run, targets=self.targets, rho=self.rho, confidence=level, gap_sections=gaps
            )
            missing = self._missing(steady)
            if not missing or requests >= budget:
                break
            requests = min(2 * requests, budget)
        notices = steady.notices
        if missing:
            notices = (
                *notices,
                f"{run.arrived:,} requests were not enough to {' or to '.join(missing)}",
            )
        return run, dataclasses.replace(steady, confidence=self.confidence, notices=notices)

    def _missing(self, steady: SteadyState) -> list[str]:
        """Say what the run was asked for and did not give."""
        missing = [
            f"decide {target}" for target in self.targets if steady.judge(target) == "undecided"
        ]
        if self.precision is not None and not steady.precision <= self.precision:
            missing.insert(0, f"know every mean to {self.precision:.3g} of its value")
        return missing


def steady_state(
    run: Run,
    *,
    targets: Sequence[Target] = (),
    rho: float | None = None,
    confidence: float = 0.95,
    gap_sections: Sequence[Distribution] = (),
) -> SteadyState:
    """Estimate the latency of the steady state from one run.

    The methods are those of `penstock.checking.intervals`, on requests in order of arrival up to
    the first unfinished one. The warm-up is the longer of those found in TTFT and E2E. Intervals of
    a recording are for it gone on with.

    Parameters
    ----------
    run
        Simulated with a row per request.
    targets
        Whose statistics are to be estimated besides the usual ones.
    rho
        Rate over the rate that the server can carry, to say whether the run is long enough
        (`relaxation_requests`). Without it only warm-up and batches tell.
    confidence
        Of each interval.
    gap_sections
        Times between tokens in `GAP_SECTIONS` parts of the run, with as many arrivals each;
        `estimate` counts them. Without them the percentiles of ``tbt_s`` are those of the whole run
        and have no interval.

    Raises
    ------
    InputError
        If the run did not keep its requests, or a number cannot be used.
    """
    if not isinstance(run, Run):
        raise InputError(
            f"steady_state takes a Run, not {checks.shown(run)}; give it what simulate returned"
        )
    confidence = checked_confidence(confidence)
    if rho is not None:
        rho = checks.number(
            "rho", rho, 0.0, 1e9, "", "it is the rate over the rate that can be carried"
        )
    rows, notices = _finished(recorded(run.rows, "requests"))
    # The warm-up goes, and what is left is cut to equal batches.
    count = rows.arrival.size
    removed, still_warming = max(
        intervals.warmup(rows.first_token - rows.arrival),
        intervals.warmup(rows.finish - rows.arrival),
    )
    used = (count - removed) // BATCHES * BATCHES
    batched = _in_batches(run, rows, used, gap_sections)
    # Near saturation a queue forgets slowly: the run must see many of its relaxation times.
    relaxation = 0.0
    if rho is not None and used >= LEAST_REQUESTS:
        tokens = (
            rows.prompt_tokens.astype(float)
            + rows.output_tokens
            - (run.server.convention == "engine")
        )
        relaxation = relaxation_requests(rho, variability(rows.arrival, tokens))
    short = _shortness(count, used, still_warming, batched, rho, relaxation)

    def estimated(metric: str, statistic: str) -> Estimate:
        most = _most_bursts(
            metric, statistic, batched["ttft_s"].tail(statistic, confidence), used, relaxation
        )
        return batched[metric].estimate(statistic, confidence, run.tick_s, bool(short), most)

    estimates = {
        metric: {name: estimated(metric, name) for name in _statistics(metric, targets)}
        for metric in batched
    }
    if not short:
        by_name = {
            metric.removesuffix("_s"): statistics for metric, statistics in estimates.items()
        }
        notices += few_bursts(by_name, confidence, used, "requests")
    return SteadyState(estimates, used, count - used, confidence, bool(short), (*notices, *short))


def _in_batches(
    run: Run, rows: Rows, used: int, gap_sections: Sequence[Distribution]
) -> dict[str, Batches]:
    """Put the samples of the last requests that are used into batches, or all together if they are
    too few.
    """
    if used < LEAST_REQUESTS:
        return {
            "ttft_s": Batches.none(run.ttft),
            "tbt_s": Batches.none(run.gaps),
            "e2e_s": Batches.none(run.e2e),
        }
    removed = rows.arrival.size - used
    ttft = (rows.first_token - rows.arrival)[removed:]
    e2e = (rows.finish - rows.arrival)[removed:]
    return {
        "ttft_s": Batches.of([Distribution.of(part) for part in np.split(ttft, BATCHES)]),
        "tbt_s": _gap_batches(run.gaps, rows, removed, gap_sections),
        "e2e_s": Batches.of([Distribution.of(part) for part in np.split(e2e, BATCHES)]),
    }


def expected_bursts(statistic: str, requests: int, relaxation: float) -> float:
    """Return the effective number of bursts to expect beyond a percentile of the wait in heavy
    traffic.

    A reflected Brownian motion with drift -1 and variance 1 spends a share 1 - p of its time beyond
    the percentile, 1/2 in each burst, with E[T]^2 / E[T^2] = 1/4; its relaxation time is 2. So they
    are 1 - p to a relaxation time.

    Parameters
    ----------
    statistic
        Such as ``p99``; of a mean nothing is known.
    requests
        Seen of the steady state.
    relaxation
        `relaxation_requests`; 0 where it is unknown.
    """
    if statistic == "mean" or relaxation == 0:
        return math.inf
    return (1 - share(statistic)) * requests / relaxation


def _most_bursts(
    metric: str,
    statistic: str,
    waits: intervals.QuantileInterval | None,
    used: int,
    relaxation: float,
) -> float:
    """Return the most bursts to expect beyond a percentile: of the wait in heavy traffic, and for
    E2E of TTFT.
    """
    if metric == "tbt_s":
        return math.inf
    most = expected_bursts(statistic, used, relaxation)
    if metric == "e2e_s" and waits is not None:
        return min(most, waits.bursts)
    return most


def _finished(rows: Rows) -> tuple[Rows, list[str]]:
    """Return the requests before the first unfinished one, those that were dropped left out."""
    if rows.dropped is not None:
        rows = rows.where(~rows.dropped)
    count, notices = before_unfinished(rows.finish, "request", "finished")
    return rows.where(slice(count)), notices


def _gap_batches(
    gaps: Distribution, rows: Rows, removed: int, sections: Sequence[Distribution]
) -> Batches:
    """Put the times between tokens into batches: sections after the warm-up, two by two, or else
    sums by request.
    """
    if sections:
        first = math.ceil(removed / rows.arrival.size * len(sections))
        first += (len(sections) - first) % 2
        pairs = zip(sections[first::2], sections[first + 1 :: 2], strict=True)
        return Batches.of([intervals.merged(pair) for pair in pairs])
    decoding = (rows.finish - rows.first_token)[removed:].reshape(BATCHES, -1)
    counts = (rows.output_tokens[removed:].astype(np.int64) - 1).reshape(BATCHES, -1)
    return Batches(decoding.sum(axis=1).astype(float), counts.sum(axis=1).astype(float), (), gaps)


def _shortness(
    requests: int,
    used: int,
    still_warming: bool,
    batched: Mapping[str, Batches],
    rho: float | None,
    relaxation: float,
) -> list[str]:
    """Say why the run is too short, if it is: for intervals, by latency itself, or for a queue with
    such a memory.
    """
    if used < LEAST_REQUESTS:
        return [
            f"{used:,} requests are too few for intervals, which need {LEAST_REQUESTS:,} after "
            "the warm-up"
        ]
    reasons = unsteady(
        "latency", still_warming, [batched["ttft_s"], batched["e2e_s"]], requests, "requests"
    )
    enough = RELAXATIONS * relaxation
    if relaxation == math.inf:
        reasons.append(
            "as far as can be told, no less arrives than can be carried: there may be no steady "
            "state"
        )
    elif requests < enough:
        would_do = f"{enough:,.0f} would do" if enough < 1e8 else "no run is long enough"
        reasons.append(
            f"at {rho:.3f} of what can be carried the queue forgets its past over "
            f"{relaxation:,.0f} requests (its "
            f"relaxation time), so {requests:,} are too few; {would_do}"
        )
    return reasons


def _simulated(
    workload: Workload,
    server: Server,
    requests: int,
    drain: bool,
    tick_s: float,
    progress: Progress,
) -> tuple[Run, list[Distribution]]:
    """Simulate in sections, and count the times between tokens in each; the run is the one
    `simulate` gives.
    """
    session = open_session(server, "requests", tick_s, True, NEVER, workload.prefixes)
    window = session.keep(Window.joined(list(windows(workload, requests, NEVER, tick_s))))
    requests = window.arrival.size
    session.fit(window)

    def report() -> None:
        progress((session.arrived + session.finished) / (2 * requests))

    sections: list[Distribution] = []
    before = session.gaps()
    ends = np.unique(np.linspace(0, requests, GAP_SECTIONS + 1).astype(int))
    for end in ends[ends > 0]:
        part = Window(
            *(column[:end] for column in window.columns)
        )  # views: results land in the whole window
        session.run(part, final=end == requests, drain=drain, report=report)
        now = session.gaps()
        sections.append(intervals.difference(now, before))
        before = now
    return session.finish(window), sections


def _statistics(metric: str, targets: Sequence[Target]) -> list[str]:
    return list(
        dict.fromkeys(["mean", *QUANTILES, *(t.statistic for t in targets if t.metric == metric)])
    )


def _half_width(mean: Estimate) -> float:
    if not mean.value or mean.low is None or mean.high is None:
        return math.inf
    return (mean.high - mean.low) / 2 / mean.value
