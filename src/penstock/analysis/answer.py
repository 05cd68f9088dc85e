"""The answer to "is it stable, what can it carry, at what latency": certificate and run side by side."""

import dataclasses
import math
from typing import Any

from penstock.run import QUANTILES, Record, Run
from penstock.simulate import Progress, simulate
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.theory.load import Load
from penstock.workload.workload import Workload

ROWS_UP_TO = 1_000_000
"""Longer runs keep a summary instead of a row per request."""

GROWTH_WORTH_A_WARNING = 0.02
"""Share of the offered tokens that piles up."""

_LOSS_WORTH_A_WARNING = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What is known about a workload on a server.

    Attributes
    ----------
    certificate
        What a theorem says.
    run
        What was simulated.
    latency_refused
        Why the latency of the run is not the latency of a steady state, or None.
    warnings
        What the user should know besides.
    """

    certificate: Certificate
    run: Run
    latency_refused: str | None
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of ``check``."""
        certificate = self.certificate
        return {
            "load": load_as_dict(certificate.load),
            "certificate": {
                "verdict": certificate.verdict,
                "theorem": certificate.theorem,
                "reason": certificate.reason,
                "margin": certificate.margin,
                "hypotheses": [dataclasses.asdict(hypothesis) for hypothesis in certificate.hypotheses],
            },
            "simulation": run_as_dict(self.run),
            "latency": None if self.latency_refused else latency_as_dict(self.run),
            "latency_refused": self.latency_refused,
            "warnings": list(self.warnings),
        }


def check(
    workload: Workload,
    server: Server,
    *,
    requests: int | None = None,
    until: float | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Certify a workload on a server, simulate it, and refuse the latency of a steady state that does not exist.

    Parameters
    ----------
    workload, server, requests, until, progress
        As in `penstock.simulate`.
    """
    certificate = certify(workload, server)
    record = record_for(requests, until)
    run = simulate(workload, server, requests=requests, until=until, record=record, progress=progress)
    refused = None
    if certificate.verdict == "unstable":
        refused = f"{certificate.reason}; there is no steady state whose latency could be told"
    elif certificate.verdict == "critical":
        refused = f"{certificate.reason}; there may be no steady state whose latency could be told"
    warnings = (*workload.notices, *load_warnings(certificate.load, server), *run_warnings(certificate, run))
    return Answer(certificate, run, refused, warnings)


def record_for(requests: int | None, until: float | None) -> Record:
    """Return what a run of that length keeps: a row per request where that is no burden."""
    return "requests" if until is None and (requests or 0) <= ROWS_UP_TO else "summary"


def load_warnings(load: Load, server: Server) -> list[str]:
    """Say what the limits waste."""
    full, best = load.full_batch_tokens_per_s, load.capacity_tokens_per_s
    if full >= best * (1 - _LOSS_WORTH_A_WARNING):
        return []
    return [
        f"batches filled to the token budget of {server.token_budget:,} carry {full:,.0f} tokens/s, but batches of "
        f"{load.best_token_load:,} carry {best:,.0f}: set the budget to {load.best_token_load:,}"
    ]


def run_warnings(certificate: Certificate, run: Run) -> list[str]:
    """Say what the run showed that the certificate does not."""
    growth, offered = run.growth_tokens_per_s, certificate.load.offered_tokens_per_s
    if certificate.verdict == "unstable" or not growth > GROWTH_WORTH_A_WARNING * offered:
        return []
    return [
        f"the backlog grew by {growth:,.0f} tokens/s over the second half of this run ({growth / offered:.0%} of what "
        "arrived): if it goes on there is no steady state, and latency only tells how long the run was"
    ]


def load_as_dict(load: Load) -> dict[str, float]:
    """Return the JSON form of a load."""
    return {
        "rho": load.rho,
        "arrival_rate": load.arrival_rate,
        "tokens_per_request": load.tokens_per_request,
        "offered_tokens_per_s": load.offered_tokens_per_s,
        "capacity_tokens_per_s": load.capacity_tokens_per_s,
        "max_rate": load.max_rate,
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
    }


def latency_as_dict(run: Run) -> dict[str, dict[str, float | None]]:
    """Return the JSON form of the latency of a run."""
    return {
        row["metric"]: {name: row[name] for name in ("mean", *QUANTILES)} for row in run.latency().iter_rows(named=True)
    }
