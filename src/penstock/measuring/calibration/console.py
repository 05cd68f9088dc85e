"""The table that vllm bench, and SGLang's benchmark, print when they are done."""

import math
import re
from typing import Any

from penstock.inputs.source import Source

_TITLE = "Serving Benchmark Result"
_LINE = re.compile(r"^\W*([A-Z][^:]*):\s+(\S+)\s*$")
_KEYS = {
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Backend": "backend",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
}
"""Fields of the JSON document that the same tools save."""
_WHOLE = ("completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens")
_TIME = re.compile(r"(Mean|Median|P\d+) (\w+(?: Latency)?) \(ms\)")
_HEAD = 1 << 20


def results(source: Source) -> list[dict[str, Any]]:
    """Return a document for each table in a text; none where it has no such table."""
    with source.open() as file:
        if _TITLE.encode() not in file.read(_HEAD):
            return []
    tables: list[dict[str, Any]] = []
    for line in source.document().splitlines():
        if _TITLE in line:
            tables.append({})
        elif tables and (found := _LINE.match(line)):
            _add(tables[-1], *found.groups())
    return [table for table in tables if "request_throughput" in table]


def _add(table: dict[str, Any], name: str, text: str) -> None:
    """Take a line whose name a saved document has, too."""
    key = _KEYS.get(name)
    if time := _TIME.fullmatch(name):
        key = "_".join([*time.groups(), "ms"]).replace(" ", "_").lower()
    if key == "backend":
        table[key] = text
        return
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return  # "not" of "not set"
    if key is not None and not math.isnan(number):
        table[key] = int(number) if key in _WHOLE and number.is_integer() else number
