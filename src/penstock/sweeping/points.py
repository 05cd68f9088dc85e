"""The points of a sweep: what varied among them, their averages over seeds, the best of them."""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from penstock.errors import InputError, nearest
from penstock.sweeping.stable_rates import KNOWN, RATE, is_rate
from penstock.sweeping.tasks import FACTS
from penstock.words import METRICS, NO_LIMIT

SHOWN = ("p50", "p99")
"""Statistics that are drawn."""

STATES = ("stable", "undecided", "unstable")
"""What a point can be: one that is neither stable nor unstable is undecided."""

USUAL_ORDER = "e2e_p50_s"
_RISING_IS_BETTER = ("throughput", "tokens_per_s", "utilisation", "max_rate")


class Varied(NamedTuple):
    """The fields of a sweep that take more than one value: numbers, and text."""

    numbers: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def rate(self) -> str | None:
        """The field that is the arrival rate, if it varies."""
        return next((field for field in self.numbers if is_rate(field)), None)


def varied(rows: pl.DataFrame, fields: Sequence[str]) -> Varied:
    """Say which fields vary, and which of them are numbers; null (no limit) may be among those."""
    several = [field for field in fields if rows[field].n_unique() > 1]
    numbers = tuple(field for field in several if rows[field].dtype.is_numeric())
    return Varied(numbers, tuple(field for field in several if field not in numbers))


def averages(rows: pl.DataFrame, fields: Sequence[str]) -> pl.DataFrame:
    """Return a row per point, latencies averaged over seeds; bad points are left out."""
    # Columns: fields, ``state`` (one of `STATES`, the worst of the seeds), latencies,
    # ``stable_rate`` and how it is known (null: not asked for), and ``line``: the fields that are
    # text.
    if RATE not in rows.columns:
        rows = rows.with_columns(
            pl.lit(None, pl.Float64).alias(RATE), pl.lit(None, pl.String).alias(KNOWN)
        )
    rank = pl.col("verdict").replace_strict(
        {"stable": 0, "unstable": 2}, default=1, return_dtype=pl.Int64
    )
    latencies = [
        f"{metric[:-2]}_{statistic}_s" for metric in METRICS for statistic in ("mean", *SHOWN)
    ]
    good = rows.filter(pl.col("error").is_null() & pl.col("verdict").is_not_null())
    points = good.group_by(list(fields), maintain_order=True).agg(
        rank.max().alias("rank"),
        *(pl.col(name).mean() for name in latencies),
        pl.col(RATE, KNOWN).first(),
    )
    state = pl.col("rank").replace_strict(dict(enumerate(STATES)), return_dtype=pl.String)
    names = varied(rows, fields).names
    texts = [pl.col(name).cast(pl.String).fill_null(NO_LIMIT) for name in names]
    line = pl.concat_str(texts, separator=", ") if texts else pl.lit("")
    return points.with_columns(state.alias("state"), line.alias("line")).drop("rank")


def checked_order(column: str | None) -> None:
    """Refuse to order by what is no measured column, before the work starts."""
    if column is not None and column not in FACTS:
        raise InputError(f"--sort {column!r} is no column of a sweep{nearest(column, [*FACTS])}")


def best_first(rows: pl.DataFrame, column: str, rate: str | None) -> pl.DataFrame:
    """Return rows by a column, the stable ones first.

    With the field ``rate``, which arrives and is no choice, the best at each rate come first, then
    the second at each.
    """
    unstable = pl.col("verdict") != "stable"
    falling = column in _RISING_IS_BETTER
    rows = rows.sort(unstable, column, "point", descending=[False, falling, False], nulls_last=True)
    if rate is None:
        return rows
    return rows.sort(pl.int_range(pl.len()).over(rate), rate)
