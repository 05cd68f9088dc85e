"""What a scenario says of a day and of a finite job: ``plan.day`` and ``plan.job``."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from penstock import checks
from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.planning import job as jobs
from penstock.planning.day import DayPlan, plan_day
from penstock.planning.day_run import resampled
from penstock.planning.evaluate import Aim
from penstock.planning.rates import HOUR_S, RateProfile, profile
from penstock.planning.space import Deployment
from penstock.workload.workload import Workload, read_trace


class DaySection(Section):
    """Rates of the day, and how its fleet may change. ``rates``: a list, a CSV file, or ``trace``, the workload's own.

    ``trace`` instead names the file of another trace; ``peak_rate`` stretches the rates.
    """

    rates: Any = None
    trace: str | None = None
    interval_minutes: float = 60.0
    peak_rate: float | None = None
    startup_minutes: float = 0.0
    least_replicas: Whole = 1
    most_replicas: Whole = 1_024
    check_days: bool = Field(default=True, alias="check")

    def profile(self, workload: Workload, folder: Path) -> RateProfile:
        """Return the rates."""
        if (self.rates is None) == (self.trace is None):
            raise InputError("plan.day: give one of rates and trace, for example rates: [2, 1, 1, 4]")
        interval_s = 60 * checks.number("plan.day.interval_minutes", self.interval_minutes, 1 / 60, 1e6, "", "a length")
        if self.trace is not None or self.rates == "trace":
            recorded = (
                workload if self.trace is None else read_trace(folder / checks.path("plan.day.trace", self.trace))
            )
            found = RateProfile.of_trace(recorded, interval_s=interval_s)
        else:
            found = profile(self.rates, workload, folder)
            if isinstance(self.rates, list):
                found = dataclasses.replace(found, interval_s=interval_s)
        return found if self.peak_rate is None else found.with_peak(self.peak_rate)


class JobSection(Section):
    """A job: how many requests, in how many hours, alone or beside the workload's own traffic (``online: true``)."""

    requests: Whole
    deadline_h: float
    token_budgets: list[Whole] = Field(default_factory=list)
    online: bool = False
    most_replicas: Whole = 1_024
    runs: Whole = 5


def peak_of(given: Any, workload: Workload, folder: Path = Path()) -> Workload:
    """Return the workload at the highest rate of the day that a scenario describes; parameters as for `day_of`."""
    profile = _day(given).profile(workload, folder)
    peak = resampled(workload, profile.peak)
    at = profile.clock(int(profile.rates.argmax()))
    said = f"the plan is for the highest rate of the day, {profile.peak:,.4g} requests/s from {at}"
    return dataclasses.replace(peak, notices=(*peak.notices, said))


def day_of(
    given: Any, workload: Workload, deployment: Deployment, aim: Aim, *, folder: Path = Path(), progress: Any = None
) -> DayPlan:
    """Plan the day that a scenario describes: ``plan.day`` is rates, a CSV file, ``trace``, or a `DaySection`.

    Parameters
    ----------
    given
        As it stands in the scenario.
    workload, deployment, aim
        As for `plan_day`.
    folder
        Of the scenario.
    progress
        As for `plan_day`.
    """
    section = _day(given)
    return plan_day(
        section.profile(workload, folder), workload, deployment, aim,
        most_replicas=section.most_replicas, least_replicas=section.least_replicas,
        startup_minutes=section.startup_minutes, check=section.check_days, progress=progress,
    )  # fmt: skip


def _day(given: Any) -> DaySection:
    return parsed(given if isinstance(given, Mapping) else {"rates": given}, DaySection, "plan.day", "`rates`")


def job_of(
    given: Any, workload: Workload, deployments: Sequence[Deployment], aim: Aim | None, *, progress: Any = None
) -> jobs.JobPlan:
    """Plan the job that a scenario describes (`JobSection`).

    Parameters
    ----------
    given
        As it stands in the scenario.
    workload
        Lengths of the job, and with ``online`` the traffic beside it.
    deployments
        What to try.
    aim
        Whose targets the online traffic has.
    progress
        As for `penstock.planning.job.plan_job`.
    """
    section = parsed(given, JobSection, "plan.job", "`requests` and `deadline_h`")
    if section.online and aim is None:
        raise InputError("plan.job has online traffic but the plan has no targets for it; give plan.targets")
    own = sorted({deployment.server.token_budget for deployment in deployments})
    budgets = section.token_budgets or (own if len(own) > 1 else ())  # where the search names some, no others
    return jobs.plan_job(
        workload, deployments, requests=section.requests, deadline_s=section.deadline_h * HOUR_S,
        token_budgets=budgets, most_replicas=section.most_replicas, runs=section.runs,
        online=workload if section.online else None,
        targets=aim.targets if section.online and aim is not None else (), progress=progress,
    )  # fmt: skip
