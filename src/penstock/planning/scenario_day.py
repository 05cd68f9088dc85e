"""What a scenario says of a day: ``plan.day``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from penstock import checks
from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.day import DayPlan, plan_day
from penstock.planning.day_run import resampled
from penstock.planning.deployment import Deployment
from penstock.planning.rates import RateProfile, profile
from penstock.planning.search import Report
from penstock.words import amount
from penstock.workload.arrivals import Replay
from penstock.workload.workload import Workload, read_trace


class DaySection(Section):
    """Rates of the day, and how its fleet may change.

    ``rates``: a list, a CSV file, or ``trace``, the workload's own; ``trace`` instead: the file of
    another; ``peak_rate`` stretches the rates.
    """

    rates: Any = None
    trace: str | None = None
    interval_minutes: float | None = None
    peak_rate: float | None = None
    startup_minutes: float = 0.0
    least_replicas: Whole = 1
    most_replicas: Whole | None = None
    check_days: bool = Field(default=True, alias="check")

    def profile(self, workload: Workload, folder: Path) -> RateProfile:
        """Return the rates."""
        if (self.rates is None) == (self.trace is None):
            raise InputError(
                "plan.day: give one of rates and trace, for example rates: [2, 1, 1, 4]"
            )
        rates, minutes = self.rates, self.interval_minutes
        if self.trace is not None:
            rates = "trace"
            workload = read_trace(folder / checks.path("plan.day.trace", self.trace))
        interval_s = None if minutes is None else 60 * minutes
        of_day = profile(rates, workload, folder, interval_s=interval_s)
        return of_day if self.peak_rate is None else of_day.with_peak(self.peak_rate)


@dataclasses.dataclass(frozen=True, eq=False)
class Day:
    """What a scenario says of a day, with its rates as they were read."""

    section: DaySection
    profile: RateProfile


def read_day(day: Any, workload: Workload, folder: Path) -> Day:
    """Return the day that a scenario describes."""
    document = day if isinstance(day, Mapping) else {"rates": day}
    section = parsed(document, DaySection, "plan.day", "`rates`")
    return Day(section, section.profile(workload, folder))


def peak_of(day: Day, workload: Workload) -> Workload:
    """Return the workload at the highest rate of a day."""
    rates = day.profile
    peak = resampled(workload, rates.peak)
    at = rates.clock(int(rates.rates.argmax()))
    notices = [
        f"the plan is for the highest rate of the day, {amount(rates.peak)} requests/s from {at}"
    ]
    if isinstance(workload.arrivals, Replay):
        notices.append("recorded requests are drawn at random, as Poisson arrivals of that rate")
    return dataclasses.replace(peak, notices=(*peak.notices, *notices))


def day_of(
    day: Day, workload: Workload, deployment: Deployment, aim: Aim, counts: Sequence[int],
    progress: Report | None = None,
) -> DayPlan:  # fmt: skip
    """Plan the day that a scenario describes, with numbers of replicas that its search allows."""
    # The deployment is what the plan found for the highest rate: no interval needs more replicas,
    # and it is the static fleet.
    least, most = day.section.least_replicas, day.section.most_replicas
    enough = max(deployment.replicas, least)
    enough = next((count for count in counts if count >= enough), enough)
    plan = plan_day(
        day.profile, workload, deployment, aim, replicas=counts, least_replicas=least,
        most_replicas=enough if most is None else min(most, enough),
        startup_minutes=day.section.startup_minutes, check=day.section.check_days,
        progress=progress,
    )  # fmt: skip
    return dataclasses.replace(plan, deployment=deployment)
