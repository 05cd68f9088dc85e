"""All that a scenario with a plan asks for: the fleet, its day, a job, and how to start them."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from penstock.errors import InputError
from penstock.planning.day import DayPlan
from penstock.planning.deployment import Deployment
from penstock.planning.job import JobPlan, plan_job
from penstock.planning.launch import Launch, launches
from penstock.planning.plan import Plan, plan
from penstock.planning.scenario import PlanScenario, day_of
from penstock.show import progress
from penstock.show.answers import Meaning, Shown
from penstock.words import amount


@dataclasses.dataclass(frozen=True, eq=False)
class Answers(Shown):
    """What a scenario asks for; what is not asked is left out."""

    title: str
    plan: Annotated[Plan | None, Meaning("Which fleet meets the targets.", when="plan")] = None
    day: Annotated[
        DayPlan | None, Meaning("Replicas by interval; null: `notices` say why.", when="of_day")
    ] = None
    no_day: Annotated[
        str,
        Meaning(
            "Why a day that was asked for is not planned.",
            key="notices",
            when="no_day",
            data=lambda why: [why],
        ),
    ] = ""
    job: Annotated[
        JobPlan | None, Meaning("Which fleet does the offline work in time.", when="job")
    ] = None
    launches: Annotated[
        Sequence[Launch], Meaning("How to start each kind of replica.", key="launch")
    ] = ()
    prices: str = ""  # what they are, where nobody gave them

    @property
    def of_day(self) -> bool:
        """Whether a day is asked for."""
        return self.day is not None or bool(self.no_day)

    def manifest(self, path: Path) -> str:
        """Return the manifest of the first fleet, of two kinds both, to be written to a file."""
        if not self.launches:
            raise InputError(
                f"--manifest {path}: there is no deployment that an engine can run; leave it out"
            )
        kinds = 2 if self.launches[0].kind else 1
        return "---\n".join(launch.manifest for launch in self.launches[:kinds])


def answered(
    asked: PlanScenario,
    first: Callable[[Sequence[Deployment]], None] | None = None,
    prices: str = "",
) -> Answers:
    """Search, then plan the day and the job that are asked for."""
    workload, families = asked.scenario.workload, asked.space.families
    fleet = day = job = None
    best: Deployment | None = None
    if asked.aim is not None:
        with progress.bar("Planning") as show:
            fleet = plan(
                asked.workload, asked.space, aim=asked.aim, rank=asked.rank, first=first,
                progress=show,
            )  # fmt: skip
        best = None if fleet.best is None else fleet.best.deployment
    no_day = _why_no_day(asked, best)
    if asked.day is not None and not no_day and best is not None and asked.aim is not None:
        counts = next(family.counts for family in families if family.name == best.family)
        with progress.bar("Planning the day") as show:
            day = day_of(asked.day, workload, best, asked.aim, counts, show)
    if asked.job is not None:
        alike = [of for of in families if len(of.smallest.kinds) == 1]
        with progress.bar("Planning the job") as show:
            job = plan_job(asked.job, alike or families, progress=show)
    starts = [] if best is None else _launches(best)
    if job is not None and job.best is not None:
        note = "this is the fleet for the offline work"
        if job.job.online is not None:
            note = (
                f"this fleet serves both: {amount(job.job.online.rate)} online requests/s, and the "
                f"offline work{'; start it instead of the first' if starts else ''}"
            )
        starts += _launches(job.best.deployment, note)
    return Answers(asked.scenario.name, fleet, day, no_day, job, starts, prices)


def _why_no_day(asked: PlanScenario, best: Deployment | None) -> str:
    """Say why the day that was asked for is not planned; nothing where none was, or it is."""
    if asked.day is None:
        return ""
    if asked.aim is None:
        return "no day is planned: it takes targets; give plan.targets, or --target"
    if best is None:
        return (
            "no day is planned: no deployment is known to meet the targets at its highest rate, "
            f"{amount(asked.workload.rate)} requests/s; allow more replicas or other hardware "
            "(plan.search), or ask for less"
        )
    if best.other is not None:
        return (
            "no day is planned: the answer has two kinds of replica, and which of them to stop at "
            "night is not searched; leave plan.search.mix out"
        )
    return ""


def _launches(deployment: Deployment, *notes: str) -> list[Launch]:
    """Return how to start each kind of replica, with more notes; nothing if no engine runs it."""
    try:
        starts = launches(deployment)
    except InputError:
        return []
    return [dataclasses.replace(start, notes=(*notes, *start.notes)) for start in starts]
