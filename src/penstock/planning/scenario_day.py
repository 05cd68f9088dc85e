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

    def read(self, workload: Workload, folder: Path) -> RateProfile:
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


def read_day(day: Any, workload: Workload, folder: Path) -> DaySection:
    """Return the day that a scenario describes, its rates read."""
    document = day if isinstance(day, Mapping) else {"rates": day}
    section = parsed(document, DaySection, "plan.day", "`rates`")
    return section.model_copy(update={"rates": section.read(workload, folder)})


def peak_of(day: DaySection, workload: Workload) -> Workload:
    """Return the workload at the highest rate of a day."""
    rates: RateProfile = day.rates
    peak = resampled(workload, rates.peak)
    at = rates.clock(int(rates.rates.argmax()))
    notices = [
        f"the plan is for the highest rate of the day, {amount(rates.peak)} requests/s from {at}"
    ]
    if isinstance(workload.arrivals, Replay):
        notices.append("recorded requests are drawn at random, as Poisson arrivals of that rate")
    return dataclasses.replace(peak, notices=(*peak.notices, *notices))


def day_of(
    day: DaySection, workload: Workload, deployment: Deployment, aim: Aim, counts: Sequence[int],
    progress: Report | None = None,
) -> DayPlan:  # fmt: skip
    """Plan the day that a scenario describes, with numbers of replicas that its search allows."""
    # The deployment is what the plan found for the highest rate, and the static fleet.
    most = counts[-1] if day.most_replicas is None else day.most_replicas
    plan = plan_day(
        day.rates, workload, deployment, aim, replicas=counts, most_replicas=most,
        least_replicas=day.least_replicas, startup_minutes=day.startup_minutes,
        check=day.check_days, progress=progress,
    )  # fmt: skip
    return dataclasses.replace(plan, deployment=deployment)
