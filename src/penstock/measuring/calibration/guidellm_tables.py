"""GuideLLM's tables as its JSON: flat rows (to 0.3), CSVs with groups of columns (from 0.4)."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_fields import MS, Row

METRICS = {
    "requests_per_s": "requests_per_second",
    "concurrency": "request_concurrency",
    "e2e": "request_latency",
    "prompt": "prompt_token_count",
    "output": "output_token_count",
    "ttft": "time_to_first_token_ms",
    "itl": "inter_token_latency_ms",
}
"""Keys of the JSON, by what they are here."""
SHIFTED: Row = {
    "unusable": "its columns are shifted against the header, as GuideLLM 0.4 to 0.6 write them"
}
MARK = "Successful Time to first token ms mean"
"""A column of the flat table."""

_FLAT = {key: key.replace("_", " ").capitalize() for key in METRICS.values()}
_ELEVEN = "[min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]"
_FOUR = ("Mean", "Median", "Std Dev", "Percentiles")
_GROUPS = {
    "requests_per_second": ("Server Throughput", "Requests/Sec"),
    "request_concurrency": ("Server Throughput", "Concurrency"),
    "request_latency": ("Request Latency", "Sec"),
    "prompt_token_count": ("Token Metrics", "Input Tokens"),
    "output_token_count": ("Token Metrics", "Output Tokens"),
    "time_to_first_token_ms": ("Time to First Token", "ms"),
    "inter_token_latency_ms": ("Inter Token Latency", "ms"),
}
_TIMINGS = {"duration": "Duration", "warmup_duration": "Warmup", "cooldown_duration": "Cooldown"}
_STATUSES = ("Successful", "Incomplete", "Errored")

Column = tuple[str, ...]
Cells = Mapping[Column, str]


def is_table(header: Sequence[str]) -> bool:
    """Tell whether a CSV's first line is that of a flat table, or of groups of columns."""
    return MARK in header or {"Run Info", "Request Counts"}.issubset(header)


def benchmarks(lines: list[list[str]], source: Source) -> list[dict[str, Any]]:
    """Return each row of a CSV as an entry of the JSON, or `SHIFTED`."""
    if MARK in lines[0]:
        return [from_flat(dict(zip(lines[0], line, strict=False)), source) for line in lines[1:]]
    if len(lines) < 4:
        raise source.fault(
            "has no rows below its three lines of header. Check that it was written completely"
        )
    header = list(zip(*lines[:3], strict=False))
    rows = [_aligned(header, line) for line in lines[3:]]
    return [
        SHIFTED if cells is None else _from_groups(cells, number, len(rows), source)
        for number, cells in enumerate(rows)
    ]


def from_flat(flat: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return a row of the table of statistics as an entry of the JSON."""
    chosen = _embedded(flat.get("Args"), "Args", source).get("strategy")
    if not isinstance(chosen, dict):
        kind, _, value = str(flat.get("Name", "")).partition("@")
        chosen = {"type_": kind}
        if value:
            chosen["streams" if kind == "concurrent" else "rate"] = _plain(value)
    parts = (" mean", " median", " std dev", f" {_ELEVEN}")
    return {
        "strategy": chosen,
        "request_loader": _embedded(flat.get("Request Loader"), "Request Loader", source),
        "duration": _plain(flat.get("Duration")),
        "request_totals": _totals(lambda status: flat.get(f"{status} Requests")),
        "metrics": {
            key: _statistics(flat.get(f"Successful {name}{part}") for part in parts)
            for key, name in _FLAT.items()
        },
    }


def _from_groups(cells: Cells, number: int, count: int, source: Source) -> dict[str, Any]:
    """Return a line of a CSV with groups of columns as an entry of the JSON."""
    return {
        "strategy": _strategy(cells, number, count, source),
        "request_loader": _embedded(cells.get(("Run Info", "Requests", "")), "Requests", source),
        **{
            name: _plain(cells.get(("Timings", column, "Sec"))) for name, column in _TIMINGS.items()
        },
        "request_totals": _totals(lambda status: cells.get(("Request Counts", status, ""))),
        "metrics": {
            key: _statistics(cells.get((group, f"Successful {name}", part)) for part in _FOUR)
            for key, (group, name) in _GROUPS.items()
        },
    }


def _strategy(cells: Cells, number: int, count: int, source: Source) -> dict[str, Any]:
    """Return the strategy of a line, with the digits of its rate that only the profile has."""
    kind, _, value = cells.get(("Benchmark", "Strategy", ""), "").partition("@")
    profile = _embedded(cells.get(("Run Info", "Profile", "")), "Profile", source)
    shown = number_in(value)
    if kind == "throughput":
        return {"type_": kind, "max_concurrency": shown or profile.get("max_concurrency")}
    if kind not in ("constant", "poisson", "concurrent"):
        return {"type_": kind}
    key = "streams" if kind == "concurrent" else "rate"
    exact = profile.get(key)
    if not isinstance(exact, list):
        exact = [exact]
    if shown is None and len(exact) == count:  # 0.4 names the kind only
        return {"type_": kind, key: exact[number]}
    near = (
        rate
        for rate in exact
        if isinstance(rate, int | float) and f"{rate:.2f}" == f"{shown or 0:.2f}"
    )
    return {"type_": kind, key: next(near, shown)}


def _aligned(header: list[Column], line: list[str]) -> Cells | None:
    """Return the cells of a line by their columns; None where these cannot be told.

    GuideLLM 0.4 to 0.6 write the header of the first benchmark only, and leave out the columns of a
    status (incomplete, errored) that a metric has nothing of. So a line is read by the header, or
    else as if every metric had columns of the statuses that its request counts are not 0 of, and is
    believed if E2E = TTFT + (output - 1) ITL.
    """
    parts = [part for _, _, part in header]
    first = parts.index("Mean") if "Mean" in parts else len(header)
    last = max((i for i, part in enumerate(parts) if part == "Percentiles"), default=first - 1)
    metrics = dict.fromkeys(
        (group, name.removeprefix(f"{status} "))
        for group, name, part in header[first : last + 1]
        for status in _STATUSES
        if part == "Mean" and name.startswith(f"{status} ")
    )
    counts = dict(zip(header[:first], line[:first], strict=False))
    present = [
        status for status in _STATUSES if number_in(counts.get(("Request Counts", status, "")))
    ]
    middle = [
        (group, f"{status} {name}", part)
        for group, name in metrics
        for status in present
        for part in _FOUR
    ]
    for columns in (header, [*header[:first], *middle, *header[last + 1 :]]):
        if len(columns) == len(line):
            cells = dict(zip(columns, line, strict=True))
            if _consistent(cells):
                return cells
    return None


def _consistent(cells: Cells) -> bool:
    """Say whether the means of latencies and lengths add up, as those of one benchmark do."""

    def mean(metric: str) -> float:
        group, name = _GROUPS[METRICS[metric]]
        return number_in(cells.get((group, f"Successful {name}", "Mean"))) or math.nan

    output = mean("output")
    itl = mean("itl") if output > 1 else 0.0
    expected = (mean("ttft") + (output - 1) * itl) * MS
    return abs(mean("e2e") / expected - 1) < 0.2 if expected else False


def _totals(count_of: Callable[[str], Any]) -> dict[str, Any]:
    return {status.lower(): _plain(count_of(status)) for status in _STATUSES}


def _statistics(cells: Iterator[Any]) -> dict[str, Any]:
    """Return the four columns of a metric as in the JSON."""
    mean, median, deviation, eleven = cells
    statistics = {"mean": _plain(mean), "median": _plain(median), "std_dev": _plain(deviation)}
    if isinstance(eleven, str) and eleven.startswith("["):
        eleven = [_plain(value.strip()) for value in eleven.strip("[]").split(",")]
    if isinstance(eleven, list) and len(eleven) == 11:
        statistics |= {"p90": eleven[7], "p99": eleven[9]}
    return {"successful": statistics}


def _plain(cell: Any) -> Any:
    """Return the number that a cell holds, None for an empty one, or the cell as it is."""
    if not isinstance(cell, str):
        return cell
    try:
        return float(cell) if cell.strip() else None
    except ValueError:
        return cell


def _embedded(text: Any, name: str, source: Source) -> dict[str, Any]:
    """Return the JSON that a cell holds."""
    try:
        value = json.loads(text or "{}")
    except (TypeError, ValueError, RecursionError):
        raise source.fault(
            f"has {checks.shown(text)} in the column {name}, which is no JSON. Write it again"
        ) from None
    return value if isinstance(value, dict) else {}


def number_in(value: Any) -> float | None:
    """Return a finite number, also one written as text; None: it is none."""
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
