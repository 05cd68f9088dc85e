"""Drive a real engine with Poisson arrivals, and simulate the very same requests with batch times measured before.

A load rho is the arrival rate over the rate at which the simulated server completes requests in
overload, so it is known before the run. Below 1 a backlog drains, above it grows; that is said
before the run, too. Runs close to rho = 1 begin with a backlog, because a queue that begins empty
grows at first at any load.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.fit import Fit, fit
from penstock.measuring.fitting.judged import seconds_of
from penstock.measuring.profiling.driving import Batches, drive, joined, run_episode
from penstock.measuring.profiling.engine import RealEngine
from penstock.measuring.profiling.measurements import measured
from penstock.measuring.profiling.sweep import Sweep, measure
from penstock.measuring.twin.drift import Drift, drift_of
from penstock.measuring.twin.observed import observed_run
from penstock.simulation.run import Progress, Run
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import BatchTime, scaled
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.words import METRICS
from penstock.workload.arrivals import Poisson
from penstock.workload.pairs import Lengths
from penstock.workload.workload import Workload

NEAR = 0.85
"""Runs at this load and above begin with a backlog."""

_SAMPLE = 10_000
_OVERLOAD = 1.1
_PROBES = 4
_REHEARSAL = 1_000_000  # added to a seed: other requests than those of the run
_SLOWEST = 5.0
"""A run may take so many times the time of its arrivals and its backlog."""


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
        most = (
            1.5 * share if policy == "sarathi" else 1.0
        )  # decode first keeps the mix; others can pile decodes up
        decodes = min(token_budget, int(most * token_budget) + 8)
        return Sweep(
            token_budget, decodes, int(prompt.max()), int((prompt + output).max()), self.seed
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Batch times of an engine, for a round of runs.

    Attributes
    ----------
    batch_time
        The model.
    fit
        How it was fitted; None where it was given.
    sweep
        What was visited.
    """

    batch_time: BatchTime
    fit: Fit | None
    sweep: Sweep


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
class Twin:
    """All runs of an engine beside their simulations.

    Attributes
    ----------
    description, facts
        The engine and the machine.
    settings
        What was run.
    calibrations
        One per round, or one for all.
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
    calibrations: tuple[Calibration, ...]
    trials: tuple[Trial, ...]
    speed: float
    pace: tuple[float, float, float] | None = None

    def at(self, rho: float) -> list[Trial]:
        """Return the runs at a load."""
        return [trial for trial in self.trials if trial.prediction.rho == rho]


Say = Callable[[str], None]


def calibrate(sweep: Sweep, batches: Batches, description: str) -> Calibration:
    """Fit a model to measured batches."""
    fitted = fit(measured(batches, description))
    return Calibration(fitted.model, fitted, sweep)


def predict(
    server: Server, lengths: Lengths, loads: Sequence[float], seed: int = 0
) -> list[Prediction]:
    """Return rates, directions and certificates at given loads.

    What the server carries is found by simulation in slight overload; the rate of overload is found
    in a few steps.
    """
    forward = server.tokens_per_request(lengths.mean_prompt, lengths.mean_output)
    carried = server.batch_time.capacity(server.token_budget) / forward
    for _ in range(4):
        workload = Workload(Poisson(_OVERLOAD * carried), lengths, seed)
        run = simulate(workload, server, requests=4_000, record="batches", drain=False)
        half = run.batches.filter(run.batches["start_ns"] >= run.end * run.tick_s * 5e8)
        tokens = int((half["prefill_tokens"] + half["decode_tokens"]).sum())
        carried = tokens / (float(half["duration_ns"].sum()) * 1e-9) / forward
    return [
        Prediction(
            rho, rate, carried, certify(Workload(Poisson(rate), lengths, seed), server).verdict
        )
        for rho, rate in ((rho, rho * carried) for rho in loads)
    ]


def requests_of(
    prediction: Prediction, settings: Settings, seed: int
) -> tuple[int, npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw the requests of a run: how many wait at the start, arrivals in seconds, prompt and output tokens."""
    backlog = round(prediction.carried * settings.backlog_s if prediction.rho >= NEAR else 0)
    waiting = settings.lengths.sample(np.random.default_rng((seed, 1)), backlog)
    parts: list[tuple[npt.NDArray[Any], ...]] = [(np.zeros(backlog), *waiting)]
    for block in Workload(Poisson(prediction.rate), settings.lengths, seed).blocks():
        within = block.arrival_s <= settings.seconds
        columns = (block.arrival_s, block.prompt_tokens, block.output_tokens)
        parts.append(tuple(column[within] for column in columns))
        if not within.all():
            break
    arrival, prompt, output = map(np.concatenate, zip(*parts, strict=True))
    return backlog, arrival, prompt, output


def run_trial(
    engine: RealEngine,
    server: Server,
    prediction: Prediction,
    settings: Settings,
    seed: int,
    progress: Progress | None = None,
) -> Trial:
    """Run the engine, then simulate the same requests."""
    backlog, arrival, prompt, output = requests_of(prediction, settings, seed)
    longest = int((prompt + output).max())
    if longest > engine.longest:
        raise InputError(
            f"a request of {longest:,} tokens was drawn, but the engine takes {engine.longest:,}; "
            "give lengths a max"
        )
    patience = _SLOWEST * (settings.seconds + settings.backlog_s) + 10
    timeline = drive(engine, arrival, prompt, output, most_seconds=patience, progress=progress)
    observed = observed_run(server, prompt, output, timeline)
    workload = Workload.from_arrays(arrival - arrival[0], prompt, output)
    simulated = simulate(workload, server, record="batches")
    offered = prediction.rate * server.tokens_per_request(
        settings.lengths.mean_prompt, settings.lengths.mean_output
    )
    measured_drift, simulated_drift = (
        drift_of(run, offered) if backlog else None for run in (observed, simulated)
    )
    error = _batch_error(server.batch_time, timeline.batches)
    return Trial(
        prediction, seed, backlog, observed, simulated, measured_drift, simulated_drift, error
    )


def rehearse(engine: RealEngine, prediction: Prediction, settings: Settings, seed: int) -> Batches:
    """Return the batches of a run at the same load, without a backlog and with other requests.

    Batches of a kind that a sweep saw seldom may be common, and a decode batch is quicker after its
    like than after a long prompt.
    """
    calm = dataclasses.replace(prediction, rho=min(prediction.rho, NEAR / 2))  # no backlog
    short = dataclasses.replace(settings, seconds=settings.rehearsal_s)
    _, arrival, prompt, output = requests_of(calm, short, _REHEARSAL + seed)
    return drive(
        engine, arrival, prompt, output, most_seconds=_SLOWEST * settings.rehearsal_s + 10
    ).batches


def _batch_error(model: BatchTime, batches: Batches) -> float:
    """Return the model's time of batches over the measured time, less 1."""
    ran = measured(batches, "the run")
    return float(seconds_of(model, ran).sum() / ran.seconds.sum() - 1)


def _probe(engine: RealEngine, sweep: Sweep) -> float:
    """Return the seconds that a few fixed episodes take."""
    episodes = dataclasses.replace(sweep, seed=sweep.seed + 1).episodes()
    return sum(
        float(run_episode(engine, episode).seconds.sum())
        for episode, _ in zip(episodes, range(_PROBES), strict=False)
    )


def _pace(engine: RealEngine) -> tuple[float, float, float] | None:
    if not engine.clock.paces:
        return None
    low, middle, high = np.quantile(engine.clock.paces, (0.05, 0.5, 0.95)).tolist()
    return low, middle, high


def twin(
    engine: RealEngine,
    settings: Settings,
    *,
    batch_time: BatchTime | None = None,
    say: Say = lambda _: None,
    progress: Progress | None = None,
) -> Twin:
    """Measure batch times, predict, run the engine, and simulate the same requests.

    Parameters
    ----------
    engine
        An idle engine.
    settings
        What to run.
    batch_time
        A model fitted before; None: batches are measured before each round of loads, since machines
        drift.
    say
        Called with each prediction before its run, and with what was found after it.
    progress
        Called now and then with the share that is done.
    """
    sweep = settings.sweep(engine.token_budget, engine.policy.name)
    if engine.max_running is not None:
        sweep = dataclasses.replace(sweep, decodes=min(sweep.decodes, engine.max_running))
    calibrations = [] if batch_time is None else [Calibration(batch_time, None, sweep)]
    trials: list[Trial] = []
    share = _shares(settings, batch_time is None, progress)
    first = 0.0
    measure(engine, sweep, 0.01)  # first times are slow
    for seed in range(settings.seed, settings.seed + settings.seeds):
        # Each round begins with a sweep, since machines drift.
        batches: Batches | None = None
        if batch_time is None:
            batches = measure(engine, sweep, settings.calibrate_s, warm=False, progress=next(share))
            calibrations.append(calibrate(sweep, batches, engine.description))
        if not first:
            _probe(engine, sweep)  # its first time is slow
            first = _probe(engine, sweep)
        for load in settings.loads:
            server, prediction, batches = _prepared(
                engine, settings, calibrations[-1], load, seed, batches
            )
            say(
                f"rho {prediction.rho:g}, {prediction.rate:.3g} requests/s: a backlog "
                f"{prediction.direction}, says the simulation; by theorem it is {prediction.theory}"
            )
            trials.append(run_trial(engine, server, prediction, settings, seed, next(share)))
            say(summary(trials[-1]))
    speed = _probe(engine, sweep) / first
    rounds = tuple(calibrations)
    return Twin(
        engine.description, engine.facts, settings, rounds, tuple(trials), speed, _pace(engine)
    )


def _prepared(
    engine: RealEngine,
    settings: Settings,
    calibration: Calibration,
    load: float,
    seed: int,
    batches: Batches | None,
) -> tuple[Server, Prediction, Batches | None]:
    """Return the server to simulate and what it says of a load.

    Where batches were measured, a rehearsal joins them, and sets the pace: what was measured just
    before counts most.
    """
    model = calibration.batch_time
    server = Server(model, engine.token_budget, engine.max_running, policy=engine.policy)
    (prediction,) = predict(server, settings.lengths, [load], settings.seed)
    if batches is None:
        return server, prediction, None
    rehearsed = rehearse(engine, prediction, settings, seed)
    batches = joined([batches, rehearsed])
    model = calibrate(calibration.sweep, batches, engine.description).batch_time
    pace = 1 / (1 + _batch_error(model, rehearsed))
    server = dataclasses.replace(server, batch_time=scaled(model, pace))
    (prediction,) = predict(server, settings.lengths, [load], settings.seed)
    return server, prediction, batches


def summary(trial: Trial) -> str:
    """Say in a line what a run showed."""
    measured, simulated = trial.latency("e2e_s")
    line = f"  E2E {measured:.3g} s, simulated {simulated:.3g} s ({trial.error('e2e_s'):+.1%})"
    if trial.drift:
        line += f"; a backlog {trial.drift.direction}: load {trial.drift.load:.3f}"
    return line + f"; batches: model {trial.batch_error:+.1%}"


def _shares(
    settings: Settings, calibrates: bool, progress: Progress | None
) -> Iterator[Progress | None]:
    """Yield for each stage of the work what reports its share as one of the whole."""
    stages = settings.seeds * (len(settings.loads) + calibrates)
    for stage in range(stages):
        yield None if progress is None else _share(progress, stage, stages)


def _share(progress: Progress, stage: int, stages: int) -> Progress:
    return lambda done: progress((stage + done) / stages)


def as_dict(twin: Twin) -> dict[str, Any]:
    """Return what JSON says of it."""
    return {
        "engine": twin.description,
        "machine": twin.facts,
        "seconds": twin.settings.seconds,
        "speed": twin.speed,
        "pace": twin.pace,
        "calibrations": [None if c.fit is None else c.fit.as_dict() for c in twin.calibrations],
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
