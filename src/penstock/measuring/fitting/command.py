"""The command ``penstock fit``: from measured batches to a batch-time model."""

from pathlib import Path
from typing import Any

from penstock.inputs.source import refuse_twice
from penstock.show.commands import command, pairs
from penstock.show.options import Form


@command("fit", "read_batches", but="folds", form="figures report")
def fit(
    files: list[Path],
    *,
    format: str | None = None,
    where: list[str] | None = None,
    max_tokens: int | None = None,
    form: Form,
    output: Path | None = None,
    description: str = "",
    max_gib: float | None = None,
    **options: Any,
) -> None:
    """Fit a batch-time model to measured batches.

    Say its parameters with intervals, its errors, and which model predicts best.

    Parameters
    ----------
    files : FILE...
        Measured batches: a table, an engine's log or metrics; -: standard input.
    where : COLUMN=VALUE
        Keep these rows of a table.
    max_tokens
        Leave larger batches out.
    output
        Write a batch-time file (YAML), which scenarios read.
    description
        Model, accelerator, parallelism: what the batch-time file says.
    """
    from penstock.measuring.fitting.batches import joined
    from penstock.measuring.fitting.fit import fit as fit_batches
    from penstock.measuring.fitting.readers import read_batches
    from penstock.show import progress

    form.check(files, {"--output": output})
    refuse_twice(files)
    chosen = pairs("--where COLUMN=VALUE", where, "model=llama-2-70b")
    batches = joined(
        [read_batches(file, format, where=chosen or None, max_gib=max_gib) for file in files]
    )
    if max_tokens is not None:
        batches = batches.up_to(max_tokens)
    with progress.bar(f"Fitting {len(batches):,} batches"):
        found = fit_batches(batches, **options)
    if output is not None:
        from penstock.system.batch_time_file import write_batch_time

        write_batch_time(output, found.as_file(description))
        form.written("Batch-time file", [output])
    form.show(found.page(), found.as_dict())
