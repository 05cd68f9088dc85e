"""Benchmark results in a table of one's own: CSV, TSV, Parquet."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock import checks
from penstock.inputs.source import Source
from penstock.inputs.tables import Table, open_table
from penstock.measuring.calibration import guidellm
from penstock.measuring.calibration.result_fields import Row
from penstock.measuring.fitting.vllm_log import has_iterations

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_METRICS = {
    "ttft": "ttft",
    "itl": "itl",
    "tbt": "itl",
    "tpot": "tpot",
    "e2e": "e2e",
    "latency": "e2e",
}
_STATISTICS = {
    None: "mean", "mean": "mean", "avg": "mean",
    "p50": "p50", "median": "p50", "p90": "p90", "p99": "p99",
}  # fmt: skip
_METRIC = re.compile(
    rf"({'|'.join(_METRICS)})(?:_({'|'.join(filter(None, _STATISTICS))}))?"
    rf"(?:_({'|'.join(_UNITS)}))?"
)

# What a column may be called.
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
    "declared_tokens": ("declared_tokens", "declared", "max_tokens"),
    "prefix_hits": ("prefix_hits",),
    "use": ("use", "consistent"),
    "prompt_tokens": ("prompt_tokens", "prompt", "input_tokens", "in_mean"),
    "output_tokens": ("output_tokens", "output", "out_mean"),
    **{
        f"{length}_{part}": (f"{length}_{part}",)
        for length in ("prompt", "output")
        for part in ("low", "high", "std")
    },
}

_WORDS = ("run", "shape", "load", "data", "pattern")
_FALSE = ("false", "0", "no")
_EMPTY = ("", "nan", "null", "none")  # what stands for nothing, beside an empty cell
_FEWEST = 100  # requests of a row that does not say how many it sent


class _Column(NamedTuple):
    """A column of the file: its name, the key that it matched, its latency if any, its unit."""

    name: str
    key: str
    metric: str = ""
    unit: float = 1.0


_Columns = dict[str, _Column]


def rows(source: Source) -> list[Row]:
    """Return a row for each load that ``use`` (or ``consistent``) does not exclude."""
    table = open_table(source)
    columns = _columns(source, table.header)
    if not {"prompt_tokens", "output_tokens"}.issubset(columns):
        if has_iterations(source):
            raise source.fault(
                "is the log of an engine's iterations, which has batches and no requests. Give it "
                "to `penstock fit`, or give the results of a benchmark"
            )
        raise source.fault(
            f"has the columns {checks.shown(', '.join(table.header))}, but a benchmark needs "
            "prompt and output (tokens), a load (rate, in_flight or strategy), and times with a "
            "unit: ttft and itl to fit, such as ttft_p50_ms; e2e is judged. Rename them"
        )
    use = columns.pop("use", None)
    names = tuple(dict.fromkeys(name for name, *_ in (*columns.values(), *([use] if use else []))))
    return [
        _row(source, table, number, values, columns)
        for number, values in enumerate(table.read(names).iter_rows(named=True))
        if use is None or str(values[use.name]).strip().lower() not in _FALSE
    ]


def _columns(source: Source, header: tuple[str, ...]) -> _Columns:
    """Return what is read, by the names of `read_benchmarks`."""
    columns: _Columns = {}
    keys: dict[str, str] = {}
    without_unit: dict[str, str] = {}
    for name in header:
        key = name.strip().lower()
        keys.setdefault(key, name)
        metric = _METRIC.fullmatch(key)
        if not metric:
            continue
        if metric[3] is None:
            without_unit.setdefault(_METRICS[metric[1]], name)
            continue
        column = f"{_METRICS[metric[1]]}_{_STATISTICS[metric[2]]}_s"
        other = columns.setdefault(column, _Column(name, key, metric[1], _UNITS[metric[3]]))
        if other.name != name and other.metric == metric[1]:
            raise source.fault(
                f"has the columns {other.name} and {name}, so which one is meant is unclear. Drop "
                "one"
            )
    for metric_name, name in without_unit.items():
        if not any(column.startswith(f"{metric_name}_") for column in columns):
            raise source.fault(
                f"has the column {name}, a time whose unit is not said. Call it {name}_ms, or "
                f"{name}_s or {name}_us, or drop it"
            )
    for column, names in _CALLED.items():
        key = next((key for key in names if key in keys), "")
        if key:
            columns.setdefault(column, _Column(keys[key], key))
    return columns


def _row(
    source: Source, table: Table, number: int, values: Mapping[str, Any], columns: _Columns
) -> Row:
    row: Row = {}
    for column, (name, _, metric, unit) in columns.items():
        text = (values[name] or "").strip()
        if metric and text.lower() == "nan":
            row[column] = math.nan  # measured, but no request finished
        elif text.lower() in _EMPTY:
            continue
        elif column in _WORDS:
            row[column] = text
        else:
            try:
                row[column] = float(text) * unit
            except ValueError:
                place, problem = table.explain(number)
                wrong = (
                    f"has the {name} {checks.shown(text)}, which is no number. Correct it, or "
                    "leave it empty"
                )
                raise source.fault(f"{place} {problem or wrong}") from None
    row = guidellm.spreads(row.pop("data", None)) | row
    if "pattern" not in row:
        load = guidellm.strategy(row.get("load", ""), row.get("incomplete"), row.get("in_flight"))
        if not load and "load" in columns and columns["load"].key == "strategy":
            raise source.fault(
                f"{table.explain(number)[0]} has the strategy {checks.shown(row.get('load', ''))}, "
                "so its load is unknown. Known are synchronous, concurrent@N, throughput, "
                "constant@RATE and poisson@RATE"
            )
        closed = "in_flight" in row and "rate" not in row
        row = Row(pattern="closed" if closed else "poisson") | load | row
    if "duration_s" not in row and row.get(
        "rate"
    ):  # say how long from how many, or the other way round
        row["duration_s"] = row.get("completed", _FEWEST) / row["rate"]
    if "in_flight" in row:
        row["client_limit"] = row["in_flight"]
    at = row.get("in_flight" if row["pattern"] == "closed" else "rate", 0)
    return {"load": f"{row['pattern']}@{at:.4g}"} | row
