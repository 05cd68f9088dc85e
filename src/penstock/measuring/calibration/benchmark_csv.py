"""Benchmark results in a table of one's own: CSV, TSV, Parquet."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock import checks
from penstock.inputs.other_tools import refuse_other_tools
from penstock.inputs.source import Source
from penstock.inputs.tables import Table, open_table
from penstock.measuring.calibration import guidellm
from penstock.measuring.calibration.result_row import Row
from penstock.measuring.fitting.vllm_log import has_iterations

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_METRICS = {
    "ttft": "ttft", "itl": "itl", "tbt": "itl", "tpot": "tpot",
    "e2e": "e2e", "e2el": "e2e", "e2e_latency": "e2e", "latency": "e2e",
}  # fmt: skip
_STATISTICS = {
    None: "mean", "mean": "mean", "avg": "mean",
    "p50": "p50", "median": "p50", "p90": "p90", "p99": "p99",
}  # fmt: skip
_STATISTIC = "|".join(filter(None, _STATISTICS))
_METRIC = re.compile(
    rf"(?:({_STATISTIC})_)?({'|'.join(sorted(_METRICS, key=len, reverse=True))})"
    rf"(?:_({_STATISTIC}))?(?:_({'|'.join(_UNITS)}))?"
)
_IN_BRACKETS = re.compile(r"[\s_]*[(\[]\s*([^)\]]*?)\s*[)\]]\s*$")
_SAID_BY_NAME = ("rps", "req/s", "requests/s", "tokens", "tok")  # units that change nothing

# What a column may be called beside its own name.
_CALLED = {
    "run": "file", "shape": "", "load": "strategy", "data": "", "pattern": "arrivals",
    "rate": "request_rate qps", "burstiness": "", "burst": "",
    "in_flight": "max_concurrency num_concurrent_requests", "duration_s": "duration",
    "completed": "requests n_ok n_req num_requests", "incomplete": "n_incomplete",
    "requests_per_s": "throughput rps req_tput request_throughput", "concurrency": "",
    "declared_tokens": "declared max_tokens", "prefix_hits": "", "use": "consistent",
    "prompt_tokens": "prompt input_tokens in_mean isl input_len input_length",
    "output_tokens": "output out_mean osl output_len output_length",
    "prompt_low": "", "prompt_high": "", "prompt_std": "",
    "output_low": "", "output_high": "", "output_std": "",
}  # fmt: skip

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
        refuse_other_tools(source)
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
        key = _key(name)
        keys.setdefault(key, name)
        metric = _METRIC.fullmatch(key)
        if not metric:
            continue
        before, called, behind, unit = metric.groups()
        if unit is None:
            without_unit.setdefault(_METRICS[called], name)
            continue
        column = f"{_METRICS[called]}_{_STATISTICS[before or behind]}_s"
        other = columns.setdefault(column, _Column(name, key, called, _UNITS[unit]))
        if other.name != name and other.metric == called:
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
        key = next((key for key in (column, *names.split()) if key in keys), "")
        if key:
            columns.setdefault(column, _Column(keys[key], key))
    if not {"rate", "in_flight", "load"} & columns.keys() and "concurrency" in columns:
        columns["in_flight"] = columns.pop("concurrency")  # the only load that is stated
    return columns


def _key(name: str) -> str:
    """Return a column's name in small letters, with a unit in brackets behind it."""
    key, unit = name.strip().lower(), ""
    if found := _IN_BRACKETS.search(key):
        key, unit = key[: found.start()], found[1]
    key = re.sub(r"[\s-]+", "_", key)
    return f"{key}_{unit}" if unit and unit not in _SAID_BY_NAME else key


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
                wrong = f"has the {name} {checks.shown(text)}, which is no number"
                raise source.fault(
                    f"{place} {problem or f'{wrong}. Correct it, or leave it empty'}"
                ) from None
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
    if "duration_s" not in row and row.get("rate"):  # from how many, or the other way round
        row["duration_s"] = row.get("completed", _FEWEST) / row["rate"]
    if "in_flight" in row:
        row["client_limit"] = row["in_flight"]
    at = row.get("in_flight" if row["pattern"] == "closed" else "rate") or 0
    return {"load": f"{row['pattern']}@{at:.4g}"} | row
