"""The command ``penstock profile``: batch times of a real engine on this machine."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.show import progress
from penstock.show.options import Json, check_outputs, say_written, show_page

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
    from penstock.measuring.profiling.view import profile_page
    from penstock.system.batch_time_file import write_batch_time

    sweep = Sweep(token_budget, min(decodes, token_budget, max_running), prompt, context, seed)
    running = start_engine(
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


def start_engine(name: str, model: str, token_budget: int, **options: Any) -> "RealEngine":
    """Start an engine, with options of `open_engine`."""
    from penstock.measuring.profiling.llama import llama
    from penstock.measuring.profiling.open_engine import open_engine

    with progress.bar(f"Starting {name}"):
        return open_engine(name, llama(model), token_budget, **options)
