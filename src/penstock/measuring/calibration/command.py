"""The command ``penstock calibrate``: from benchmark results to a server that is judged."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError
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


def calibrate(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="Benchmark results or folders of them: GuideLLM, vllm bench, inference-perf, "
            "AIPerf, GenAI-Perf, CSV; -: standard input.",
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="guidellm, vllm-bench, inference-perf, aiperf or csv; default: detected.",
        ),
    ] = None,
    token_budget: Annotated[
        int | None,
        typer.Option(
            "--token-budget",
            help="Of the server (max_num_batched_tokens); default: 8192 is assumed.",
            show_default=False,
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(
            "--max-batch-size",
            help="Of the server (max_num_seqs); default: 1024 is assumed.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="A policy or an engine's scheduler.")
    ] = "vllm",
    policy_param: Annotated[
        list[str] | None,
        typer.Option(
            "--policy-param",
            metavar="NAME=VALUE",
            help="A setting of the policy, such as async_scheduling=false or drafts=3; may be "
            "given several times.",
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            "--kv-tokens",
            help="Tokens that KV memory holds; default: found where rows identify it.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Take the shape of this model, on --gpu, as the prior: a known name, or the path "
            "of a config.json.",
        ),
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Of --model, such as h100-sxm.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", help="GPUs that share each layer.")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Of the weights: bf16, fp8 or fp4.")
    ] = None,
    kv_precision: Annotated[
        str | None, typer.Option("--kv-precision", help="Of the KV cache: bf16 or fp8.")
    ] = None,
    prefix_hits: Annotated[
        float | None,
        typer.Option(
            "--prefix-hits",
            help="Share of prompt tokens that the prefix cache held, where results do not say it; "
            "needs --kv-tokens.",
            show_default=False,
        ),
    ] = None,
    declared_tokens: Annotated[
        int | None,
        typer.Option(
            "--declared-tokens",
            help="Output tokens that requests said they may make (max_tokens); default: as they "
            "made.",
            show_default=False,
        ),
    ] = None,
    fit_rows: Annotated[
        str,
        typer.Option(
            "--fit-rows", help="Of each shape: lowest:N loads, spread:N over the loads, or all."
        ),
    ] = "spread:3",
    parameters: Annotated[
        str | None,
        typer.Option("--parameters", help="What to fit, separated by commas; default: all."),
    ] = None,
    per_run: Annotated[
        str,
        typer.Option(
            "--per-run", help="What to adjust to each file's own rows: nothing, overhead or all."
        ),
    ] = "all",
    seed: Annotated[int, typer.Option("--seed", help="Of arrivals and lengths.")] = 0,
    output: Output = None,
    description: Description = "",
    max_gib: MaxGib = None,
    as_json: Json = False,
    figures: Figures = None,
    report: Report = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with status 1 if a row is missed by more than 25%."),
    ] = False,
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
            hardware=_hardware(model, gpu, tp, precision, kv_precision),
            fit_rows=fit_rows,
            parameters=None
            if parameters is None
            else [name.strip() for name in parameters.split(",")],
            token_budget=token_budget,
            max_batch_size=max_batch_size,
            policy=policy,
            policy_params=_settings(policy_param or []),
            kv_tokens=kv_tokens,
            prefix_hits=prefix_hits,
            declared_tokens=declared_tokens,
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


def _hardware(
    model: str | None,
    gpu: str | None,
    tp: int | None,
    precision: str | None,
    kv_precision: str | None,
) -> dict[str, Any] | None:
    """Return what a scenario's ``hardware`` would say; None: no model is given."""
    said = {
        "model": model,
        "gpu": gpu,
        "tensor_parallel": tp,
        "precision": precision,
        "kv_precision": kv_precision,
    }
    given = {name: value for name, value in said.items() if value is not None}
    if given and (model is None or gpu is None):
        raise InputError(
            f"{' and '.join(given)} given, but a shape needs both --model and --gpu; add the "
            "other, or leave all of them out"
        )
    return given or None


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Return settings by name; what is no number, list, true or false is a word."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(
                f"--policy-param is {checks.shown(pair)}, so which setting has which value is "
                "unclear; give NAME=VALUE, such as async_scheduling=false"
            )
        try:
            settings[name.strip()] = json.loads(value)
        except ValueError:
            settings[name.strip()] = value.strip()
    return settings
