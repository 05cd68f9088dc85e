"""The answer for a network as JSON."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.checking.batches import Statistics
from penstock.checking.pools import PoolAnswer
from penstock.theory.network.certificate import NetworkCertificate

if TYPE_CHECKING:
    from penstock.checking.network_answer import NetworkAnswer, StageAnswer, WorkflowAnswer


def network_as_dict(answer: "NetworkAnswer") -> dict[str, Any]:
    """Return the JSON form of the answer for a network."""
    steady = answer.latency
    bottleneck = answer.bottleneck
    return {
        "verdict": answer.verdict,
        "load": {
            "bottleneck": bottleneck.name,
            "rho": bottleneck.rho,
            "margin": bottleneck.margin,
            "max_load": answer.max_load if np.isfinite(answer.max_load) else None,
        },
        "certificate": certificate_as_dict(answer.certificate),
        "stability": answer.stability.as_dict() if answer.stability else None,
        "stability_skipped": answer.stability_skipped,
        "simulation": _run_as_dict(answer),
        "pools": [_pool_as_dict(pool) for pool in answer.pools],
        "workflows": [_workflow_as_dict(workflow) for workflow in answer.workflows],
        "stages": [_stage_as_dict(stage) for stage in answer.stages],
        "priorities": [
            {"workflow": of.workflow, "stage": of.stage, "priority": of.priority}
            | _latency_as_dict(of.latency)
            for of in answer.priorities
        ],
        "outages": [window.as_dict() for window in answer.outages],
        "steady_state": steady
        and {
            "jobs": steady.jobs,
            "warmup_jobs": steady.warmup_jobs,
            "confidence": steady.confidence,
        },
        "latency_refused": answer.latency_refused,
        "disagreement": answer.disagreement,
        "warnings": list(answer.warnings),
    }


def certificate_as_dict(certificate: NetworkCertificate) -> dict[str, Any]:
    """Return the JSON form of a certificate."""
    anyone, virtual = certificate.any_policy, certificate.virtual_station
    return {
        "verdict": certificate.verdict,
        "theorem": certificate.theorem,
        "reason": certificate.reason,
        "hypotheses": [dataclasses.asdict(hypothesis) for hypothesis in certificate.hypotheses],
        "certified_load": certificate.certified_load,
        "any_policy": anyone
        and {
            "max_load": anyone.max_load,
            "exact": anyone.exact,
            "cycles": [
                {"pools": list(cycle.pools), "max_load": cycle.max_load, "exact": cycle.exact}
                for cycle in anyone.cycles
            ],
        },
        "virtual_station": virtual
        and {
            "pools": list(virtual.pools),
            "stages": [list(stages) for stages in virtual.classes],
            "pushes": [list(stages) for stages in virtual.pushes],
            "loads": list(virtual.loads),
            "max_load": virtual.max_load,
        },
        "order": [list(pools) for pools in certificate.order],
        "joins": [
            {"stage": join.stage, "branches": join.branches, "bound": join.bound}
            for join in certificate.joins
        ],
    }


def _run_as_dict(answer: "NetworkAnswer") -> dict[str, Any]:
    run = answer.run
    growth = run.growth_tokens_per_s
    return {
        "verdict": answer.stability.verdict if answer.stability else None,
        "jobs": run.arrived,
        "unfinished": run.arrived - run.finished,
        "requests": run.requests.height,
        "seconds": run.seconds,
        "growth_tokens_per_s": growth if np.isfinite(growth) else None,
    }


def _pool_as_dict(pool: PoolAnswer) -> dict[str, Any]:
    limits = [dataclasses.asdict(limit) | {"margin": limit.margin} for limit in pool.limits]
    return dataclasses.asdict(pool) | {"binding": list(pool.binding), "limits": limits}


def _workflow_as_dict(workflow: "WorkflowAnswer") -> dict[str, Any]:
    return {
        "workflow": workflow.name,
        "jobs_per_s": workflow.jobs_per_s,
        "jobs": workflow.jobs,
        "unfinished": workflow.unfinished,
        "e2e_s": _values(workflow.e2e),
        "e2e_interval": _ends(workflow.e2e),
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
        "latency": latency and {metric: _values(of) for metric, of in latency.items()},
        "latency_interval": latency and {metric: _ends(of) for metric, of in latency.items()},
    }


def _values(statistics: Statistics | None) -> dict[str, float | None] | None:
    return (
        None
        if statistics is None
        else {name: estimate.value for name, estimate in statistics.items()}
    )


def _ends(statistics: Statistics | None) -> dict[str, list[float | None]] | None:
    return (
        None
        if statistics is None
        else {name: [estimate.low, estimate.high] for name, estimate in statistics.items()}
    )
