"""Detectors of overload compared: false alarms, misses and time to detection on the same runs.

Each rule is written from its public description, with its defaults, and looks at every scrape:

* ``out < .98 in``: fewer than 98% of the requests that arrived have finished (llm-d-planner's
  notion of a rate that is not kept up with).
* ``line``: the slope of a line through the requests that wait or run is more than three standard
  errors above 0 (BLIS' ``backlog-drift``, inference-sim pull request 1310).
* ``GuideLLM``: from 30 s on, requests in flight and TTFT both climb over the last 120 s (and at
  most the last 75% of the requests), each with a 95% margin of error below twice its slope, and at
  least half of the TTFT in that window is above 2.5 s (GuideLLM, guide "Over-saturation stopping").
* ``BLIS composite``: the larger of two numbers is above 1 / sqrt(arrivals): the share of requests
  not finished, and the growth of mean latency from the first half of the finished requests to the
  second, if the means of all four quarters rise (inference-sim issues 1369, 1614).
* ``WVA``: more than 2 requests wait (of 5 places fewer than 3 are free), or more than 70% of the KV
  memory is in use (llm-d workload variant autoscaler, saturation scaling configuration).
* ``Penstock``: the drift test of `penstock watch` at alpha .05 says unstable.

    PYTHONPATH=. python benchmarks/studies/detectors.py [SEEDS]

prints the tables of docs/detectors.md.
"""

import concurrent.futures
import dataclasses
import functools
import math
import sys
from collections.abc import Callable

import numpy as np
from scipy import special

import penstock as ps
from penstock.live.scrape import Scrape
from penstock.live.settings import Settings
from penstock.live.watching import Watch
from tests.live.simulated_scrapes import simulated_scrapes

EVERY_S = 5.0
SECONDS = 600.0
LOADS = (0.8, 0.9, 0.95, 1.05, 1.1, 1.2)
ALPHA = 0.05


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload at rate 1, and the server that it is for."""

    name: str
    prompt: ps.LogNormal | ps.Constant
    output: ps.LogNormal | ps.Constant
    cv: float  # of the gaps between arrivals
    server: ps.Server


def _server(batch_time: ps.BatchTime, token_budget: int, slots: int, blocks: int) -> ps.Server:
    """Return an engine with known batch times, and ample KV memory in blocks of 128 tokens."""
    synchronous = {"async_scheduling": False}
    memory = ps.Memory(blocks, 128)
    return ps.Server(
        batch_time, token_budget, slots, "vllm", policy_params=synchronous, memory=memory
    )


SMALL = _server(ps.Composition(ps.Affine(0.045, 5e-4), decode_attention=1e-5), 128, 128, 400)
LARGE = _server(ps.Composition(ps.Affine(0.01, 5e-5), decode_attention=1e-7), 256, 512, 8192)
CASES = (
    Case("Constant lengths", ps.Constant(100), ps.Constant(42), 1.0, SMALL),
    Case(
        "Lognormal lengths",
        ps.LogNormal(100, 0.8, max=1_000), ps.LogNormal(42, 0.8, max=400), 1.0, SMALL,
    ),
    Case(
        "Lognormal lengths, bursty arrivals (gaps between arrivals with a cv of 2)",
        ps.LogNormal(100, 0.8, max=1_000), ps.LogNormal(42, 0.8, max=400), 2.0, SMALL,
    ),
    Case(
        "Long outputs (lognormal, cv 0.5 of the outputs)",
        ps.LogNormal(100, 1.0, max=1_000), ps.LogNormal(2_000, 0.5, max=8_000), 1.0, LARGE,
    ),
)  # fmt: skip


def workload(case: Case, rate: float, seed: int) -> ps.Workload:
    """Return what arrives."""
    if case.cv == 1.0:
        return ps.Workload.poisson(rate, case.prompt, case.output, seed=seed)
    return ps.Workload.gamma(rate, case.cv, case.prompt, case.output, seed=seed)


@dataclasses.dataclass
class Seen:
    """What a detector may look at: scrapes so far, and the requests as a client saw them."""

    scrapes: list[Scrape]
    arrival_s: np.ndarray
    first_s: np.ndarray
    finish_s: np.ndarray

    @property
    def now(self) -> float:
        """The time of the last scrape."""
        return self.scrapes[-1].time_s


def out_below_in(seen: Seen) -> bool:
    """Less than .98 of what arrived has finished."""
    arrived = (seen.arrival_s <= seen.now).sum()
    finished = (seen.finish_s <= seen.now).sum()
    return bool(arrived > 0 and finished < 0.98 * arrived)


def line(seen: Seen) -> bool:
    """A line through the queue climbs by more than three standard errors."""
    if len(seen.scrapes) < 6:
        return False
    times = [scrape.time_s for scrape in seen.scrapes]
    queue = [(scrape.waiting or 0.0) + (scrape.running or 0.0) for scrape in seen.scrapes]
    slope, error = _slope(np.array(times), np.array(queue), len(times))
    return slope > 3 * error > 0


def guidellm(seen: Seen) -> bool:
    """Concurrent requests and TTFT climb."""
    if seen.now < 30:
        return False
    started = np.flatnonzero(seen.arrival_s <= seen.now)
    answered = np.argsort(seen.first_s, kind="stable")
    answered = answered[seen.first_s[answered] <= seen.now]
    ttft = (seen.first_s - seen.arrival_s)[answered]
    kept = _window(seen.first_s[answered], seen.now)
    if np.sum(ttft[kept] > 2.5) * 2 < kept.sum():
        return False
    begun = seen.arrival_s[started]
    concurrent = 1 + np.arange(len(begun)) - np.searchsorted(np.sort(seen.finish_s), begun)
    recent = _window(begun, seen.now)
    if not _climbs(begun[recent], concurrent[recent], seen.now):
        return False
    return _climbs(seen.first_s[answered][kept], ttft[kept], seen.now)


def _window(times: np.ndarray, now: float) -> np.ndarray:
    """Return which are in the window: the last 120 s, and three quarters of all."""
    kept = times >= now - 120
    kept[: len(times) - int(0.75 * len(times))] = False
    return kept


def _climbs(times: np.ndarray, values: np.ndarray, now: float) -> bool:
    """Whether a slope is above 0 with a margin of error below twice itself; requests of one second
    count once.
    """
    n = min(now, len(times))
    if n < 5:
        return False
    slope, error = _slope(times, values, n)
    return bool(slope > 0 and special.stdtrit(n - 2, 0.975) * error < 2 * slope)


def _slope(times: np.ndarray, values: np.ndarray, n: float) -> tuple[float, float]:
    """Return the slope of a line and its standard error, if the points count for n."""
    x, y = times - times.mean(), values - values.mean()
    slope = float(x @ y / (x @ x))
    residual = max(float(y @ y) - slope**2 * float(x @ x), 0.0)
    return slope, math.sqrt(residual / (n - 2) / float(x @ x))


def composite(seen: Seen) -> bool:
    """Requests do not finish, or latency climbs, by more than 1 / sqrt(arrivals)."""
    arrived = int((seen.arrival_s <= seen.now).sum())
    done = np.flatnonzero(seen.finish_s <= seen.now)
    if arrived == 0 or len(done) < 8:
        return False
    latency = (seen.finish_s - seen.arrival_s)[done]
    deficit = 1 - len(done) / arrived
    first, second = (half.mean() for half in np.array_split(latency, 2))
    quarters = [quarter.mean() for quarter in np.array_split(latency, 4)]
    trend = 0.0
    if np.all(np.diff(quarters) > 0):
        trend = min((second - first) / first, 1.0)
    return bool(max(deficit, trend) > 1 / math.sqrt(arrived))


def wva(seen: Seen) -> bool:
    """Little is left of queue or KV memory below their thresholds."""
    last = seen.scrapes[-1]
    return bool(5 - (last.waiting or 0.0) < 3 or 0.8 - (last.kv_used or 0.0) < 0.1)


RULES: dict[str, Callable[[Seen], bool]] = {
    "out < .98 in": out_below_in,
    "line": line,
    "GuideLLM": guidellm,
    "BLIS composite": composite,
    "WVA": wva,
}
OURS = "Penstock"


def alarms(case: Case, rate: float, seed: int) -> dict[str, tuple[float | None, bool]]:
    """Return for each detector when it first alarmed, and whether it does at the end."""
    run = ps.simulate(workload(case, rate, seed), case.server, until=SECONDS, record="batches")
    scrapes = simulated_scrapes(run, np.arange(EVERY_S, SECONDS, EVERY_S))
    columns = run.requests.select("arrival_ns", "first_token_ns", "finish_ns")
    arrival, first, finish = (column.fill_null(2**62).to_numpy() * 1e-9 for column in columns)
    first_alarm: dict[str, float | None] = dict.fromkeys((*RULES, OURS))
    at_end = dict.fromkeys((*RULES, OURS), False)
    watch = Watch(case.server, Settings(alpha=ALPHA))
    for count, scrape in enumerate(scrapes, start=1):
        watch.take(scrape)
        seen = Seen(scrapes[:count], arrival, first, finish)
        alarmed = {name: rule(seen) for name, rule in RULES.items()}
        alarmed[OURS] = watch.answer(ahead=False).together.verdict == "unstable"
        for name, is_alarm in alarmed.items():
            at_end[name] = is_alarm
            if is_alarm and first_alarm[name] is None:
                first_alarm[name] = scrape.time_s
    return {name: (first_alarm[name], at_end[name]) for name in first_alarm}


def main() -> None:
    """Run them all, and print the tables."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    heads = " | ".join(f"{load:g}" for load in LOADS)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for case in CASES:
            most = ps.certify(workload(case, 1.0, 0), case.server).max_rate
            rows = {
                load: list(pool.map(functools.partial(alarms, case, most * load), range(seeds)))
                for load in LOADS
            }
            print(f"\n### {case.name}, {seeds} seeds\n\n| detector | {heads} |")
            print("|---" * (len(LOADS) + 1) + "|")
            for name in (OURS, *RULES):
                cells = [_cell([row[name] for row in rows[load]], load) for load in LOADS]
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _cell(rows: list[tuple[float | None, bool]], load: float) -> str:
    """Return below 1 the share of runs with a false alarm at any scrape, and at the last one; above
    1 the share without an alarm, and the median seconds to the first alarm.
    """
    first = [time for time, _ in rows if time is not None]
    if load < 1:
        return f"{len(first) / len(rows):.0%} ({sum(end for _, end in rows) / len(rows):.0%})"
    missed = 1 - len(first) / len(rows)
    return f"{missed:.0%}, {np.median(first):.0f} s" if first else f"{missed:.0%}"


if __name__ == "__main__":
    main()
