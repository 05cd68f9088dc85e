"""The commands ``penstock profile`` and ``penstock twin``: a real engine on this machine."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError
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
    say_written,
    show_page,
)

if TYPE_CHECKING:
    from penstock.measuring.profiling.engine import RealEngine

EngineName = Annotated[
    str, typer.Option("--engine", help="openvino (CPU), or torch (CUDA where there is one).")
]
Model = Annotated[
    str,
    typer.Option(
        "--model", help="Random Llama: tiny, small, medium, llama-8b; or sizes: small,layers=8."
    ),
]
Budget = Annotated[int, typer.Option("--token-budget", help="Most tokens in a batch.")]
Threads = Annotated[int, typer.Option("--threads", help="Threads of a forward pass on a CPU.")]
PolicyOf = Annotated[
    str, typer.Option("--policy", help="What forms the batches of the engine torch.")
]
MaxRunning = Annotated[
    int, typer.Option("--max-running", help="Most requests at once, of the engine torch.")
]
Longest = Annotated[
    int, typer.Option("--longest", help="Most tokens of a request, of the engine torch.")
]
Device = Annotated[str, typer.Option("--device", help="auto, cuda or cpu, of the engine torch.")]
ClockName = Annotated[
    str,
    typer.Option(
        "--clock", help="wall, or paced: by units of like work, where neighbours slow a machine."
    ),
]


Out = Annotated[Path, typer.Argument(metavar="FILE", help="The batch-time file to write (YAML).")]
SecondsOption = Annotated[
    float, typer.Option("--seconds", help="For how long batches are measured.")
]
Decodes = Annotated[int, typer.Option("--decodes", help="Most requests that decode side by side.")]
PromptOption = Annotated[int, typer.Option("--prompt", help="Longest prompt, tokens.")]
Context = Annotated[int, typer.Option("--context", help="Most tokens before a decode.")]
FitModel = Annotated[str, typer.Option("--fit", help="The model to fit, as of penstock fit.")]
Measurements = Annotated[
    Path | None,
    typer.Option("--measurements", metavar="FILE", help="Write a row per batch, .csv or .parquet."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the batches to measure.")]


def profile(
    out: Out,
    engine: EngineName = "openvino",
    model: Model = "small",
    token_budget: Budget = 128,
    seconds: SecondsOption = 60.0,
    decodes: Decodes = 64,
    prompt: PromptOption = 512,
    context: Context = 1024,
    threads: Threads = 1,
    policy: PolicyOf = "sarathi",
    max_running: MaxRunning = 64,
    longest: Longest = 2048,
    device: Device = "auto",
    clock: ClockName = "wall",
    fit_model: FitModel = "auto",
    measurements: Measurements = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure the batch times of a real engine on this machine, and write them as a batch-time
    file.

    A scenario uses it as `server: {batch_time: {file: FILE}}`.
    """
    check_outputs([], {"the batch-time file": out, "--measurements": measurements})
    from penstock.measuring.fitting.fit import fit
    from penstock.measuring.profiling import measurements as files
    from penstock.measuring.profiling.sweep import Sweep, measure
    from penstock.measuring.twin.view import profile_page
    from penstock.system.batch_time_file import write_batch_time

    sweep = Sweep(token_budget, min(decodes, token_budget, max_running), prompt, context, seed)
    running = _open(
        engine, model, token_budget, threads=threads, policy=policy, max_running=max_running,
        longest=longest, device=device, clock=clock,
    )  # fmt: skip
    with progress.bar(f"Measuring {running.description}") as show:
        batches = measure(running, sweep, seconds, progress=show)
    if measurements is not None:
        files.write_measurements(measurements, batches)
    source = f"measured by penstock profile: {running.description}, {running.facts['processor']}"
    found = fit(files.measured(batches, source), fit_model)
    content = found.as_file(f"{running.description}, token budget {token_budget:,}")
    made_on = {"machine": running.facts, "clock": clock}
    write_batch_time(out, dataclasses.replace(content, fit={**content.fit, **made_on}))
    say_written("Batch times", [out, *([measurements] if measurements else [])], as_json)
    document = {"engine": running.description, "machine": running.facts, "fit": found.as_dict()}
    show_page(profile_page(running.description, running.facts, found), document, None, as_json)


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
    running = _open(
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


def _open(name: str, model: str, token_budget: int, **options: Any) -> "RealEngine":
    """Start an engine, with options of `open_engine`."""
    from penstock.measuring.profiling import open_engine
    from penstock.measuring.profiling.llama import llama

    with progress.bar(f"Starting {name}"):
        return open_engine(name, llama(model), token_budget, **options)


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
