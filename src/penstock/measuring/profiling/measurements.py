"""Measured batches as `penstock fit` takes them, in memory and as files."""

import io
from pathlib import Path

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.profiling.driving import Batches
from penstock.show.files import write_whole

SUMS = ("prefill_tokens", "decode_tokens", "requests", "squares", "pairs", "context")


def measured(batches: Batches, source: str) -> MeasuredBatches:
    """Return batches in the form that a fit takes; the source says which engine on which
    machine.
    """
    sums = dict(zip(SUMS, batches.sums.T.astype(np.float64), strict=True))
    tokens = sums["prefill_tokens"] + sums["decode_tokens"]
    return MeasuredBatches(batches.seconds, tokens, **sums, source=source)


def write_measurements(path: str | Path, batches: Batches) -> None:
    """Write a row per batch, as CSV or Parquet by the file's name, which `penstock fit` reads.

    Raises
    ------
    InputError
        If the file cannot be written, or has another ending.
    """
    place = checks.writable("the measurements", path)
    table = pl.DataFrame(
        dict(zip(SUMS, batches.sums.T, strict=True)) | {"seconds": batches.seconds}
    )
    if place.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"{place} ends in {place.suffix!r}, but measurements are .csv or .parquet; give one "
            "of them"
        )
    content = io.BytesIO()
    if place.suffix == ".csv":
        table.write_csv(content)
    else:
        table.write_parquet(content)
    try:
        write_whole(place, content.getvalue())
    except OSError as error:
        raise InputError(f"cannot write {place}: {error.strerror}; choose another place") from None
