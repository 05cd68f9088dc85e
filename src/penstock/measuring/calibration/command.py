"""The command ``penstock calibrate``: from benchmark results to a server that is judged."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import InputError
from penstock.show.commands import command, pairs
from penstock.show.options import Form

if TYPE_CHECKING:
    from penstock.measuring.calibration.calibration import Calibration


@command("calibrate", "read_benchmarks", but="hardware", form="figures report strict")
def calibrate(
    results: list[Path],
    *,
    format: str | None = None,
    form: Form,
    policy_params: list[str] | None = None,
    parameters: str | None = None,
    model: str | None = None,
    gpu: str | None = None,
    tp: int | None = None,
    precision: str | None = None,
    kv_precision: str | None = None,
    output: Path | None = None,
    description: str = "",
    max_gib: float | None = None,
    **options: Any,
) -> None:
    """Calibrate a server on a few rows of its benchmarks.

    Predict all of them, and say how far off that is.

    Parameters
    ----------
    results : RESULTS...
        Benchmark results or folders of them: GuideLLM, vllm bench, inference-perf, AIPerf,
        GenAI-Perf, CSV; -: standard input.
    policy_params
        A setting of the policy, such as async_scheduling=false or drafts=3.
    model
        Take the shape of this model, on --gpu, as the prior: a known name, or the path of a
        config.json.
    gpu
        Of --model, such as h100-sxm.
    tp
        GPUs that share each layer.
    precision
        Of the weights: bf16, fp8, fp4 or int4.
    kv_precision
        Of the KV cache: bf16 or fp8.
    output
        Write a batch-time file (YAML), which scenarios read.
    description
        Model, accelerator, parallelism: what the batch-time file says.
    strict
        Exit with status 1 if a row is missed by more than 25%.
    parameters
        What to fit, separated by commas. Default: all.
    """
    form.check(results, {"--output": output})
    from penstock.measuring.calibration.benchmarks import read_benchmarks
    from penstock.measuring.calibration.calibrate import calibrate as calibrate_on
    from penstock.show.compiling import simulating

    benchmarks = read_benchmarks(results, format, max_gib=max_gib)
    with simulating(f"Simulating {benchmarks.height:,} loads") as show:
        answer = calibrate_on(
            benchmarks,
            hardware=_hardware(model, gpu, tp, precision, kv_precision),
            parameters=_names(parameters),
            policy_params=_settings(policy_params),
            **options,
            progress=show,
        )
    names = in_short(results)
    if output is not None:
        _write(answer, output, description, names, form)
    form.show(answer.page(names), answer.as_dict(), is_no=bool(answer.missed))


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
        "model": model, "gpu": gpu, "tensor_parallel": tp,
        "precision": precision, "kv_precision": kv_precision,
    }  # fmt: skip
    given = {name: value for name, value in said.items() if value is not None}
    if given and (model is None or gpu is None):
        raise InputError(
            f"{' and '.join(given)} given, but a shape needs both --model and --gpu; add the "
            "other, or leave all of them out"
        )
    return given or None


def _settings(texts: list[str] | None) -> dict[str, Any]:
    """Return settings by name; what is no number, list, true or false is a word."""
    settings: dict[str, Any] = {}
    for name, value in pairs(
        "--policy-param SETTING=VALUE", texts, "async_scheduling=false"
    ).items():
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings
