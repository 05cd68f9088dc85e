"""Columns of a table as numbers, or the first cell that is none."""

from collections.abc import Collection, Mapping

import polars as pl

from penstock import checks
from penstock.inputs.source import Source
from penstock.inputs.tables import Table

ROW = "row "
"""The column with the number of a row in its file."""


def as_numbers(
    source: Source,
    table: Table,
    text: pl.DataFrame,
    limits: Mapping[str, tuple[float, float]],
    wanted: str,
    may_lack: Collection[str] = (),
) -> pl.DataFrame:
    """Return columns of a table as numbers within their limits, 0 where one may lack them.

    Parameters
    ----------
    source, table
        For the error that names a cell.
    text
        Rows of the table, with their numbers as `ROW`.
    limits
        By column: the least and the most.
    wanted
        What a number must be, in words with both limits, and why.
    may_lack
        Columns whose cells may be empty.
    """
    numbers = text.select(pl.col(limits.keys()).str.strip_chars().cast(pl.Float64, strict=False))
    for name, (low, high) in limits.items():
        bad = ~numbers[name].is_between(low, high).fill_null(value=False)
        if name in may_lack:
            bad &= text[name].is_not_null()
        if bad.any():
            row = int(bad.arg_true()[0])
            place, problem = table.explain(int(text[ROW][row]))
            wrong = (
                f"has the {name} {checks.shown(text[name][row])}, which is no number "
                f"{wanted.format(low, high)}. Correct or delete it"
            )
            raise source.fault(f"{place} {problem or wrong}")
    return numbers.fill_null(0.0)
