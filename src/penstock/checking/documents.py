"""Parts of answers as JSON documents say them: the load, a run, its latency."""

import math
from typing import Any

from penstock.simulation.run import Run
from penstock.theory.certificate import Certificate
from penstock.words import STATISTICS


def load_as_dict(certificate: Certificate) -> dict[str, float]:
    """Return the JSON form of a load."""
    load = certificate.load
    return {
        "rho": load.rho,
        "arrival_rate": load.arrival_rate,
        "tokens_per_request": load.tokens_per_request,
        "offered_tokens_per_s": load.offered_tokens_per_s,
        "capacity_tokens_per_s": load.capacity_tokens_per_s,
        "max_rate": certificate.max_rate,
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
