"""Answers and their parts as JSON documents say them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.checking.batch_means import Statistics, ends, values
from penstock.simulation.rows import recorded
from penstock.simulation.run import Run
from penstock.theory.certificate import Certificate
from penstock.words import STATISTICS

if TYPE_CHECKING:
    from penstock.checking.answer import Answer
    from penstock.checking.stages import StageAnswer, WorkflowAnswer


def answer_as_dict(answer: "Answer") -> dict[str, Any]:
    """Return the JSON form of an answer; a network's says what each pool and stage does, too."""
    steady = answer.latency
    whole = {} if steady is None else steady.estimates
    latency = None
    if not answer.latency_refused:
        latency = {metric: values(of) for metric, of in whole.items()}
        if steady is None:
            latency = latency_as_dict(answer.run)
    return {
        "verdict": answer.verdict,
        "load": _load_of_answer(answer),
        "certificate": answer.certificate.as_dict(),
        "stability": answer.stability and answer.stability.as_dict(),
        "stability_skipped": answer.stability_skipped,
        "simulation": run_as_dict(answer.run)
        | {"verdict": answer.stability and answer.stability.verdict},
        "latency": latency,
        "latency_interval": steady and {metric: ends(of) for metric, of in whole.items()},
        "latency_refused": answer.latency_refused,
        "steady_state": steady
        and {
            "jobs": steady.jobs,
            "warmup_jobs": steady.warmup_jobs,
            "confidence": steady.confidence,
        },
        "targets": [target.as_dict() for target in answer.targets],
        **(_places(answer) if answer.is_network else {}),
        "outages": [window.as_dict() for window in answer.outages],
        "calibration": answer.calibration and answer.calibration.as_dict(),
        "disagreement": answer.disagreement,
        "warnings": [*answer.front, *answer.warnings],
    }


def _places(answer: "Answer") -> dict[str, Any]:
    """Return what is said of each pool, workflow, stage and priority."""
    return {
        "pools": [
            dataclasses.asdict(pool)
            | {
                "binding": list(pool.binding),
                "limits": [dataclasses.asdict(of) | {"margin": of.margin} for of in pool.limits],
            }
            for pool in answer.pools
        ],
        "workflows": [_workflow_as_dict(workflow) for workflow in answer.workflows],
        "stages": [_stage_as_dict(stage) for stage in answer.stages],
        "priorities": [
            {"workflow": of.workflow, "stage": of.stage, "priority": of.priority}
            | _latency_as_dict(of.latency)
            for of in answer.priorities
        ],
    }


def _load_of_answer(answer: "Answer") -> dict[str, Any]:
    """Return the load of a server, or of the pool of a network with the least margin."""
    certificate = answer.certificate
    if not answer.is_network:
        return load_as_dict(certificate)
    bottleneck = answer.bottleneck
    return {
        "bottleneck": bottleneck.name,
        "rho": bottleneck.rho,
        "margin": bottleneck.margin,
        "max_load": certificate.max_load if math.isfinite(certificate.max_load) else None,
        "rho_at_least": bottleneck.rho_at_least,
        "rho_without_cache": bottleneck.rho_without_cache,
    }


def load_as_dict(certificate: Certificate) -> dict[str, float | None]:
    """Return the JSON form of a load."""
    load = certificate.load
    return {
        "rho": certificate.rho,
        "arrival_rate": load.arrival_rate,
        "tokens_per_request": load.tokens_per_request,
        "offered_tokens_per_s": load.offered_tokens_per_s,
        "capacity_tokens_per_s": load.capacity_tokens_per_s,
        "max_rate": certificate.max_rate,
        "rho_at_least": certificate.rho_at_least,
        "rho_without_cache": certificate.rho_without_cache,
        "rho_measured": certificate.measured,
    }


def run_as_dict(run: Run) -> dict[str, Any]:
    """Return the JSON form of what was simulated; no verdict is drawn from one run."""
    growth = run.growth_tokens_per_s
    return {
        "verdict": None,
        "jobs": run.arrived,
        "requests": run.arrived if run.ends is None else recorded(run.rows, "requests").finish.size,
        "unfinished": run.unfinished,
        "batches": run.n_batches,
        "seconds": run.seconds,
        "tokens_per_s": run.tokens_per_s,
        "utilisation": run.utilisation,
        "growth_tokens_per_s": None if math.isnan(growth) else growth,
        "preemptions": run.preemptions,
        "recomputed_tokens": run.recomputed_tokens,
        "reused_tokens": run.reused_tokens,
        "dropped": run.dropped,
    }


def latency_as_dict(run: Run) -> dict[str, dict[str, float | None]]:
    """Return the JSON form of the latency of a run."""
    return {
        row["metric"]: {name: row[name] for name in STATISTICS}
        for row in run.latency().iter_rows(named=True)
    }


def _workflow_as_dict(workflow: "WorkflowAnswer") -> dict[str, Any]:
    return {
        "workflow": workflow.name,
        "jobs_per_s": workflow.jobs_per_s,
        "jobs": workflow.jobs,
        "unfinished": workflow.unfinished,
        "e2e_s": workflow.e2e and values(workflow.e2e),
        "e2e_interval": workflow.e2e and ends(workflow.e2e),
        "earliest_s": workflow.earliest_s,
    }


def _stage_as_dict(stage: "StageAnswer") -> dict[str, Any]:
    return {
        "stage": stage.name,
        "pool": stage.pool,
        "visits_per_s": stage.visits_per_s,
        "prefill_tokens": stage.prefill_tokens,
        "decode_tokens": stage.decode_tokens,
        **_latency_as_dict(stage.latency),
    }


def _latency_as_dict(latency: Mapping[str, Statistics] | None) -> dict[str, Any]:
    return {
        "latency": latency and {metric: values(of) for metric, of in latency.items()},
        "latency_interval": latency and {metric: ends(of) for metric, of in latency.items()},
    }
