"""Which rows of a benchmark are fitted."""

from collections.abc import Sequence

import numpy as np

from penstock import checks
from penstock.errors import InputError
from penstock.measuring.calibration.equations import Row

_DIGITS = 15  # of a number of rows: more than anybody measures
_KINDS = ("lowest", "spread", "all")


def chosen(rows: Sequence[Row], fit_rows: str | Sequence[bool]) -> list[bool]:
    """Return which rows to fit: those named one by one, or some of each shape by their load."""
    if not isinstance(fit_rows, str):
        if len(fit_rows) != len(rows):
            raise InputError(
                f"fit_rows has {len(fit_rows):,} values for {len(rows):,} rows; give one for each"
            )
        return [bool(use) for use in fit_rows]
    kind, _, number = fit_rows.partition(":")
    count = int(number) if number.isdecimal() and len(number) <= _DIGITS else 0
    if kind not in _KINDS or (count < 1 if kind != "all" else number):
        raise InputError(
            f"fit_rows is {checks.shown(fit_rows)}; give lowest:3, spread:3 (of each shape), or all"
        )
    by_shape: dict[str, list[Row]] = {}
    for row in sorted(rows, key=_load):
        by_shape.setdefault(row["shape"], []).append(row)
    used = {row["row"] for same in by_shape.values() for row in _some(same, kind, count)}
    return [row["row"] in used for row in rows]


def _load(row: Row) -> tuple[float, float]:
    return row["requests_per_s"] or row["rate"] or 0, row["in_flight"] or 0


def _some(rows: list[Row], kind: str, count: int) -> list[Row]:
    """Return all, the lowest, or some at equal distances of rows with rising loads."""
    if kind == "all":
        return rows
    if kind == "lowest":
        return rows[:count]
    spread = np.linspace(0, len(rows) - 1, min(count, len(rows)))
    return [rows[index] for index in np.unique(np.rint(spread).astype(int))]
