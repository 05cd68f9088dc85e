"""What a scenario says of a finite job: ``plan.job``."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from penstock.document import Section, Whole, parsed
from penstock.errors import InputError
from penstock.planning import job as jobs
from penstock.planning.aim import Aim
from penstock.planning.deployment import Deployment
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

    def traffic(self, workload: Workload, aim: Aim | None) -> dict[str, Any]:
        """Return the traffic beside the job, and its targets, as `jobs.plan_job` takes them."""
        if not self.online:
            return {}
        if aim is None:
            raise InputError(
                "plan.job has online traffic but the plan has no targets for it; give plan.targets"
            )
        return {"online": workload, "targets": aim.targets}


def read_job(job: Any, workload: Workload, aim: Aim | None, online: Workload) -> JobSection:
    """Return a scenario's job, once its values can be used; parameters as for `job_of`."""
    section: JobSection = job
    if not isinstance(job, JobSection):
        section = parsed(job, JobSection, "plan.job", "`requests` and `deadline_h`")
    jobs.checked_job(
        workload, section.requests, section.deadline_h * HOUR_S, **section.traffic(online, aim),
        most_replicas=section.most_replicas, runs=section.runs,
    )  # fmt: skip
    return section


def job_of(
    job: Any,
    workload: Workload,
    fleets: Sequence[Family | Deployment],
    aim: Aim | None,
    *,
    online: Workload | None = None,
    progress: Any = None,
) -> jobs.JobPlan:
    """Plan the job that a scenario describes, as it stands there or as `read_job` returns it."""
    # As many replicas are tried as a family allows, or ``most_replicas``. ``online`` is what
    # arrives besides, where asked for; by default the workload.
    online = workload if online is None else online
    section = read_job(job, workload, aim, online)
    servers = [(fleet.smallest if isinstance(fleet, Family) else fleet).server for fleet in fleets]
    own = sorted({server.token_budget for server in servers})
    # Where the search names some, no others.
    return jobs.plan_job(
        workload, fleets, requests=section.requests, deadline_s=section.deadline_h * HOUR_S,
        token_budgets=section.token_budgets or (own if len(own) > 1 else ()),
        most_replicas=section.most_replicas, runs=section.runs, progress=progress,
        **section.traffic(online, aim),
    )  # fmt: skip
