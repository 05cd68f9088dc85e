"""Read request traces: when each request arrived, and how long its prompt and its output were.

Every value is read as text and cast strictly; the first one that cannot be used stops the reading
with one line that says where it stands, so nothing is dropped or repaired in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError
from penstock.inputs.arrays import Ints
from penstock.inputs.source import Source
from penstock.inputs.tables import ROW, Table, chosen_rows, open_table
from penstock.words import counted
from penstock.workload.casts import DECIMALS, Unit, cast_text
from penstock.workload.lengths import LONGEST
from penstock.workload.prefixes import LARGEST_BLOCK, Prefixes, go_on, with_answers
from penstock.workload.recorded_times import UNITS
from penstock.workload.trace_formats import PLAIN, Format, check_choice, chosen_format

_TOLD = (
    "http_code", "http_status", "status_code", "status", "success", "succeeded", "error",
    "error_code",
)  # fmt: skip
"""Columns that tell requests which failed."""
_MOST_VALUES = 20  # of such a column
_COUNTED: dict[str, Unit] = {
    "prompt": "tokens", "output": "tokens", "declared": "tokens", "ids": "ids", "priority": "rank",
}  # fmt: skip
_HOUR_NS = 3_600_000_000_000
_HEAD = 1 << 20  # bytes in which a key is looked for


@dataclass(frozen=True)
class Trace:
    """What a trace file says: rows in order of arrival."""

    arrival_s: NDArray[np.float64] | None  # since the first arrival, sorted; None: lengths only
    prompt_tokens: NDArray[np.int64]  # shape (requests,), tokens
    output_tokens: NDArray[np.int64]  # shape (requests,), tokens
    format: str
    source: str  # file name, for messages
    notices: tuple[str, ...]  # what the user must know: rows sorted, failures dropped and counted
    prefixes: Prefixes | None = None
    priority: NDArray[np.int64] | None = None
    declared: NDArray[np.int64] | None = None  # most output tokens that they say they may make
    unit: str | None = None  # of arrival times
    fractions: bool = False  # of a unit that the format has whole
    doubts: tuple[str, ...] = ()  # what rows look like that are no requests as they stand


def load(
    path: str | Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    hash_block: int | None = None,
    max_gib: float | None = None,
    where: Mapping[str, Any] | None = None,
) -> Trace:
    """Read a trace file (CSV, TSV, JSON Lines or Parquet); a gzip-compressed one too.

    Arrivals are exact to the nanosecond relative to the first one (numbers in JSON: to the
    precision of a double).

    The format is a name in `penstock.workload.trace_formats.FORMATS`, or ``"plain"``; by default
    the columns tell. For any other table ``columns`` says which holds ``prompt_tokens``,
    ``output_tokens`` and, optionally, the arrival as ``arrival_s``, ``arrival_ms`` or
    ``arrival_ns`` (numbers, or dates such as 2023-11-16 18:17:03.97996), ``priority``,
    ``declared_tokens`` (or ``max_tokens``), the most output tokens that a request says it may make,
    and ``hash_ids`` and ``hash_ids_with_output``, lists such as ``[3, 1]`` or ``3 1`` that name
    blocks of ``hash_block`` tokens. Rows are read that have the value of ``where`` in each of its
    columns: ``{"http_code": 200}``. Unpacked it may hold ``max_gib`` GiB; None:
    `penstock.inputs.source.MOST_GIB`.
    """
    check_choice(columns, where)
    source = Source.at(path, max_gib)
    table = open_table(source)
    block, why = 0, "it is the tokens of one block"
    if hash_block is not None:
        block = checks.whole("hash_block", hash_block, 1, LARGEST_BLOCK, "tokens", why)
    if "delay" in table.header and "timestamp" not in table.header and columns is None:
        _refuse_turns(source, "a row")
    chosen = chosen_format(source, table.header, format, columns, block)
    _check_block(source, table, chosen, block)
    rows, notices, doubts, unit = _cast_rows(source, table, chosen, where or {})

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
        counts = rows["ids"].list.len().cast(pl.Int64).to_numpy()
        whole = chosen.ids_with_output in table.header
        prefixes = _prefixes(ids, counts, prompt, output, chosen.hash_block, whole, notices)
        doubts += _odd_ids(counts, prompt + output, chosen.hash_block)
    elif chosen.name == PLAIN:
        unused = [name for name in (chosen.ids, chosen.ids_with_output) if name in table.header]
        if unused:
            notices.append(
                f"{' and '.join(unused)} are left out: say with hash_block how many tokens an id "
                "names"
            )
    priority = rows["priority"].to_numpy(writable=True) if chosen.priority else None
    fractions = chosen.whole and bool((rows["arrival"] % 10 ** DECIMALS[chosen.unit] != 0).any())
    return Trace(
        arrival_s, prompt, output, chosen.name, source.name, tuple(notices), prefixes, priority,
        rows["declared"].to_numpy(writable=True) if chosen.declared else None,
        unit, fractions, tuple(doubts),
    )  # fmt: skip


def _check_block(source: Source, table: Table, chosen: Format, block: int) -> None:
    """Refuse a size of blocks where no ids name any, or where the format has its own."""
    if block and chosen.name != PLAIN:
        raise InputError(
            f"hash_block is {block:,}, but the format {chosen.name!r} says itself how large its "
            "blocks are, or has none; leave it out"
        )
    if block and not {chosen.ids, chosen.ids_with_output} & set(table.header):
        raise source.fault(
            f"has no column {chosen.ids!r} or {chosen.ids_with_output!r}, but hash_block is "
            f"{block:,}. Name them with `columns`, or leave hash_block out"
        )


def _prefixes(
    ids: Ints, counts: Ints, prompt: Ints, output: Ints, block: int, whole: bool, notices: list[str]
) -> Prefixes:
    """Return what requests have in common; ``whole``: the ids go on with the outputs."""
    # Else the ids of answers are told by later rows, as far as they are.
    goes_on = whole or go_on(counts, prompt, block)
    prefixes = Prefixes.of(ids, counts, prompt, block, output if goes_on else None)
    notices += prefixes.notices
    if goes_on:
        return prefixes
    longer, counts, answers = with_answers(
        prefixes.ids, np.diff(prefixes.bounds), prompt, output, block
    )
    if not answers:
        return prefixes
    notices.append(
        f"hash ids of {counted(answers, 'answer')} were inferred from a later prompt that goes on "
        "where they were given; name them with hash_ids_with_output if you know better"
    )
    return Prefixes.of(longer, counts, prompt, block, output)


def _odd_ids(counts: Ints, tokens: Ints, block: int) -> list[str]:
    """Say that requests name more blocks than their tokens, prompt and output, can fill."""
    odd = np.flatnonzero(counts > -(-tokens // block))
    if not odd.size:
        return []
    first = odd[0]
    return [
        f"Hash ids contradict lengths in {counted(odd.size, 'request')}: request {first + 1:,} in "
        f"order of arrival names {counts[first]:,} blocks of {block:,} tokens, and has "
        f"{tokens[first]:,} in all. What a prefix cache finds is wrong if the ids are, the load if "
        "the lengths are; correct them, or name the columns and give another hash_block."
    ]


def _cast_rows(
    source: Source, table: Table, chosen: Format, where: Mapping[str, Any]
) -> tuple[pl.DataFrame, list[str], list[str], Unit | None]:
    """Return the rows as numbers, a column for each role, what there is to say of them and to
    doubt, and the unit of arrivals.
    """
    names = chosen.reads(table.header)
    told = [name for name in table.header if name.lower() in _TOLD and name not in where]
    text, left_out = chosen_rows(source, table, [*names.values(), *told], where)
    doubts = _failures(text.select(told))

    # Every column is cast from text; null stands for what cannot be used.
    units = dict(_COUNTED)
    if chosen.arrival:
        units["arrival"] = _unit(source, chosen, text[chosen.arrival])
    reads = {role: (name, units[role]) for role, name in names.items()}
    rows = pl.DataFrame({role: cast_text(text[name], unit) for role, (name, unit) in reads.items()})
    rows = rows.with_columns(text[ROW])

    # A request that failed is none; any other length of 0 is a fault.
    notices: list[str] = []
    if left_out:
        notices.append(f"{counted(left_out, 'row')} left out by `where`")
    if chosen.zero_output_failed:
        rows = _succeeded(source, rows, notices)
    rows = rows.with_columns(pl.col("prompt", "output").replace(0, None))
    unusable = rows.filter(pl.any_horizontal(pl.all().is_null()))
    if len(unusable):
        raise _bad_row(source, table, text, reads, unusable, told)
    if chosen.arrival and units["arrival"] == "date":
        _refuse_mixed_zones(source, table, text[chosen.arrival], text[ROW])
        doubts += _set_back(rows["arrival"].to_numpy())
    if "delay" in table.header:
        doubts.append(
            "Rows have a delay, as turns of a session that are sent so long after the answer "
            "before: here they are sent at their recorded times, however long answers take."
        )
    return rows, notices, doubts, units.get("arrival")


def _failures(told: pl.DataFrame) -> list[str]:
    """Say that rows differ in a column that tells requests which failed."""
    doubts = []
    for column in told.iter_columns():
        values = column.fill_null("").value_counts(sort=True)
        if 1 < len(values) <= _MOST_VALUES:
            usual, others = values[column.name][0], len(column) - values["count"][0]
            doubts.append(
                f"{counted(others, 'row')} of {len(column):,} have another {column.name} than "
                f"{shown(usual)}, and count as requests here. If they failed, leave them out: "
                f"`where: {{{column.name}: {usual or shown('')}}}`."
            )
    return doubts


def _succeeded(source: Source, rows: pl.DataFrame, notices: list[str]) -> pl.DataFrame:
    """Drop requests that failed, and take note of how many."""
    succeeded = rows.filter(pl.col("output").ne_missing(0))
    failed = len(rows) - len(succeeded)
    if succeeded.is_empty():
        raise source.fault(
            f"all {failed:,} rows have 0 output tokens, so no request succeeded. Choose another "
            "file"
        )
    if failed:
        notices.append(f"{counted(failed, 'row')} with 0 output tokens: failed requests, dropped")
    return succeeded


def _set_back(nanoseconds: Ints) -> list[str]:
    """Say that dates fall back by an hour once, as clocks that are set back do."""
    falls = np.diff(nanoseconds, prepend=nanoseconds[0])
    places = np.flatnonzero(falls < -_HOUR_NS // 2)
    if places.size != 1 or falls[places[0]] < -_HOUR_NS:
        return []
    return [
        f"Dates fall back by {-falls[places[0]] / 1e9:,.0f} s at request {places[0] + 1:,}, once, "
        "as a clock that is set back to winter time: sorted by arrival the two hours are one, "
        "with twice its load. Write dates in UTC."
    ]


def _in_order(rows: pl.DataFrame, notices: list[str]) -> pl.DataFrame:
    """Sort the requests by arrival, and take note of how many were late."""
    late = int((rows["arrival"] < rows["arrival"].cum_max()).sum())
    if not late:
        return rows
    notices.append(
        f"{counted(late, 'row')} {'was' if late == 1 else 'were'} out of order; sorted by arrival"
    )
    return rows.sort("arrival", maintain_order=True)


def _refuse_mixed_zones(source: Source, table: Table, text: pl.Series, rows: pl.Series) -> None:
    """Refuse dates of which only some say how far from UTC they are: their order is unknown."""
    if text.str.ends_with("+00:00").all():  # fast, and true of most public files
        return
    zoned = text.str.contains(r"(?:Z|UTC|GMT|[+-][0-9]{2}:?(?:[0-9]{2})?)\s*$")
    odd = (zoned != zoned[0]).arg_max()
    if odd is None or zoned[odd] == zoned[0]:
        return
    where, _ = table.explain(rows[odd])
    offset, before = ("an", "none") if zoned[odd] else ("no", "one")
    raise source.fault(
        f"{where}, column {shown(text.name)}: {shown(text[odd])} has {offset} offset from UTC, but "
        f"the rows before have {before}, so their order is unclear. Write all of them alike"
    )


def _unit(source: Source, chosen: Format, text: pl.Series) -> Unit:
    """Return what arrivals count; where no column says so, what their size tells without doubt."""
    if chosen.name == PLAIN and text.str.contains(r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}").first():
        return "date"
    if chosen.unit != "time":
        return chosen.unit
    # From 2001 to 2286, as clocks of computers count, no number is a time in two units.
    numbers = text.cast(pl.Float64, strict=False)
    for unit, decimals in DECIMALS.items():
        low = 10 ** (18 - decimals)
        if numbers.is_between(low, 10 * low).all() and numbers.null_count() < numbers.len():
            return unit
    raise source.fault(
        f"the column {shown(text.name)} looks like arrival times, but in which unit is unclear. "
        f"Say so with `columns: {{arrival_s: {text.name}}}` (or arrival_ms, arrival_us, "
        "arrival_ns); to read lengths only, name those"
    )


# Explaining the first bad row.

_WANTED: dict[Unit, str] = {
    "tokens": f"a length is a whole number of tokens from 1 to {LONGEST:,}",
    "date": "an arrival is a date from 1970 to 2261 such as 2023-11-16 18:17:03.97996 or "
    "...03+00:00",
    **{
        unit: f"an arrival is a number of {UNITS[unit]} from 0 to 9.2e{18 - decimals}"
        for unit, decimals in DECIMALS.items()
    },
    "ids": "hash ids are a list of whole numbers below 2^63, such as [3, 1] or 3 1",
    "rank": "a priority is a whole number between -2^31 and 2^31, smaller ones first",
}


def _bad_row(
    source: Source,
    table: Table,
    text: pl.DataFrame,
    reads: Mapping[str, tuple[str, Unit]],
    unusable: pl.DataFrame,
    told: Sequence[str],
) -> InputError:
    """Return the error for the first row with a value that cannot be used."""
    # ``told``: columns that may tell which requests failed, and have chosen no rows.
    first = unusable.row(0, named=True)
    where, problem = table.explain(first[ROW])
    if problem:
        return source.fault(f"{where} {problem}")
    column, unit = next(read for role, read in reads.items() if first[role] is None)
    value = text.filter(pl.col(ROW) == first[ROW])[column][0]
    missing = value is None or not value.strip()
    what = "the value is missing" if missing else f"{shown(value)} cannot be used"
    remedy = "Correct or delete the row"
    if told:
        remedy += f", or choose rows: `where: {{{told[0]}: VALUE}}`"
    if missing and column == reads.get("arrival", ("",))[0]:
        _refuse_turns(source, where)
    others = len(unusable) - 1
    more = f" ({counted(others, 'row')} more cannot be used)" if others else ""
    return source.fault(f"{where}, column {shown(column)}: {what}: {_WANTED[unit]}{more}. {remedy}")


def _refuse_turns(source: Source, where: str) -> None:
    """Refuse rows of sessions, where a row without a time may be one."""
    with source.open() as file:
        if b"delay" not in file.read(_HEAD):
            return
    raise source.fault(
        f"{where} has a delay and no time: it is a turn of a session, sent so long after the "
        "answer before, and when that came is not recorded. Give rows their times, or write them "
        "as a table for `sessions` of a network (trace_id, agent, idx, t_s, think_time_s, ...)"
    )
