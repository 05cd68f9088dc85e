"""Read measured batches: plain tables, and the logs and metrics of engines."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.other_tools import refuse_other_tools
from penstock.inputs.source import Source
from penstock.inputs.tables import (
    PER_SECOND,
    Table,
    as_numbers,
    chosen_rows,
    open_table,
    time_column,
)
from penstock.measuring.fitting.batches import (
    COLUMNS,
    SHORTEST_S,
    Array,
    MeasuredBatches,
    limits_of,
)
from penstock.measuring.fitting.engine_logs import PASSES, STATISTICS
from penstock.measuring.fitting.vllm_log import ITERATION, find_iterations, has_iterations

# By format: what a file of it holds, and what reads it.
_LOGS: dict[str, tuple[bytes, Callable[[Source], MeasuredBatches]]] = {
    "vllm": (ITERATION, find_iterations),
    **{records.name: (records.mark, records.read) for records in (PASSES, STATISTICS)},
}
FORMATS = ("table", *_LOGS)
"""What `read_batches` reads."""

_MOST = 1e15


def read_batches(
    path: str | Path,
    format: str | None = None,
    *,
    where: Mapping[str, str] | None = None,
    max_gib: float | None = None,
) -> MeasuredBatches:
    """Read measured batches from a file.

    Parameters
    ----------
    path
        ``table``: CSV, TSV, JSON Lines or Parquet with columns ``tokens``, or ``prefill_tokens``
        and ``decode_tokens``; one of ``seconds``, ``ms``, ``us``; and, where known, ``requests``,
        ``squares``, ``pairs``, ``context``. ``vllm``: a log with the lines of
        ``--enable-logging-iteration-details``. ``sglang``: forward-pass metrics as JSON Lines (of
        SGLang, vLLM or Dynamo). ``tensorrt-llm``: iteration statistics, JSON as ``/metrics`` of
        trtllm-serve gives it.
    format
        ``table``, ``vllm``, ``sglang`` or ``tensorrt-llm``. Default: told by the content.
    where
        Of a table, keep rows with these values: ``{"model": "llama-2-70b"}``.
    max_gib
        What the file may hold, unpacked, in GiB. Default: 2. All of it must fit into memory.

    Raises
    ------
    InputError
        If the file cannot be used, or nothing in it can; one line that says where and why.
    """
    path = checks.path("a file of measured batches", path)
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown format {checks.shown(format)}{nearest(str(format), FORMATS)}")
    source = Source.at(path, max_gib)
    kind = format or _told(source)
    if kind in _LOGS:
        if where:
            raise InputError(
                f"{source.name} is no table but of the format {kind}; leave `where` out"
            )
        return _LOGS[kind][1](source)
    return _plain(source, open_table(source), dict(where or {}))


def _told(source: Source) -> str:
    """Tell a format by its content."""
    with source.open() as file:
        head = file.read(65_536)
    if head.startswith((b"# HELP", b"# TYPE")):
        raise source.fault(
            "is a page of Prometheus metrics: totals since the engine started, and no batch. Give "
            "the engine's iteration log or forward-pass metrics"
        )
    if head.lstrip()[:1] in (b"{", b"[") and any(mark in head for mark in _BENCHMARKS):
        raise source.fault(
            "is the result of a load generator, which times requests and no batches. Give it to "
            "`penstock calibrate`, or give the engine's iteration log"
        )
    if head.startswith(b"PAR1"):
        return "table"
    for name, (mark, _) in _LOGS.items():
        if mark in head:
            return name
    is_json = head.lstrip()[:1] in (b"{", b"[")
    return "vllm" if not is_json and has_iterations(source) else "table"


# Keys of results of inference-perf, vLLM and AIPerf, and of GuideLLM's.
_BENCHMARKS = (b'"load_summary"', b'"request_throughput"', b'"request_latency"', b'"mean_ttft_ms"')


def _plain(source: Source, table: Table, where: dict[str, str]) -> MeasuredBatches:
    """Read a table with the columns of `MeasuredBatches`."""
    unit = time_column(source, table.header)
    names = [name for name in COLUMNS if name != "seconds" and name in table.header]
    both = {"prefill_tokens", "decode_tokens"}
    if unit is None or ("tokens" not in names and not both.issubset(names)):
        refuse_other_tools(source)
        raise source.fault(
            f"has the columns {checks.shown(', '.join(table.header))}, but batches need tokens (or "
            "prefill_tokens and decode_tokens) and seconds, ms or us. Rename them"
        )
    columns: dict[str, Any] = _numbers(source, table, (*names, unit), where)
    seconds = columns.pop(unit) / PER_SECOND[unit]
    if "tokens" in columns:
        tokens = columns.pop("tokens")
    else:
        tokens = columns["prefill_tokens"] + columns["decode_tokens"]
    return MeasuredBatches(seconds, tokens, **columns, source=source.name)


def _numbers(
    source: Source, table: Table, names: tuple[str, ...], where: dict[str, str]
) -> dict[str, Array]:
    """Return columns as numbers of at least 0, of the rows asked for."""
    text, _ = chosen_rows(source, table, names, where)
    limits = {name: _limits(name) for name in names}
    wrong = "from {:g} to {:g}, so no model can be fitted"
    numbers = as_numbers(source, table, text, limits, wrong)
    return {name: numbers[name].to_numpy() for name in names}


def _limits(name: str) -> tuple[float, float]:
    """Return the least and the most that a column of a table can be."""
    if name in PER_SECOND:
        per_second = PER_SECOND[name]
        return SHORTEST_S * per_second, limits_of("seconds")[1] * per_second
    return limits_of(name) if name in COLUMNS else (0.0, _MOST)
