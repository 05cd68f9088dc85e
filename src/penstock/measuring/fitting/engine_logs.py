"""Metrics in which engines say what was in each batch, record by record.

A line that cannot be read is left out and counted: logs are cut at both ends, and written by
several processes. A number that no engine can have written is refused: nothing tells which others
are wrong, too.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.fitting.batches import SHORTEST_S, Array, MeasuredBatches, limits_of

_EQUAL = "prompts of one batch are taken as equally long: the file gives their sum"


@dataclasses.dataclass(frozen=True)
class Records:
    """What a kind of engine calls the parts of its records, each of one iteration."""

    name: str
    held_in: str  # the key of the counts in a record, by which it is known
    # By part: the time, and of prompts how many, their tokens and those before; of decodes how many
    # and the tokens before.
    names: Mapping[str, str]
    per_second: float = 1.0  # units of the time
    counts_context: bool = True  # else the tokens before are not known where they are 0 throughout

    @property
    def mark(self) -> bytes:
        """What a file of them holds."""
        return f'"{self.held_in}"'.encode()

    def read(self, source: Source) -> MeasuredBatches:
        """Read a file of JSON: a record a line, in lists, or one document."""
        seconds, *counts = self.names.values()
        rows = []
        bad = 0
        for number, record in enumerate(_records(source), 1):
            try:
                inner = record.get("fpm", record)  # Dynamo's traces have records within others
                batch = inner[self.held_in]
                took = _number(inner[seconds]) / self.per_second
                row = [took, *(_number(batch.get(name, 0)) for name in counts)]
            except (AttributeError, KeyError, TypeError, ValueError):
                bad += 1
                continue
            check_possible(source, f"record {number:,}", tuple(self.names.values()), row)
            if took > 0 and row[2] + row[4] > 0:
                rows.append(row)
        table = np.array(rows, float).reshape(-1, len(self.names)).T
        columns = dict(zip(self.names, table, strict=True))
        if not self.counts_context and not columns["context"].any():
            del columns["before"], columns["context"]
        return batches_of(source, self.name, bad, columns)


# Forward-pass metrics, version 1: JSON Lines of a subscriber, or Dynamo's trace. SGLang publishes
# them with ``--enable-forward-pass-metrics``, vLLM and TensorRT-LLM through Dynamo. Idle heartbeats
# take no time and are no batches.
PASSES = Records(
    "sglang",
    "scheduled_requests",
    {
        "seconds": "wall_time",
        "prompts": "num_prefill_requests",
        "new": "sum_prefill_tokens",
        "before": "sum_prefill_kv_tokens",
        "decodes": "num_decode_requests",
        "context": "sum_decode_kv_tokens",
    },
)
# TensorRT-LLM's iteration statistics: answers of ``/metrics``, one a line. Some of its backends do
# not count the tokens before.
STATISTICS = Records(
    "tensorrt-llm",
    "inflightBatchingStats",
    {
        "seconds": "iterLatencyMS",
        "prompts": "numContextRequests",
        "new": "numCtxTokens",
        "before": "numCtxKvTokens",
        "decodes": "numGenRequests",
        "context": "numGenKvTokens",
    },
    per_second=1e3,
    counts_context=False,
)


def _number(value: Any) -> float:
    """Return a number as a float; ValueError, TypeError where it is none."""
    if isinstance(value, bool):
        raise TypeError
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def check_possible(source: Source, place: str, names: Sequence[str], values: list[float]) -> None:
    """Refuse seconds, which may be 0, and counts that cannot be."""
    for name, value in zip(names, values, strict=True):
        least, most = (
            (SHORTEST_S, limits_of("seconds")[1]) if name == names[0] else limits_of("context")
        )
        if value != 0 and not least <= value <= most:
            unit = " s" if name == names[0] else ""
            raise source.fault(
                f"{place}: {name} is {checks.shown(value)}{unit}, but must be from {least:g} to "
                f"{most:g}{unit}, or no model can be fitted. Correct or delete it"
            )


def _records(source: Source) -> Iterator[Any]:
    """Yield the JSON objects of a file, one a line, in lists, or one; None for what is none."""
    document = _document(source)
    if document is not None:
        yield from _listed(document)
        return
    source.refuse_long_lines()
    with source.open() as file:
        for line in file:
            if not line.strip():
                continue
            try:
                yield from _listed(json.loads(line.decode("utf-8-sig", "replace")))
            except (ValueError, RecursionError):
                yield None


def _document(source: Source) -> Any:
    """Return what a file of one JSON document holds; None where its first line alone is one."""
    with source.open() as file:
        first = file.readline(source.most_line_bytes)
    try:
        json.loads(first)
        return None
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(source.document())
    except (ValueError, RecursionError):
        return None


def _listed(document: Any) -> list[Any]:
    return document if isinstance(document, list) else [document]


def batches_of(
    source: Source, format: str, bad: int, columns: Mapping[str, Array], *notes: str
) -> MeasuredBatches:
    """Put together what a format tells: prompts and their sums, decodes and their sums."""
    # Columns: ``seconds``, ``prompts``, ``decodes``, ``new`` tokens of prompts; where known, those
    # ``before``, decodes' ``context``, and tokens ``out``, if not one each. ``bad`` lines cannot be
    # read.
    seconds, prompts, new, decodes = (columns[n] for n in ("seconds", "prompts", "new", "decodes"))
    out = columns.get("out", decodes)
    used = (new + out > 0) & (seconds > 0)
    if not used.any():
        raise source.fault(
            f"has no batch that can be read as {format}"
            + (f", {bad:,} lines cannot" if bad else "")
            + ". Check the "
            "format, and that the engine was told to write its iterations"
        )
    several = np.maximum(prompts, 1)
    if (prompts > 1).any():
        notes = (*notes, _EQUAL)
    known = {
        "seconds": seconds,
        "tokens": new + out,
        "prefill_tokens": new,
        "decode_tokens": out,
        "requests": prompts + decodes,
        "squares": new**2 / several,
    }
    if "before" in columns:
        known["pairs"] = new * columns["before"] / several
    if "context" in columns:
        known["context"] = columns["context"]
    kept: dict[str, Any] = {name: values[used] for name, values in known.items()}
    named = f"{source.name} ({format})"
    return MeasuredBatches(**kept, source=named, left_out=bad, notes=notes, sweep=False)
