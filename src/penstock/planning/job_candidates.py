"""Which replicas a fleet for a job may be made of, and in which order they are tried."""

import dataclasses
import math
from collections.abc import Sequence

from penstock import checks
from penstock.errors import InputError
from penstock.planning.deployment import Deployment
from penstock.planning.job_run import Job, Mode
from penstock.planning.space import Family
from penstock.system.server import Server

TOKEN_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
"""Those that are tried where none are given, beside the server's own."""

MOST = 1_024
"""Replicas of a fleet, where nothing else is said."""

Fleets = Deployment | Family
"""Any number of replicas, or those that a search allows."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A replica to make fleets of, numbers allowed, and its seconds for the job, at least."""

    deployment: Deployment
    mode: Mode
    counts: Sequence[int]
    work_s: float

    @property
    def name(self) -> str:
        """What it is, and beside online traffic how the job is let in."""
        family = self.deployment.family
        return family if self.mode == "alone" else f"{family}, {self.mode}"

    def least(self, job: Job) -> int:
        """Return the replicas below which the work cannot be done in time."""
        return math.ceil(self.work_s / job.deadline_s * (1 - 1e-12))


def candidates_of(
    fleets: Fleets | Sequence[Fleets], budgets: Sequence[int], most: int | None, job: Job
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return what to try, least cost first, and what cannot serve the job."""
    candidates: dict[str, Candidate] = {}
    refused: list[tuple[str, str]] = []
    for fleet in (fleets,) if isinstance(fleets, Deployment | Family) else fleets:
        deployment = fleet.smallest if isinstance(fleet, Family) else fleet
        counts: Sequence[int] = range(1, (most or MOST) + 1)
        if isinstance(fleet, Family) and most is None:
            counts = fleet.counts
        if deployment.prefill_replicas:
            refused.append(
                (deployment.family, "replicas for prompts alone are not simulated for jobs")
            )
            continue
        if deployment.others:
            refused.append((deployment.family, "two kinds in one pool are not simulated for jobs"))
            continue
        for budget in dict.fromkeys(budgets or (deployment.server.token_budget, *TOKEN_BUDGETS)):
            try:
                server = dataclasses.replace(deployment.server, token_budget=budget)
                single = dataclasses.replace(
                    deployment, server=server, replicas=1, router="round-robin", router_settings=()
                )
                new = [Candidate(single, mode, counts, 0.0) for mode in _modes(server, job)]
                new = [candidate for candidate in new if candidate.name not in candidates]
                work = job.work_s(server) if new else 0.0
            except InputError as error:
                refused.append(
                    (f"{deployment.family} with budget {checks.shown(budget)}", str(error))
                )
            else:
                candidates |= {
                    candidate.name: dataclasses.replace(candidate, work_s=work) for candidate in new
                }

    def order(candidate: Candidate) -> tuple[float, float]:
        replicas = job.likely(candidate.deployment.server, candidate.work_s)
        return candidate.deployment.cost * replicas, candidate.work_s

    if not candidates:
        raise InputError(
            f"no server can serve the job: {refused[0][1] if refused else 'none was given'}"
        )
    return sorted(candidates.values(), key=order), refused


def _modes(server: Server, job: Job) -> tuple[Mode, ...]:
    if job.online is None:
        return ("alone",)
    if "priority" in server.policy.orders:
        return ("priority", "paced")
    return ("paced",)
