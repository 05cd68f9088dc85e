"""Drive a real engine with Poisson arrivals, and simulate the same with times measured before.

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

from penstock.errors import InputError
from penstock.measuring.fitting.fit import Fit, fit
from penstock.measuring.fitting.relative_errors import seconds_of
from penstock.measuring.profiling.driving import Batches, drive, joined, run_episode
from penstock.measuring.profiling.engine import RealEngine
from penstock.measuring.profiling.measurements import measured
from penstock.measuring.profiling.sweep import Sweep, measure
from penstock.measuring.twin.drift import drift_of
from penstock.measuring.twin.observed import observed_run
from penstock.measuring.twin.records import (
    NEAR,
    Prediction,
    Settings,
    Trial,
    Twin,
    summary,
)
from penstock.simulation.progress import Progress, part_of
from penstock.simulation.simulate import simulate
from penstock.system.batch_time import BatchTime
from penstock.system.machine_pace import scaled
from penstock.system.server import Server
from penstock.theory.certificate import certify
from penstock.workload.arrivals import Poisson
from penstock.workload.pairs import Lengths
from penstock.workload.workload import Workload

_OVERLOAD = 1.1
_PROBES = 4
_REHEARSAL = 1_000_000  # added to a seed: other requests than those of the run
_SLOWEST = 5.0  # A run may take so many times the time of its arrivals and its backlog

Say = Callable[[str], None]


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
    """Draw the requests of a run: how many wait at first, arrivals in seconds, tokens."""
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
    fits: list[Fit] = []
    trials: list[Trial] = []
    share = _shares(settings, batch_time is None, progress)
    first = 0.0
    measure(engine, sweep, 0.01)  # first times are slow
    for seed in range(settings.seed, settings.seed + settings.seeds):
        # Each round begins with a sweep, since machines drift.
        batches: Batches | None = None
        model = batch_time
        if model is None:
            batches = measure(engine, sweep, settings.calibrate_s, warm=False, progress=next(share))
            fits.append(fit(measured(batches, engine.description)))
            model = fits[-1].model
        if not first:
            _probe(engine, sweep)  # its first time is slow
            first = _probe(engine, sweep)
        for load in settings.loads:
            server, prediction, batches = _prepared(engine, settings, model, load, seed, batches)
            say(
                f"rho {prediction.rho:g}, {prediction.rate:.3g} requests/s: a backlog "
                f"{prediction.direction}, says the simulation; by theorem it is {prediction.theory}"
            )
            trials.append(run_trial(engine, server, prediction, settings, seed, next(share)))
            say(summary(trials[-1]))
    speed = _probe(engine, sweep) / first
    about = (engine.description, engine.facts, settings)
    return Twin(*about, tuple(fits), tuple(trials), speed, _pace(engine))


def _prepared(
    engine: RealEngine,
    settings: Settings,
    model: BatchTime,
    load: float,
    seed: int,
    batches: Batches | None,
) -> tuple[Server, Prediction, Batches | None]:
    """Return the server to simulate and what it says of a load.

    Where batches were measured, a rehearsal joins them, and sets the pace: what was measured just
    before counts most.
    """
    server = Server(model, engine.token_budget, engine.max_running, policy=engine.policy)
    (prediction,) = predict(server, settings.lengths, [load], settings.seed)
    if batches is None:
        return server, prediction, None
    rehearsed = rehearse(engine, prediction, settings, seed)
    batches = joined([batches, rehearsed])
    model = fit(measured(batches, engine.description)).model
    pace = 1 / (1 + _batch_error(model, rehearsed))
    server = dataclasses.replace(server, batch_time=scaled(model, pace))
    (prediction,) = predict(server, settings.lengths, [load], settings.seed)
    return server, prediction, batches


def _shares(settings: Settings, calibrates: bool, progress: Progress | None) -> Iterator[Progress]:
    """Yield for each stage of the work what reports its share as one of the whole."""
    stages = settings.seeds * (len(settings.loads) + calibrates)
    for stage in range(stages):
        yield part_of(progress, stage / stages, (stage + 1) / stages)
