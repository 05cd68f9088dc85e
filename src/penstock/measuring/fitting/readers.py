"""Read measured batches: plain tables, and the logs and metrics of engines."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from penstock import checks
from penstock.errors import InputError, nearest
from penstock.inputs.source import Source
from penstock.inputs.tables import ROW, Table, as_numbers, open_table
from penstock.measuring.fitting.batches import (
    COLUMNS,
    SHORTEST_S,
    Array,
    MeasuredBatches,
    limits_of,
)
from penstock.measuring.fitting.engine_logs import find_passes, find_stats
from penstock.measuring.fitting.layers.profiles import degree_of, read_llmservingsim, read_vidur
from penstock.measuring.fitting.layers.times import LayerTimes
from penstock.measuring.fitting.vllm_log import find_iterations, has_iterations

FORMATS = ("table", "vllm", "sglang", "tensorrt-llm", "blis", "splitwise", "vidur", "llmservingsim")
"""What `read_batches` reads."""

_PER_SECOND = {"seconds": 1.0, "ms": 1e3, "us": 1e6}
_BLOCK = 16  # tokens in a KV block of vLLM by default
_MOST = 1e15

_BLIS = (
    "batch.prefill_tokens",
    "batch.decode_tokens",
    "batch.num_prefill_reqs",
    "batch.num_decode_reqs",
    "queue.running_depth",
    "kv.blocks_total_gpu",
    "kv.blocks_free_gpu",
    "next_sampled_id_gap",
    "true_cycle_us",
)
_SPLITWISE = ("prompt_size", "batch_size", "token_size", "prompt_time", "token_time")


def read_batches(
    path: str | Path,
    format: str | None = None,
    *,
    where: Mapping[str, str] | None = None,
    layers: int | None = None,
    max_gib: float | None = None,
) -> MeasuredBatches:
    """Read measured batches from a file, or a folder of layer times.

    Parameters
    ----------
    path
        ``table``: CSV, TSV, JSON Lines or Parquet with columns ``tokens``, or ``prefill_tokens``
        and ``decode_tokens``; one of ``seconds``, ``ms``, ``us``; and, where known, ``requests``,
        ``squares``, ``pairs``, ``context``. ``vllm``: a log with the lines of
        ``--enable-logging-iteration-details``. ``sglang``: forward-pass metrics as JSON Lines (of
        SGLang, vLLM or Dynamo). ``tensorrt-llm``: iteration statistics, JSON as ``/metrics`` of
        trtllm-serve gives it. ``blis``: sampled steps of vLLM, Parquet. ``splitwise``: its profile,
        whose every row gives a prefill and a decode batch. ``vidur``, ``llmservingsim``: layer
        times, without attention.
    format
        One of these; None: told by the content.
    where
        Of a table, keep rows with these values: ``{"model": "llama-2-70b"}``.
    layers
        Repeated layers of the model, for ``vidur`` and ``llmservingsim``.
    max_gib
        What the file may hold, unpacked, in GiB; None: 2. All of it must fit into memory.

    Raises
    ------
    InputError
        If the file cannot be used, or nothing in it can; one line that says where and why.
    """
    path = checks.path("a file of measured batches", path)
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown format {checks.shown(format)}{nearest(str(format), FORMATS)}")
    if format == "llmservingsim" or (format is None and path.is_dir()):
        read = partial(read_llmservingsim, path, tensor_parallel=1)
        return _layers_known(path, layers, degree_of(path), read)
    source = Source.at(path, max_gib)
    kind = format or _told(source)
    if kind in _LINES:
        if where:
            raise InputError(
                f"{source.name} is no table but of the format {kind}; leave `where` out"
            )
        return _LINES[kind](source)
    table = open_table(source)
    if kind == "vidur":
        degree = _degree(dict(where or {}))
        read = partial(read_vidur, path, tensor_parallel=degree)
        return _layers_known(path, layers, degree, read)
    return _TABLES[kind](source, table, dict(where or {}))


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
    if not head.startswith(b"PAR1"):
        for mark, name in _MARKS:
            if mark in head:
                return name
        if head.lstrip()[:1] not in (b"{", b"[") and has_iterations(source):
            return "vllm"
    header = set(open_table(source).header)
    for name, columns in (
        ("blis", _BLIS),
        ("splitwise", _SPLITWISE),
        ("vidur", ("num_tensor_parallel_workers",)),
    ):
        if header.issuperset(columns):
            return name
    return "table"


_MARKS = (
    (b"iteration elapsed time", "vllm"),
    (b'"scheduled_requests"', "sglang"),
    (b'"inflightBatchingStats"', "tensorrt-llm"),
)
# Keys of results of inference-perf, vLLM and AIPerf, and of GuideLLM's.
_BENCHMARKS = (b'"load_summary"', b'"request_throughput"', b'"request_latency"', b'"mean_ttft_ms"')


_LINES: dict[str, Callable[[Source], MeasuredBatches]] = {
    "vllm": find_iterations,
    "sglang": find_passes,
    "tensorrt-llm": find_stats,
}


def _layers_known(
    path: Path, layers: int | None, degree: int, read: Callable[..., LayerTimes]
) -> MeasuredBatches:
    """Return the batches of one accelerator out of ``degree``; notes say what their times lack."""
    if layers is None:
        raise InputError(
            f"{path.name} holds times of single layers, so a batch's time needs their number; give "
            "`layers` (--layers): 32 in Llama-3.1-8B, 48 in CodeLlama-34B"
        )
    batches = read(layers=layers).without_attention()
    missing = ["attention"]
    if degree > 1:
        missing.append(f"exchange between {degree} accelerators")
    return dataclasses.replace(
        batches,
        source=(
            f"{path.name} (profile of single layers, times {layers:,}, without "
            f"{' and '.join(missing)})"
        ),
        notes=tuple(
            f"{what} is not in these times, so batches take longer than this model says"
            for what in missing
        ),
    )


def _degree(where: dict[str, str]) -> int:
    """Return the tensor-parallel degree asked for; 1 by default."""
    text = where.pop("num_tensor_parallel_workers", "1")
    if where or not text.strip().isdecimal():
        asked = ", ".join(f"{name}={value}" for name, value in where.items()) or checks.shown(text)
        raise InputError(
            f"`where` of a Vidur profile is {asked}, but chooses num_tensor_parallel_workers=1, 2 "
            "... only"
        )
    return int(text)


def _plain(source: Source, table: Table, where: dict[str, str]) -> MeasuredBatches:
    """Read a table with the columns of `MeasuredBatches`."""
    unit = _unit_of_time(source, table)
    names = [name for name in COLUMNS if name != "seconds" and name in table.header]
    both = {"prefill_tokens", "decode_tokens"}
    if unit is None or ("tokens" not in names and not both.issubset(names)):
        raise source.fault(
            f"has the columns {checks.shown(', '.join(table.header))}, but batches need tokens (or "
            "prefill_tokens and decode_tokens) and seconds, ms or us. Rename them"
        )
    columns: dict[str, Any] = _numbers(source, table, (*names, unit), where)
    seconds = columns.pop(unit) / _PER_SECOND[unit]
    if "tokens" in columns:
        tokens = columns.pop("tokens")
    else:
        tokens = columns["prefill_tokens"] + columns["decode_tokens"]
    return MeasuredBatches(seconds, tokens, **columns, source=source.name)


def _unit_of_time(source: Source, table: Table) -> str | None:
    """Return the column that has the times of batches; None: there is none."""
    units = [name for name in _PER_SECOND if name in table.header]
    if len(units) > 1:
        raise source.fault(
            f"has the columns {' and '.join(units)}, so which one is meant is unclear. Drop one"
        )
    if {"layer", "time_us"}.issubset(table.header):
        raise source.fault(
            "has times of layers, not of batches. Name the folder that it lies in, with --layers"
        )
    return units[0] if units else None


def _blis(source: Source, table: Table, where: dict[str, str]) -> MeasuredBatches:
    """Read sampled steps of vLLM: those whose next was sampled, too, as only their time is known.

    KV blocks in use bound the context: 16 tokens each, the last block of a request half full on
    average, the prompts of this batch not counted. Prompts that share a prefix share its blocks, so
    the sum over decodes may be larger.
    """
    _one_machine(source, table, where, ("model", "tp"))
    columns = _numbers(
        source, table, _BLIS, where, may_lack=("next_sampled_id_gap", "true_cycle_us")
    )
    gap, cycle = columns["next_sampled_id_gap"], columns["true_cycle_us"]
    prefill, decode = columns["batch.prefill_tokens"], columns["batch.decode_tokens"]
    rows = (gap == 1) & (cycle > 0) & (prefill + decode > 0)
    if not rows.any():
        raise source.fault(
            "has no step with tokens whose next step was sampled, too, so no time is known of one "
            "step"
        )
    used = columns["kv.blocks_total_gpu"] - columns["kv.blocks_free_gpu"]
    held = used * _BLOCK - columns["queue.running_depth"] * _BLOCK / 2 - prefill
    requests = columns["batch.num_prefill_reqs"] + columns["batch.num_decode_reqs"]
    return MeasuredBatches(
        cycle[rows] / 1e6,
        (prefill + decode)[rows],
        prefill[rows],
        decode[rows],
        requests[rows],
        context=(np.maximum(held, 0) * (decode > 0))[rows],
        source=_named(source, "blis", where),
        sweep=False,
        left_out=int((~rows).sum()),
        notes=(
            f"context is taken from the KV blocks in use ({_BLOCK} tokens each): less than what "
            "decodes read where prompts share a prefix",
        ),
    )


def _splitwise(source: Source, table: Table, where: dict[str, str]) -> MeasuredBatches:
    """Read Splitwise's profile: of each row the prefill of all prompts, and the mean decode."""
    _one_machine(source, table, where, ("model", "hardware", "tensor_parallel"))
    columns = _numbers(source, table, _SPLITWISE, where)
    many, prompt, output = columns["batch_size"], columns["prompt_size"], columns["token_size"]
    nothing = np.zeros(many.size)
    phases = {
        "seconds": (columns["prompt_time"] / 1e3, columns["token_time"] / 1e3),
        "tokens": (many * prompt, many),
        "prefill_tokens": (many * prompt, nothing),
        "decode_tokens": (nothing, many),
        "requests": (many, many),
        "squares": (many * prompt**2, nothing),
        "pairs": (nothing, nothing),
        "context": (nothing, many * (prompt + output / 2)),
    }
    joined: dict[str, Any] = {name: np.concatenate(values) for name, values in phases.items()}
    return MeasuredBatches(**joined, source=_named(source, "splitwise", where), sweep=True)


_TABLES: dict[str, Callable[[Source, Table, dict[str, str]], MeasuredBatches]] = {
    "table": _plain,
    "blis": _blis,
    "splitwise": _splitwise,
}


def _numbers(
    source: Source,
    table: Table,
    names: tuple[str, ...],
    where: dict[str, str],
    may_lack: tuple[str, ...] = (),
) -> dict[str, Array]:
    """Return columns as numbers of at least 0, of the rows asked for."""
    missing = [name for name in (*names, *where) if name not in table.header]
    if missing:
        raise source.fault(
            f"has no column {checks.shown(missing[0])}{nearest(missing[0], table.header)}. Rename "
            "one, or force another format"
        )
    text = table.read(tuple(dict.fromkeys((*names, *where)))).with_row_index(ROW)
    if text.is_empty():
        raise source.fault("has no rows. Check that the file was written completely")
    for name, value in where.items():
        kept = text.filter(_matches(name, value))
        if kept.is_empty():
            values = ", ".join(text[name].drop_nulls().unique().sort().to_list())
            raise source.fault(
                f"has no row where {name} is {checks.shown(value)}, but {checks.shown(values)}"
            )
        text = kept
    limits = {name: _limits(name) for name in names}
    wrong = "from {:g} to {:g}, so no model can be fitted"
    numbers = as_numbers(source, table, text, limits, wrong, may_lack)
    return {name: numbers[name].to_numpy() for name in names}


def _limits(name: str) -> tuple[float, float]:
    """Return the least and the most that a column of a table can be."""
    if name in _PER_SECOND:
        per_second = _PER_SECOND[name]
        return SHORTEST_S * per_second, limits_of("seconds")[1] * per_second
    return limits_of(name) if name in COLUMNS else (0.0, _MOST)


def _matches(name: str, value: str) -> pl.Expr:
    return pl.col(name).str.strip_chars() == value.strip()


def _one_machine(source: Source, table: Table, where: dict[str, str], by: tuple[str, ...]) -> None:
    """Refuse batches of several models or machines in one table."""
    told = tuple(name for name in by if name in table.header and name not in where)
    if not told:
        return
    chosen = {name: value for name, value in where.items() if name in table.header}
    text = table.read((*told, *chosen))
    text = text.filter(pl.lit(True), *(_matches(*pair) for pair in chosen.items()))
    kinds = text.select(told).unique().sort(told)
    if kinds.height > 1:
        several = "; ".join(
            ", ".join(f"{name}={value}" for name, value in kind.items())
            for kind in kinds.to_dicts()
        )
        raise source.fault(
            f"holds batches of {kinds.height} machines, each with times of its own. Choose one "
            f"with `where` (--where): {several}"
        )


def _named(source: Source, format: str, where: dict[str, str]) -> str:
    """Name a source with its format and the rows chosen."""
    chosen = ", ".join(f"{name}={value}" for name, value in where.items())
    return f"{source.name} ({format}{': ' if chosen else ''}{chosen})"
