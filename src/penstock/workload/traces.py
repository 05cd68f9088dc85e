"""Read request traces: when each request arrived, and how long its prompt and its output were.

A new format is one entry of `FORMATS`. Every value is read as text and cast strictly; the first one that cannot be
used stops the reading with one line that says where it stands, so nothing is dropped or repaired in silence.
"""

import csv
import difflib
import gzip
import io
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.errors import InputError, nearest
from penstock.workload.lengths import LONGEST

Unit = Literal["date", "s", "ms", "ns"]
_DECIMALS: dict[Unit, int] = {"s": 9, "ms": 6, "ns": 0}  # from the unit down to nanoseconds


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
        "input_length", "output_length", "timestamp", marks=("chat_id",),
    ),
    Format("mooncake", "Mooncake (JSON Lines, milliseconds).", "input_length", "output_length", "timestamp", "ms"),
)  # fmt: skip
"""The known formats, the more specific first."""

_PLAIN = "plain"
_OWN_NAMES = {"prompt_tokens": ("prompt_tokens", "prompt"), "output_tokens": ("output_tokens", "output")}
_ARRIVAL_UNITS: dict[str, Unit] = {"arrival_s": "s", "arrival_ms": "ms", "arrival_ns": "ns"}
_REMEDY = "columns={'arrival_s': ..., 'prompt_tokens': ..., 'output_tokens': ...} (arrival_s may be left out)"


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


def load(path: str | Path, *, format: str | None = None, columns: Mapping[str, str] | None = None) -> Trace:
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
        ``arrival_s``, ``arrival_ms`` or ``arrival_ns`` (numbers, or dates such as 2023-11-16 18:17:03.97996).

    Raises
    ------
    InputError
        If the file, or a value in it, cannot be used; one line that says where and why.
    """
    source = _Source.at(Path(path).expanduser())
    table = _table(source)
    chosen = _choose(source, table.header, format, columns)
    frame = table.read(tuple(dict.fromkeys(chosen.columns)))
    if frame.is_empty():
        raise source.fault("has no rows, so nothing arrives. Check that the file was written completely")
    return _interpret(source, table, chosen, frame)


def _interpret(source: "_Source", table: "_Table", chosen: Format, frame: pl.DataFrame) -> Trace:
    """Cast the columns, refuse the first bad row, drop failures, sort."""
    prompt, output = (_in_parts(_lengths, frame[column]) for column in (chosen.prompt, chosen.output))
    kept = (output != 0).fill_null(True) if chosen.zero_output_failed else pl.repeat(True, len(output), eager=True)
    checks = [
        (chosen.prompt, "length", prompt.is_between(1, LONGEST)),
        (chosen.output, "length", output.is_between(1, LONGEST)),
    ]
    nanoseconds = None
    if chosen.arrival:
        unit = _unit(chosen, frame[chosen.arrival])
        nanoseconds = _in_parts(_dates if unit == "date" else partial(_numbers, unit=unit), frame[chosen.arrival])
        checks.insert(0, (chosen.arrival, unit, nanoseconds.is_not_null()))
    _refuse_bad_rows(source, table, frame, kept, checks)

    notices: list[str] = []
    failed = len(kept) - int(kept.sum())
    if failed == len(kept):
        raise source.fault(f"all {failed:,} rows have 0 output tokens, so no request succeeded. Choose another file")
    if failed:
        notices.append(f"{_rows(failed)} with 0 output tokens: failed requests, dropped")
        prompt, output = prompt.filter(kept), output.filter(kept)
        nanoseconds = None if nanoseconds is None else nanoseconds.filter(kept)
    lengths = prompt.to_numpy(writable=True), output.to_numpy(writable=True)
    arrival_s = None
    if nanoseconds is not None:
        arrival_s, order, notice = _sorted_seconds(nanoseconds.to_numpy())
        lengths = (lengths[0][order], lengths[1][order]) if notice else lengths
        notices.extend(notice)
    return Trace(arrival_s, *lengths, chosen.name, source.name, tuple(notices))


def _sorted_seconds(ns: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.intp], list[str]]:
    """Seconds since the first arrival, the order that sorts the rows, and a notice if it was another."""
    order = np.arange(0)
    notice = []
    late = int(np.count_nonzero(ns < np.maximum.accumulate(ns)))
    if late:
        order = np.argsort(ns, kind="stable")
        ns = ns[order]
        notice = [f"{_rows(late)} {'was' if late == 1 else 'were'} out of order; sorted by arrival"]
    return (ns - ns[0]) / 1e9, order, notice


# Casting: null means "cannot be used".


def _in_parts(cast: Callable[[pl.Series], pl.Series], text: pl.Series) -> pl.Series:
    """Cast a million rows at a time: the intermediate columns of 27 million would take gigabytes."""
    return pl.concat(cast(text.slice(start, 1_000_000)) for start in range(0, len(text), 1_000_000))


def _lengths(text: pl.Series) -> pl.Series:
    """Whole numbers; 12.0 and 1e3 are whole."""
    text = text.str.strip_chars()
    whole = text.cast(pl.Int64, strict=False)
    if not whole.null_count():
        return whole
    number = text.cast(pl.Float64, strict=False)
    exact = (number == number.floor()) & (number.abs() < 2**53)
    return pl.select(pl.coalesce(whole, pl.when(exact).then(number.cast(pl.Int64, strict=False)))).to_series()


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
    in_range = second.dt.year().is_between(1970, 2261)
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
    return pl.select(pl.when(in_range).then((second.dt.epoch("s") - offset) * 1_000_000_000 + nanosecond)).to_series()


def _unit(chosen: Format, text: pl.Series) -> Unit:
    looks_like_date = chosen.name == _PLAIN and text.str.contains(r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}").first()
    return "date" if looks_like_date else chosen.unit


# Explaining the first bad row.

_WANTED = {
    "length": f"a length is a whole number of tokens from 1 to {LONGEST:,}",
    "date": "an arrival is a date from 1970 to 2261 such as 2023-11-16 18:17:03.97996 or ...03+00:00",
    "s": "an arrival is a number of seconds from 0 to 9.2e9",
    "ms": "an arrival is a number of milliseconds from 0 to 9.2e12",
    "ns": "an arrival is a number of nanoseconds from 0 to 9.2e18",
}


def _refuse_bad_rows(
    source: "_Source",
    table: "_Table",
    frame: pl.DataFrame,
    kept: pl.Series,
    checks: list[tuple[str, str, pl.Series]],
) -> None:
    """Raise for the first row with a value that cannot be used."""
    bad = [np.flatnonzero((~good.fill_null(False) & kept).to_numpy()) for _, _, good in checks]
    if not any(len(rows) for rows in bad):
        return
    row = int(min(rows[0] for rows in bad if len(rows)))
    column, wanted, _ = next(check for check, rows in zip(checks, bad, strict=True) if len(rows) and rows[0] == row)
    place, problem = table.explain(row)
    if problem:
        raise source.fault(f"{place} {problem}")
    text = frame[column][row]
    value = "the value" if text is None or not text.strip() else _shown(text)
    others = len(np.unique(np.concatenate(bad))) - 1
    more = f" ({_rows(others)} more cannot be used)" if others else ""
    raise source.fault(
        f"{place}, column {_shown(column)}: {value} {_why(text, wanted)}, but {_WANTED[wanted]}{more}. "
        "Correct or delete the row"
    )


def _why(text: str | None, wanted: str) -> str:
    if text is None or not text.strip():
        return "is missing"
    if wanted == "date":
        return "is not such a date"
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
    if wanted != "length":
        return "is too late"
    if number != math.floor(number):
        return "is not a whole number"
    return "is below 1" if number < 1 else f"is above {LONGEST:,}"


def _shown(text: str) -> str:
    """Put the text on one line, shortened."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(_shown(name) for name in list(names)[:12])
    return shown + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


# Which format.


def _choose(source: "_Source", seen: Collection[str], name: str | None, columns: Mapping[str, str] | None) -> Format:
    known = [format.name for format in FORMATS]
    if name is not None and name not in (*known, _PLAIN):
        raise InputError(f"trace format {name!r} is not known{nearest(name, (*known, _PLAIN))}")
    if columns is not None and name not in (None, _PLAIN):
        raise InputError(f"columns= is for plain tables, but format={name!r} has its own; leave one of them out")
    if columns is None and name in known:
        chosen = FORMATS[known.index(name)]
        for column in chosen.columns:
            if column not in seen:
                raise source.fault(
                    f"format {name!r} needs the column {column!r}, but the file has {_listed(seen)}. "
                    f"Leave format= out to have it recognised, or name the columns: {_REMEDY}"
                )
        return chosen
    if columns is None and name is None:
        recognised = next((format for format in FORMATS if format.fits(seen)), None)
        if recognised:
            return recognised
    return _plain(source, seen, columns or {})


def _plain(source: "_Source", seen: Collection[str], columns: Mapping[str, str]) -> Format:
    """Describe a table whose columns the user names, or that bears Penstock's own names."""
    roles = {alias: role for role, aliases in _OWN_NAMES.items() for alias in aliases}
    roles |= dict.fromkeys(_ARRIVAL_UNITS, "arrival")
    named: dict[str, tuple[str, str]] = {}  # role -> (key, column)
    for key, column in columns.items():
        if key not in roles:
            raise InputError(f"columns= has the key {key!r}, which is not known{nearest(key, roles)}")
        if column not in seen:
            raise source.fault(f"columns= names the column {column!r}, which is not there{nearest(column, seen)}")
        if roles[key] in named:
            raise InputError(f"columns= names {roles[key]} twice, as {named[roles[key]][0]!r} and {key!r}; keep one")
        named[roles[key]] = key, column
    for own, role in roles.items():
        if own in seen:
            named.setdefault(role, (own, own))
    if "prompt_tokens" not in named or "output_tokens" not in named:
        known = ", ".join(format.name for format in FORMATS)
        raise source.fault(f"the columns {_listed(seen)} are those of no known format ({known}). Name them: {_REMEDY}")
    key, arrival = named.get("arrival", ("arrival_s", None))
    prompt, output = named["prompt_tokens"][1], named["output_tokens"][1]
    return Format(_PLAIN, "Columns named by the user.", prompt, output, arrival, _ARRIVAL_UNITS[key])


# The file, and the three ways in which it can hold a table.


@dataclass(frozen=True)
class _Source:
    path: Path
    content: bytes | None
    """The decompressed bytes; None when Polars may read the file itself."""

    @classmethod
    def at(cls, path: Path) -> "_Source":
        source = cls(path, None)
        if path.is_dir():
            raise source.fault("is a directory. Name a file in it")
        if not path.exists():
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            close = difflib.get_close_matches(path.name, beside, n=1)
            hint = f"; did you mean {_shown(close[0])}?" if close else ". Check the path"
            raise source.fault("does not exist" + hint)
        try:
            with path.open("rb") as file:
                magic = file.read(4)
            if magic.startswith(b"\x1f\x8b"):
                source = cls(path, gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, zlib.error) as error:
            raise source.fault(f"cannot be read ({_first_line(error)}). Fetch the file again") from None
        if not magic or source.content == b"":
            raise source.fault("is empty. Fetch the file again")
        return source

    @property
    def name(self) -> str:
        return self.path.name if self.path.name.isprintable() else _shown(self.path.name)

    def open(self) -> BinaryIO:
        return self.path.open("rb") if self.content is None else io.BytesIO(self.content)

    def text(self, newline: str = "") -> io.TextIOWrapper:
        return io.TextIOWrapper(self.open(), encoding="utf-8-sig", newline=newline)

    def for_polars(self) -> Path | io.BytesIO:
        return self.path if self.content is None else io.BytesIO(self.content)

    def blank_lines_at_end(self) -> int:
        with self.open() as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - 65_536))
            tail = file.read()
        return max(0, tail[len(tail.rstrip(b"\r\n")) :].count(b"\n") - 1)

    def fault(self, message: str) -> InputError:
        return InputError(f"{self.name}: {message}.".replace("?.", "?"))

    def not_text(self) -> InputError:
        with self.open() as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return self.fault(f"line {number:,} is not UTF-8 text. Save it as UTF-8, or fetch the file again")
        return self.fault("is not UTF-8 text. Save it as UTF-8, or fetch the file again")


class _Table(Protocol):
    @property
    def header(self) -> tuple[str, ...]: ...

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        """Return the columns as text, null where there is nothing."""

    def explain(self, row: int) -> tuple[str, str | None]:
        """Say where a row stands, and what is wrong with it as a whole."""


def _table(source: _Source) -> _Table:
    with source.open() as file:
        head = file.read(4096)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    suffix = Path(source.path.name.lower().removesuffix(".gz")).suffix
    if head.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return _Parquet.at(source)
    if start[:1] in (b"{", b"[") or suffix in (".jsonl", ".ndjson", ".json"):
        return _JsonLines.at(source)
    return _Csv.at(source)


@contextmanager
def _readable(source: _Source, kind: str) -> Iterator[None]:
    """Turn whatever Polars or the system raises into one line."""
    try:
        yield
    except UnicodeDecodeError:
        raise source.not_text() from None
    except InputError:
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, RuntimeError, ValueError, csv.Error) as e:
        raise source.fault(f"cannot be read as {kind} ({_first_line(e)}). Fetch or write the file again") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(" .")


def _no_duplicates(source: _Source, names: Collection[str]) -> None:
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise source.fault(f"has two columns called {_shown(twice)}, so which one is meant is unclear. Rename one")


@dataclass(frozen=True)
class _Csv:
    source: _Source
    header: tuple[str, ...]
    separator: str

    @classmethod
    def at(cls, source: _Source) -> "_Csv":
        with _readable(source, "CSV"), source.text() as text:
            first = next((line for line in text if line.strip()), "")
            if not first:
                raise source.fault("is empty. Fetch the file again")
            separator = max(",\t;", key=first.count)
            text.seek(0)
            header = next(filter(None, csv.reader(text, delimiter=separator)))
        names = tuple(name.strip() for name in header)
        _no_duplicates(source, names)
        return cls(source, names, separator)

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        if len(self.header) < 2:  # a blank line would be a row; no format has one column
            return pl.DataFrame()
        try:
            # Every column is read, or a row that is too long would pass unnoticed.
            frame = pl.read_csv(self.source.for_polars(), separator=self.separator, infer_schema=False, glob=False)
            frame.columns = list(self.header)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            self._find_fault()
            raise self.source.fault(f"cannot be read as CSV ({_first_line(error)}). Write the file again") from None
        frame = _without_blank_end(self.source, frame)
        if frame[self.header[-1]].null_count():  # empty fields, or rows that are too short
            self._find_fault()
        return frame.select(names)

    def explain(self, row: int) -> tuple[str, str | None]:
        with suppress(csv.Error, StopIteration):  # a field over Python's limit; quotes that Python reads otherwise
            line, _ = next(islice(self._records(), row, None))
            return f"line {line:,}", None
        return f"row {row + 1:,}", None

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of the rows below the header; slow."""
        with self.source.text() as text:
            reader = csv.reader(text, delimiter=self.separator)
            next(filter(None, reader))
            line = reader.line_num + 1
            for fields in reader:
                yield line, fields
                line = reader.line_num + 1

    def _find_fault(self) -> None:
        """Raise for the first row that is blank, too short, too long or not text."""
        blank = 0
        with _readable(self.source, "CSV"), suppress(csv.Error):  # a field over Python's limit
            for line, fields in self._records():
                if not fields:
                    blank = blank or line
                elif blank:
                    raise self.source.fault(f"line {blank:,} is blank. Delete it")
                elif len(fields) != len(self.header):
                    raise self.source.fault(
                        f"line {line:,} has {len(fields):,} fields, but the header names {len(self.header):,} columns, "
                        "so which value belongs where is unclear. Correct or delete the line"
                    )


def _without_blank_end(source: _Source, frame: pl.DataFrame) -> pl.DataFrame:
    for _ in range(source.blank_lines_at_end()):
        if frame.is_empty() or any(value is not None for value in frame.row(-1)):
            break
        frame = frame.head(-1)
    return frame


@dataclass(frozen=True)
class _JsonLines:
    source: _Source
    header: tuple[str, ...]
    paths: dict[str, str]
    """JSON path of each column; nested ones are called outer.inner."""

    @classmethod
    def at(cls, source: _Source) -> "_JsonLines":
        with _readable(source, "JSON Lines"), source.text("\n") as text:
            number, first = next(((n, line) for n, line in enumerate(text, 1) if line.strip()), (0, ""))
        if not first:
            raise source.fault("is empty. Fetch the file again")
        keys = _json_object(first)
        if isinstance(keys, str):
            raise source.fault(f"line {number:,} {keys}")
        paths = {name: f"$[{json.dumps(name, ensure_ascii=False)}]" for name in keys}
        for name, value in keys.items():
            for inner in value if isinstance(value, dict) else ():
                paths.setdefault(f"{name}.{inner}", f"{paths[name]}[{json.dumps(inner, ensure_ascii=False)}]")
        return cls(source, tuple(paths), paths)

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        # pl.read_ndjson is laxer, reads numbers as text only in newer versions, and would not tell us the line.
        with _readable(self.source, "JSON Lines"):
            try:
                lines = pl.read_csv(
                    self.source.for_polars(), has_header=False, new_columns=["line"], separator="\x01", quote_char=None,
                    infer_schema=False, glob=False, truncate_ragged_lines=True,
                )  # fmt: skip
            except pl.exceptions.PolarsError:
                raise self.source.not_text() from None
            lines = _without_blank_end(self.source, lines)
            return lines.select(pl.col("line").str.json_path_match(self.paths[name]).alias(name) for name in names)

    def explain(self, row: int) -> tuple[str, str | None]:
        with self.source.text("\n") as text:
            rows = dropwhile(lambda pair: not pair[1].strip("\r\n"), enumerate(text, 1))  # as Polars does
            number, line = next(islice(rows, row, None))
        found = _json_object(line)
        return f"line {number:,}", found if isinstance(found, str) else None


def _json_object(line: str) -> dict[str, object] | str:
    """Return the object on a line, or what is wrong with it."""
    if not line.strip():
        return "is blank. Delete it"
    twice: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys = [key for key, _ in pairs]
        twice.extend(key for key in keys if keys.count(key) > 1)
        return dict(pairs)

    try:
        found = json.loads(line, object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({_first_line(error)}). Correct or delete it"
    if not isinstance(found, dict):
        return f"is {_shown(line.strip())}, not a JSON object. Write one object a line, as JSON Lines"
    return f"has the key {_shown(twice[0])} twice. Rename one" if twice else found


@dataclass(frozen=True)
class _Parquet:
    source: _Source
    header: tuple[str, ...]

    @classmethod
    def at(cls, source: _Source) -> "_Parquet":
        with _readable(source, "Parquet"):
            return cls(source, tuple(pl.read_parquet_schema(source.for_polars())))

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        with _readable(self.source, "Parquet"):
            frame = pl.read_parquet(self.source.for_polars(), columns=list(names), glob=False)
            return frame.select(self._as_text(name, dtype) for name, dtype in frame.schema.items())

    @staticmethod
    def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
        column = pl.col(name)
        if dtype == pl.Date:
            return column.dt.strftime("%Y-%m-%d 00:00:00")
        if isinstance(dtype, pl.Datetime):
            utc = column.dt.convert_time_zone("UTC") if dtype.time_zone else column
            return utc.dt.strftime("%Y-%m-%d %H:%M:%S%.9f")
        return column.cast(pl.String)

    def explain(self, row: int) -> tuple[str, str | None]:
        return f"row {row + 1:,}", None
