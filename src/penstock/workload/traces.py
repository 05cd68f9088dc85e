"""Read request traces: when each request arrived, and how long its prompt and its output were.

A new format is one entry of `FORMATS`. Every value is read as text and cast strictly; the first one that cannot be
used stops the reading with one line that says where it stands, so nothing is dropped or repaired in silence.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.inputs.source import Source
from penstock.inputs.tables import Table, open_table
from penstock.workload.lengths import LONGEST
from penstock.workload.prefixes import Prefixes

Unit = Literal["tokens", "date", "s", "ms", "us", "ns", "time", "ids", "rank"]
_DECIMALS: dict[Unit, int] = {"s": 9, "ms": 6, "us": 3, "ns": 0}  # from the unit down to nanoseconds


@dataclass(frozen=True)
class Format:
    """How one family of trace files says what it says."""

    name: str
    sentence: str
    prompt: str
    """Column of prompt tokens."""
    output: str
    """Column of output tokens."""
    arrival: str | None = None
    """Column of arrival times; None for a lengths-only file."""
    unit: Unit = "s"
    marks: tuple[str, ...] = ()
    """Further columns by which the format is told from one with the same names."""
    zero_output_failed: bool = False
    """Whether 0 output tokens mark a failed request, to be dropped."""
    hash_block: int = 0
    """Tokens in a block of the prompt that the lists in the column ``hash_ids`` name; 0: it has no such column."""
    priority: str | None = None
    """Column of priorities: smaller ones are served first."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*((self.arrival,) if self.arrival else ()), self.prompt, self.output)

    def fits(self, seen: Collection[str]) -> bool:
        """Whether a file with these columns has this format."""
        return all(column in seen for column in (*self.columns, *self.marks))


FORMATS = (
    Format("azure", "Azure, 2023 and 2024 (CSV).", "ContextTokens", "GeneratedTokens", "TIMESTAMP", "date"),
    Format(
        "burstgpt", "BurstGPT, 6 or 8 columns (CSV, seconds); 0 response tokens is a failure.",
        "Request tokens", "Response tokens", "Timestamp", zero_output_failed=True,
    ),
    Format("vidur", "Vidur, processed traces (CSV, s).", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    Format("lengths", "Lengths without times (CSV; Vidur, Etalon).", "num_prefill_tokens", "num_decode_tokens"),
    Format(
        "ragpulse", "RAGPulse (JSON Lines, seconds as text).",
        "input_length", "output_length", "timestamp", marks=("hash_ids.sys_prompt",),
    ),
    Format(
        "qwen", "Qwen-Bailian (JSON Lines, seconds).",
        "input_length", "output_length", "timestamp", marks=("chat_id",), hash_block=16,
    ),
    Format(
        "mooncake", "Mooncake (JSON Lines, milliseconds).",
        "input_length", "output_length", "timestamp", "ms", hash_block=512,
    ),
)  # fmt: skip
"""The known formats, the more specific first."""

_PLAIN = "plain"
_HASHES = "hash_ids"
_OWN_NAMES = {
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "num_prompt_tokens"),
    "output_tokens": ("output_tokens", "output", "completion_tokens", "generated_tokens", "num_output_tokens"),
}
_ARRIVAL_UNITS: dict[str, Unit] = {"arrival_s": "s", "arrival_ms": "ms", "arrival_us": "us", "arrival_ns": "ns"}
_LIKE_TIMES = (
    "arrival",
    "arrivals",
    "arrived_at",
    "arrival_time",
    "created",
    "created_at",
    "time",
    "times",
    "timestamp",
    "date",
    "datetime",
)
_SINCE_1970: dict[Unit, tuple[float, float]] = {
    "s": (1e9, 1e10),
    "ms": (1e12, 1e13),
    "us": (1e15, 1e16),
    "ns": (1e18, 1e19),
}
"""From 2001 to 2286, as clocks of computers count: no number is a time of these years in two units."""
_REMEDY = "`columns: {arrival_s: NAME, prompt_tokens: NAME, output_tokens: NAME}` (arrival_s may be left out)"


@dataclass(frozen=True)
class Trace:
    """What a trace file says: rows in order of arrival."""

    arrival_s: NDArray[np.float64] | None
    """Seconds since the first arrival, sorted; None for a lengths-only file."""
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    format: str
    """Name of the format that was read."""
    source: str
    """File name, for messages."""
    notices: tuple[str, ...]
    """What the user must know: rows sorted, failures dropped and counted."""
    prefixes: Prefixes | None = None
    """What the prompts have in common, where the file says so."""
    priority: NDArray[np.int64] | None = None
    """Shape (requests,), where the file has them."""


def load(
    path: str | Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    max_gib: float | None = None,
) -> Trace:
    """Read a trace file; a gzip-compressed one too.

    Arrivals are exact to the nanosecond relative to the first one (numbers in JSON: to the precision of a double).

    Parameters
    ----------
    path
        CSV, TSV, JSON Lines or Parquet.
    format
        One of `FORMATS` by name, or ``"plain"``; by default it is recognised by the columns.
    columns
        For any other table: which column holds ``prompt_tokens``, ``output_tokens`` and, optionally, the arrival as
        ``arrival_s``, ``arrival_ms`` or ``arrival_ns`` (numbers, or dates such as 2023-11-16 18:17:03.97996), and
        ``priority``, whole numbers.
    max_gib
        What the file may hold, unpacked, in GiB; None: `penstock.inputs.source.MOST_GIB`.

    Raises
    ------
    InputError
        If the file, or a value in it, cannot be used; one line that says where and why.
    """
    if format is not None and not isinstance(format, str):
        raise InputError(
            f"format is {shown(format)}, but must be the name of a trace format; leave it out to detect it"
        )
    if columns is not None and not (
        isinstance(columns, Mapping) and all(isinstance(name, str) for pair in columns.items() for name in pair)
    ):
        raise InputError(f"columns is {shown(columns)}, but must map names to names of columns, as {_REMEDY}")
    source = Source.at(path, max_gib)
    table = open_table(source)
    chosen = _choose(source, table.header, format, columns)
    hashes = (_HASHES,) if chosen.hash_block and _HASHES in table.header else ()
    ranks = (chosen.priority,) if chosen.priority else ()
    text = table.read(tuple(dict.fromkeys((*chosen.columns, *hashes, *ranks))))
    if text.is_empty():
        raise source.fault("has no rows, so nothing arrives. Check that the file was written completely")
    reads: dict[str, tuple[str, Unit]] = {}
    if chosen.arrival:
        reads["arrival"] = chosen.arrival, _unit(source, chosen, text[chosen.arrival])
    reads |= {"prompt": (chosen.prompt, "tokens"), "output": (chosen.output, "tokens")}
    if hashes:
        reads["ids"] = _HASHES, "ids"
    if chosen.priority:
        reads["priority"] = chosen.priority, "rank"
    rows = pl.DataFrame({role: _cast(text[column], unit) for role, (column, unit) in reads.items()})
    rows = rows.with_row_index("row")

    notices: list[str] = []
    if chosen.zero_output_failed:
        rows = rows.filter(pl.col("output").ne_missing(0))
        failed = len(text) - len(rows)
        if rows.is_empty():
            raise source.fault(
                f"all {failed:,} rows have 0 output tokens, so no request succeeded. Choose another file"
            )
        if failed:
            notices.append(f"{_rows(failed)} with 0 output tokens: failed requests, dropped")
    rows = rows.with_columns(pl.col("prompt", "output").replace(0, None))
    unusable = rows.filter(pl.any_horizontal(pl.all().is_null()))
    if len(unusable):
        raise _bad_row(source, table, text, reads, unusable)
    if chosen.arrival and reads["arrival"][1] == "date":
        _refuse_mixed_zones(source, table, text[chosen.arrival])

    arrival_s = None
    if chosen.arrival:
        late = int((rows["arrival"] < rows["arrival"].cum_max()).sum())
        if late:
            rows = rows.sort("arrival", maintain_order=True)
            notices.append(f"{_rows(late)} {'was' if late == 1 else 'were'} out of order; sorted by arrival")
        nanoseconds = rows["arrival"].to_numpy()
        arrival_s = (nanoseconds - nanoseconds[0]) / 1e9
    prompt, output = (rows[role].to_numpy(writable=True) for role in ("prompt", "output"))
    prefixes = None
    if hashes:
        ids = rows["ids"].explode().drop_nulls().to_numpy()
        prefixes = Prefixes.of(ids, rows["ids"].list.len().cast(pl.Int64).to_numpy(), prompt, chosen.hash_block)
    priority = rows["priority"].to_numpy(writable=True) if chosen.priority else None
    return Trace(arrival_s, prompt, output, chosen.name, source.name, tuple(notices), prefixes, priority)


# Casting: null means "cannot be used".


def _cast(text: pl.Series, unit: Unit) -> pl.Series:
    """Cast a million rows at a time: the intermediate columns of 27 million would take gigabytes."""
    casts: dict[Unit, Callable[[pl.Series], pl.Series]] = {
        "tokens": _tokens,
        "date": _dates,
        "ids": _ids,
        "rank": _ranks,
    }
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
    inside = text.str.strip_prefix("[").str.strip_suffix("]").str.strip_chars()
    ids = inside.str.split(",").list.eval(pl.element().str.strip_chars().cast(pl.Int64, strict=False))
    empty = pl.lit([], dtype=pl.List(pl.Int64))
    listed = (
        text.str.starts_with("[") & text.str.ends_with("]") & (ids.list.eval(pl.element().null_count()).list.sum() == 0)
    )
    return pl.select(pl.when(listed).then(ids).when(text.str.contains(r"^\[\s*\]$")).then(empty)).to_series()


def _numbers(text: pl.Series, unit: Unit) -> pl.Series:
    """Nanoseconds from decimal numbers, digit by digit, since a double cannot hold 19440110.123456789 s."""
    decimals = _DECIMALS[unit]
    scale = 10**decimals
    latest = (2**63 - 1) // scale - 1
    table = pl.DataFrame({"text": text.str.strip_chars()}).with_columns(
        pl.col("text").str.splitn(".", 2).struct.rename_fields(["whole", "digits"]).struct.unnest()
    )
    whole = pl.col("whole").cast(pl.Int64, strict=False)
    digits = pl.col("digits").fill_null("")
    fraction = digits.str.slice(0, decimals).str.pad_end(decimals, "0").cast(pl.Int64, strict=False).fill_null(0)
    rounded_up = (digits.str.slice(decimals, 1) >= "5").cast(pl.Int64)
    decimal = pl.col("text").str.contains(r"^[0-9]+(?:\.[0-9]*)?$") & (whole <= latest)
    exact = table.select(pl.when(decimal).then(whole * scale + fraction + rounded_up)).to_series()
    if not exact.null_count():
        return exact
    number = pl.col("text").cast(pl.Float64, strict=False)
    rough = pl.when(number.is_between(0, latest)).then((number * scale).round().cast(pl.Int64, strict=False))
    return table.select(pl.coalesce(exact, rough)).to_series()


_TAIL = r"^(?:\.([0-9]{0,9}))?(?:Z|([+-])([01][0-9]|2[0-3]):?([0-5][0-9]))?$"


def _dates(text: pl.Series) -> pl.Series:
    """Nanoseconds since 1970 from dates with 0 to 9 decimals, with or without an offset from UTC."""
    text = text.str.strip_chars()
    stamp, tail = text.str.slice(0, 19), text.str.slice(19)
    second = stamp.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us", cache=False)
    if second.null_count():
        iso = stamp.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="us", cache=False)
        second = pl.select(pl.coalesce(second, iso)).to_series()
    # Polars reads second 60 as the next minute's 0; 1969 may be 1970 in UTC.
    in_range = second.dt.year().is_between(1969, 2261) & (text.str.slice(17, 2) != "60")
    fraction = tail.str.strip_suffix("+00:00")
    if fraction.str.contains(r"^(?:\.[0-9]{0,9})?$").all():  # as in every public file so far; the regex below is slow
        fraction, offset = fraction.str.slice(1), pl.repeat(0, len(text), dtype=pl.Int64, eager=True)
    else:
        in_range &= tail.str.contains(_TAIL)
        fraction = tail.str.extract(_TAIL, 1).fill_null("")
        hours, minutes = (tail.str.extract(_TAIL, group).cast(pl.Int64) for group in (3, 4))
        sign = (tail.str.extract(_TAIL, 2) == "-").cast(pl.Int64) * -2 + 1
        offset = (sign * (hours * 3600 + minutes * 60)).fill_null(0)
    nanosecond = fraction.str.pad_end(9, "0").cast(pl.Int64, strict=False)
    since_1970 = second.dt.epoch("s") - offset
    return pl.select(pl.when(in_range & (since_1970 >= 0)).then(since_1970 * 1_000_000_000 + nanosecond)).to_series()


def _refuse_mixed_zones(source: Source, table: Table, text: pl.Series) -> None:
    """Refuse dates of which some say how far from UTC they are and some do not, so that their order is unknown."""
    if text.str.ends_with("+00:00").all():  # fast, and true of most public files
        return
    zoned = text.str.contains(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})\s*$")
    odd = (zoned != zoned[0]).arg_max()
    if odd is None or zoned[odd] == zoned[0]:
        return
    place, _ = table.explain(odd)
    says, before = ("an", "none") if zoned[odd] else ("no", "one")
    raise source.fault(
        f"{place}, column {shown(text.name)}: {shown(text[odd])} has {says} offset from UTC, but the rows before have "
        f"{before}, so their order is unclear. Write all of them alike"
    )


def _unit(source: Source, chosen: Format, text: pl.Series) -> Unit:
    """Return what the arrivals count; where the column does not say so, what their size tells without doubt."""
    if chosen.name == _PLAIN and text.str.contains(r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}").first():
        return "date"
    if chosen.unit != "time":
        return chosen.unit
    numbers = text.cast(pl.Float64, strict=False)
    for unit, (low, high) in _SINCE_1970.items():
        if numbers.is_between(low, high).all() and numbers.null_count() < numbers.len():
            return unit
    raise source.fault(
        f"the column {shown(text.name)} looks like arrival times, but in which unit is unclear. Say so with "
        f"`columns: {{arrival_s: {text.name}}}` (or arrival_ms, arrival_us, arrival_ns); to read lengths only, name "
        "those"
    )


# Explaining the first bad row.

_WANTED: dict[Unit, str] = {
    "tokens": f"a length is a whole number of tokens from 1 to {LONGEST:,}",
    "date": "an arrival is a date from 1970 to 2261 such as 2023-11-16 18:17:03.97996 or ...03+00:00",
    "s": "an arrival is a number of seconds from 0 to 9.2e9",
    "ms": "an arrival is a number of milliseconds from 0 to 9.2e12",
    "us": "an arrival is a number of microseconds from 0 to 9.2e15",
    "ns": "an arrival is a number of nanoseconds from 0 to 9.2e18",
    "ids": "hash ids are a list of whole numbers below 2^63",
    "rank": "a priority is a whole number between -2^31 and 2^31, smaller ones first",
}


def _bad_row(
    source: Source, table: Table, text: pl.DataFrame, reads: Mapping[str, tuple[str, Unit]], unusable: pl.DataFrame
) -> InputError:
    """Return the error for the first row with a value that cannot be used."""
    first = unusable.row(0, named=True)
    place, problem = table.explain(first["row"])
    if problem:
        return source.fault(f"{place} {problem}")
    column, unit = next(read for role, read in reads.items() if first[role] is None)
    value = text[column][first["row"]]
    what = "the value" if value is None or not value.strip() else shown(value)
    others = len(unusable) - 1
    more = f" ({_rows(others)} more cannot be used)" if others else ""
    return source.fault(
        f"{place}, column {shown(column)}: {what} {_why(value, unit)}, but {_WANTED[unit]}{more}. "
        "Correct or delete the row"
    )


def _why(text: str | None, unit: Unit) -> str:
    if text is None or not text.strip():
        return "is missing"
    if unit == "date":
        return "is not such a date"
    if unit in ("ids", "rank"):
        return "cannot be used"
    try:
        number = float(text)
    except ValueError:
        return "is not a number"
    if not text.isascii() or "_" in text:  # Python reads these as numbers, other tools do not
        return "is not a number"
    if not math.isfinite(number):
        return "is not finite"
    if number < 0:
        return "is negative"
    if unit != "tokens":
        return "is too late"
    if number != math.floor(number):
        return "is not a whole number"
    return "is below 1" if number < 1 else f"is above {LONGEST:,}"


def _listed(names: Collection[str]) -> str:
    first = ", ".join(shown(name) for name in list(names)[:12])
    return first + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


# Which format.


def _choose(source: Source, seen: Collection[str], name: str | None, columns: Mapping[str, str] | None) -> Format:
    known = [format.name for format in FORMATS]
    if name is not None and name not in (*known, _PLAIN):
        raise InputError(f"trace format {shown(name)} is not known{nearest(name, (*known, _PLAIN))}")
    if columns is not None and name not in (None, _PLAIN):
        raise InputError(f"`columns` are for plain tables, but the format {name!r} has its own; leave one of them out")
    if columns is None and name in known:
        chosen = FORMATS[known.index(name)]
        for column in chosen.columns:
            if column not in seen:
                raise source.fault(
                    f"format {name!r} needs the column {column!r}, but the file has {_listed(seen)}. "
                    f"Leave `format` out to have it recognised, or name the columns with {_REMEDY}"
                )
        return chosen
    if columns is None and name is None:
        recognised = next((format for format in FORMATS if format.fits(seen)), None)
        if recognised:
            return recognised
    return _plain(source, seen, columns or {})


def _plain(source: Source, seen: Collection[str], columns: Mapping[str, str]) -> Format:
    """Describe a table whose columns the user names, or that bears Penstock's own names."""
    roles = {alias: role for role, aliases in _OWN_NAMES.items() for alias in aliases}
    roles |= dict.fromkeys(_ARRIVAL_UNITS, "arrival")
    owns = dict(roles)
    roles["priority"] = "priority"  # only where it is asked for: many tables have such a column, of words too
    named: dict[str, tuple[str, str]] = {}  # role -> (key, column)
    for key, column in columns.items():
        if key not in roles:
            raise InputError(f"`columns` have the key {shown(key)}, which is not known{nearest(key, roles)}")
        if column not in seen:
            raise source.fault(f"`columns` name the column {shown(column)}, which is not there{nearest(column, seen)}")
        if roles[key] in named:
            raise InputError(f"`columns` name {roles[key]} twice, as {named[roles[key]][0]!r} and {key!r}; keep one")
        twice = next((other for other, held in named.values() if held == column), None)
        if twice is not None:
            raise InputError(
                f"`columns` give the column {shown(column)} to {twice} and {key}, but it is one of them; name another"
            )
        named[roles[key]] = key, column
    by_user = set(named)
    for own, role in owns.items():
        if own not in seen or role in by_user:
            continue
        if role in named:
            raise source.fault(
                f"has the columns {named[role][0]!r} and {own!r}, so which one is meant is unclear. "
                f"Choose with `columns: {{{own if role == 'arrival' else role}: {own}}}`, or the other"
            )
        named[role] = own, own
    if "prompt_tokens" not in named or "output_tokens" not in named:
        known = ", ".join(format.name for format in FORMATS)
        raise source.fault(
            f"the columns {_listed(seen)} are those of no known format ({known}). Name them with {_REMEDY}"
        )
    times = [column for column in seen if column.strip().lower() in _LIKE_TIMES]
    unit: Unit | None = None
    if times and not columns and "arrival" not in named:
        if len(times) > 1:
            raise source.fault(
                f"the columns {_listed(times)} all look like arrival times, so which one is meant is unclear. Choose "
                f"with `columns: {{arrival_s: {times[0]}}}` (or arrival_ms, arrival_us, arrival_ns)"
            )
        named["arrival"] = times[0], times[0]
        unit = "time"
    key, arrival = named.get("arrival", ("arrival_s", None))
    prompt, output = named["prompt_tokens"][1], named["output_tokens"][1]
    priority = named.get("priority", ("priority", None))[1]
    unit = unit or _ARRIVAL_UNITS[key]
    return Format(_PLAIN, "Columns named by the user.", prompt, output, arrival, unit, priority=priority)
