"""The command ``penstock fit``: from measured batches to a batch-time model."""

from pathlib import Path
from typing import Annotated

import typer

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.source import refuse_twice
from penstock.show.options import Description, Form, MaxGib, Output, answers

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Measured batches: a table, an engine's log or metrics; -: standard input.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        "--model", help="auto, affine, hinge, steps, table, composition, or composition-affine ..."
    ),
]
Format = Annotated[str | None, typer.Option("--format", help="table, vllm, sglang, tensorrt-llm.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where", metavar="COLUMN=VALUE", help="Keep these rows of a table; may be repeated."
    ),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Leave larger batches out.")]
B0 = Annotated[
    int | None, typer.Option("--b0", help="Step width or bend, instead of the one found.")
]
Confidence = Annotated[float, typer.Option("--confidence", help="Of the intervals.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the bootstrap.")]


@answers("figures", "report")
def fit(
    files: Files,
    model: Model = "auto",
    format: Format = None,
    where: Where = None,
    max_tokens: MaxTokens = None,
    b0: B0 = None,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    output: Output = None,
    description: Description = "",
    max_gib: MaxGib = None,
    *,
    form: Form,
) -> None:
    """Fit a batch-time model to measured batches: parameters with intervals, errors, which model
    predicts best.
    """
    from penstock.measuring.fitting.batches import joined
    from penstock.measuring.fitting.fit import fit as fit_batches
    from penstock.measuring.fitting.readers import read_batches
    from penstock.show import progress

    form.check(files, {"--output": output})
    refuse_twice(files)
    chosen = dict(_pair(text) for text in where or ())
    batches = joined(
        [read_batches(file, format, where=chosen or None, max_gib=max_gib) for file in files]
    )
    if max_tokens is not None:
        batches = batches.up_to(max_tokens)
    with progress.bar(f"Fitting {len(batches):,} batches"):
        found = fit_batches(batches, model, b0=b0, confidence=confidence, seed=seed)
    if output is not None:
        from penstock.system.batch_time_file import write_batch_time

        write_batch_time(output, found.as_file(description))
        form.written("Batch-time file", [output])
    if form.figures is not None:
        from penstock.measuring.fitting import charts as plotting_fit

        charts = {
            "batch_time_fit": plotting_fit.fitted_line(found),
            "batch_time_errors": plotting_fit.relative_errors(found),
        }
        form.draw(charts)
    form.show(found.page(), found.as_dict())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise InputError(
            f"--where {checks.shown(text)} names no column and value; give --where "
            "model=llama-2-70b"
        )
    return name.strip(), value.strip()
