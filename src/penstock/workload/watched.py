"""Recordings of `penstock watch` as workloads: what came at engines that somebody watched.

An engine counts; it does not list requests. So of each interval between two scrapes the number of
arrivals is known and not their instants, which are drawn evenly within it: arrivals are those of a
Poisson process whose rate changes from interval to interval. Bursts within an interval are lost. Of
lengths, means and spreads are known: they are drawn as lognormal, prompt and output apart, each
request like any other; what they have in common is lost.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import InputError, nearest
from penstock.inputs.recording import read_recording
from penstock.workload.arrivals import Seconds
from penstock.workload.lengths import Constant, Length, LogNormal
from penstock.workload.workload import Workload

Said = Mapping[str, Any]
"""What an engine said at one moment: numbers by the names of `penstock.live.scrape.Scrape`."""

_SMALLEST_SPREAD = 1e-3
_MOST_ARRIVALS = 20_000_000  # each is drawn, and takes 24 bytes
_STILL_RUN = 0.1  # share of requests that had not finished, from which on their lengths matter


@dataclasses.dataclass(frozen=True)
class _Interval:
    """Two scrapes of one engine, one after the other, between which it was not started again."""

    before: Said
    after: Said

    def change(self, name: str) -> float | None:
        """Return by how much a counter grew, None where one of the two does not say."""
        before, after = self.before.get(name), self.after.get(name)
        if before is None or after is None:
            return None
        return max(0.0, float(after - before))


def read_watched(path: str | Path, engine: str | None = None, seed: int = 0) -> Workload:
    """Read what came, from a recording of ``penstock watch --record``."""
    # Without an ``engine`` all count together; the seed draws instants and lengths.
    rows, _ = read_recording(path)
    engines: dict[str, list[Said]] = {}
    for row in rows:
        for scrape in row.scrapes:
            engines.setdefault(scrape["engine"], []).append(scrape)
    names = [*engines]
    if engine is not None:
        if engine not in names:
            raise InputError(f"{path} has no engine {engine!r}{nearest(engine, names)}")
        names = [engine]
    intervals = [interval for name in names for interval in _intervals(engines[name])]
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    times = _arrivals(intervals, rng, str(path))
    if times.size < 2:
        raise InputError(
            f"{path} holds {times.size} arrivals, from which nothing can be said of what comes; "
            "watch for longer, or engines that have requests"
        )
    prompt = _length("prompt", intervals, str(path))
    workload = Workload.from_arrays(
        times - times[0],
        prompt.sample(rng, times.size),
        _length("output", intervals, str(path)).sample(rng, times.size),
        seed=seed,
        name=Path(path).stem,
    )
    return dataclasses.replace(workload, notices=_notices(names, intervals))


def _intervals(scrapes: Sequence[Said]) -> list[_Interval]:
    """Return pairs of scrapes in order of time, without those in which the engine began anew."""
    ordered = sorted(scrapes, key=lambda scrape: float(scrape["time_s"]))
    intervals = [_Interval(before, after) for before, after in itertools.pairwise(ordered)]
    return [interval for interval in intervals if not _began_anew(interval)]


def _began_anew(interval: _Interval) -> bool:
    before, after = interval.before, interval.after
    names = ("arrived", "finished", "prompt_tokens", "output_tokens")
    return any(name in before and name in after and after[name] < before[name] for name in names)


def _arrivals(intervals: Sequence[_Interval], rng: np.random.Generator, path: str) -> Seconds:
    """Draw the instants of arrivals: so many in each interval, evenly within it, sorted."""
    parts = [np.empty(0)]
    room = _MOST_ARRIVALS
    rest = 0.0  # of a request, and of gauges that were read a moment too early or too late
    for interval in intervals:
        rest += _came(interval)
        count = max(0, math.floor(min(rest, 1e18) + 0.5))
        low, high = interval.before["time_s"], interval.after["time_s"]
        rest -= count
        room -= count
        if room < 0:
            raise InputError(
                f"{path} says that {count:,} requests came to {interval.after['engine']} in "
                f"{high - low:.3g} s, and more than {_MOST_ARRIVALS:,} in all, which is more than "
                "is drawn; check its counters, or give a part of the recording"
            )
        parts.append(rng.uniform(low, high, count))
    return np.sort(np.concatenate(parts))


def _came(interval: _Interval) -> float:
    """Return how many requests came: as counted, or those that left and new ones in the engine."""
    arrived = interval.change("arrived")
    if arrived is not None:
        return arrived
    finished = interval.change("finished")
    if finished is None:
        return interval.change("first_tokens") or 0.0
    inside = [_inside(scrape) for scrape in (interval.before, interval.after)]
    grew = inside[1] - inside[0] if None not in inside else 0.0  # type: ignore[operator]
    return finished + grew + (interval.change("refused") or 0.0)


def _inside(scrape: Said) -> float | None:
    running, waiting = scrape.get("running"), scrape.get("waiting")
    if running is None or waiting is None:
        return None
    return float(running + waiting)


def _length(phase: str, intervals: Sequence[_Interval], path: str) -> Length:
    """Return how long prompts or outputs are, by mean and spread."""
    ways = [(f"finished_{phase}_tokens", "finished")]
    if phase == "prompt":  # counted when it is read, so that long ones are not missing
        ways.insert(0, ("prompt_tokens", "first_tokens"))
    for tokens, requests in ways:
        count = math.fsum(interval.change(requests) or 0.0 for interval in intervals)
        total = math.fsum(interval.change(tokens) or 0.0 for interval in intervals)
        if count >= 1 and total >= count:
            mean = total / count
            spread = _spread(f"{phase}_spread", intervals)
            if spread is None:
                return Constant(round(mean))
            return LogNormal(mean, spread)
    raise InputError(
        f"{path} does not say how long {phase}s are: no request finished while it was recorded; "
        "watch for longer"
    )


def _spread(name: str, intervals: Sequence[_Interval]) -> float | None:
    """Return the spread that was said last, None where it is not known or there is none."""
    spreads = [interval.after[name] for interval in intervals if name in interval.after]
    if not spreads or spreads[-1] < _SMALLEST_SPREAD:
        return None
    return float(spreads[-1])


def _notices(names: Sequence[str], intervals: Sequence[_Interval]) -> tuple[str, ...]:
    """Return what is not known of a workload that was watched and not listed."""
    notices = [
        f"a recording counts requests and does not list them: those of each of {len(intervals):,} "
        "intervals are spread evenly within it, and lengths are drawn by mean and spread",
        "the host's time between batches that `penstock watch` shows is not in a recording: unless "
        "the batch time has it, the engine is slower than this says",
    ]
    if len(names) > 1:
        notices.append(
            f"these are the arrivals of {len(names)} engines together; name one with `engine`"
        )
    finished = math.fsum(interval.change("finished") or 0.0 for interval in intervals)
    last = {interval.after["engine"]: _inside(interval.after) or 0.0 for interval in intervals}
    running = math.fsum(last.values())
    if running > _STILL_RUN * finished:
        notices.append(
            f"{running:,.0f} requests had not finished when the recording ended, beside "
            f"{finished:,.0f} that had: long outputs are missing, and the mean is too small"
        )
    return tuple(notices)
