"""End-to-end benchmark results, whichever tool wrote them, as one table."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.other_tools import refuse_other_tools
from penstock.inputs.source import Source, first_line, refuse_twice
from penstock.measuring.calibration import benchmark_csv, send_times
from penstock.measuring.calibration.aiperf import AIPERF
from penstock.measuring.calibration.consistency import make_consistent
from penstock.measuring.calibration.guidellm import GUIDELLM
from penstock.measuring.calibration.inference_perf import INFERENCE_PERF
from penstock.measuring.calibration.result_format import NoResult
from penstock.measuring.calibration.result_row import COLUMNS, LIMITS, TIMES, Row, add_note
from penstock.measuring.calibration.vllm_bench import VLLM_BENCH
from penstock.words import counted

_PATTERNS = ("constant", "poisson", "closed")
_ALIKE = 0.2  # rows whose mean lengths differ by less are of one shape, where no tool says so
_NAMED = 3  # files that a note names


def read_benchmarks(
    paths: Sequence[str | Path] | str | Path,
    format: str | None = None,
    *,
    max_gib: float | None = None,
) -> pl.DataFrame:
    """Read benchmark results into one table.

    Parameters
    ----------
    paths
        Files: GuideLLM JSON, ``vllm bench serve`` JSON, inference-perf
        ``stage_N_lifecycle_metrics.json``, AIPerf or GenAI-Perf JSON exports, or CSV with columns
        such as rate, prompt, output, ttft_p50_ms, itl_mean_ms, e2e_mean_s. Also compressed with
        gzip. ``-``: standard input. Of a folder the JSON files are read, or, where it has none, the
        CSV files.
    format
        ``guidellm``, ``vllm-bench``, ``inference-perf``, ``aiperf`` or ``csv``. Default: detected.
    max_gib
        What a file may hold, unpacked, in GiB. Default: 2. All of it must fit into memory.

    Returns
    -------
    polars.DataFrame
        The columns of `COLUMNS`, a row for each load that was measured, in order of files and
        loads. What tools write beside their results is left out, with a note, unless it is all that
        was given.

    Raises
    ------
    InputError
        If a file, or a value in it, cannot be used; one line that says where and why.
    """
    table, refused = read_with_refused(paths, format, max_gib)
    if refused:
        raise InputError(refused[0].reason)
    return table


class Refused(NamedTuple):
    """A load, or all of a file, that `read_benchmarks` refuses."""

    run: str
    reason: str
    whole: bool = False  # it is all of a file


def read_with_refused(
    paths: Sequence[str | Path] | str | Path, format: str | None, max_gib: float | None
) -> tuple[pl.DataFrame, list[Refused]]:
    """Read what can be used of results that a reader knows; return what cannot beside it."""
    if isinstance(paths, str | Path):
        paths = [paths]
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown format {checks.shown(format)}{nearest(str(format), FORMATS)}")
    files, left_out = _files(paths)
    refuse_twice(files)
    same_name = len({path.name for path in files}) < len(files)
    rows: list[Row] = []
    refused: list[Refused] = []
    reason = "no file was given, so there are no results to read; give those of a benchmark"
    for path in files:
        try:
            source = Source.at(path, max_gib)
            results, name = _results_of(source, format)
            rows += _usable(source, str(path) if same_name else path.name, results, name, refused)
        except NoResult as error:
            reason = str(error)
            left_out.append(path.name)
    if not rows and all(each.whole for each in refused):
        raise InputError(refused[0].reason if refused else reason)
    if left_out and rows:
        add_note(rows[0], f"left out, as no benchmark results: {_listed(left_out)}")
    send_times.settle(rows)
    for number, row in enumerate(rows):
        row["row"] = number
    _name_shapes(rows)
    table = [{name: row.get(name) for name in COLUMNS} for row in rows]
    return pl.DataFrame(table, schema=COLUMNS), refused


def _files(paths: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """Return the files to read, with those of folders, and what else the folders hold."""
    files: list[Path] = []
    others: list[str] = []
    for path in (checks.path("the name of a file", path) for path in paths):
        if not path.is_dir():
            files.append(path)
            continue
        held = sorted(
            file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")
        )
        results: list[Path] = []
        for ends in (".json", ".json.gz"), (".csv", ".csv.gz"):
            # tools write the same results as JSON and as CSV
            results = results or [file for file in held if file.name.endswith(ends)]
        if not results:
            raise InputError(
                f"{path} is a folder without .json or .csv files, so there are no results to read; "
                "give the files, or the folders that hold them"
            )
        files += results
        others += [file.name for file in held if file not in results]
    return files, others


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _results_of(source: Source, format: str | None) -> tuple[Callable[[], Iterable[Row]], str]:
    """Return what reads the rows of a file as its tool states them, and the format."""
    with source.open() as file:
        head = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith((b"# HELP", b"# TYPE")):
        reason = (
            "is a page of Prometheus metrics: totals since the engine started, under a load that "
            "is not known. Give the results of a benchmark"
        )
        raise NoResult(str(source.fault(reason)))
    if b'"Successful Requests per second mean"' in head and head[:1] in (b"{", b"["):
        raise source.fault(
            "is JSON with the columns of GuideLLM's table, such as \"Successful Requests per "
            'second mean", not with its results, which stand under "benchmarks". Give the JSON '
            "that GuideLLM writes beside its table"
        )
    if head.startswith(b"Run Info,Run Info") or b"Successful Requests per second mean" in head:
        raise source.fault(
            "is a table of GuideLLM, which is not read. Give the JSON that GuideLLM writes beside "
            "it"
        )
    tools = [tool for tool in TOOLS if format in (None, tool.name)]
    for tool in tools:
        if documents := tool.in_text(source):
            return partial(tool.rows, documents, source), tool.name
    if format == "csv" or (format is None and head[:1] not in (b"{", b"[")):
        return partial(list, benchmark_csv.rows(source)), "csv"
    document = _parsed(source)
    for tool in tools:
        if tool.is_of(document):
            return partial(tool.rows, document, source), tool.name
    refuse_other_tools(source)
    reason = (
        f"is JSON of no known benchmark{f' of the format {format}' if format else ''}. Known are "
        f"{', '.join(FORMATS)}; give one of them as the format, or write a CSV"
    )
    raise NoResult(str(source.fault(reason)))


def _parsed(source: Source) -> Any:
    """Return a JSON document, or a list of documents that stand one per line."""
    content = source.document()
    try:
        try:
            return json.loads(content)
        except json.JSONDecodeError as error:
            if "Extra data" not in error.msg:
                raise
            return [json.loads(line) for line in content.splitlines() if line.strip()]
    except (
        ValueError,
        RecursionError,
    ) as error:  # an integer of more digits than Python reads, too
        refuse_other_tools(source)
        raise source.fault(
            f"cannot be read as JSON ({first_line(error)}). Fetch or write the file again"
        ) from None


TOOLS = (GUIDELLM, VLLM_BENCH, INFERENCE_PERF, AIPERF)
"""Load generators whose results are read; a table of one's own is none of them."""

FORMATS = (*(tool.name for tool in TOOLS), "csv")
"""Names of the formats that `read_benchmarks` knows; ``aiperf`` is GenAI-Perf, too."""

_MOST_SENT = 1e7  # requests of a row; all of them are simulated
_NO_LOAD = "no load is stated"


def _usable(
    source: Source,
    run: str,
    results: Callable[[], Iterable[Row]],
    format: str,
    refused: list[Refused],
) -> list[Row]:
    """Return the rows that say what was sent and how long it took; a note says what is left out."""
    usable: list[Row] = []
    lacking: list[str] = []
    before = len(refused)
    try:
        rows = list(results())
    except NoResult:
        raise
    except InputError as error:
        refused.append(Refused(run, str(error), whole=True))
        return []
    for number, row in enumerate(rows, 1):
        if reason := _lacking(row):
            lacking.append(reason)
            continue
        place = f"{source.name}: row {number:,} ({row.get('load', 'no load')})"
        try:
            usable.append(_checked(place, {"run": run} | row, format))
        except InputError as error:
            refused.append(Refused(run, str(error)))
    reasons = "; ".join(dict.fromkeys(lacking))
    if not usable and len(refused) == before:
        remedy = "Check that it streamed its answers, completed requests and wrote its results"
        if reasons == _NO_LOAD:
            remedy = "State rate (requests/s) or in_flight (clients); a trace has no results"
        fault = source.fault(
            f"has no row that can be used ({reasons or 'it is empty'}), so it says nothing of a "
            f"benchmark. {remedy}"
        )
        refused.append(Refused(run, str(fault), whole=True))
    if reasons and usable:
        add_note(usable[0], f"{counted(len(lacking), 'row')} of {source.name} left out: {reasons}")
    return usable


def _lacking(row: Row) -> str | None:
    """Return why a row cannot be used; None: it can."""
    if "unusable" in row:
        return str(row["unusable"])
    if not row.get("in_flight" if row.get("pattern") == "closed" else "rate"):
        return _NO_LOAD
    for name in ("prompt", "output"):
        if not row.get(f"{name}_tokens"):
            return f"no {name} length"
    if not any(row.get(name) for name in TIMES):
        return "no TTFT, ITL or E2E"
    return None


def _checked(place: str, row: Row, format: str) -> Row:
    """Refuse what no benchmark can have measured; a time of 0 is one that was not measured."""
    for name in TIMES:
        value = row.get(name)
        if value == 0 and format == "csv":
            add_note(row, f"a time of 0 ({name}) counts as not measured")
        # Nan in a table: no request finished.
        row[name] = None if not value or math.isnan(value) else value
    for name in LIMITS:
        _check_limits(place, row, name)
    if row.get("pattern") not in _PATTERNS:
        raise InputError(
            f"{place}: pattern is "
            f"{checks.shown(row.get('pattern'))}{nearest(str(row.get('pattern')), _PATTERNS)}"
        )
    _complete(place, row)
    make_consistent(place, row, format)
    limit = row.get("client_limit")
    sent = row["completed"] + (row.get("incomplete") or 0)
    if row["pattern"] == "closed" or not limit or limit >= sent:
        row["client_limit"] = None  # it held nothing back
    for name, kind in COLUMNS.items():
        if kind == pl.Int64 and row.get(name) is not None:
            row[name] = int(row[name])
    return row


def _check_limits(place: str, row: Row, name: str) -> None:
    if row.get(name) is not None:
        low, high, unit = LIMITS[name]
        remedy = "no benchmark measures that; correct the row, or leave it out"
        row[name] = checks.number(f"{place}: {name}", row[name], low, high, unit, remedy)


def _complete(place: str, row: Row) -> None:
    """Add how long a row took, and how many requests it completed, from each other."""
    if row.get("duration_s") is None:
        if not row.get("completed") or not row.get("requests_per_s"):
            raise InputError(f"{place} does not say how long it took; add duration_s")
        row["duration_s"] = row["completed"] / row["requests_per_s"]
        _check_limits(place, row, "duration_s")
    if row.get("completed") is None:
        rate = row.get("requests_per_s") or row.get("rate")
        if not rate:
            raise InputError(
                f"{place} does not say how many requests were completed; add completed"
            )
        row["completed"] = max(1, round(row["duration_s"] * rate))
    sent = max(
        (row.get("rate") or 0) * row["duration_s"], row["completed"] + (row.get("incomplete") or 0)
    )
    if sent > _MOST_SENT:
        raise InputError(
            f"{place}: in {row['duration_s']:,.4g} s there were {sent:,.0f} requests, more than a "
            "benchmark sends; correct rate, completed or duration_s"
        )


def _name_shapes(rows: list[Row]) -> None:
    """Name the shapes that no tool named after the mean lengths of their first row."""
    shapes: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row.get("shape"):
            continue
        prompt = row["prompt_tokens"]
        output = row["output_tokens"]
        alike = (
            name
            for name, (prompts, outputs) in shapes.items()
            if max(abs(prompt / prompts - 1), abs(output / outputs - 1)) < _ALIKE
        )
        row["shape"] = next(alike, f"{prompt:.0f}+{output:.0f}")
        shapes.setdefault(row["shape"], (prompt, output))
