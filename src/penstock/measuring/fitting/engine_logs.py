"""Logs and metrics in which engines say what was in each batch, line by line.

A line that cannot be read is left out and counted: logs are cut at both ends, and written by several processes. A
number that no engine can have written is refused: nothing tells which others are wrong, too.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.fitting.batches import SHORTEST_S, MeasuredBatches, limits_of

Floats = npt.NDArray[np.float64]

_ITERATION = re.compile(
    r"(\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens, "
    r"iteration elapsed time: (\d+(?:\.\d+)?) ms(?:.*?KV cache usage: (\d+(?:\.\d+)?)%)?"
)
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_ROUNDED = 0.00051  # share of the KV cache by which the log may be off
_SHOWN = 3 * _ROUNDED  # from one more block, where rounding does not hide it
_DISTINCT = 8  # shares that must be whole numbers of a block, or it is by chance
_EQUAL = "prompts of one batch are taken as equally long: the file gives their sum"


def find_iterations(source: Source) -> MeasuredBatches:
    """Read the lines that vLLM writes with ``--enable-logging-iteration-details``.

    The context is known where the log also says how many tokens the KV cache holds
    (``GPU KV cache size``): the share in use, less the prompts of this batch and half a block for
    each request, where the log shows how long a block is; prompts that share a prefix share memory.
    """
    rows: list[tuple[float, ...]] = []
    bad, capacity = 0, None
    with source.open() as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8", "replace")
            if size := _KV_TOKENS.search(line):
                capacity = float(size[1].replace(",", ""))
            if "iteration elapsed time" not in line:
                continue
            found = _ITERATION.search(line)
            if found is None:
                bad += 1
                continue
            share = float(found[6]) / 100 if found[6] else np.nan
            values = [float(found[5]) / 1e3, *(float(found[place]) for place in range(1, 5))]
            took, *counts = _possible(source, f"line {number:,}", _LOGGED, values)
            rows.append((*counts, took, share))
    prompts, new, decodes, out, seconds, usage = np.array(rows, float).reshape(-1, 6).T
    context, block = None, None
    notes = []
    if capacity is not None and np.isfinite(usage).all():
        block = _block(usage, capacity)
        held = usage * capacity - (prompts + decodes) * (block or 0.0) / 2
        context = np.where(decodes > 0, np.maximum(held - new, 0), 0.0)
        notes.append("context is taken from the share of the KV cache in use, which the log rounds to 0.1%")
    batches = _batches(source, "vllm", bad, seconds, prompts, new, None, decodes, out, context, notes)
    return dataclasses.replace(batches, context_block=block)


def _block(usage: Floats, capacity: float) -> float | None:
    """Return how many tokens a KV block holds; None where a block is less than rounding shows."""
    shares = np.unique(usage)
    steps = np.diff(shares)
    if shares.size < _DISTINCT or steps.min() < _SHOWN:
        return None
    # each step is rounded by itself, so a block is the slope over all of them
    blocks = np.rint(shares / steps[steps < 1.5 * steps.min()].mean())
    block = float(blocks @ shares / (blocks @ blocks))
    whole = np.abs(blocks * block - shares).max() <= _ROUNDED
    return block * capacity if whole else None


def find_passes(source: Source) -> MeasuredBatches:
    """Read forward-pass metrics, version 1: JSON Lines as a subscriber stores them, or Dynamo's trace of them.

    SGLang publishes them with ``--enable-forward-pass-metrics``, vLLM and TensorRT-LLM through Dynamo. Idle heartbeats
    take no time and are no batches.
    """
    rows, bad = [], 0
    for number, record in enumerate(_records(source), 1):
        try:
            told = record.get("fpm", record)
            batch = told["scheduled_requests"]
            row = [_number(value) for value in (told["wall_time"], *(batch.get(name, 0) for name in _PASS[1:]))]
        except (AttributeError, KeyError, TypeError, ValueError):
            bad += 1
            continue
        row = _possible(source, f"record {number:,}", _PASS, row)
        if row[0] > 0 and row[2] + row[4] > 0:
            rows.append(row)
    seconds, prompts, new, before, decodes, context = np.array(rows, float).reshape(-1, 6).T
    return _batches(source, "sglang", bad, seconds, prompts, new, before, decodes, decodes, context, [])


_PASS = (
    "wall_time",
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)


def find_stats(source: Source) -> MeasuredBatches:
    """Read TensorRT-LLM's iteration statistics: what ``/metrics`` of trtllm-serve returned, one answer a line.

    ``numCtxKvTokens`` and ``numGenKvTokens`` are 0 throughout where a backend does not count them.
    """
    rows, bad = [], 0
    for number, record in enumerate(_records(source), 1):
        try:
            batch = record["inflightBatchingStats"]
            row = [_number(value) for value in (record["iterLatencyMS"], *(batch.get(name, 0) for name in _STATS[1:]))]
        except (AttributeError, KeyError, TypeError, ValueError):
            bad += 1
            continue
        row = _possible(source, f"record {number:,}", _STATS, [row[0] / 1e3, *row[1:]])
        if row[0] > 0 and row[2] + row[4] > 0:
            rows.append(row)
    seconds, prompts, new, before, decodes, context = np.array(rows, float).reshape(-1, 6).T
    counted = bool(context.any())
    return _batches(
        source,
        "tensorrt-llm",
        bad,
        seconds,
        prompts,
        new,
        before if counted else None,
        decodes,
        decodes,
        context if counted else None,
        [],
    )


_STATS = ("iterLatencyMS", "numContextRequests", "numCtxTokens", "numCtxKvTokens", "numGenRequests", "numGenKvTokens")


_LOGGED = ("elapsed time", "context requests", "context tokens", "generation requests", "generation tokens")


def _number(value: Any) -> float:
    """Return a number as a float; ValueError, TypeError where it is none."""
    if isinstance(value, bool):
        raise TypeError
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _possible(source: Source, place: str, names: Sequence[str], values: list[float]) -> list[float]:
    """Return seconds, which may be 0, and counts; refuse what cannot be."""
    for name, value in zip(names, values, strict=True):
        least, most = (SHORTEST_S, limits_of("seconds")[1]) if name == names[0] else limits_of("context")
        if value != 0 and not least <= value <= most:
            unit = " s" if name == names[0] else ""
            raise source.fault(
                f"{place}: {name} is {checks.shown(value)}{unit}, but must be from {least:g} to {most:g}{unit}, or no "
                "model can be fitted. Correct or delete it"
            )
    return values


def _records(source: Source) -> Iterator[Any]:
    """Return the JSON objects of a file: one a line, lists of them, or one document; None for what is none."""
    with source.open() as file:
        text = file.read().decode("utf-8", "replace")
    try:
        yield from _listed(json.loads(text))
        return
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        if not line.strip():
            continue
        try:
            yield from _listed(json.loads(line))
        except (ValueError, RecursionError):
            yield None


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def _batches(
    source: Source,
    format: str,
    bad: int,
    seconds: Any,
    prompts: Any,
    new: Any,
    before: Any,
    decodes: Any,
    out: Any,
    context: Any,
    notes: list[str],
) -> MeasuredBatches:
    """Put together what the line formats tell: prompts and their sums, decodes and their sums."""
    used = (new + out > 0) & (seconds > 0)
    if not used.any():
        raise source.fault(
            f"has no batch that can be read as {format}" + (f", {bad:,} lines cannot" if bad else "") + ". Check the "
            "format, and that the engine was told to write its iterations"
        )
    several = np.maximum(prompts, 1)
    if (prompts > 1).any():
        notes = [*notes, _EQUAL]
    columns = {
        "seconds": seconds,
        "tokens": new + out,
        "prefill_tokens": new,
        "decode_tokens": out,
        "requests": prompts + decodes,
        "squares": new**2 / several,
        "pairs": None if before is None else new * before / several,
        "context": context,
    }
    kept: dict[str, Any] = {name: None if values is None else values[used] for name, values in columns.items()}
    return MeasuredBatches(
        **kept,
        source=f"{source.name} ({format})",
        left_out=bad,
        notes=tuple(notes),
        sweep=False,
    )
