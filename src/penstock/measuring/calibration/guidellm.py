"""Results of GuideLLM: its JSON, and its tables of statistics, as CSV or as JSON rows.

All are brought into the form of the JSON of versions from 0.2 on, which one model checks.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.results import (
    MS,
    Entry,
    Number,
    Row,
    Statistics,
    closed_loop,
    entry,
    failed,
    lengths,
    open_loop,
    times,
)

_DEFAULT_IN_FLIGHT = 512  # GuideLLM's limit on concurrent requests, where it is not told another


class _Strategy(Entry):
    type_: str = Field("", validation_alias=AliasChoices("type_", "strategy_type", "kind"))
    rate: Number | None = None
    streams: Number | None = None
    max_concurrency: Number | None = None
    initial_burst: bool | None = None
    rampup_duration: Number | None = None


class _ByStatus(Entry):
    successful: Statistics | None = None


class _Metrics(Entry):
    """Its ``time_per_output_token_ms`` includes the first token (from 0.4 on), and is not read."""

    requests_per_second: _ByStatus | None = None
    request_concurrency: _ByStatus | None = None
    request_latency: _ByStatus | None = None
    prompt_token_count: _ByStatus | None = None
    output_token_count: _ByStatus | None = None
    time_to_first_token_ms: _ByStatus | None = None
    inter_token_latency_ms: _ByStatus | None = None

    def of(self, name: str) -> Statistics | None:
        """Return the statistics of the successful requests."""
        part = getattr(self, name)
        return part.successful if part else None

    def mean(self, name: str) -> float | None:
        """Return their mean."""
        part = self.of(name)
        return part.mean if part else None


class _Totals(Entry):
    successful: Number | None = None
    errored: Number | None = None
    incomplete: Number | None = None


class _Request(Entry):
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    request_start_time: Number | None = None


class _Requests(Entry):
    successful: list[_Request] | None = None
    incomplete: list[_Request] | None = None


def _named(strategy: Any) -> Any:
    return {"type_": strategy} if isinstance(strategy, str) else strategy


class _Benchmark(Entry):
    metrics: _Metrics
    strategy: Annotated[_Strategy | None, BeforeValidator(_named)] = Field(
        None,
        validation_alias=AliasChoices(AliasPath("config", "strategy"), AliasPath("args", "strategy"), "strategy"),
    )
    totals: _Totals | None = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("metrics", "request_totals"), "request_totals", AliasPath("run_stats", "requests_made")
        ),
    )
    requests: _Requests | None = None
    duration: Number | None = None
    start_time: float | None = None
    end_time: float | None = None
    warmup_duration: Number | None = None
    cooldown_duration: Number | None = None


_MARK = "Successful Time to first token ms mean"
"""A column of the table of statistics."""


def belongs(document: Any) -> bool:
    """Tell whether a JSON document is GuideLLM's."""
    if isinstance(document, dict):
        return isinstance(document.get("benchmarks"), list)
    return isinstance(document, list) and bool(document) and isinstance(document[0], dict) and _MARK in document[0]


def rows(document: Any, source: Source) -> list[Row]:
    """Return a row for each benchmark in the file."""
    if isinstance(document, list):
        return [_row(_from_flat(entry, source), {}, source, number) for number, entry in enumerate(document)]
    return [_row(entry, document, source, number) for number, entry in enumerate(document["benchmarks"])]


def strategy(text: str, incomplete: float | None, in_flight: float | None = None) -> Row:
    """Return the load pattern that a strategy names: ``synchronous``, ``constant@2.5``, ``concurrent@8`` ..."""
    name, _, value = text.strip().partition("@")
    name = name.strip().lower()
    number = _number(value)
    if name == "throughput":  # as many as it may: those under way at the end, where it was cut off
        return {"pattern": "closed", "in_flight": in_flight or number or incomplete or _DEFAULT_IN_FLIGHT}
    if value.strip() and number is None:
        return {}
    if name == "synchronous":
        return {"pattern": "closed", "in_flight": 1}
    if name == "concurrent":
        return {"pattern": "closed", "in_flight": number if number is not None and number >= 1 else in_flight}
    if name in ("constant", "poisson", "async"):
        found: Row = {"pattern": "poisson" if name == "poisson" else "constant"}
        return found if number is None else found | {"rate": number, "client_limit": in_flight}
    return {}


def spreads(data: Any) -> Row:
    """Return what the data argument says of lengths: ``prompt_tokens=256,prompt_tokens_min=128,...``."""
    if isinstance(data, list) and data:
        data = data[0]
    if isinstance(data, str):
        text = data.strip().strip("[]'")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = dict(re.findall(r"(\w+)\s*=\s*([^,\s'\"]+)", text))
    if not isinstance(data, dict):
        return {}
    found: Row = {}
    nominal = []
    for name in ("prompt", "output"):
        mean, low, high, deviation = (
            _number(data.get(f"{name}_tokens{end}")) for end in ("", "_min", "_max", "_stdev")
        )
        if mean is None:
            continue
        nominal.append(f"{mean:g}")
        if low is not None or high is not None:
            found[f"{name}_low"] = max(1.0, low if low is not None else mean - 5 * (deviation or 0))
            found[f"{name}_high"] = high if high is not None else mean + 5 * (deviation or 0)
        if deviation:
            found[f"{name}_std"] = deviation
    return found | ({"shape": "+".join(nominal)} if len(nominal) == 2 else {})


def _row(document: Any, report: Mapping[str, Any], source: Source, number: int) -> Row:
    """Read one entry of ``benchmarks``."""
    place = f"benchmarks[{number}]: "
    benchmark = entry(_Benchmark, document, source, place)
    totals = benchmark.totals or _Totals()
    latency = benchmark.metrics.of("request_latency")
    completed = totals.successful if totals.successful is not None else _count_of(document, latency)
    if completed == 0:
        return {"unusable": "no request was completed"}
    found = _load(benchmark, totals, source, place)
    stated = spreads(_data(document, report))
    for name in ("prompt", "output"):
        part = lengths(name, benchmark.metrics.of(f"{name}_token_count"))
        if f"{name}_low" in stated:
            part.pop(f"{name}_std", None)
        found |= part
    found |= stated | _recorded(benchmark, completed)
    for metric, name, unit in (
        ("ttft", "time_to_first_token_ms", MS),
        ("itl", "inter_token_latency_ms", MS),
        ("e2e", "request_latency", 1.0),
    ):
        found |= times(metric, benchmark.metrics.of(name), unit)
    duration = benchmark.duration
    if duration is None and benchmark.start_time is not None and benchmark.end_time is not None:
        duration = benchmark.end_time - benchmark.start_time
    return found | {
        "duration_s": duration,
        "completed": completed,
        "incomplete": totals.incomplete,
        "requests_per_s": benchmark.metrics.mean("requests_per_second"),
        "concurrency": benchmark.metrics.mean("request_concurrency"),
        "note": "; ".join(_notes(benchmark, totals, completed)) or None,
    }


def _count_of(document: Any, latency: Statistics | None) -> float | None:
    """Return how many latencies there are, where no totals are stated."""
    if latency is None:
        return None
    return _number(document["metrics"]["request_latency"]["successful"].get("count"))


def _load(benchmark: _Benchmark, totals: _Totals, source: Source, place: str) -> Row:
    """Return the load of a strategy."""
    chosen = benchmark.strategy
    if chosen is None or not chosen.type_:
        return {"unusable": "no strategy is stated"}
    kind = chosen.type_.lower()
    limit = chosen.max_concurrency
    if kind == "synchronous":
        found = closed_loop(1)
    elif kind == "concurrent" and (chosen.streams or limit):
        found = closed_loop(chosen.streams or limit or 1)
    elif kind == "throughput":
        sent = sum(filter(None, (totals.successful, totals.incomplete, totals.errored)))
        places = limit or totals.incomplete or _DEFAULT_IN_FLIGHT
        found = closed_loop(min(places, sent or places))
    elif kind in ("constant", "poisson", "async") and chosen.rate:
        found = open_loop("poisson" if kind == "poisson" else "constant", chosen.rate, limit=limit)
        # GuideLLM 0.3 sends the requests of the first second at once
        found["burst"] = math.floor(chosen.rate) if chosen.initial_burst else 0
    else:
        raise source.fault(
            f"{place}the strategy {checks.shown(chosen.type_)} is not known, or its rate or streams are missing, so "
            "the load cannot be simulated. Leave the benchmark out, or benchmark at rates (constant, poisson) or "
            "with streams (concurrent)"
        )
    value = chosen.streams if kind == "concurrent" else chosen.rate
    return found | {"load": kind if value is None else f"{kind}@{value:.6g}"}


def _notes(benchmark: _Benchmark, totals: _Totals, completed: float | None) -> Iterator[str]:
    """Say what of the benchmark is not simulated."""
    if note := failed(totals.errored, completed or 0).get("note"):
        yield note
    for what, seconds in (
        ("warm-up", benchmark.warmup_duration),
        ("cool-down", benchmark.cooldown_duration),
        ("ramp-up", benchmark.strategy.rampup_duration if benchmark.strategy else None),
    ):
        if seconds:
            yield f"the {what} of {seconds:.3g} s is not simulated"


def _recorded(benchmark: _Benchmark, completed: float | None) -> Row:
    """Return when all requests were sent, and, if all were completed, their lengths in that order."""
    if benchmark.requests is None:
        return {}
    done, cut_off = benchmark.requests.successful or [], benchmark.requests.incomplete or []
    if len(done) != completed or benchmark.totals is None or (benchmark.totals.incomplete and not cut_off):
        return {}
    row: Row = {}
    starts = [one.request_start_time for one in (*done, *cut_off) if one.request_start_time]
    if len(starts) == len(done) + len(cut_off):
        row["arrival_s"] = sorted(start - min(starts) for start in starts)
        done = sorted(done, key=lambda one: one.request_start_time or 0.0)
    pairs = [(one.prompt_tokens, one.output_tokens) for one in done if one.prompt_tokens and one.output_tokens]
    if not cut_off and len(pairs) == completed:
        row["prompt_lengths"] = [prompt for prompt, _ in pairs]
        row["output_lengths"] = [output for _, output in pairs]
    return row


def _data(document: Mapping[str, Any], report: Mapping[str, Any]) -> Any:
    """Return the data argument, which has moved from version to version."""
    settings = document.get("config") or document.get("args")
    settings = settings if isinstance(settings, dict) else {}
    config = report.get("config")
    for holder in (
        document.get("request_loader"),
        settings.get("requests"),
        settings,
        report.get("args"),
        config,
        config.get("spec") if isinstance(config, dict) else None,
    ):
        if isinstance(holder, dict) and holder.get("data"):
            return holder["data"]
    return None


# Tables

_TABLE = {
    "requests_per_second": "Requests per second",
    "request_concurrency": "Request concurrency",
    "request_latency": "Request latency",
    "prompt_token_count": "Prompt token count",
    "output_token_count": "Output token count",
    "time_to_first_token_ms": "Time to first token ms",
    "inter_token_latency_ms": "Inter token latency ms",
}
_ELEVEN = "[min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]"


def is_table(header: Sequence[str]) -> bool:
    """Tell whether a CSV's first line is that of a table of statistics (to 0.3), or of groups of columns (from 0.4)."""
    return _MARK in header or {"Run Info", "Request Counts"}.issubset(header)


def table_rows(lines: list[list[str]], source: Source) -> list[Row]:
    """Return a row for each benchmark in a CSV of GuideLLM."""
    if _MARK in lines[0]:
        flat = [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]
        return [_row(_from_flat(one, source), {}, source, number) for number, one in enumerate(flat)]
    if len(lines) < 4:
        raise source.fault("has no rows below its three lines of header. Check that it was written completely")
    header = list(zip(*lines[:3], strict=False))
    found = []
    for number, line in enumerate(lines[3:]):
        cells = _aligned(header, line)
        if cells is None:
            found.append({"unusable": "its columns are shifted against the header, as GuideLLM 0.4 to 0.6 write them"})
            continue
        found.append(_row(_from_groups(cells, number, len(lines) - 3, source), {}, source, number))
    return found


def _from_flat(flat: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """Return a row of the table of statistics as an entry of the JSON."""
    settings, loader = (_embedded(flat.get(name), name, source) for name in ("Args", "Request Loader"))
    chosen = settings.get("strategy")
    if not isinstance(chosen, dict):
        kind, _, value = str(flat.get("Name", "")).partition("@")
        chosen = {"type_": kind} | ({"streams" if kind == "concurrent" else "rate": _plain(value)} if value else {})
    return {
        "strategy": chosen,
        "request_loader": loader,
        "duration": _plain(flat.get("Duration")),
        "request_totals": {name.lower(): _plain(flat.get(f"{name} Requests")) for name in _STATUSES},
        "metrics": {
            key: {
                "successful": _statistics(
                    flat.get(f"Successful {name} mean"),
                    flat.get(f"Successful {name} median"),
                    flat.get(f"Successful {name} std dev"),
                    flat.get(f"Successful {name} {_ELEVEN}"),
                )
            }
            for key, name in _TABLE.items()
        },
    }


_STATUSES = ("Successful", "Incomplete", "Errored")
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

Column = tuple[str, ...]


def _aligned(header: list[Column], line: list[str]) -> dict[Column, str] | None:
    """Return the cells of a line by their columns; None where these cannot be told.

    GuideLLM 0.4 to 0.6 write the header of the first benchmark only, and leave out the columns of a status (incomplete,
    errored) that a metric has nothing of. So a line is read by the header, or else as if every metric had columns of
    the statuses that its request counts are not 0 of, and is believed if E2E = TTFT + (output - 1) ITL.
    """
    first = next((place for place, column in enumerate(header) if column[2] == "Mean"), len(header))
    last = max((place for place, column in enumerate(header) if column[2] == "Percentiles"), default=first - 1)
    metrics = dict.fromkeys(
        (group, name.removeprefix(f"{status} "))
        for group, name, part in header[first : last + 1]
        for status in _STATUSES
        if part == "Mean" and name.startswith(f"{status} ")
    )
    counts = dict(zip(header[:first], line[:first], strict=False))
    present = [status for status in _STATUSES if _number(counts.get(("Request Counts", status, "")))]
    middle = [(group, f"{status} {name}", part) for group, name in metrics for status in present for part in _FOUR]
    for columns in (header, [*header[:first], *middle, *header[last + 1 :]]):
        if len(columns) == len(line):
            cells = dict(zip(columns, line, strict=True))
            if _consistent(cells):
                return cells
    return None


def _consistent(cells: Mapping[Column, str]) -> bool:
    """Say whether the means of latencies and lengths add up, as those of one benchmark do."""

    def mean(key: str) -> float:
        group, name = _GROUPS[key]
        return _number(cells.get((group, f"Successful {name}", "Mean"))) or math.nan

    output = mean("output_token_count")
    itl = mean("inter_token_latency_ms") if output > 1 else 0.0
    expected = (mean("time_to_first_token_ms") + (output - 1) * itl) * MS
    return abs(mean("request_latency") / expected - 1) < 0.2 if expected else False


def _from_groups(cells: Mapping[Column, str], number: int, count: int, source: Source) -> dict[str, Any]:
    """Return a line of a CSV with groups of columns as an entry of the JSON."""
    kind, _, value = cells.get(("Benchmark", "Strategy", ""), "").partition("@")
    profile = _embedded(cells.get(("Run Info", "Profile", "")), "Profile", source)
    key = "streams" if kind == "concurrent" else "rate"
    stated = profile.get(key)
    chosen: dict[str, Any] = {"type_": kind}
    if kind in ("constant", "poisson", "concurrent"):
        exact = stated if isinstance(stated, list) else [stated]
        shown = _number(value)
        near = [one for one in exact if isinstance(one, int | float) and f"{one:.2f}" == f"{shown or 0:.2f}"]
        if shown is None and len(exact) == count:  # 0.4 names the kind only
            chosen[key] = exact[number]
        else:
            chosen[key] = near[0] if near else shown
    elif kind == "throughput":
        chosen["max_concurrency"] = _number(value) or profile.get("max_concurrency")
    return {
        "strategy": chosen,
        "request_loader": _embedded(cells.get(("Run Info", "Requests", "")), "Requests", source),
        "duration": _plain(cells.get(("Timings", "Duration", "Sec"))),
        "warmup_duration": _plain(cells.get(("Timings", "Warmup", "Sec"))),
        "cooldown_duration": _plain(cells.get(("Timings", "Cooldown", "Sec"))),
        "request_totals": {name.lower(): _plain(cells.get(("Request Counts", name, ""))) for name in _STATUSES},
        "metrics": {
            key: {"successful": _statistics(*(cells.get((group, f"Successful {name}", part)) for part in _FOUR))}
            for key, (group, name) in _GROUPS.items()
        },
    }


def _statistics(mean: Any, median: Any, deviation: Any, eleven: Any) -> dict[str, Any]:
    """Return the four columns of a metric as in the JSON."""
    percentiles: list[Any] = []
    if isinstance(eleven, str) and eleven.startswith("["):
        percentiles = [_plain(value.strip()) for value in eleven.strip("[]").split(",")]
    elif isinstance(eleven, list):
        percentiles = eleven
    known = {"mean": _plain(mean), "median": _plain(median), "std_dev": _plain(deviation)}
    if len(percentiles) == 11:
        known |= {"p90": percentiles[7], "p99": percentiles[9]}
    return known


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
        found = json.loads(text or "{}")
    except (TypeError, ValueError, RecursionError):
        raise source.fault(f"has {checks.shown(text)} in the column {name}, which is no JSON. Write it again") from None
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    try:
        number = None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None
