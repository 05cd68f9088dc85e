"""The command ``penstock calibrate``: from benchmark results to a server that is judged."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.show import progress
from penstock.show.options import (
    EXIT_ANSWER_IS_NO,
    Description,
    Form,
    MaxGib,
    Output,
    answers,
)

if TYPE_CHECKING:
    from penstock.measuring.calibration.calibration import Calibration

Results = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS...",
        help="Benchmark results or folders of them: GuideLLM, vllm bench, inference-perf, "
        "AIPerf, GenAI-Perf, CSV; -: standard input.",
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
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="A policy or an engine's scheduler; default: sglang where its client wrote all "
        "results, else vllm.",
    ),
]
PolicyParam = Annotated[
    list[str] | None,
    typer.Option(
        "--policy-param",
        metavar="NAME=VALUE",
        help="A setting of the policy, such as async_scheduling=false or drafts=3; may be "
        "given several times.",
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        "--kv-tokens", help="Tokens that KV memory holds; default: found where rows identify it."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Take the shape of this model, on --gpu, as the prior: a known name, or the path "
        "of a config.json.",
    ),
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Of --model, such as h100-sxm.")]
Tp = Annotated[int | None, typer.Option("--tp", help="GPUs that share each layer.")]
Precision = Annotated[
    str | None, typer.Option("--precision", help="Of the weights: bf16, fp8, fp4 or int4.")
]
KvPrecision = Annotated[
    str | None, typer.Option("--kv-precision", help="Of the KV cache: bf16 or fp8.")
]
PrefixHits = Annotated[
    float | None,
    typer.Option(
        "--prefix-hits",
        help="Share of prompt tokens that the prefix cache held, where results do not say it; "
        "needs --kv-tokens.",
        show_default=False,
    ),
]
DeclaredTokens = Annotated[
    int | None,
    typer.Option(
        "--declared-tokens",
        help="Output tokens that requests said they may make (max_tokens); default: as they made.",
        show_default=False,
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


@answers("figures", "report")
def calibrate(
    results: Results,
    format: Format = None,
    token_budget: TokenBudget = None,
    max_batch_size: MaxBatchSize = None,
    policy: Policy = None,
    policy_param: PolicyParam = None,
    kv_tokens: KvTokens = None,
    model: Model = None,
    gpu: Gpu = None,
    tp: Tp = None,
    precision: Precision = None,
    kv_precision: KvPrecision = None,
    prefix_hits: PrefixHits = None,
    declared_tokens: DeclaredTokens = None,
    fit_rows: FitRows = "spread:3",
    parameters: Parameters = None,
    per_run: PerRun = "all",
    seed: Seed = 0,
    output: Output = None,
    description: Description = "",
    max_gib: MaxGib = None,
    strict: Strict = False,
    *,
    form: Form,
) -> None:
    """Calibrate a server on a few rows of its benchmarks, predict all of them, and say how far off
    that is.
    """
    form.check(results, {"--output": output})
    from penstock.measuring.calibration.benchmarks import read_benchmarks
    from penstock.measuring.calibration.calibrate import calibrate as calibrate_on

    benchmarks = read_benchmarks(results, format, max_gib=max_gib)
    progress.announce_compilation()
    with progress.bar(f"Simulating {benchmarks.height:,} loads") as show:
        answer = calibrate_on(
            benchmarks,
            hardware=_hardware(model, gpu, tp, precision, kv_precision),
            fit_rows=fit_rows,
            parameters=_names(parameters),
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
    names = in_short(results)
    if output is not None:
        _write(answer, output, description, names, form)
    if form.figures is not None:
        from penstock.measuring.calibration import charts

        form.draw(charts.figures(answer))
    form.show(answer.page(names), answer.as_dict())
    if strict and answer.missed:
        raise typer.Exit(EXIT_ANSWER_IS_NO)


def in_short(results: list[Path]) -> str:
    """Return the names of the first files."""
    names = ", ".join(path.name for path in results[:3])
    return names if len(results) <= 3 else f"{names} and {len(results) - 3} more"


def _names(parameters: str | None) -> list[str] | None:
    return None if parameters is None else [name.strip() for name in parameters.split(",")]


def _write(answer: "Calibration", output: Path, description: str, names: str, form: Form) -> None:
    """Write the batch-time file."""
    from penstock.system.batch_time_file import write_batch_time

    document = answer.batch_time_file(description or f"Calibrated on {names}", names)
    write_batch_time(output, document)
    form.written("Batch-time file", [output])


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
