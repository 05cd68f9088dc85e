"""What arrives of each workflow and stage of a system, and how long it takes there."""

import dataclasses
from collections.abc import Mapping

from penstock.checking.batch_means import Statistics
from penstock.checking.latency import SteadyState
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.system.network import Network
from penstock.theory.latency_bounds import earliest_of_jobs


@dataclasses.dataclass(frozen=True)
class WorkflowAnswer:
    """What arrives of a workflow, and how long its jobs take."""

    name: str
    jobs_per_s: float  # that arrive in the long run
    # That arrived in the run, and that had not ended when it did.
    jobs: int
    unfinished: int
    e2e: Statistics | None  # in the steady state, by statistic; None where latency is refused
    # Mean over the jobs of the run of the least that each takes, whatever serves it and whatever
    # else there is (`penstock.theory.latency_bounds`).
    earliest_s: float


@dataclasses.dataclass(frozen=True)
class StageAnswer:
    """What a stage asks of its pool, and how long it takes there."""

    name: str  # `workflow.stage`
    pool: str
    visits_per_s: float  # requests/s in the long run
    # Forward tokens of a request in each phase, on average.
    prefill_tokens: float
    decode_tokens: float
    # In the steady state, by metric (`ttft_s`, `e2e_s`, `tbt_s` of the only stage, at joins
    # `join_wait_s`) and statistic; None where it is refused.
    latency: Mapping[str, Statistics] | None


@dataclasses.dataclass(frozen=True)
class PriorityAnswer:
    """How long requests of one priority take."""

    workflow: str
    stage: str | None  # None: whole jobs, by the priority of their first request
    priority: int  # the smaller is served first
    latency: Mapping[str, Statistics]  # in the steady state, by metric and statistic


def workflow_answers(
    network: Network, run: Run, latency: SteadyState | None
) -> tuple[WorkflowAnswer, ...]:
    """Return what arrives of each workflow, and how long its jobs take."""
    earliest = earliest_of_jobs(network, recorded(run.rows, "requests").jobs)
    answers = []
    for index, workflow in enumerate(network.workflows):
        mine = run.workflow == index
        answers.append(
            WorkflowAnswer(
                workflow.name,
                workflow.rate,
                int(mine.sum()),
                int((mine & (run.finish < 0)).sum()),
                latency.workflows[workflow.name] if latency else None,
                float(earliest[mine].mean()) if mine.any() else 0.0,
            )
        )
    return tuple(answers)


def stage_answers(network: Network, latency: SteadyState | None) -> tuple[StageAnswer, ...]:
    """Return what each stage asks for, and how long it takes."""
    model = network.model()
    between = {}
    if latency and len(network.stages) == 1 and "tbt_s" in latency.estimates:
        between["tbt_s"] = latency.estimates["tbt_s"]
    return tuple(
        StageAnswer(
            name,
            model.pools[model.pool[index]],
            float(model.visits[index]),
            float(model.prefill[index]),
            float(model.decode[index]),
            {**latency.stages[name], **between} if latency else None,
        )
        for index, name in enumerate(model.stages)
    )


def priority_answers(latency: SteadyState | None) -> tuple[PriorityAnswer, ...]:
    """Return how long requests of each priority take, where they have several."""
    return tuple(
        PriorityAnswer(workflow, stage, priority, metrics)
        for (workflow, stage), by_priority in (latency.priorities if latency else {}).items()
        for priority, metrics in by_priority.items()
    )
