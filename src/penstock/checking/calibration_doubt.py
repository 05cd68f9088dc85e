"""What the uncertainty of calibrated batch times does to an answer.

Batch times are drawn from what the calibration left open. The theory is asked of each draw, the
slow and the fast end are tested as the server is, and short runs with the same requests say how far
latencies move. Intervals are of 90%, each end by itself.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from penstock.checking.verdict import verdict
from penstock.inputs.arrays import Floats
from penstock.simulation.simulate import RunOptions, run_server
from penstock.system.batch_time import Composition
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.words import METRICS
from penstock.workload.workload import Workload

_DRAWS = 40
_ENDS = (0.05, 0.95)
_REQUESTS = 1_000  # of a run that says how far latencies move


class Interval(NamedTuple):
    """Where a number lies with 90% probability, by the calibration alone."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class CalibrationDoubt:
    """What an answer would be with other batch times that the calibration allows.

    Attributes
    ----------
    max_rate
        Requests/s above which no policy is stable.
    margin
        1 - arrival rate / that rate.
    latency
        Mean seconds by metric (``ttft_s``, ``tbt_s``, ``e2e_s``) over those of the most probable
        batch times: 1.1 is 10% longer. Empty where some draw has no steady state.
    slow, fast
        Verdicts at the slow and at the fast end.
    """

    max_rate: Interval
    margin: Interval
    latency: dict[str, Interval]
    slow: str
    fast: str

    def holds(self, answer: str) -> bool:
        """Return whether a verdict is the same over the interval."""
        return {answer, self.slow, self.fast} == {answer}

    def reason(self, answer: str) -> str:
        """Say in a sentence what the verdict hinges on, or that it holds."""
        rates = f"{self.max_rate.low:,.4g} to {self.max_rate.high:,.4g} requests/s"
        if self.holds(answer):
            return (
                f"it is {answer} with all batch times that the calibration allows, by whose 90% "
                f"interval the limit of any policy is {rates}"
            )
        return (
            f"with the slow end of the calibrated batch times it is {self.slow}, with the fast end "
            f"{self.fast} (the limit of any policy is {rates}); benchmark more loads, near this "
            "one, and calibrate again"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "max_rate": list(self.max_rate),
            "margin": list(self.margin),
            "latency_factor": {name: list(ends) for name, ends in self.latency.items()},
            "slow": self.slow,
            "fast": self.fast,
        }


def calibration_doubt(workload: Workload, server: Server) -> CalibrationDoubt | None:
    """Return what the calibration of a server leaves open; None where nothing is known of it."""
    batch_time = server.batch_time
    if not isinstance(batch_time, Composition) or batch_time.uncertainty is None:
        return None
    known = batch_time.uncertainty
    servers = [
        dataclasses.replace(server, batch_time=known.moved(batch_time, change))
        for change in known.draws(_DRAWS)
    ]
    rates = np.array([certify(workload, drawn).max_rate for drawn in servers])
    order = np.argsort(rates)
    slow, fast = (servers[order[round(end * (len(servers) - 1))]] for end in _ENDS)
    slowest = _verdict(workload, slow)
    limit = _interval(rates)
    rate = workload.rate
    return CalibrationDoubt(
        max_rate=limit,
        margin=Interval(1 - rate / limit.low, 1 - rate / limit.high),
        latency=_latency(workload, server, servers) if slowest == "stable" else {},
        slow=slowest,
        fast=_verdict(workload, fast),
    )


def _interval(values: Floats) -> Interval:
    low, high = np.quantile(values, _ENDS).tolist()
    return Interval(low, high)


def _verdict(workload: Workload, server: Server) -> str:
    """Return what a theorem says, or else the test."""
    by_theorem = certify(workload, server).verdict
    if by_theorem != "unknown":
        return by_theorem
    return verdict(workload, server, seed=workload.seed).verdict


def _latency(workload: Workload, server: Server, servers: list[Server]) -> dict[str, Interval]:
    """Return by which factors mean latencies move, with the same requests throughout."""
    usual = _means(workload, server)
    moved = [_means(workload, drawn) for drawn in servers]
    return {
        metric: _interval(np.array([means[metric] for means in moved]) / usual[metric])
        for metric in METRICS
        if usual.get(metric)
    }


def _means(workload: Workload, server: Server) -> dict[str, float]:
    requests = min(_REQUESTS, workload.rows or _REQUESTS)
    run = run_server(workload, server, requests, RunOptions(drain=True))
    return {row["metric"]: row["mean"] or 0.0 for row in run.latency().iter_rows(named=True)}
