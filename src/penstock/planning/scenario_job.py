"""What a scenario says of a finite job: ``plan.job``."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.planning.aim import Aim
from penstock.planning.job import JobPlan, plan_job
from penstock.planning.job_run import Job
from penstock.planning.rates import HOUR_S
from penstock.planning.search import Report
from penstock.planning.space import Family
from penstock.workload.workload import Workload


class JobSection(Section):
    """A job: how many requests, in how many hours, alone or beside the traffic (``online``)."""

    requests: Whole
    deadline_h: float
    token_budgets: list[Whole] = Field(default_factory=list)
    online: bool = False
    most_replicas: Whole | None = None
    runs: Whole = 5

    def asked(self, online: Workload, aim: Aim | None) -> dict[str, Any]:
        """Return what is asked as `Job` takes it, with what arrives beside."""
        asked = self.model_dump() | {"deadline_s": self.deadline_h * HOUR_S, "online": None}
        del asked["deadline_h"]
        if not self.online:
            return asked
        if aim is None:
            raise InputError(
                "plan.job has online traffic but the plan has no targets for it; give plan.targets"
            )
        return asked | {"online": online, "targets": aim.targets}


def read_job(job: Any, workload: Workload, aim: Aim | None, online: Workload) -> JobSection:
    """Return a scenario's job, once its values can be used."""
    section = parsed(job, JobSection, "plan.job", "`requests` and `deadline_h`")
    Job(workload, **section.asked(online, aim))
    return section


def job_of(
    job: JobSection, workload: Workload, families: Sequence[Family], aim: Aim | None,
    online: Workload, progress: Report | None = None,
) -> JobPlan:  # fmt: skip
    """Plan the job that a scenario describes; where its search names token budgets, with those."""
    own = sorted({family.smallest.server.token_budget for family in families})
    asked = job.asked(online, aim)
    if not job.token_budgets and len(own) > 1:
        asked["token_budgets"] = own
    return plan_job(workload, families, progress=progress, **asked)
