"""What recorded arrival times look like that are no arrival times: stamped on a grid, counted in
another unit, with a gap of most of the recording; and their busiest stretch.
"""

from typing import NamedTuple

import numpy as np

from penstock.inputs.arrays import Floats, Ints

_COARSE_S = 0.05  # a grid as fine as a batch does no harm
_TOGETHER = 0.1  # share of requests that share their instant with an earlier one
_BY_CHANCE = 10.0  # times as far apart as the nearest two of so many random instants are
_EVEN = 0.01  # of a step
_FEWEST_INSTANTS = 3
_FEWEST = 10
_GAPS = 3  # the longest ones that are looked at
_FREQUENT, _RARE = 100.0, 0.01  # requests/s of a recording: beyond, its unit is asked about
_UNEVEN = 2.0  # times the mean rate, beyond which a stretch is worth a word
_SIGMAS = 4.0
_OVER = 1.1  # load of a stretch
_SPAN = 0.02  # of a recording: what its fluid queue takes to work off

UNITS: dict[str, str] = {
    "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds",
}  # fmt: skip


def time_doubts(times: Floats, rate: float, unit: str | None, *, fractions: bool) -> list[str]:
    """Return what to doubt of recorded times, s, not falling; ``unit``: as their file counts them,
    None where that is not in doubt; ``fractions``: of a unit that the format has whole.
    """
    if not np.isfinite(rate):
        return []
    gaps = np.diff(times)
    doubts = [*_grid(times, gaps)]
    places = _silences(gaps)
    if places.size:
        silent, span = float(gaps[places].sum()), float(times[-1] - times[0])
        rate, counted = (gaps.size - places.size) / (span - silent), rate
        rows = " and ".join(f"{place + 1:,}" for place in places)
        doubts.append(
            f"Nothing arrives for {silent:,.0f} s, {100 * silent / span:.4g}% of the time, after "
            f"request {rows}. The rate of {counted:.4g} requests/s counts that; without it, it is "
            f"{rate:.4g}. Cut the recording there, or draw from it: `rate: {rate:.3g}, arrivals: "
            "poisson`."
        )
    return [*doubts, *_unit(rate, unit, fractions)]


def _silences(gaps: Floats) -> Ints:
    """Return which gaps, a few, are most of a recording."""
    places = np.sort(np.argsort(gaps)[-_GAPS:])
    if np.count_nonzero(gaps) <= _FEWEST * _GAPS or gaps[places].sum() <= gaps.sum() / 2:
        return np.empty(0, np.int64)
    return np.asarray(places[gaps[places] > gaps.sum() / 10], np.int64)


def _grid(times: Floats, gaps: Floats) -> list[str]:
    """Say that times are stamped more coarsely than requests come."""
    apart = gaps[gaps > 0]
    instants = apart.size + 1
    if instants < _FEWEST_INSTANTS or instants > (1 - _TOGETHER) * times.size:
        return []
    step = float(apart.min())
    by_chance = step * instants**2 < _BY_CHANCE * (times[-1] - times[0])
    even = np.allclose(apart / step, np.round(apart / step), rtol=0, atol=_EVEN)
    if step < _COARSE_S or (by_chance and not even):
        return []
    return [
        f"Arrival times are stamped every {float(f'{step:.3g}'):,g} s: {times.size:,} requests "
        f"come at {instants:,} instants. If they did not come together, they wait too long here; "
        "`arrivals: poisson` draws them one by one at the same rate."
    ]


def _unit(rate: float, unit: str | None, fractions: bool) -> list[str]:
    """Question the unit of times by the rate that follows."""
    if unit not in UNITS:
        return []
    units = [*UNITS]
    finer = -1 if rate > _FREQUENT or fractions else int(rate < _RARE)
    place = units.index(unit) + finer
    if not finer or not 0 <= place < len(units):
        return []
    other, changed = units[place], rate * 1000.0**finer
    seen = f", and times have fractions of {UNITS[unit]}" if fractions else ""
    return [
        f"{rate:,.4g} requests/s follow where times are {UNITS[unit]}{seen}. If they are "
        f"{UNITS[other]} it is {changed:,.4g}: name the columns, `columns: {{arrival_{other}: "
        "NAME, prompt_tokens: NAME, output_tokens: NAME}`."
    ]


class Stretch(NamedTuple):
    """A part of a recording."""

    begin_s: float  # since the first arrival
    seconds: float
    rate: float  # requests/s


def overloaded(times: Floats, max_rate: float | None = None) -> Stretch | None:
    """Return the stretch that leaves the most undone where so many requests/s are carried, by
    default twice those that come; None where chance explains it, or it is soon worked off.
    """
    requests, gaps = times.size, np.diff(times)
    if np.count_nonzero(gaps) <= _FEWEST * _GAPS:
        return None
    gaps[_silences(gaps)] = 0.0
    passed = np.append(0.0, np.cumsum(gaps))
    span = float(passed[-1])
    max_rate = max_rate or _UNEVEN * (requests - 1) / span
    late = np.arange(requests) - max_rate * passed
    backlog = late - np.minimum.accumulate(late)
    end = int(backlog.argmax())
    begin = int(late[: end + 1].argmin())
    count, seconds = end - begin, float(passed[end] - passed[begin])
    usual = (requests - 1) * seconds / span
    spread = float(gaps.std() / gaps.mean())
    if (
        np.count_nonzero(gaps[begin:end]) < _FEWEST
        or count < _OVER * max_rate * seconds
        or backlog[end] < _SPAN * span * max_rate
        or count - usual < _SIGMAS * spread * np.sqrt(usual)
    ):
        return None
    return Stretch(float(times[begin] - times[0]), seconds, count / seconds)
