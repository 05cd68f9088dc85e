"""Steady-state latency: what a run says about the long run, how surely, and how long a run has to be."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.checking import intervals
from penstock.checking.drift_test import verdict
from penstock.checking.targets import Estimate, Judgement, Target, share
from penstock.errors import InputError
from penstock.kernel.server import NEVER
from penstock.simulation.run import TICK_S, Distribution, Progress, Rows, Run
from penstock.simulation.session_engine import open_session
from penstock.simulation.session_server import Window
from penstock.simulation.simulate import length_of_run, windows
from penstock.system.server import Server
from penstock.theory.load import load
from penstock.words import QUANTILES, counted
from penstock.workload.workload import Workload

BATCHES = 20
"""Batches of requests; more would be shorter and more alike their neighbours, fewer would widen the interval."""

LEAST_REQUESTS = 10 * BATCHES
"""Requests after the warm-up below which no interval is given."""

RELAXATIONS = 20
"""Relaxation times that a run must see; with 6, intervals held the mean of M/M/1 82 times of 100 instead of 95."""

MOST_CORRELATION = 0.5
"""Of neighbouring batch means, beyond which they are too short; 20 independent ones hardly ever reach it."""

GAP_SECTIONS = 2 * BATCHES
"""Parts of a run whose gaps are counted apart; those of the warm-up go, the others are joined two by two."""

MOST_TIMES_LONGER = 16
"""How many times the requests asked for a run may have, to become precise or to decide targets."""

_MOST_DRIFT = 0.999
_MOST_NAMED = 4  # percentiles in one notice

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
        Whether the run is too short to bound latency from above. It starts empty, so what it misses lies above.
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
        known = self.estimates[target.metric]
        if target.statistic not in known:
            raise InputError(
                f"{target} needs the {target.statistic}, but only {', '.join(known)} were estimated; "
                "give the target to steady_state or estimate"
            )
        return target.judge(known[target.statistic])

    @property
    def precision(self) -> float:
        """Largest relative half-width of the interval of a mean; infinite where one has no end."""
        means = [of["mean"] for of in self.estimates.values() if of["mean"].value]
        return max((_half_width(mean) for mean in means), default=math.inf)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``latency`` and ``intervals`` by metric and statistic, and what they rest on."""
        return {
            "requests": self.requests,
            "warmup_requests": self.warmup_requests,
            "confidence": self.confidence,
            "latency": {metric: {s: e.value for s, e in of.items()} for metric, of in self.estimates.items()},
            "intervals": {metric: {s: [e.low, e.high] for s, e in of.items()} for metric, of in self.estimates.items()},
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

    While a mean is less precise than asked for or a target undecided, the number of requests doubles; with the same
    seed a longer run begins with the shorter one. Who looks several times is wrong more often, so each interval
    then has the confidence 1 - (1 - confidence) / looks, and all looks together have the one asked for (Bonferroni).

    Parameters
    ----------
    workload, server
        What arrives and what serves. A recording is never longer than it is: intervals are for it gone on with.
    requests
        To begin with; default: the whole recording.
    precision
        Largest half-width of the interval of any mean, over its value; 0.05 is 5%.
    targets
        To be decided.
    confidence
        How often the interval of a statistic holds its value, whenever the simulation stops.
    rho
        Rate over the rate that the server can carry under its policy and limits. Default: as `penstock.verdict` finds.
    most_requests
        Budget; default: `MOST_TIMES_LONGER` times ``requests``.
    tick_s
        Seconds per tick.
    progress
        Called now and then with the share of the budget that is done.

    Returns
    -------
    tuple of Run and SteadyState
        The last run, with a row per request, and what it says.

    Raises
    ------
    InputError
        If a value cannot be used.
    """
    if not isinstance(workload, Workload) or not isinstance(server, Server):
        raise InputError(
            f"estimate takes a Workload and a Server, not {checks.shown(workload)} and {checks.shown(server)}"
        )
    tick_s = checks.number("tick_s", tick_s, 1e-18, 1e6, "s", "times are counted in ticks of so many seconds")
    confidence = _confidence(confidence)
    begin = length_of_run(workload, requests, None, tick_s)
    requests = checks.whole("requests", begin, 1, 10**9, "", "each keeps a row in memory")
    if precision is not None:
        precision = checks.number("precision", precision, 1e-4, 1.0, "", "it is a share of the mean; 0.05 is 5%")
    budget = MOST_TIMES_LONGER * requests if most_requests is None else most_requests
    budget = checks.whole("most_requests", budget, requests, 10**11, "", "the first run already has `requests`")
    if workload.rows is not None:
        budget = min(budget, max(workload.rows, requests))
    asked = load(workload, server).rho
    if rho is None:
        rho = 1 / (1 - min(verdict(workload, server, seed=workload.seed).drift, _MOST_DRIFT))
    if rho >= 1 or (precision is None and not targets):
        budget = requests
    looks = 1 + math.ceil(math.log2(budget / requests))
    level = 1 - (1 - confidence) / looks
    drain = workload.rows is not None or asked <= 1
    while True:
        done = requests / budget
        run, gaps = _simulated(workload, server, requests, drain, tick_s, _scaled(progress, done))
        found = steady_state(run, targets=targets, rho=rho, confidence=level, gap_sections=gaps)
        missing = _missing(found, precision, targets)
        if not missing or requests >= budget:
            break
        requests = min(2 * requests, budget)
    spent = (f"{run.arrived:,} requests were not enough to {' or to '.join(missing)}",) if missing else ()
    return run, dataclasses.replace(found, confidence=confidence, notices=(*found.notices, *spent))


def steady_state(
    run: Run,
    *,
    targets: Sequence[Target] = (),
    rho: float | None = None,
    confidence: float = 0.95,
    gap_sections: Sequence[Distribution] = (),
) -> SteadyState:
    """Estimate the latency of the steady state from one run.

    The methods are those of `penstock.checking.intervals`, on requests in order of arrival. The warm-up is the
    longer of those found in TTFT and E2E. Requests from the first unfinished one on are left out, since behind it
    only the quick ones have finished. Intervals of a recording are for the recording gone on with.

    Parameters
    ----------
    run
        Simulated with a row per request.
    targets
        Whose statistics are to be estimated besides the usual ones.
    rho
        Rate over the rate that the server can carry, to say whether the run is long enough (`relaxation_requests`).
        Without it only warm-up and batches tell.
    confidence
        Of each interval.
    gap_sections
        Times between tokens in `GAP_SECTIONS` parts of the run, with as many arrivals each; `estimate` counts them.
        Without them the percentiles of ``tbt_s`` are those of the whole run and have no interval.

    Raises
    ------
    InputError
        If the run did not keep its requests, or a number cannot be used.
    """
    if not isinstance(run, Run):
        raise InputError(f"steady_state takes a Run, not {checks.shown(run)}; give it what simulate returned")
    confidence = _confidence(confidence)
    if rho is not None:
        rho = checks.number("rho", rho, 0.0, 1e9, "", "it is the rate over the rate that can be carried")
    if run.rows is None:
        raise InputError("steady-state latency needs a row per request; simulate with record='requests'")
    rows, notices = _finished(run.rows)
    ttft, e2e = rows.first_token - rows.arrival, rows.finish - rows.arrival
    removed, still_warming = max(intervals.warmup(ttft), intervals.warmup(e2e))
    used = (rows.arrival.size - removed) // BATCHES * BATCHES
    removed = rows.arrival.size - used
    if used < LEAST_REQUESTS:
        relaxation = 0.0
        short = [f"{used:,} requests are too few for intervals, which need {LEAST_REQUESTS:,} after the warm-up"]
        batched = {"ttft_s": _Batches.none(run.ttft), "tbt_s": _Batches.none(run.gaps), "e2e_s": _Batches.none(run.e2e)}
    else:
        batched = {
            "ttft_s": _Batches.of([Distribution.of(part) for part in np.split(ttft[removed:], BATCHES)]),
            "tbt_s": _gap_batches(run.gaps, rows, removed, gap_sections),
            "e2e_s": _Batches.of([Distribution.of(part) for part in np.split(e2e[removed:], BATCHES)]),
        }
        relaxation = 0.0 if rho is None else relaxation_requests(rho, _variability(rows, run.server))
        short = _shortness(rows.arrival.size, still_warming, batched, rho, relaxation)
    estimates: dict[str, dict[str, Estimate]] = {}
    for metric, batches in batched.items():
        estimates[metric] = {}
        for s in _statistics(metric, targets):
            most = math.inf
            if metric != "tbt_s":
                most = expected_bursts(s, used, relaxation)
            if metric == "e2e_s" and (waits := _tail(batched["ttft_s"], s, confidence)):
                most = min(most, waits.bursts)
            estimates[metric][s] = batches.estimate(s, confidence, run.tick_s, bool(short), most)
    if not short:
        by_name = {
            f"{metric[:-2]} {statistic}": value
            for metric, statistics in estimates.items()
            for statistic, value in statistics.items()
        }
        notices += few_bursts(by_name, confidence, used, "requests")
    return SteadyState(estimates, used, removed, confidence, bool(short), (*notices, *short))


def few_bursts(estimates: Mapping[str, Estimate], confidence: float, samples: int, unit: str) -> list[str]:
    """Say which percentiles have no upper end because few bursts lie beyond them, and what run they need at least.

    Parameters
    ----------
    estimates
        By the name to say.
    confidence
        Of their intervals.
    samples, unit
        What the run has, such as 20,000 ``requests`` after the warm-up.
    """
    needed = intervals.bursts_needed(confidence, BATCHES)
    # where many samples are equal an end may be missing in spite of enough bursts
    few = sorted((min(e.bursts, needed), name) for name, e in estimates.items() if e.high is None and e.bursts)
    if not few:
        return []
    named = [f"{name} ({max(int(bursts), 1)})" for bursts, name in few[:_MOST_NAMED]]
    others = f" and {counted(len(few) - _MOST_NAMED, 'other')}" if len(few) > _MOST_NAMED else ""
    least = rounded_up(samples * max(needed / few[0][0], 2.0))
    return [
        f"too few separate bursts of long latencies for an upper end of {', '.join(named)}{others}, which needs about "
        f"{needed}; simulate {least:,} {unit} or more"
    ]


def rounded_up(count: float) -> int:
    """Round up to two digits."""
    step = int(10 ** max(int(math.log10(count)) - 1, 0))
    return math.ceil(count / step) * step


def _confidence(value: float) -> float:
    return checks.number("confidence", value, 0.5, 0.99999, "", "it is how often an interval holds its value")


def relaxation_requests(rho: float, variability: float) -> float:
    """Return the relaxation time of a queue, in requests: over so many, a deviation from the steady state falls to 1/e.

    Near saturation the work in the queue is a reflected Brownian motion with drift -(1 - rho) and variance
    sigma^2 = rho E[S] V per second of service, whose relaxation time is 2 sigma^2 / (1 - rho)^2 (Abate and Whitt,
    Advances in Applied Probability 19, 1987; Whitt, Planning queueing simulations, Management Science 35, 1989).
    Times the rate, that is 2 rho^2 V / (1 - rho)^2.

    Parameters
    ----------
    rho
        Rate over the rate that can be carried.
    variability
        V: the squared coefficients of variation of the gaps between arrivals and of the forward tokens of a request,
        added. 2 for M/M/1, 1 for M/D/1.

    >>> round(relaxation_requests(0.9, 2.0))
    324
    """
    return 2 * rho**2 * variability / (1 - rho) ** 2 if rho < 1 else math.inf


def expected_bursts(statistic: str, requests: int, relaxation: float) -> float:
    """Return the effective number of bursts to expect beyond a percentile of the wait in heavy traffic.

    A reflected Brownian motion with drift -1 and variance 1 spends a share 1 - p of its time beyond the percentile,
    1/2 in each burst, with E[T]^2 / E[T^2] = 1/4; its relaxation time is 2. So they are 1 - p to a relaxation time.

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


class _Batches(NamedTuple):
    """Samples in batches: their sums (ticks) and counts, the samples if they are known one by one, and all of them."""

    sums: Floats
    counts: Floats
    parts: Sequence[Distribution]
    whole: Distribution

    @classmethod
    def of(cls, parts: Sequence[Distribution]) -> "_Batches":
        """Take batches whose samples are known."""
        sums, counts = [float(part.total) for part in parts], [float(part.size) for part in parts]
        return cls(np.array(sums), np.array(counts), parts, intervals.merged(parts))

    @classmethod
    def none(cls, whole: Distribution) -> "_Batches":
        """Take samples that are too few for batches."""
        return cls(np.array([float(whole.total)]), np.array([float(whole.size)]), (), whole)

    def estimate(
        self, statistic: str, confidence: float, tick_s: float, too_short: bool, most_bursts: float
    ) -> Estimate:
        """Estimate a statistic, in seconds; not bounded from above where the run is too short.

        No more than ``most_bursts`` are taken to lie beyond a percentile (`intervals.quantile_interval`).
        """
        if not self.whole.size or not self.counts.sum():
            return Estimate(None)
        low: float | None = None
        high: float | None = None
        bursts: float | None = None
        if statistic == "mean":
            value = float(self.sums.sum() / self.counts.sum())
            if self.sums.size > 1:
                low, high = intervals.ratio_interval(self.sums, self.counts, confidence)
        else:
            value = self.whole.quantile(share(statistic))
            if self.parts:
                low, high, bursts = intervals.quantile_interval(
                    self.parts, self.whole, share(statistic), confidence, most_bursts
                )
        return Estimate(
            value * tick_s,
            None if low is None else max(low, 0.0) * tick_s,
            None if high is None or too_short else high * tick_s,
            bursts,
        )


def _tail(batches: _Batches, statistic: str, confidence: float) -> intervals.QuantileInterval | None:
    """Return the interval of a percentile, where there are samples to tell."""
    if statistic == "mean" or not batches.parts:
        return None
    return intervals.quantile_interval(batches.parts, batches.whole, share(statistic), confidence)


def _finished(rows: Rows) -> tuple[Rows, list[str]]:
    """Return the requests before the first unfinished one, those that were dropped left out."""
    if rows.dropped is not None:
        rows = rows.where(~rows.dropped)
    unfinished = np.flatnonzero(rows.finish < 0)
    if not unfinished.size:
        return rows, []
    count, arrived = int(unfinished[0]), rows.finish.size
    notices = []
    if count < arrived / 2:
        notices.append(
            f"request {count:,} of {arrived:,} is unfinished, and those behind it are left out; "
            "simulate until all have finished"
        )
    return rows.where(slice(count)), notices


def _gap_batches(gaps: Distribution, rows: Rows, removed: int, sections: Sequence[Distribution]) -> _Batches:
    """Put the times between tokens into batches: sections after the warm-up, two by two, or else sums by request."""
    if sections:
        first = math.ceil(removed / rows.arrival.size * len(sections))
        first += (len(sections) - first) % 2
        pairs = zip(sections[first::2], sections[first + 1 :: 2], strict=True)
        return _Batches.of([intervals.merged(pair) for pair in pairs])
    decoding = (rows.finish - rows.first_token)[removed:].reshape(BATCHES, -1)
    counts = (rows.output_tokens[removed:].astype(np.int64) - 1).reshape(BATCHES, -1)
    return _Batches(decoding.sum(axis=1).astype(float), counts.sum(axis=1).astype(float), (), gaps)


def _shortness(
    requests: int, still_warming: bool, batched: Mapping[str, _Batches], rho: float | None, relaxation: float
) -> list[str]:
    """Say why the run is too short, if it is."""
    why = []
    if still_warming:
        why.append(f"latency still rises half-way through this run of {requests:,} requests; simulate more")
    alike = max(intervals.correlation(batched[metric].sums) for metric in ("ttft_s", "e2e_s"))
    if alike > MOST_CORRELATION:
        why.append(
            f"successive {BATCHES}ths of the run depend on each other (correlation {alike:.2f}), so intervals are too "
            f"narrow; simulate more than {requests:,} requests"
        )
    if rho is None:
        return why
    if relaxation == math.inf:
        why.append("as far as can be told, no less arrives than can be carried: there may be no steady state")
    elif requests < RELAXATIONS * relaxation:
        enough = RELAXATIONS * relaxation
        would_do = f"{enough:,.0f} would do" if enough < 1e8 else "no run is long enough"
        why.append(
            f"at {rho:.3f} of what can be carried the queue forgets its past over {relaxation:,.0f} requests (its "
            f"relaxation time), so {requests:,} are too few; {would_do}"
        )
    return why


def _variability(rows: Rows, server: Server) -> float:
    """Measure V of `relaxation_requests` over hundredths of the run, so that bursts of arrivals count."""
    size = rows.arrival.size // 100 if rows.arrival.size >= 1000 else 10
    tokens = rows.prompt_tokens.astype(float) + rows.output_tokens - (server.convention == "engine")
    gaps = np.diff(rows.arrival).astype(float)
    if not gaps.any():
        return 0.0
    drift = tokens[:-1] / tokens.mean() - gaps / gaps.mean()
    return float(drift[: drift.size // size * size].reshape(-1, size).sum(axis=1).var(ddof=1)) / size


def _simulated(
    workload: Workload, server: Server, requests: int, drain: bool, tick_s: float, progress: Progress
) -> tuple[Run, list[Distribution]]:
    """Simulate in sections, and count the times between tokens in each; the run is the one `simulate` gives."""
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
        known = Window(*(column[:end] for column in window.columns))  # views: results land in the whole window
        session.run(known, final=end == requests, drain=drain, report=report)
        now = session.gaps()
        sections.append(intervals.difference(now, before))
        before = now
    return session.finish(window), sections


def _missing(found: SteadyState, precision: float | None, targets: Sequence[Target]) -> list[str]:
    """Say what the run was asked for and did not give."""
    missing = [f"decide {target}" for target in targets if found.judge(target) == "undecided"]
    if precision is not None and not found.precision <= precision:
        missing.insert(0, f"know every mean to {precision:.3g} of its value")
    return missing


def _statistics(metric: str, targets: Sequence[Target]) -> list[str]:
    return list(dict.fromkeys(["mean", *QUANTILES, *(t.statistic for t in targets if t.metric == metric)]))


def _half_width(mean: Estimate) -> float:
    if not mean.value or mean.low is None or mean.high is None:
        return math.inf
    return (mean.high - mean.low) / 2 / mean.value


def _scaled(progress: Progress | None, done: float) -> Progress:
    return (lambda share: None) if progress is None else (lambda share: progress(min(done * share, 1.0)))
