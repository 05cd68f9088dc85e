"""What a twin is told to do, and what came of it: predictions, runs beside simulations."""

import dataclasses
from typing import Any

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.fit import Fit
from penstock.measuring.profiling.sweep import Sweep
from penstock.measuring.twin.drift import Drift
from penstock.show.page import Page, Shown
from penstock.simulation.run import Run
from penstock.system.policies import resolve
from penstock.words import METRICS
from penstock.workload.pairs import Lengths

NEAR = 0.85
"""Runs at this load and above begin with a backlog."""

_SAMPLE = 10_000


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run.

    Parameters
    ----------
    lengths
        Prompt and output tokens of requests.
    loads
        Loads rho.
    seeds
        How many times, each with other requests.
    seconds
        For how long requests arrive in each run.
    backlog_s
        Seconds of work that wait at the start of runs at loads of `NEAR` and more.
    calibrate_s
        Seconds of batches to measure before each round of loads.
    rehearsal_s
        Seconds of requests before each run, whose batches join the sweep's.
    seed
        The first one.
    """

    lengths: Lengths
    loads: tuple[float, ...] = (0.5, 0.8, 0.9, 1.1)
    seeds: int = 3
    seconds: float = 60.0
    backlog_s: float = 10.0
    calibrate_s: float = 40.0
    rehearsal_s: float = 20.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.loads:
            raise InputError("no load is given; give some such as .5, .8, 1.1")
        for load in self.loads:
            checks.number("a load", load, 0.01, 5, "", "1 is all that the server can carry")
        checks.whole("seeds", self.seeds, 1, 1_000, "", "each is a round of runs")
        for name, value, least, reason in (
            ("seconds", self.seconds, 0.1, "for so long requests arrive in a run"),
            ("backlog", self.backlog_s, 0, "so much work waits at the start"),
            ("rehearsal_s", self.rehearsal_s, 0.1, "for so long requests come before each run"),
            ("calibrate_s", self.calibrate_s, 0.1, "for so long batches are measured"),
        ):
            checks.number(name, value, least, 86_400, "s", reason)

    def sweep(self, token_budget: int, policy: str) -> Sweep:
        """Return the batches to measure: all kinds that these requests can bring about."""
        prompt, output = self.lengths.sample(np.random.default_rng(self.seed), _SAMPLE)
        share = float((output - 1).sum() / (prompt + output - 1).sum())
        most = 1.0
        if resolve(policy).decode_first:  # which keeps the mix; others can pile decodes up
            most = 1.5 * share
        decodes = min(token_budget, int(most * token_budget) + 8)
        return Sweep(
            token_budget, decodes, int(prompt.max()), int((prompt + output).max()), self.seed
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is said before a run.

    Attributes
    ----------
    rho
        Load.
    rate
        Requests/s.
    carried
        Requests/s that the simulated server completes in overload.
    theory
        What the certificate says of the server under Poisson arrivals at this rate: stable,
        unstable or unknown.
    """

    rho: float
    rate: float
    carried: float
    theory: str

    @property
    def direction(self) -> str:
        """What a backlog will do."""
        return "drains" if self.rho < 1 else "grows"


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """One run of the engine beside its simulation.

    Attributes
    ----------
    prediction
        What was said before.
    seed
        Of the requests.
    backlog
        Requests that waited at the start.
    measured, simulated
        The engine's run and the simulation of the same requests.
    drift, simulated_drift
        Under a backlog; None for runs that began without one.
    batch_error
        Model over measured time of the very batches of the engine's run, less 1.
    """

    prediction: Prediction
    seed: int
    backlog: int
    measured: Run
    simulated: Run
    drift: Drift | None
    simulated_drift: Drift | None
    batch_error: float

    def latency(self, metric: str, statistic: str = "mean") -> tuple[float, float]:
        """Return a statistic of latency, measured and simulated, seconds."""
        values = (
            run.latency().row(list(METRICS).index(metric), named=True)
            for run in (self.measured, self.simulated)
        )
        first, second = (value[statistic] for value in values)
        return float(first), float(second)

    def error(self, metric: str, statistic: str = "mean") -> float:
        """Return the relative error of a predicted latency."""
        measured, predicted = self.latency(metric, statistic)
        return predicted / measured - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Twin(Shown):
    """All runs of an engine beside their simulations.

    Attributes
    ----------
    description, facts
        The engine and the machine.
    settings
        What was run.
    fits
        Batch times of each round; none where they were given.
    trials
        In the order of the runs.
    speed
        Time of the same batches at the end over that after the first calibration.
    pace
        Real seconds that a second of the engine's clock took: 5%, 50% and 95% quantile; None if it
        goes by real time.
    """

    description: str
    facts: dict[str, str | int]
    settings: Settings
    fits: tuple[Fit, ...]
    trials: tuple[Trial, ...]
    speed: float
    pace: tuple[float, float, float] | None = None

    @property
    def by_load(self) -> dict[float, list[Trial]]:
        """The runs at each load."""
        runs: dict[float, list[Trial]] = {}
        for trial in self.trials:
            runs.setdefault(trial.prediction.rho, []).append(trial)
        return runs

    def page(self) -> Page:
        """Return all of it as a page."""
        from penstock.measuring.twin.view import twin_page

        return twin_page(self)


def summary(trial: Trial) -> str:
    """Say in a line what a run showed."""
    measured, simulated = trial.latency("e2e_s")
    line = f"  E2E {measured:.3g} s, simulated {simulated:.3g} s ({trial.error('e2e_s'):+.1%})"
    if trial.drift:
        line += f"; a backlog {trial.drift.direction}: load {trial.drift.load:.3f}"
    return line + f"; batches: model {trial.batch_error:+.1%}"


def as_dict(twin: Twin) -> dict[str, Any]:
    """Return what JSON says of it."""
    return {
        "engine": twin.description,
        "machine": twin.facts,
        "seconds": twin.settings.seconds,
        "speed": twin.speed,
        "pace": twin.pace,
        "calibrations": [fit.as_dict() for fit in twin.fits] or [None],
        "runs": [_trial_as_dict(trial) for trial in twin.trials],
    }


def _trial_as_dict(trial: Trial) -> dict[str, Any]:
    record: dict[str, Any] = {
        "rho": trial.prediction.rho,
        "rate": trial.prediction.rate,
        "seed": trial.seed,
        "requests": trial.measured.arrived,
        "backlog": trial.backlog,
        "predicted": trial.prediction.direction,
        "theory": trial.prediction.theory,
        "batch_error": trial.batch_error,
    }
    for name, run, drift in (
        ("measured", trial.measured, trial.drift),
        ("simulated", trial.simulated, trial.simulated_drift),
    ):
        latency = {metric.pop("metric"): metric for metric in run.latency().to_dicts()}
        record[name] = {
            "latency": latency,
            "utilisation": run.utilisation,
            "batches": run.n_batches,
        }
        if drift:
            record[name]["drift"] = dataclasses.asdict(drift) | {
                "load": drift.load,
                "direction": drift.direction,
            }
    return record
