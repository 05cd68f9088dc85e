"""The command ``penstock twin``: a real engine on this machine beside its simulation."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.profiling.command import (
    Budget,
    ClockName,
    Device,
    EngineName,
    Longest,
    MaxRunning,
    Model,
    PolicyOf,
    Threads,
    start_engine,
)
from penstock.show import progress
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    Figures,
    Json,
    Report,
    Strict,
    check_outputs,
    files_of,
    save_figures,
    show_page,
)

Loads = Annotated[str, typer.Option("--rho", help="Loads, separated by commas.")]
Seconds = Annotated[
    float, typer.Option("--seconds", help="For how long requests arrive in each run.")
]
Prompt = Annotated[
    str, typer.Option("--prompt", help="Prompt tokens, a number or a distribution as in scenarios.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")]


Seeds = Annotated[int, typer.Option("--seeds", help="Rounds, each with other requests.")]
Backlog = Annotated[
    float,
    typer.Option(
        "--backlog", help="Seconds of work that wait at the start, at loads of .85 and more."
    ),
]
Calibrate = Annotated[
    float,
    typer.Option("--calibrate", help="Seconds for which batches are measured before each round."),
]
BatchTime = Annotated[
    Path | None,
    typer.Option("--batch-time", metavar="FILE", help="A batch-time file, instead of measuring."),
]
Output = Annotated[
    str,
    typer.Option("--output", help="Output tokens, a number or a distribution as in scenarios."),
]
SeedOfTwin = Annotated[int, typer.Option("--seed", help="The first seed.")]


def twin(
    rho: Loads = ".5,.8,.9,1.1",
    seeds: Seeds = 3,
    seconds: Seconds = 60.0,
    backlog: Backlog = 10.0,
    calibrate: Calibrate = 40.0,
    batch_time: BatchTime = None,
    prompt: Prompt = "{lognormal: {mean: 100, cv: 0.8, max: 400}}",
    output: Output = "{lognormal: {mean: 40, cv: 0.6, max: 160}}",
    engine: EngineName = "openvino",
    model: Model = "small",
    token_budget: Budget = 128,
    threads: Threads = 1,
    policy: PolicyOf = "sarathi",
    max_running: MaxRunning = 64,
    longest: Longest = 2048,
    device: Device = "auto",
    clock: ClockName = "wall",
    seed: SeedOfTwin = 0,
    markdown: Markdown = False,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Run a real engine on this machine beside its simulation, under the same requests in real
    time.

    Batch times are measured first; then it is said at each load whether a backlog drains or grows,
    and after each run how latencies and drift compare. Takes about (calibrate + loads x (20 s +
    seconds + backlog)) x seeds.
    """
    inputs = [] if batch_time is None else files_of(batch_time)
    check_outputs(inputs, {"--report": report}, figures)
    from penstock.measuring.twin import experiment, records
    from penstock.system.batch_time_file import read_batch_time
    from penstock.workload.pairs import Independent

    lengths = Independent(_distribution("--prompt", prompt), _distribution("--output", output))
    settings = records.Settings(lengths, _loads(rho), seeds, seconds, backlog, calibrate, seed=seed)
    stated = None if batch_time is None else read_batch_time(batch_time).batch_time
    running = start_engine(
        engine, model, token_budget, threads=threads, policy=policy, max_running=max_running,
        longest=longest, device=device, clock=clock,
    )  # fmt: skip
    progress.announce_compilation()
    with progress.bar(f"Running {running.description}") as show:
        found = experiment.twin(
            running, settings, batch_time=stated, say=_silent if as_json else _say, progress=show
        )
    if figures is not None:
        from penstock.measuring.twin.charts import charts

        save_figures(charts(found), figures, as_json)
    show_page(found.page(), records.as_dict(found), report, as_json, as_markdown=markdown)
    kept = all(t.drift is None or t.drift.direction == t.prediction.direction for t in found.trials)
    if strict and not kept:
        raise typer.Exit(EXIT_ANSWER_IS_NO)


def _distribution(option: str, text: str) -> Any:
    import yaml

    from penstock.scenario.workload import length

    try:
        return length(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{option} {checks.shown(text)}: {problem}") from None


def _loads(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(
            f"--rho {checks.shown(text)}: give numbers separated by commas, such as .5,.8,1.1"
        ) from None


def _say(text: str) -> None:
    """Say how it goes, on standard error."""
    print(text, file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    pass
