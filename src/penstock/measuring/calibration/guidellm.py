"""Results of GuideLLM: its JSON, of versions from 0.2 on."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_fields import (
    MS,
    NOTHING_COMPLETED,
    Entry,
    Number,
    Row,
    Statistics,
    closed_loop,
    entry,
    failed,
    fields,
    lengths,
    mean,
    open_loop,
    times,
)

_DEFAULT_IN_FLIGHT = 512  # GuideLLM's limit on concurrent requests, where it is not told another
_TIMES = {"ttft": MS, "itl": MS, "e2e": 1.0}
_METRICS = {
    "requests_per_s": "requests_per_second",
    "concurrency": "request_concurrency",
    "e2e": "request_latency",
    "prompt": "prompt_token_count",
    "output": "output_token_count",
    "ttft": "time_to_first_token_ms",
    "itl": "inter_token_latency_ms",
}


_Length = Annotated[int, Field(le=10_000_000)]


class _Request(Entry):
    prompt_tokens: _Length | None = None
    output_tokens: _Length | None = None
    request_start_time: Number | None = None
    request_latency: Number | None = None
    time_to_first_token_ms: Number | None = None


_STRATEGY = fields(
    {
        "kind": (str, "type_", "strategy_type", "kind"),
        "rate": "rate",
        "streams": "streams",
        "max_concurrency": "max_concurrency",
        "initial_burst": (bool, "initial_burst"),
        "rampup_duration": "rampup_duration",
    },
    kind="",
)
_TOTALS = fields({name: name for name in ("successful", "errored", "incomplete")})
# Its ``time_per_output_token_ms`` includes the first token (from 0.4 on), and is not read.
_BENCHMARK = fields(
    {
        **{name: (Statistics, f"metrics.{key}.successful") for name, key in _METRICS.items()},
        "strategy": (
            Annotated[
                _STRATEGY | None,
                BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value),
            ],
            "config.strategy",
            "args.strategy",
            "strategy",
        ),
        "totals": (_TOTALS, "metrics.request_totals", "request_totals", "run_stats.requests_made"),
        "done": (list[_Request], "requests.successful"),
        "cut_off": (list[_Request], "requests.incomplete"),
        "duration": "duration",
        "start_time": (float, "start_time"),
        "end_time": (float, "end_time"),
        "warmup_duration": "warmup_duration",
        "cooldown_duration": "cooldown_duration",
    },
    needed=("metrics",),
)


def belongs(document: Any) -> bool:
    """Tell whether a JSON document is GuideLLM's."""
    return isinstance(document, dict) and isinstance(document.get("benchmarks"), list)


def rows(document: Any, source: Source) -> list[Row]:
    """Return a row for each benchmark in the file."""
    return [
        _row(benchmark, document, source, f"benchmarks[{number}]: ")
        for number, benchmark in enumerate(document["benchmarks"])
    ]


def strategy(text: str, incomplete: float | None, in_flight: float | None = None) -> Row:
    """Return the load that a strategy names, such as ``constant@2.5`` or ``concurrent@8``."""
    name, _, value = text.strip().partition("@")
    name = name.strip().lower()
    number = _number_in(value)
    if name == "throughput":  # as many as it may: those under way at the end, where it was cut off
        under_way = in_flight or number or incomplete or _DEFAULT_IN_FLIGHT
        return {"pattern": "closed", "in_flight": under_way}
    if value.strip() and number is None:
        return {}
    if name == "synchronous":
        return {"pattern": "closed", "in_flight": 1}
    if name == "concurrent":
        stated = number is not None and number >= 1
        return {"pattern": "closed", "in_flight": number if stated else in_flight}
    if name not in _ARRIVALS:
        return {}
    row: Row = {"pattern": _ARRIVALS[name]}
    if number is not None:
        row |= {"rate": number, "client_limit": in_flight}
    return row


# Strategies with a rate, and how requests arrive.
_ARRIVALS = {"constant": "constant", "async": "constant", "poisson": "poisson"}


def spreads(data: Any) -> Row:
    """Return what the data argument says of lengths: ``prompt_tokens=256,output_tokens_min=8``."""
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
    row: Row = {}
    nominal = []
    for name in ("prompt", "output"):
        mean, low, high, deviation = (
            _number_in(data.get(f"{name}_tokens{end}")) for end in ("", "_min", "_max", "_stdev")
        )
        if mean is None:
            continue
        nominal.append(f"{mean:g}")
        if low is not None or high is not None:
            farthest = 5 * (deviation or 0)
            row[f"{name}_low"] = max(1.0, mean - farthest if low is None else low)
            row[f"{name}_high"] = mean + farthest if high is None else high
        if deviation:
            row[f"{name}_std"] = deviation
    if len(nominal) == 2:
        row["shape"] = "+".join(nominal)
    return row


def _row(document: Any, report: Mapping[str, Any], source: Source, place: str) -> Row:
    """Read one entry of ``benchmarks``."""
    benchmark = entry(_BENCHMARK, document, source, place)
    totals: Any = benchmark.totals or _TOTALS()
    completed = totals.successful
    if completed is None and benchmark.e2e:  # as many as there are latencies
        completed = _number_in(document["metrics"]["request_latency"]["successful"].get("count"))
    if completed == 0:
        return NOTHING_COMPLETED
    load = _load(benchmark, totals, source, place)
    stated = spreads(_data(document, report))
    lengths_there: Row = {}
    for name in ("prompt", "output"):
        part = lengths(name, getattr(benchmark, name))
        if f"{name}_low" in stated:  # what was asked for; only what was completed was measured
            part.pop(f"{name}_std", None)
            part.pop(f"{name}_quantiles", None)
        lengths_there |= part
    recorded = _recorded(benchmark, completed)
    duration = benchmark.duration
    if duration is None and None not in (benchmark.start_time, benchmark.end_time):
        duration = benchmark.end_time - benchmark.start_time
    return {
        **load,
        **lengths_there,
        **stated,
        **recorded,
        **times(benchmark, _TIMES),
        "duration_s": duration,
        "completed": completed,
        "incomplete": totals.incomplete,
        "requests_per_s": mean(benchmark.requests_per_s),
        "concurrency": mean(benchmark.concurrency),
        "note": "; ".join(_notes(benchmark, totals, completed, recorded)) or None,
    }


def _load(benchmark: Any, totals: Any, source: Source, place: str) -> Row:
    """Return the load of a strategy."""
    chosen = benchmark.strategy
    if chosen is None or not chosen.kind:
        return {"unusable": "no strategy is stated"}
    kind = chosen.kind.lower()
    limit = chosen.max_concurrency
    value = chosen.rate
    if kind == "synchronous":
        row = closed_loop(1)
    elif kind == "concurrent" and (chosen.streams or limit):
        value = chosen.streams
        row = closed_loop(value or limit)
    elif kind == "throughput":
        sent = sum(filter(None, (totals.successful, totals.incomplete, totals.errored)))
        places = limit or totals.incomplete or _DEFAULT_IN_FLIGHT
        row = closed_loop(min(places, sent or places))
    elif kind in _ARRIVALS and value:
        row = open_loop(_ARRIVALS[kind], value, limit=limit)
        # GuideLLM 0.3 sends the requests of the first second at once
        row["burst"] = math.floor(value) if chosen.initial_burst else 0
    else:
        raise source.fault(
            f"{place}the strategy {checks.shown(chosen.kind)} is not known, or its rate or streams "
            "are missing, so the load cannot be simulated. Leave the benchmark out, or benchmark "
            "at rates (constant, poisson) or with streams (concurrent)"
        )
    return row | {"load": kind if value is None else f"{kind}@{value:.6g}"}


def _notes(benchmark: Any, totals: Any, completed: float | None, recorded: Row) -> Iterator[str]:
    """Say what of the benchmark is not simulated."""
    if note := failed(totals.errored, completed or 0):
        yield note
    ramp_up = getattr(benchmark.strategy, "rampup_duration", None)
    if recorded.get("arrival_s"):
        ramp_up = None  # requests are simulated as they were sent
    for what, seconds in (
        ("warm-up", benchmark.warmup_duration),
        ("cool-down", benchmark.cooldown_duration),
        ("ramp-up", ramp_up),
    ):
        if seconds:
            yield f"the {what} of {seconds:.3g} s is not simulated"


def _recorded(benchmark: Any, completed: float | None) -> Row:
    """Return when requests were sent, how long those that were completed took, and, if all were,
    their lengths, in that order.
    """
    done = benchmark.done or []
    cut_off = benchmark.cut_off or []
    totals = benchmark.totals
    if len(done) != completed or totals is None or (totals.incomplete and not cut_off):
        return {}
    row: Row = {}
    sent = [*done, *cut_off]
    if sent and all(request.request_start_time for request in sent):
        sent.sort(key=lambda request: request.request_start_time)
        first = sent[0].request_start_time
        row["arrival_s"] = [request.request_start_time - first for request in sent]
        ended = {id(request) for request in done}
        row["ttft_each_s"] = [
            request.time_to_first_token_ms * MS
            if id(request) in ended and request.time_to_first_token_ms is not None
            else None
            for request in sent
        ]
        row["e2e_each_s"] = [
            request.request_latency if id(request) in ended else None for request in sent
        ]
        done = [request for request in sent if id(request) in ended]
    whole = all(request.prompt_tokens and request.output_tokens for request in done)
    if whole and not cut_off:
        row["prompt_lengths"] = [request.prompt_tokens for request in done]
        row["output_lengths"] = [request.output_tokens for request in done]
    return row


def _data(document: Mapping[str, Any], report: Mapping[str, Any]) -> Any:
    """Return the data argument, which has moved from version to version."""
    settings = document.get("config") or document.get("args")
    config = report.get("config")
    for holder in (
        document.get("request_loader"),
        settings.get("requests") if isinstance(settings, dict) else None,
        settings,
        report.get("args"),
        config,
        config.get("spec") if isinstance(config, dict) else None,
    ):
        if isinstance(holder, dict) and holder.get("data"):
            return holder["data"]
    return None


def _number_in(value: Any) -> float | None:
    """Return a finite number, also one written as text; None: it is none."""
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
