"""Answers and their parts as JSON documents say them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.checking.batch_means import Statistics, ends, values
from penstock.simulation.run import Run
from penstock.theory.certificate import Certificate
from penstock.words import STATISTICS

if TYPE_CHECKING:
    from penstock.checking.network_answer import NetworkAnswer, StageAnswer, WorkflowAnswer


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
        "requests": run.arrived,
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


def network_as_dict(answer: "NetworkAnswer") -> dict[str, Any]:
    """Return the JSON form of the answer for a network."""
    bottleneck = answer.bottleneck
    return {
        "verdict": answer.verdict,
        "load": {
            "bottleneck": bottleneck.name,
            "rho": bottleneck.rho,
            "margin": bottleneck.margin,
            "max_load": answer.max_load if math.isfinite(answer.max_load) else None,
            "rho_at_least": bottleneck.rho_at_least,
            "rho_without_cache": bottleneck.rho_without_cache,
        },
        "certificate": certificate_as_dict(answer.certificate),
        "stability": answer.stability.as_dict() if answer.stability else None,
        "stability_skipped": answer.stability_skipped,
        "simulation": _run_as_dict(answer),
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
        "outages": [window.as_dict() for window in answer.outages],
        "steady_state": answer.latency
        and {
            "jobs": answer.latency.jobs,
            "warmup_jobs": answer.latency.warmup_jobs,
            "confidence": answer.latency.confidence,
        },
        "latency_refused": answer.latency_refused,
        "calibration": answer.calibration.as_dict() if answer.calibration else None,
        "disagreement": answer.disagreement,
        "warnings": [*answer.front, *answer.warnings],
    }


def certificate_as_dict(certificate: Certificate) -> dict[str, Any]:
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
        "growth_tokens_per_s": growth if math.isfinite(growth) else None,
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
