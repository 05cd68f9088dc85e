"""Request rates over a day: given, from a file, or counted from a trace."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.fields import Checked, Range
from penstock.inputs.arrays import Floats
from penstock.inputs.source import Source
from penstock.inputs.tables import as_numbers, chosen_rows, open_table
from penstock.show.answers import Meaning
from penstock.workload.arrivals import Replay
from penstock.workload.workload import Workload

DAY_S = 86_400.0
HOUR_S = 3_600.0

_MOST_INTERVALS = 10_000
_HIGHEST_RATE = 1e6
_LAST_HOUR = 1e9
_UNFIT = "shorter, no fleet follows; longer, it is no part of a day"
_INTERVAL = Range(1.0, 366 * DAY_S, "s", _UNFIT, "an interval of the day")


@dataclasses.dataclass(frozen=True, eq=False)
class RateProfile(Checked):
    """Request rates, constant over each of a number of equal intervals, over and over again."""

    rates: Floats  # shape (intervals,), requests/s
    interval_s: Annotated[float, _INTERVAL, Meaning("How long each lasts.")] = HOUR_S
    name: Annotated[str, Meaning("Where they come from.")] = "given rates"

    def settle(self) -> None:
        """Refuse rates that are none, or too many."""
        rates = checks.column("the rates of a day", self.rates).astype(np.float64)
        why = "queues need longer intervals to settle"
        checks.whole("the number of rates", rates.size, 1, _MOST_INTERVALS, "", why)
        # As they were given: NumPy takes true for 1.
        for index, rate in enumerate(np.array(self.rates, dtype=object).ravel()):
            name = f"rate {index} of the day"
            checks.number(name, rate, 0, _HIGHEST_RATE, "requests/s", "so many arrive; mend it")
        if not rates.any():
            raise InputError(
                "all rates of the day are 0, so nothing arrives and no fleet is needed; give one "
                "above 0"
            )
        # rates that differ by rounding alone are one
        rates = np.array([float(f"{rate:.15g}") for rate in rates])
        object.__setattr__(self, "rates", rates)

    @classmethod
    def of_trace(cls, workload: Workload, *, interval_s: float = HOUR_S) -> Self:
        """Count arrivals of a trace by interval; of several days take the mean of all."""
        # Where a day is no multiple of the interval the days stay apart. Times count from the first
        # request, not from midnight. An interval covered less than half is left out, unless it is
        # the only one.
        if not isinstance(workload.arrivals, Replay):
            raise InputError(
                f"{workload.name} has no recorded arrival times, so no rates by hour; give the "
                "rates"
            )
        profile = cls(np.ones(1), interval_s)  # checks the interval
        times = workload.arrivals.times_s - workload.arrivals.times_s[0]
        span = float(times[-1])
        if span <= 0:
            raise InputError(
                f"all requests of {workload.name} arrive at one instant, so it has no rates; give "
                "them"
            )
        many = math.ceil(span / profile.interval_s)
        checks.whole(f"the intervals of {workload.name}", many, 1, 10**6, "", "take longer ones")
        counts = np.bincount((times // profile.interval_s).astype(np.int64)).astype(np.float64)
        covered = np.full(counts.size, profile.interval_s)
        covered[-1] = span - (counts.size - 1) * profile.interval_s
        if counts.size > 1 and covered[-1] < profile.interval_s / 2:
            counts, covered = counts[:-1], covered[:-1]
        per_day = round(DAY_S / profile.interval_s)
        if counts.size > per_day and math.isclose(per_day * profile.interval_s, DAY_S):
            index = np.arange(counts.size) % per_day
            counts, covered = (
                np.bincount(index, weights).astype(np.float64) for weights in (counts, covered)
            )
        return cls(counts / covered, profile.interval_s, f"rates of {workload.name}")

    @classmethod
    def read(cls, path: str | Path, *, interval_s: float | None = None) -> Self:
        """Read a table with a column ``rate`` (requests/s), perhaps ``hour`` (evenly spaced)."""
        # The default interval is what ``hour`` says, without it an hour.
        source = Source.at(checks.path("the file of rates", path))
        table = open_table(source)
        if "rate" not in table.header:
            raise source.fault(
                "has no column rate of numbers, in requests/s, a row per hour. Add it"
            )
        limits = {"rate": (0.0, _HIGHEST_RATE)}
        if "hour" in table.header:
            limits["hour"] = (0.0, _LAST_HOUR)
        text, _ = chosen_rows(source, table, limits, {})
        numbers = as_numbers(source, table, text, limits, "from {:g} to {:,.0f}")
        if "hour" in limits and numbers.height > 1:
            gaps = np.diff(numbers["hour"].to_numpy()) * HOUR_S
            if not (gaps[0] > 0 and np.allclose(gaps, gaps[0], rtol=1e-6)):
                raise source.fault(
                    "the column hour does not rise in equal steps. Give one rate for each hour"
                )
            if interval_s is not None and not math.isclose(interval_s, gaps[0], rel_tol=1e-6):
                raise source.fault(
                    f"the column hour rises in steps of {gaps[0] / 60:g} minutes, but intervals of "
                    f"{interval_s / 60:g} minutes are asked for. Leave out one of the two"
                )
            interval_s = float(gaps[0])
        return cls(
            numbers["rate"].to_numpy(), HOUR_S if interval_s is None else interval_s, source.name
        )

    @property
    def span_s(self) -> float:
        """Seconds until it begins anew."""
        return float(self.rates.size * self.interval_s)

    @property
    def peak(self) -> float:
        """Highest rate, requests/s."""
        return float(self.rates.max())

    def with_peak(self, rate: float) -> Self:
        """Return the same pattern with another highest rate, requests/s."""
        rate = checks.number(
            "the peak rate", rate, 1e-9, _HIGHEST_RATE, "requests/s", "it is the highest of the day"
        )
        return dataclasses.replace(self, rates=self.rates * (rate / self.peak))

    def clock(self, index: int) -> str:
        """Return when an interval begins, such as 07:30."""
        return clock(index * self.interval_s)


def clock(seconds: float) -> str:
    """Return the time of day so long after midnight, such as 07:30."""
    days, minutes = divmod(round(seconds / 60), 1440)
    return f"{f'day {days}, ' if days else ''}{minutes // 60:02d}:{minutes % 60:02d}"


def profile(
    rates: Any, workload: Workload, folder: Path = Path(), *, interval_s: float | None = None
) -> RateProfile:
    """Return the profile asked for: rates by hour, the path of a table, or ``trace``."""
    # ``trace``: the recorded times of the workload, as read, before it is resampled. The default
    # interval is an hour, or what a table says.
    length = HOUR_S if interval_s is None else interval_s
    if isinstance(rates, str) and rates == "trace":
        return RateProfile.of_trace(workload, interval_s=length)
    if isinstance(rates, str | Path):
        return RateProfile.read(folder / checks.path("plan.day", rates), interval_s=interval_s)
    return RateProfile(rates, length)
