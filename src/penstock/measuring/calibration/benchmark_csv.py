"""Benchmark results in a table of one's own: CSV, TSV, Parquet."""

import csv
import math
import re
from typing import Any

from penstock import checks
from penstock.inputs.source import Source
from penstock.inputs.tables import open_table
from penstock.measuring.calibration import guidellm

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_METRICS = {"ttft": "ttft", "itl": "itl", "tbt": "itl", "tpot": "tpot", "e2e": "e2e", "latency": "e2e"}
_STATISTICS = {"": "mean", "mean": "mean", "avg": "mean", "p50": "p50", "median": "p50", "p90": "p90", "p99": "p99"}
_METRIC = re.compile(rf"({'|'.join(_METRICS)})(?:_({'|'.join(filter(None, _STATISTICS))}))?_(s|ms|us)")

_CALLED = {
    "run": ("run", "file"),
    "shape": ("shape",),
    "load": ("load", "strategy"),
    "data": ("data",),
    "pattern": ("pattern", "arrivals"),
    "rate": ("rate", "request_rate"),
    "burstiness": ("burstiness",),
    "burst": ("burst",),
    "in_flight": ("in_flight", "max_concurrency"),
    "duration_s": ("duration_s", "duration"),
    "completed": ("completed", "requests", "n_ok"),
    "incomplete": ("incomplete", "n_incomplete"),
    "requests_per_s": ("requests_per_s", "throughput", "rps"),
    "concurrency": ("concurrency",),
    "use": ("use", "consistent"),
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "in_mean"),
    "output_tokens": ("output_tokens", "output", "out_mean"),
    **{f"{length}_{part}": (f"{length}_{part}",) for length in ("prompt", "output") for part in ("low", "high", "std")},
}
"""What a column may be called."""

_WORDS = ("run", "shape", "load", "data", "pattern", "use")
_FALSE = ("false", "0", "no")
_EMPTY = ("", "nan", "null", "none")
"""What stands for nothing, beside an empty cell."""
_FEWEST = 100  # requests of a row that does not say how many it sent


def rows(source: Source) -> list[dict[str, Any]]:
    """Return a row for each load, where the column ``use`` (or ``consistent``) does not say otherwise."""
    lines = _guidellm_lines(source)
    if lines:
        return guidellm.table_rows(lines, source)
    table = open_table(source)
    found: dict[str, tuple[str, float]] = {}
    for name in table.header:
        lower = name.strip().lower()
        metric = _METRIC.fullmatch(lower)
        if metric:
            column = f"{_METRICS[metric[1]]}_{_STATISTICS[metric[2] or '']}_s"
            before = column in found and _METRIC.fullmatch(found[column][0].strip().lower())
            if before and before[1] == metric[1]:
                raise source.fault(
                    f"has the columns {found[column][0]} and {name}, so which one is meant is unclear. Drop one"
                )
            found.setdefault(column, (name, _UNITS[metric[3]]))
    for column, names in _CALLED.items():
        for name in names:
            same = next((each for each in table.header if each.strip().lower() == name), None)
            if same is not None and column not in found:
                found[column] = (same, 1.0)
    for needed in ("prompt_tokens", "output_tokens"):
        if needed not in found:
            raise source.fault(
                f"has the columns {checks.shown(', '.join(table.header))}, but a benchmark needs prompt and output "
                "(tokens), a load (rate, in_flight or strategy), and times with a unit: ttft and itl to fit, such as "
                "ttft_p50_ms; e2e is judged. Rename them"
            )
    text = table.read(tuple(dict.fromkeys(name for name, _ in found.values())))
    return [
        _row(source, table, number, values, found)
        for number, values in enumerate(text.iter_rows(named=True))
        if "use" not in found or str(values[found["use"][0]]).strip().lower() not in _FALSE
    ]


def _guidellm_lines(source: Source) -> list[list[str]]:
    """Return the lines of a CSV that GuideLLM wrote; none: it did not."""
    try:
        with source.text() as text:
            reader = csv.reader(text)
            if guidellm.is_table(next(filter(None, reader), [])):
                text.seek(0)
                return list(filter(None, csv.reader(text)))
    except (UnicodeDecodeError, csv.Error):  # open_table says what is wrong
        pass
    return []


def _row(
    source: Source, table: Any, number: int, values: dict[str, Any], found: dict[str, tuple[str, float]]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, (name, unit) in found.items():
        text = (values[name] or "").strip()
        if column == "use" or text.lower() in _EMPTY:
            if _METRIC.fullmatch(name.strip().lower()) and text.lower() == "nan":
                row[column] = math.nan  # measured, but no request finished
            continue
        if column in _WORDS:
            row[column] = text
            continue
        try:
            row[column] = float(text) * unit
        except ValueError:
            place, problem = table.explain(number)
            wrong = f"has the {name} {checks.shown(text)}, which is no number. Correct it, or leave it empty"
            raise source.fault(f"{place} {problem or wrong}") from None
    row = guidellm.spreads(row.pop("data", None)) | row
    incomplete = row.get("incomplete")
    if "pattern" not in row:
        said = guidellm.strategy(row["load"], incomplete, row.get("in_flight")) if "load" in row else {}
        if not said and found.get("load", ("", 1.0))[0].strip().lower() == "strategy":
            raise source.fault(
                f"{table.explain(number)[0]} has the strategy {checks.shown(row.get('load', ''))}, so its load is "
                "unknown. Known are synchronous, concurrent@N, throughput, constant@RATE and poisson@RATE"
            )
        if not said:
            said = {"pattern": "closed"} if "in_flight" in row and "rate" not in row else {"pattern": "poisson"}
        row = said | row
    if "duration_s" not in row and row.get("rate"):  # say how long from how many, or the other way round
        row["duration_s"] = row.get("completed", _FEWEST) / row["rate"]
    if "in_flight" in row:
        row["client_limit"] = row["in_flight"]
    if "load" not in row:
        row["load"] = f"{row['pattern']}@{row.get('in_flight' if row['pattern'] == 'closed' else 'rate', 0):.4g}"
    return row
