"""What a scenario says of a finite job: ``plan.job``."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.planning import job as jobs
from penstock.planning.aim import Aim
from penstock.planning.rates import HOUR_S
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
        """Return what is asked of the job as `jobs.plan_job` takes it, with what arrives beside."""
        beside: dict[str, Any] = {}
        if self.online:
            if aim is None:
                raise InputError(
                    "plan.job has online traffic but the plan has no targets for it; give "
                    "plan.targets"
                )
            beside = {"online": online, "targets": aim.targets}
        return beside | {
            "requests": self.requests, "deadline_s": self.deadline_h * HOUR_S,
            "most_replicas": self.most_replicas, "runs": self.runs,
        }  # fmt: skip


def read_job(job: Any, workload: Workload, aim: Aim | None, online: Workload) -> JobSection:
    """Return a scenario's job, once its values can be used."""
    section = parsed(job, JobSection, "plan.job", "`requests` and `deadline_h`")
    jobs.checked_job(workload, **section.asked(online, aim))
    return section


def job_of(
    job: JobSection,
    workload: Workload,
    families: Sequence[Family],
    aim: Aim | None,
    online: Workload,
    progress: jobs.Progress | None = None,
) -> jobs.JobPlan:
    """Plan the job that a scenario describes; where its search names token budgets, with those."""
    own = sorted({family.smallest.server.token_budget for family in families})
    budgets = job.token_budgets or (own if len(own) > 1 else ())
    asked = job.asked(online, aim)
    return jobs.plan_job(workload, families, token_budgets=budgets, progress=progress, **asked)
