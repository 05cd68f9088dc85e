"""The highest rate at which a policy is stable: a search over verdicts, on the same requests at
every rate.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock import checks
from penstock.checking.stability import Stability
from penstock.checking.verdict import verdict
from penstock.errors import InputError
from penstock.system.server import Server
from penstock.theory.certificate import Certificate, certify
from penstock.workload.workload import Workload

_HALVINGS = 40
_GUIDED = 6
"""Trials that go by the drift of those before; then halves are taken."""


class Trial(NamedTuple):
    """A rate that was tried, requests/s, and what was found."""

    rate: float
    stability: Stability


@dataclasses.dataclass(frozen=True, eq=False)
class MaxRate:
    """How much a server carries under its policy.

    Attributes
    ----------
    rate
        Highest rate found stable, requests/s.
    above
        Lowest rate above it that was not: unstable, or too close to the limit to tell.
    certificate
        What theory says at ``rate``; its ``max_rate`` is the bound of every policy.
    trials
        The rates tried, in order.
    """

    rate: float
    above: float
    certificate: Certificate = dataclasses.field(repr=False)
    trials: tuple[Trial, ...] = dataclasses.field(repr=False)

    @property
    def bound(self) -> float:
        """Requests/s above which no policy is stable."""
        return self.certificate.max_rate

    @property
    def disagreement(self) -> str | None:
        """What to doubt where a theorem certifies a rate that the test found unstable, or None."""
        unstable = [trial.rate for trial in self.trials if trial.stability.verdict == "unstable"]
        certified = self.certificate.certified_rate
        if certified is None or not unstable or min(unstable) >= certified:
            return None
        unchecked = [h.name for h in self.certificate.hypotheses if not h.checked]
        doubt = (
            f"what was taken on trust: {', '.join(unchecked)}"
            if unchecked
            else "the seed, or Penstock itself"
        )
        return (
            f"{self.certificate.theorem} says stable up to {certified:,.4g} requests/s, but the "
            "test found "
            f"{min(unstable):,.4g} unstable; in doubt is {doubt}"
        )

    @property
    def share(self) -> float:
        """The rate as a share of the bound."""
        return self.rate / self.bound

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rate": self.rate,
            "above": self.above,
            "bound": self.bound,
            "share": self.share,
            "certified_rate": self.certificate.certified_rate,
            "disagreement": self.disagreement,
            "arrivals": sum(trial.stability.arrivals for trial in self.trials),
            "trials": [
                {
                    "rate": trial.rate,
                    "verdict": trial.stability.verdict,
                    "drift": trial.stability.drift,
                }
                for trial in self.trials
            ],
        }


def max_rate(
    workload: Workload,
    server: Server,
    *,
    precision: float = 0.01,
    alpha: float = 0.01,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> MaxRate:
    """Find the highest stable rate, for any policy.

    The search begins just below the rate above which no policy is stable. The drift of a backlog
    says how much was served, and so where the limit may be: the next rates are half the precision
    below and above that. Every rate is judged on the same requests, closer or further apart (common
    random numbers), at half the precision as resolution. A rate too close to the limit to be told
    counts as not stable.

    Parameters
    ----------
    workload, server
        What arrives, at whatever rate, and what serves.
    precision
        Relative distance that is left between ``rate`` and ``above``.
    alpha, seed
        As in `verdict`.
    progress
        Called now and then with the share that is done.

    Raises
    ------
    InputError
        If a value cannot be used, the workload has no arrival times, or no rate is stable.
    """
    precision = checks.number(
        "the precision", precision, 1e-3, 0.5, "", "it is the relative distance that is left"
    )
    report = progress or (lambda share: None)
    trials: list[Trial] = []
    bound = certify(workload, server).max_rate
    low, high = 0.0, bound
    rate = bound / (1 + precision)
    while low == 0 or high > low * (1 + precision) * (1 + 1e-9):
        if len(trials) > _HALVINGS:
            raise InputError(
                f"{server.policy.name} is not stable at {high:g} requests/s, far below what the "
                "server could carry; "
                "mend the policy"
            )
        found = verdict(
            workload.with_rate(rate), server, alpha, precision / 2, seed,
            progress=lambda share: report(1 - 0.7 ** (len(trials) + share)),
        )  # fmt: skip
        trials.append(Trial(rate, found))
        low, high = (rate, high) if found.verdict == "stable" else (low, rate)
        rate = _next(low, high, trials, precision)
    return MaxRate(low, high, certify(workload.with_rate(low), server), tuple(trials))


def _next(low: float, high: float, trials: list[Trial], precision: float) -> float:
    """Return the rate to try: near where the drift would be 0, on the side that is not yet known;
    else the middle.
    """
    rate, found = trials[-1]
    guess = rate * (1 - found.drift)  # so much was served
    step = math.sqrt(1 + precision)
    for near in (guess / step, guess * step):
        if low < near < high and len(trials) <= _GUIDED:
            return near
    return math.sqrt(low * high) if low else high / 2
