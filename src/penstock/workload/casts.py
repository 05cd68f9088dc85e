"""Casts of columns of traces from text: strict, so that what is no such value becomes null and can
be named.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import polars as pl

from penstock.workload.lengths import LONGEST

Unit = Literal["tokens", "date", "s", "ms", "us", "ns", "time", "ids", "rank"]
DECIMALS: dict[Unit, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""From the unit down to nanoseconds."""


def cast_text(text: pl.Series, unit: Unit) -> pl.Series:
    """Return a column of text as what it counts; null means that it cannot be used."""
    # A million rows at a time: the intermediate columns of 27 million would take gigabytes.
    casts: dict[Unit, Callable[[pl.Series], pl.Series]]
    casts = {"tokens": _tokens, "date": _dates, "ids": _ids, "rank": _ranks}
    cast = casts.get(unit, partial(_numbers, unit=unit))
    return pl.concat(cast(text.slice(start, 1_000_000)) for start in range(0, len(text), 1_000_000))


def _tokens(text: pl.Series) -> pl.Series:
    """Whole numbers from 0 to `LONGEST`; 12.0 and 1e3 are whole."""
    text = text.str.strip_chars()
    tokens = text.cast(pl.Int64, strict=False)
    if tokens.null_count():
        number = text.cast(pl.Float64, strict=False)
        whole = (number == number.floor()) & number.is_between(0, LONGEST)
        tokens = pl.select(pl.when(whole).then(number).cast(pl.Int64)).to_series()
    return pl.select(pl.when(tokens.is_between(0, LONGEST)).then(tokens)).to_series()


def _ranks(text: pl.Series) -> pl.Series:
    ranks = text.str.strip_chars().cast(pl.Int64, strict=False)
    return pl.select(pl.when(ranks.abs() < 2**31).then(ranks)).to_series()


def _ids(text: pl.Series) -> pl.Series:
    """Lists of whole numbers; a request without one has nothing in common with others."""
    text = text.fill_null("[]").str.strip_chars()
    bare = text.str.contains(r"^[0-9][0-9\s]*$|^$")
    commas = pl.lit("[") + text.str.replace_all(r"\s+", ",") + pl.lit("]")
    text = pl.select(pl.when(bare).then(commas).otherwise(text)).to_series()
    inside = text.str.strip_prefix("[").str.strip_suffix("]").str.strip_chars()
    ids = inside.str.split(",").list.eval(
        pl.element().str.strip_chars().cast(pl.Int64, strict=False)
    )
    empty = pl.lit([], dtype=pl.List(pl.Int64))
    listed = (
        text.str.starts_with("[")
        & text.str.ends_with("]")
        & (ids.list.eval(pl.element().null_count()).list.sum() == 0)
    )
    return pl.select(
        pl.when(listed).then(ids).when(text.str.contains(r"^\[\s*\]$")).then(empty)
    ).to_series()


def _numbers(text: pl.Series, unit: Unit) -> pl.Series:
    """Nanoseconds from decimals, digit by digit: no double holds 19440110.123456789 s."""
    decimals = DECIMALS[unit]
    scale = 10**decimals
    latest = (2**63 - 1) // scale - 1
    table = pl.DataFrame({"text": text.str.strip_chars()}).with_columns(
        pl.col("text").str.splitn(".", 2).struct.rename_fields(["whole", "digits"]).struct.unnest()
    )
    whole = pl.col("whole").cast(pl.Int64, strict=False)
    digits = pl.col("digits").fill_null("")
    fraction = (
        digits.str.slice(0, decimals)
        .str.pad_end(decimals, "0")
        .cast(pl.Int64, strict=False)
        .fill_null(0)
    )
    rounded_up = (digits.str.slice(decimals, 1) >= "5").cast(pl.Int64)
    decimal = pl.col("text").str.contains(r"^[0-9]+(?:\.[0-9]*)?$") & (whole <= latest)
    exact = table.select(pl.when(decimal).then(whole * scale + fraction + rounded_up)).to_series()
    if not exact.null_count():
        return exact
    number = pl.col("text").cast(pl.Float64, strict=False)
    rough = pl.when(number.is_between(0, latest)).then(
        (number * scale).round().cast(pl.Int64, strict=False)
    )
    return table.select(pl.coalesce(exact, rough)).to_series()


_TAIL = r"^(?:\.([0-9]{0,9}))?\s*(?:Z|([+-])([01][0-9]|2[0-3]):?([0-5][0-9])?)?$"


def _dates(text: pl.Series) -> pl.Series:
    """Nanoseconds since 1970 from dates of 0 to 9 decimals, with an offset from UTC or without."""
    text = text.str.strip_chars().str.replace(r"\s*(?:UTC|GMT)$", "Z")
    stamp, tail = text.str.slice(0, 19), text.str.slice(19)
    second = stamp.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us", cache=False)
    if second.null_count():
        iso = stamp.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="us", cache=False)
        second = pl.select(pl.coalesce(second, iso)).to_series()
    # Polars reads second 60 as the next minute's 0; 1969 may be 1970 in UTC.
    in_range = second.dt.year().is_between(1969, 2261) & (text.str.slice(17, 2) != "60")
    fraction = tail.str.strip_suffix("+00:00")
    if fraction.str.contains(
        r"^(?:\.[0-9]{0,9})?$"
    ).all():  # as in every public file so far; the regex below is slow
        fraction, offset = (
            fraction.str.slice(1),
            pl.repeat(0, len(text), dtype=pl.Int64, eager=True),
        )
    else:
        in_range &= tail.str.contains(_TAIL)
        fraction = tail.str.extract(_TAIL, 1).fill_null("")
        hours, minutes = (
            tail.str.extract(_TAIL, group).cast(pl.Int64).fill_null(0) for group in (3, 4)
        )
        sign = (tail.str.extract(_TAIL, 2) == "-").cast(pl.Int64) * -2 + 1
        offset = (sign * (hours * 3600 + minutes * 60)).fill_null(0)
    nanosecond = fraction.str.pad_end(9, "0").cast(pl.Int64, strict=False)
    since_1970 = second.dt.epoch("s") - offset
    return pl.select(
        pl.when(in_range & (since_1970 >= 0)).then(since_1970 * 1_000_000_000 + nanosecond)
    ).to_series()
