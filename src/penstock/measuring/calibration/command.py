"""The command ``penstock calibrate``: from benchmark results to a server that is judged."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.show import progress
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    Description,
    Figures,
    Json,
    MaxGib,
    Output,
    Report,
    check_outputs,
    save_figures,
    say_written,
    show_page,
)

Results = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS...",
        help="Benchmark results or folders of them: GuideLLM, vllm bench, inference-perf, "
        "AIPerf, GenAI-Perf, "
        "CSV; -: standard input.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="guidellm, vllm-bench, inference-perf, aiperf or csv; default: detected."
    ),
]
TokenBudget = Annotated[
    int | None,
    typer.Option(
        "--token-budget",
        help="Of the server (max_num_batched_tokens); default: 8192 is assumed.",
        show_default=False,
    ),
]
MaxBatchSize = Annotated[
    int | None,
    typer.Option(
        "--max-batch-size",
        help="Of the server (max_num_seqs); default: 1024 is assumed.",
        show_default=False,
    ),
]
Policy = Annotated[str, typer.Option("--policy", help="A policy or an engine's scheduler.")]
KvTokens = Annotated[
    int | None,
    typer.Option(
        "--kv-tokens", help="Tokens that KV memory holds; default: found where rows identify it."
    ),
]
FitRows = Annotated[
    str,
    typer.Option(
        "--fit-rows", help="Of each shape: lowest:N loads, spread:N over the loads, or all."
    ),
]
Parameters = Annotated[
    str | None, typer.Option("--parameters", help="What to fit, separated by commas; default: all.")
]
PerRun = Annotated[
    str,
    typer.Option(
        "--per-run", help="What to adjust to each file's own rows: nothing, overhead or all."
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Of arrivals and lengths.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with status 1 if a row is missed by more than 25%.")
]


def calibrate(
    results: Results,
    format: Format = None,
    token_budget: TokenBudget = None,
    max_batch_size: MaxBatchSize = None,
    policy: Policy = "vllm",
    kv_tokens: KvTokens = None,
    fit_rows: FitRows = "spread:3",
    parameters: Parameters = None,
    per_run: PerRun = "all",
    seed: Seed = 0,
    output: Output = None,
    description: Description = "",
    max_gib: MaxGib = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Strict = False,
) -> None:
    """Calibrate a server on a few rows of its benchmarks, predict all of them, and say how far off
    that is.
    """
    check_outputs(results, {"--output": output, "--report": report}, figures)
    from penstock.measuring.calibration.benchmarks import read_benchmarks
    from penstock.measuring.calibration.calibrate import calibrate as calibrate_on

    benchmarks = read_benchmarks(results, format, max_gib=max_gib)
    progress.announce_compilation()
    with progress.bar(f"Simulating {benchmarks.height:,} loads") as show:
        found = calibrate_on(
            benchmarks,
            fit_rows=fit_rows,
            parameters=None
            if parameters is None
            else [name.strip() for name in parameters.split(",")],
            token_budget=token_budget,
            max_batch_size=max_batch_size,
            policy=policy,
            kv_tokens=kv_tokens,
            per_run=per_run,
            seed=seed,
            progress=show,
        )
    names = ", ".join(path.name for path in results[:3]) + (
        f" and {len(results) - 3} more" if len(results) > 3 else ""
    )
    if output is not None:
        from penstock.system.batch_time_file import write_batch_time

        write_batch_time(
            output, found.batch_time_file(description or f"Calibrated on {names}", names)
        )
        say_written("Batch-time file", [output], as_json)
    if figures is not None:
        from penstock.measuring.calibration import charts as plotting_calibrate

        save_figures(plotting_calibrate.figures(found), figures, as_json)
    show_page(found.page(names), found.as_dict(), report, as_json)
    if strict and found.missed:
        raise typer.Exit(EXIT_ANSWER_IS_NO)
