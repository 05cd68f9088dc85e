"""Tables in files: CSV and TSV, JSON Lines, Parquet, each also compressed with gzip.

`traces` and measured batch times read through one protocol, `Table`: the names of the columns, the
columns as text, and where in the file a row stands, so that whoever casts the text can say which
line is at fault.
"""

import csv
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from penstock.checks import shown
from penstock.errors import InputError, nearest
from penstock.inputs.other_tools import refuse_other_tools
from penstock.inputs.parquet_footer import unpacked_bytes
from penstock.inputs.source import Source, first_line

_CHUNK = 1 << 20
_MOST_COLUMNS = 10_000


class Table(Protocol):
    """A table of text."""

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns, each once."""

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        """Return the columns as text, null where there is nothing."""

    def explain(self, row: int) -> tuple[str, str | None]:
        """Say where a row stands, and what is wrong with it as a whole."""


def open_table(source: Source) -> Table:
    """Tell by the first bytes and the file name how a file holds its table."""
    with source.open() as file:
        head = file.read(4096)
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    suffix = Path(source.path.name.lower().removesuffix(".gz")).suffix
    if head.startswith(b"PAR1") or suffix in (".parquet", ".pq"):
        return _Parquet.at(source)
    source.refuse_long_lines()
    if start[:1] in (b"{", b"[") or suffix in (".jsonl", ".ndjson", ".json"):
        return _JsonLines.at(source)
    return _Csv.at(source)


@contextmanager
def _readable(source: Source, kind: str) -> Iterator[None]:
    """Turn whatever Polars or the system raises into one line."""
    try:
        yield
    except UnicodeDecodeError:
        raise source.not_text() from None
    except InputError:
        raise
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        OSError,
        RuntimeError,
        ValueError,
        csv.Error,
    ) as e:
        raise source.fault(
            f"cannot be read as {kind} ({first_line(e)}). Fetch or write the file again"
        ) from None


def _refuse_more_columns(source: Source, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise source.fault(
            f"has {columns:,} columns, more than the {_MOST_COLUMNS:,} that a table may have. "
            "Check that it is the right file, and that its lines end"
        )


def _no_duplicates(source: Source, names: Collection[str]) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise source.fault(
            f"has two columns called {shown(twice)}, so which one is meant is unclear. Rename one"
        )


@dataclass(frozen=True)
class _Csv:
    source: Source
    header: tuple[str, ...]
    separator: str

    @classmethod
    def at(cls, source: Source) -> "_Csv":
        with _readable(source, "CSV"), source.text() as text:
            first = next((line for line in text if line.strip()), "")
            if not first:
                raise source.fault("is empty. Fetch the file again")
            separator = max(",\t;", key=first.count)
            text.seek(0)
            header = next(filter(None, csv.reader(text, delimiter=separator)))
        # Tools that add a mark may add it twice.
        names = tuple(name.lstrip("\ufeff").strip() for name in header)
        _refuse_more_columns(source, len(names))
        _no_duplicates(source, names)
        return cls(source, names, separator)

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        if self._has_long_cell():
            raise self.source.long_line(self.source.most_line_bytes)
        try:
            # Every column is read, or a row that is too long would pass unnoticed.
            frame = pl.read_csv(
                self.source.for_polars(), separator=self.separator, infer_schema=False, glob=False
            )
            frame.columns = list(self.header)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            self._find_fault()
            raise self.source.fault(
                f"cannot be read as CSV ({first_line(error)}). Write the file again"
            ) from None
        frame = _without_blank_end(self.source, frame)
        if frame[self.header[-1]].null_count():  # empty fields, or rows that are too short
            self._find_fault()
        return frame.select(names)

    def _has_long_cell(self) -> bool:
        """Return whether quotes, as Polars counts them, hold together more than a line may have."""
        begun = quotes = 0
        with self.source.open() as file:
            while chunk := file.read(_CHUNK):
                quotes += chunk.count(b'"')
                end = _end_of_last_row(chunk, is_quoted=quotes % 2 == 1)
                begun = begun + len(chunk) if end is None else len(chunk) - end
                if begun > self.source.most_line_bytes:
                    return True
        return False

    def explain(self, row: int) -> tuple[str, str | None]:
        with suppress(
            csv.Error, StopIteration
        ):  # a field over Python's limit; quotes that Python reads otherwise
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
                        f"line {line:,} has {len(fields):,} fields, but the header names "
                        f"{len(self.header):,} columns, "
                        "so which value belongs where is unclear. Correct or delete the line"
                    )


def _end_of_last_row(chunk: bytes, *, is_quoted: bool) -> int | None:
    """Return where the last row of a part of a CSV ends, or None; quotes at its end end no row."""
    end = len(chunk)
    while (line := chunk.rfind(b"\n", 0, end)) >= 0:
        is_quoted ^= chunk.count(b'"', line, end) % 2 == 1
        if not is_quoted:
            return line + 1
        end = line
    return None


def _without_blank_end(source: Source, frame: pl.DataFrame) -> pl.DataFrame:
    for _ in range(source.blank_lines_at_end()):
        if frame.is_empty() or any(value is not None for value in frame.row(-1)):
            break
        frame = frame.head(-1)
    return frame


@dataclass(frozen=True)
class _JsonLines:
    source: Source
    header: tuple[str, ...]
    paths: dict[str, str]
    """JSON path of each column; nested ones are called outer.inner."""

    @classmethod
    def at(cls, source: Source) -> "_JsonLines":
        with _readable(source, "JSON Lines"), source.text("\n") as text:
            number, first = next(
                ((n, line) for n, line in enumerate(text, 1) if line.strip()), (0, "")
            )
        if not first:
            raise source.fault("is empty. Fetch the file again")
        keys = _json_object(first)
        if isinstance(keys, str):
            refuse_other_tools(source)
            raise source.fault(f"line {number:,} {keys}")
        _refuse_more_columns(source, len(keys))
        paths = {name: f"$[{json.dumps(name, ensure_ascii=False)}]" for name in keys}
        for name, value in keys.items():
            for inner in value if isinstance(value, dict) else ():
                paths.setdefault(
                    f"{name}.{inner}", f"{paths[name]}[{json.dumps(inner, ensure_ascii=False)}]"
                )
        return cls(source, tuple(paths), paths)

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        # pl.read_ndjson is laxer, reads numbers as text only in newer versions, and would not tell
        # us the line.
        with _readable(self.source, "JSON Lines"):
            try:
                lines = pl.read_csv(
                    self.source.for_polars(), has_header=False, new_columns=["line"],
                    separator="\x01", quote_char=None,
                    infer_schema=False, glob=False, truncate_ragged_lines=True,
                )  # fmt: skip
            except pl.exceptions.PolarsError:
                raise self.source.not_text() from None
            lines = _without_blank_end(self.source, lines)
            self._refuse_twice(lines["line"], names)
            return lines.select(
                pl.col("line").str.json_path_match(self.paths[name]).alias(name) for name in names
            )

    def _refuse_twice(self, lines: pl.Series, names: tuple[str, ...]) -> None:
        """Refuse a line that has a key twice; only lines that hold its name twice are parsed."""
        for name in names:
            key = json.dumps(name, ensure_ascii=False)
            for row in (lines.str.count_matches(key, literal=True).fill_null(0) > 1).arg_true():
                if isinstance(problem := _json_object(lines[row]), str):
                    raise self.source.fault(f"{self.explain(row)[0]} {problem}")

    def explain(self, row: int) -> tuple[str, str | None]:
        with self.source.text("\n") as text:
            # As Polars does.
            rows = dropwhile(lambda pair: not pair[1].strip("\r\n"), enumerate(text, 1))
            number, line = next(islice(rows, row, None))
        content = _json_object(line)
        return f"line {number:,}", content if isinstance(content, str) else None


def _json_object(line: str) -> dict[str, object] | str:
    """Return the object on a line, or what is wrong with it."""
    if not line.strip():
        return "is blank. Delete it"
    twice: list[str] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        times = Counter(key for key, _ in pairs)
        twice.extend(key for key in times if times[key] > 1)
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no value of JSON")

    try:
        content = json.loads(line, object_pairs_hook=collect, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({first_line(error)}). Correct or delete it"
    if not isinstance(content, dict):
        return (
            f"is {shown(line.strip())}, not a JSON object. Write one object a line, as JSON Lines"
        )
    if twice:
        return f"has the key {shown(twice[0])} twice. Rename one"
    return content


@dataclass(frozen=True)
class _Parquet:
    source: Source
    header: tuple[str, ...]

    @classmethod
    def at(cls, source: Source) -> "_Parquet":
        with _readable(source, "Parquet"):
            names = tuple(pl.read_parquet_schema(source.for_polars()))
        _refuse_more_columns(source, len(names))
        return cls(source, names)

    def read(self, names: tuple[str, ...]) -> pl.DataFrame:
        with _readable(self.source, "Parquet"):
            with self.source.open() as file:
                if unpacked_bytes(file, names) > self.source.most_bytes:
                    raise self.source.too_large("unpacks to")
            frame = pl.read_parquet(self.source.for_polars(), columns=list(names), glob=False)
            return frame.select(self._as_text(name, dtype) for name, dtype in frame.schema.items())

    @staticmethod
    def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
        column = pl.col(name)
        if dtype == pl.Date:
            return column.dt.strftime("%Y-%m-%d 00:00:00")
        if isinstance(dtype, pl.Datetime):
            if dtype.time_zone:
                column = column.dt.convert_time_zone("UTC")
            return column.dt.strftime("%Y-%m-%d %H:%M:%S%.9f")
        if isinstance(dtype, pl.List):
            return pl.format("[{}]", column.cast(pl.List(pl.String)).list.join(",")).alias(name)
        return column.cast(pl.String)

    def explain(self, row: int) -> tuple[str, str | None]:
        return f"row {row + 1:,}", None


NO_ROWS = "has no rows, so it says nothing. Check that the file was written completely"
ROW = "row "
"""The column with the number of a row in its file."""

PER_SECOND = {"seconds": 1.0, "ms": 1e3, "us": 1e6}
"""Columns that hold times of batches, and what a second has of their unit."""


def time_column(source: Source, header: Collection[str]) -> str | None:
    """Return the column that has the times of batches; None: there is none."""
    units = [name for name in PER_SECOND if name in header]
    if len(units) > 1:
        raise source.fault(
            f"has the columns {' and '.join(units)}, so which one is meant is unclear. Drop one"
        )
    if {"layer", "time_us"}.issubset(header):
        raise source.fault("has times of layers, not of batches. Measure whole batches")
    return next(iter(units), None)


def chosen_rows(
    source: Source, table: Table, names: Iterable[str], where: Mapping[str, Any]
) -> tuple[pl.DataFrame, int]:
    """Return columns of the rows that have a value in each column of ``where``, with `ROW`, and how
    many rows are left out.
    """
    for name in where:
        if name not in table.header:
            near = nearest(name, table.header)
            raise source.fault(f"has no column {shown(name)}, by which `where` chooses rows{near}")
    text = table.read(tuple(dict.fromkeys([*names, *where])))
    if text.is_empty():
        raise source.fault(NO_ROWS)
    rows, text = len(text), text.with_row_index(ROW)
    for name, value in where.items():
        cells = pl.col(name).fill_null("").str.strip_chars().str.to_lowercase()
        alike = cells == str("" if value is None else value).strip().lower()
        if isinstance(value, int | float) and not isinstance(value, bool):
            alike |= (cells.cast(pl.Float64, strict=False) == value).fill_null(False)
        chosen = text.filter(alike)
        if chosen.is_empty():
            others = ", ".join(text[name].drop_nulls().unique().sort().to_list())
            raise source.fault(
                f"has no row whose {shown(name)} is {shown(value)}, as `where` asks, but "
                f"{shown(others)}. Correct the value"
            )
        text = chosen
    return text, rows - len(text)


def as_numbers(
    source: Source,
    table: Table,
    text: pl.DataFrame,
    limits: Mapping[str, tuple[float, float]],
    wanted: str,
) -> pl.DataFrame:
    """Return columns of a table as numbers within their limits."""
    # ``text`` has its numbers as `ROW`; ``wanted`` says in words what each must be, and why.
    numbers = text.select(pl.col(limits.keys()).str.strip_chars().cast(pl.Float64, strict=False))
    for name, (low, high) in limits.items():
        bad = ~numbers[name].is_between(low, high).fill_null(value=False)
        if bad.any():
            row = int(bad.arg_true()[0])
            place, problem = table.explain(int(text[ROW][row]))
            wrong = (
                f"has the {name} {shown(text[name][row])}, which is no number "
                f"{wanted.format(low, high)}. Correct or delete it"
            )
            raise source.fault(f"{place} {problem or wrong}")
    return numbers
