"""What arrives of each workflow and stage of a system, and how long it takes there."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated

from penstock.checking.batch_means import OfLatency, Statistics, ends, values
from penstock.checking.latency import SteadyState
from penstock.show.answers import Meaning, computed
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.system.network import Network
from penstock.theory.latency_bounds import earliest_of_jobs

_LATENCY = "In the steady state, by metric and statistic, each with its interval; null: refused."


@dataclasses.dataclass(frozen=True)
class WorkflowAnswer:
    """What arrives of a workflow, and how long its jobs take."""

    name: Annotated[str, Meaning("What the network calls it.", key="workflow")]
    jobs_per_s: Annotated[float, Meaning("That arrive in the long run.")]
    jobs: Annotated[int, Meaning("That arrived in the run.")]
    unfinished: Annotated[int, Meaning("That had not ended when it did.")]
    e2e: Annotated[Statistics | None, Meaning(_LATENCY, key=None)]
    earliest_s: Annotated[
        float,
        Meaning(
            "Mean over the jobs of the run of the least that each takes, whatever serves it and "
            "whatever else there is (`penstock.theory.latency_bounds`)."
        ),
    ]

    @computed()
    def e2e_s(self) -> dict[str, float | None] | None:
        """By statistic."""
        return None if self.e2e is None else values(self.e2e)

    @computed()
    def e2e_interval(self) -> dict[str, list[float | None]] | None:
        """Its ends, by statistic."""
        return None if self.e2e is None else ends(self.e2e)


@dataclasses.dataclass(frozen=True)
class StageAnswer(OfLatency):
    """What a stage asks of its pool, and how long it takes there."""

    name: Annotated[str, Meaning("`workflow.stage`.", key="stage")]
    pool: Annotated[str, Meaning("That serves it.")]
    visits_per_s: Annotated[float, Meaning("Requests/s in the long run.")]
    prefill_tokens: Annotated[float, Meaning("Of a request, on average.")]
    decode_tokens: Annotated[float, Meaning("Of a request, on average.")]
    # By `ttft_s`, `e2e_s`, `tbt_s` of the only stage, at joins `join_wait_s`.
    latency: Annotated[Mapping[str, Statistics] | None, Meaning(_LATENCY, key=None)]


@dataclasses.dataclass(frozen=True)
class PriorityAnswer(OfLatency):
    """How long requests of one priority take."""

    workflow: Annotated[str, Meaning("Whose requests these are.")]
    stage: Annotated[
        str | None, Meaning("Null: whole jobs, by the priority of their first request.")
    ]
    priority: Annotated[int, Meaning("The smaller is served first.")]
    latency: Annotated[Mapping[str, Statistics], Meaning(_LATENCY, key=None)]


def workflow_answers(
    network: Network, run: Run, latency: SteadyState | None
) -> tuple[WorkflowAnswer, ...]:
    """Return what arrives of each workflow, and how long its jobs take."""
    earliest = earliest_of_jobs(network, recorded(run.rows, "requests").jobs)
    answers = []
    for index, workflow in enumerate(network.workflows):
        mine = run.workflow == index
        jobs, unfinished = int(mine.sum()), int((mine & (run.finish < 0)).sum())
        e2e = latency.workflows[workflow.name] if latency else None
        least = float(earliest[mine].mean()) if jobs else 0.0
        answer = WorkflowAnswer(workflow.name, workflow.rate, jobs, unfinished, e2e, least)
        answers.append(answer)
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
