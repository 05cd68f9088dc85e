"""Read request traces: when each request arrived, and how long its prompt and its output were.

A new format is one entry of `FORMATS`. Every value is read as text and cast strictly; the first one
that cannot be used stops the reading with one line that says where it stands, so nothing is dropped
or repaired in silence.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.inputs.source import Source
from penstock.inputs.tables import Table, open_table
from penstock.words import counted
from penstock.workload.casts import Unit, cast_text
from penstock.workload.lengths import LONGEST
from penstock.workload.prefixes import Prefixes


@dataclass(frozen=True)
class Format:
    """How one family of trace files says what it says."""

    name: str
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
    """Tokens in a block of the prompt that the lists in the column ``hash_ids`` name; 0: it has no
    such column.
    """
    priority: str | None = None
    """Column of priorities: smaller ones are served first."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (*((self.arrival,) if self.arrival else ()), self.prompt, self.output)

    def fits(self, header: Collection[str]) -> bool:
        """Whether a file with these columns has this format."""
        return all(column in header for column in (*self.columns, *self.marks))


FORMATS = (
    # Azure, 2023 and 2024 (CSV)
    Format("azure", "ContextTokens", "GeneratedTokens", "TIMESTAMP", "date"),
    # BurstGPT, 6 or 8 columns (CSV, seconds); 0 response tokens is a failure
    Format(
        "burstgpt",
        "Request tokens", "Response tokens", "Timestamp", zero_output_failed=True,
    ),
    # Vidur, processed traces (CSV, s)
    Format("vidur", "num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    # Lengths without times (CSV; Vidur, Etalon)
    Format("lengths", "num_prefill_tokens", "num_decode_tokens"),
    # RAGPulse (JSON Lines, seconds as text)
    Format(
        "ragpulse",
        "input_length", "output_length", "timestamp", marks=("hash_ids.sys_prompt",),
    ),
    # Qwen-Bailian (JSON Lines, seconds)
    Format(
        "qwen",
        "input_length", "output_length", "timestamp", marks=("chat_id",), hash_block=16,
    ),
    # Mooncake (JSON Lines, milliseconds)
    Format(
        "mooncake",
        "input_length", "output_length", "timestamp", "ms", hash_block=512,
    ),
)  # fmt: skip
"""The known formats, the more specific first."""

_PLAIN = "plain"
_HASHES = "hash_ids"
_OWN_NAMES = {
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "num_prompt_tokens"),
    "output_tokens": (
        "output_tokens",
        "output",
        "completion_tokens",
        "generated_tokens",
        "num_output_tokens",
    ),
}
_ARRIVAL_UNITS: dict[str, Unit] = {
    "arrival_s": "s",
    "arrival_ms": "ms",
    "arrival_us": "us",
    "arrival_ns": "ns",
}
_LIKE_TIMES = (
    "arrival", "arrivals", "arrived_at", "arrival_time", "created", "created_at",
    "time", "times", "timestamp", "date", "datetime",
)  # fmt: skip
_SINCE_1970: dict[Unit, tuple[float, float]] = {
    "s": (1e9, 1e10),
    "ms": (1e12, 1e13),
    "us": (1e15, 1e16),
    "ns": (1e18, 1e19),
}
"""From 2001 to 2286, as clocks of computers count: no number is a time of these years in two units.
"""
NO_ROWS = "has no rows, so nothing arrives. Check that the file was written completely"
_REMEDY = (
    "`columns: {arrival_s: NAME, prompt_tokens: NAME, output_tokens: NAME}` (arrival_s may be "
    "left out)"
)


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

    Arrivals are exact to the nanosecond relative to the first one (numbers in JSON: to the
    precision of a double).

    Parameters
    ----------
    path
        CSV, TSV, JSON Lines or Parquet.
    format
        One of `FORMATS` by name, or ``"plain"``; by default it is recognised by the columns.
    columns
        For any other table: which column holds ``prompt_tokens``, ``output_tokens`` and,
        optionally, the arrival as ``arrival_s``, ``arrival_ms`` or ``arrival_ns`` (numbers, or
        dates such as 2023-11-16 18:17:03.97996), and ``priority``, whole numbers.
    max_gib
        What the file may hold, unpacked, in GiB; None: `penstock.inputs.source.MOST_GIB`.

    Raises
    ------
    InputError
        If the file, or a value in it, cannot be used; one line that says where and why.
    """
    _check_choice(format, columns)
    source = Source.at(path, max_gib)
    table = open_table(source)
    chosen = _choose(source, table.header, format, columns)
    rows, notices = _cast_rows(source, table, chosen)

    # Arrivals count from the first one, in order; what prompts share is told by the ids of their
    # blocks.
    arrival_s = prefixes = None
    if chosen.arrival:
        rows = _in_order(rows, notices)
        nanoseconds = rows["arrival"].to_numpy()
        arrival_s = (nanoseconds - nanoseconds[0]) / 1e9
    prompt, output = (rows[role].to_numpy(writable=True) for role in ("prompt", "output"))
    if "ids" in rows.columns:
        ids = rows["ids"].explode().drop_nulls().to_numpy()
        prefixes = Prefixes.of(
            ids, rows["ids"].list.len().cast(pl.Int64).to_numpy(), prompt, chosen.hash_block
        )
    priority = rows["priority"].to_numpy(writable=True) if chosen.priority else None
    return Trace(
        arrival_s, prompt, output, chosen.name, source.name, tuple(notices), prefixes, priority
    )


def _cast_rows(source: Source, table: Table, chosen: Format) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows as numbers, a column for each role, and what there is to say of them."""
    hashes = chosen.hash_block > 0 and _HASHES in table.header
    names = [
        *chosen.columns,
        *([_HASHES] if hashes else []),
        *([chosen.priority] if chosen.priority else []),
    ]
    text = table.read(tuple(dict.fromkeys(names)))
    if text.is_empty():
        raise source.fault(NO_ROWS)

    # Every column is cast from text; null stands for what cannot be used.
    reads: dict[str, tuple[str, Unit]] = {}
    if chosen.arrival:
        reads["arrival"] = chosen.arrival, _unit(source, chosen, text[chosen.arrival])
    reads |= {"prompt": (chosen.prompt, "tokens"), "output": (chosen.output, "tokens")}
    if hashes:
        reads["ids"] = _HASHES, "ids"
    if chosen.priority:
        reads["priority"] = chosen.priority, "rank"
    rows = pl.DataFrame(
        {role: cast_text(text[column], unit) for role, (column, unit) in reads.items()}
    )
    rows = rows.with_row_index("row")

    # A request that failed is none; any other length of 0 is a fault.
    notices: list[str] = []
    if chosen.zero_output_failed:
        rows = _succeeded(source, rows, notices)
    rows = rows.with_columns(pl.col("prompt", "output").replace(0, None))
    unusable = rows.filter(pl.any_horizontal(pl.all().is_null()))
    if len(unusable):
        raise _bad_row(source, table, text, reads, unusable)
    if chosen.arrival and reads["arrival"][1] == "date":
        _refuse_mixed_zones(source, table, text[chosen.arrival])
    return rows, notices


def _check_choice(format: object, columns: object) -> None:
    """Refuse a format that is no name, and columns that are no mapping of names."""
    if format is not None and not isinstance(format, str):
        raise InputError(
            f"format is {shown(format)}, but must be the name of a trace format; leave it out to "
            "detect it"
        )
    if columns is None:
        return
    if not isinstance(columns, Mapping) or not all(
        isinstance(name, str) for pair in columns.items() for name in pair
    ):
        raise InputError(
            f"columns is {shown(columns)}, but must map names to names of columns, as {_REMEDY}"
        )


def _succeeded(source: Source, rows: pl.DataFrame, notices: list[str]) -> pl.DataFrame:
    """Drop requests that failed, and take note of how many."""
    kept = rows.filter(pl.col("output").ne_missing(0))
    failed = len(rows) - len(kept)
    if kept.is_empty():
        raise source.fault(
            f"all {failed:,} rows have 0 output tokens, so no request succeeded. Choose another "
            "file"
        )
    if failed:
        notices.append(f"{counted(failed, 'row')} with 0 output tokens: failed requests, dropped")
    return kept


def _in_order(rows: pl.DataFrame, notices: list[str]) -> pl.DataFrame:
    """Sort the requests by arrival, and take note of how many were late."""
    late = int((rows["arrival"] < rows["arrival"].cum_max()).sum())
    if not late:
        return rows
    notices.append(
        f"{counted(late, 'row')} {'was' if late == 1 else 'were'} out of order; sorted by arrival"
    )
    return rows.sort("arrival", maintain_order=True)


def _refuse_mixed_zones(source: Source, table: Table, text: pl.Series) -> None:
    """Refuse dates of which some say how far from UTC they are and some do not, so that their order
    is unknown.
    """
    if text.str.ends_with("+00:00").all():  # fast, and true of most public files
        return
    zoned = text.str.contains(r"(?:Z|[+-][0-9]{2}:?[0-9]{2})\s*$")
    odd = (zoned != zoned[0]).arg_max()
    if odd is None or zoned[odd] == zoned[0]:
        return
    where, _ = table.explain(odd)
    offset, before = ("an", "none") if zoned[odd] else ("no", "one")
    raise source.fault(
        f"{where}, column {shown(text.name)}: {shown(text[odd])} has {offset} offset from UTC, "
        "but the rows before "
        f"have {before}, so their order is unclear. Write all of them alike"
    )


def _unit(source: Source, chosen: Format, text: pl.Series) -> Unit:
    """Return what the arrivals count; where the column does not say so, what their size tells
    without doubt.
    """
    if chosen.name == _PLAIN and text.str.contains(r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}").first():
        return "date"
    if chosen.unit != "time":
        return chosen.unit
    numbers = text.cast(pl.Float64, strict=False)
    for unit, (low, high) in _SINCE_1970.items():
        if numbers.is_between(low, high).all() and numbers.null_count() < numbers.len():
            return unit
    raise source.fault(
        f"the column {shown(text.name)} looks like arrival times, but in which unit is unclear. "
        "Say so with "
        f"`columns: {{arrival_s: {text.name}}}` (or arrival_ms, arrival_us, arrival_ns); to read "
        "lengths only, name "
        "those"
    )


# Explaining the first bad row.

_WANTED: dict[Unit, str] = {
    "tokens": f"a length is a whole number of tokens from 1 to {LONGEST:,}",
    "date": "an arrival is a date from 1970 to 2261 such as 2023-11-16 18:17:03.97996 or "
    "...03+00:00",
    "s": "an arrival is a number of seconds from 0 to 9.2e9",
    "ms": "an arrival is a number of milliseconds from 0 to 9.2e12",
    "us": "an arrival is a number of microseconds from 0 to 9.2e15",
    "ns": "an arrival is a number of nanoseconds from 0 to 9.2e18",
    "ids": "hash ids are a list of whole numbers below 2^63",
    "rank": "a priority is a whole number between -2^31 and 2^31, smaller ones first",
}


def _bad_row(
    source: Source,
    table: Table,
    text: pl.DataFrame,
    reads: Mapping[str, tuple[str, Unit]],
    unusable: pl.DataFrame,
) -> InputError:
    """Return the error for the first row with a value that cannot be used."""
    first = unusable.row(0, named=True)
    where, problem = table.explain(first["row"])
    if problem:
        return source.fault(f"{where} {problem}")
    column, unit = next(read for role, read in reads.items() if first[role] is None)
    value = text[column][first["row"]]
    what = "the value" if value is None or not value.strip() else shown(value)
    others = len(unusable) - 1
    more = f" ({counted(others, 'row')} more cannot be used)" if others else ""
    return source.fault(
        f"{where}, column {shown(column)}: {what} {_problem(value, unit)}, but "
        f"{_WANTED[unit]}{more}. "
        "Correct or delete the row"
    )


def _problem(text: str | None, unit: Unit) -> str:
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


# Which format.


def _choose(
    source: Source, header: Collection[str], name: str | None, columns: Mapping[str, str] | None
) -> Format:
    names = [format.name for format in FORMATS]
    if name is not None and name not in (*names, _PLAIN):
        raise InputError(
            f"trace format {shown(name)} is not known{nearest(name, (*names, _PLAIN))}"
        )
    if columns is not None and name not in (None, _PLAIN):
        raise InputError(
            f"`columns` are for plain tables, but the format {name!r} has its own; leave one of "
            "them out"
        )
    if columns is None and name in names:
        chosen = FORMATS[names.index(name)]
        absent = [column for column in chosen.columns if column not in header]
        if absent:
            raise source.fault(
                f"format {name!r} needs the column {absent[0]!r}, but the file has "
                f"{_listed(header)}. "
                f"Leave `format` out to have it recognised, or name the columns with {_REMEDY}"
            )
        return chosen
    if columns is None and name is None:
        for format in FORMATS:
            if format.fits(header):
                return format
    return _plain(source, header, columns or {})


def _plain(source: Source, header: Collection[str], columns: Mapping[str, str]) -> Format:
    """Describe a table whose columns the user names, or that bears Penstock's own names."""
    roles = {alias: role for role, aliases in _OWN_NAMES.items() for alias in aliases}
    roles |= dict.fromkeys(_ARRIVAL_UNITS, "arrival")
    keys = roles | {
        "priority": "priority"
    }  # only where it is asked for: many tables have such a column, of words too
    named = _named_by_user(source, header, columns, keys)
    _add_own_names(source, header, roles, named)
    if "prompt_tokens" not in named or "output_tokens" not in named:
        formats = ", ".join(format.name for format in FORMATS)
        raise source.fault(
            f"the columns {_listed(header)} are those of no known format ({formats}). Name them "
            f"with {_REMEDY}"
        )
    # without a word of the user, one column that looks like times is the arrival
    times = [column for column in header if column.strip().lower() in _LIKE_TIMES]
    unit: Unit | None = None
    if times and not columns and "arrival" not in named:
        if len(times) > 1:
            raise source.fault(
                f"the columns {_listed(times)} all look like arrival times, so which one is meant "
                "is unclear. Choose "
                f"with `columns: {{arrival_s: {times[0]}}}` (or arrival_ms, arrival_us, arrival_ns)"
            )
        named["arrival"] = times[0], times[0]
        unit = "time"
    key, arrival = named.get("arrival", ("arrival_s", None))
    prompt, output = named["prompt_tokens"][1], named["output_tokens"][1]
    priority = named.get("priority", ("priority", None))[1]
    unit = unit or _ARRIVAL_UNITS[key]
    return Format(_PLAIN, prompt, output, arrival, unit, priority=priority)


def _named_by_user(
    source: Source, header: Collection[str], columns: Mapping[str, str], keys: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the key and the column of each role that the user gives a column."""
    named: dict[str, tuple[str, str]] = {}  # role -> (key, column)
    for key, column in columns.items():
        if key not in keys:
            raise InputError(
                f"`columns` have the key {shown(key)}, which is not known{nearest(key, keys)}"
            )
        if column not in header:
            raise source.fault(
                f"`columns` name the column {shown(column)}, which is not "
                f"there{nearest(column, header)}"
            )
        role = keys[key]
        if role in named:
            raise InputError(
                f"`columns` name {role} twice, as {named[role][0]!r} and {key!r}; keep one"
            )
        twice = next((other for other, held in named.values() if held == column), None)
        if twice is not None:
            raise InputError(
                f"`columns` give the column {shown(column)} to {twice} and {key}, but it is one "
                "of them; name another"
            )
        named[role] = key, column
    return named


def _add_own_names(
    source: Source,
    header: Collection[str],
    roles: Mapping[str, str],
    named: dict[str, tuple[str, str]],
) -> None:
    """Add columns with names of Penstock's own, for roles that are left."""
    by_user = set(named)
    for own, role in roles.items():
        if own not in header or role in by_user:
            continue
        if role in named:
            raise source.fault(
                f"has the columns {named[role][0]!r} and {own!r}, so which one is meant is "
                "unclear. "
                f"Choose with `columns: {{{own if role == 'arrival' else role}: {own}}}`, or the "
                "other"
            )
        named[role] = own, own
