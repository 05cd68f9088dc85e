"""Results of GuideLLM: its JSON, of versions from 0.2 on."""

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.measuring.calibration.result_format import (
    MS,
    Entry,
    Format,
    Number,
    Result,
    Statistics,
    at,
    fields,
)
from penstock.measuring.calibration.result_row import Row, add_note, closed_loop, open_loop

_DEFAULT_IN_FLIGHT = 512  # GuideLLM's limit on concurrent requests, where it is not told another
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
    }
)


def _more(result: Result, row: Row) -> Row:
    """Return the load, what was asked for of lengths, and what is recorded of each request."""
    stated = result.fields
    asked = spreads(_data(result))
    for name in ("prompt", "output"):
        if f"{name}_low" in asked:  # only what was completed was measured
            asked = {f"{name}_std": None, f"{name}_quantiles": None} | asked
    more = _load(result, row) | asked | _recorded(stated, row)
    if row["duration_s"] is None and None not in (stated.start_time, stated.end_time):
        more["duration_s"] = stated.end_time - stated.start_time
    add_note(row, *_not_simulated(stated, "arrival_s" in more))
    return more


def _load(result: Result, row: Row) -> Row:
    """Return the load of a strategy."""
    chosen = result.fields.strategy
    if chosen is None or not chosen.kind:
        return {"unusable": "no strategy is stated"}
    kind = chosen.kind.lower()
    number = chosen.streams if kind == "concurrent" else chosen.rate
    load = _load_of(kind, number, chosen.max_concurrency, row["incomplete"])
    if load is None:
        raise result.fault(
            f"the strategy {checks.shown(chosen.kind)} is not known, or its rate or streams "
            "are missing, so the load cannot be simulated. Leave the benchmark out, or benchmark "
            "at rates (constant, poisson) or with streams (concurrent)"
        )
    sent = sum(filter(None, (row["completed"], row["incomplete"], result.fields.failed)))
    if kind == "throughput" and sent:
        load["in_flight"] = min(load["in_flight"], sent)
    if kind in _ARRIVALS:  # GuideLLM 0.3 sends the requests of the first second at once
        load["burst"] = math.floor(number) if chosen.initial_burst else 0
    return load | {"load": kind if number is None else f"{kind}@{number:.6g}"}


# Strategies with a rate, and how requests arrive.
_ARRIVALS = {"constant": "constant", "async": "constant", "poisson": "poisson"}


def _load_of(
    kind: str, number: float | None, limit: float | None, incomplete: float | None
) -> Row | None:
    """Return the load of a strategy at so many requests/s or streams; None: it is not known."""
    if kind == "throughput":  # as many as it may: those under way at the end, where it was cut off
        return closed_loop(limit or incomplete or _DEFAULT_IN_FLIGHT)
    if kind == "synchronous":
        return closed_loop(1)
    if kind == "concurrent" and (streams := number or limit):
        return closed_loop(streams)
    if kind in _ARRIVALS and number:
        return open_loop(_ARRIVALS[kind], number, limit=limit)
    return None


def strategy(text: str, incomplete: float | None, in_flight: float | None = None) -> Row:
    """Return the load that a strategy names, such as ``constant@2.5`` or ``concurrent@8``."""
    kind, _, value = (part.strip() for part in text.lower().partition("@"))
    number = _number_in(value)
    if kind == "throughput":
        in_flight = in_flight or number
    elif value and number is None:
        return {}
    load = _load_of(kind, number, in_flight, incomplete)
    return load or ({"pattern": _ARRIVALS[kind]} if kind in _ARRIVALS else {})


def _not_simulated(stated: Any, as_sent: bool) -> Iterator[str]:
    ramp_up = getattr(stated.strategy, "rampup_duration", None)
    for what, seconds in (
        ("warm-up", stated.warmup_duration),
        ("cool-down", stated.cooldown_duration),
        ("ramp-up", None if as_sent else ramp_up),
    ):
        if seconds:
            yield f"the {what} of {seconds:.3g} s is not simulated"


def _recorded(stated: Any, totals: Row) -> Row:
    """Return when requests were sent, how long those that were completed took, and, if all were,
    their lengths, in that order.
    """
    done = stated.done or []
    cut_off = stated.cut_off or []
    if len(done) != totals["completed"] or (totals["incomplete"] != 0 and not cut_off):
        return {}
    row: Row = {}
    sent = [(request, True) for request in done] + [(request, False) for request in cut_off]
    if sent and all(request.request_start_time for request, _ in sent):
        sent.sort(key=lambda pair: pair[0].request_start_time)
        first = sent[0][0].request_start_time
        row["arrival_s"] = [request.request_start_time - first for request, _ in sent]
        ttft_ms = [request.time_to_first_token_ms if ended else None for request, ended in sent]
        row["ttft_each_s"] = [None if ms is None else ms * MS for ms in ttft_ms]
        row["e2e_each_s"] = [request.request_latency if ended else None for request, ended in sent]
        done = [request for request, ended in sent if ended]
    if not cut_off and all(request.prompt_tokens and request.output_tokens for request in done):
        row["prompt_lengths"] = [request.prompt_tokens for request in done]
        row["output_lengths"] = [request.output_tokens for request in done]
    return row


def _data(result: Result) -> Any:
    """Return the data argument, which has moved from version to version."""
    benchmark = result.document
    settings = benchmark.get("config") or benchmark.get("args")
    config = at(result.file, "config")
    holders = (
        at(benchmark, "request_loader"), at(settings, "requests"), settings,
        at(result.file, "args"), config, at(config, "spec"),
    )  # fmt: skip
    return next((data for holder in holders if (data := at(holder, "data"))), None)


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


def _number_in(value: Any) -> float | None:
    """Return a finite number, also one written as text; None: it is none."""
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _statistics(metric: str) -> tuple[Any, str]:
    return Statistics, f"metrics.{metric}.successful"


_TOTALS = ("metrics.request_totals", "request_totals", "run_stats.requests_made")


def _total(name: str, *others: str) -> tuple[Any, ...]:
    return Number, *(f"{totals}.{name}" for totals in _TOTALS), *others


# Its ``time_per_output_token_ms`` includes the first token (from 0.4 on), and is not read.
GUIDELLM = Format(
    name="guidellm",
    marks=("benchmarks",),
    listed_in="benchmarks",
    place="benchmarks[{index}]: ",
    names={
        "requests_per_s": _statistics("requests_per_second"),
        "concurrency": _statistics("request_concurrency"),
        "e2e": _statistics("request_latency"),
        "prompt": _statistics("prompt_token_count"),
        "output": _statistics("output_token_count"),
        "ttft": _statistics("time_to_first_token_ms"),
        "itl": _statistics("inter_token_latency_ms"),
        "strategy": (
            Annotated[
                _STRATEGY | None,
                BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value),
            ],
            "config.strategy",
            "args.strategy",
            "strategy",
        ),
        "totals": (dict[str, Any], *_TOTALS),
        # As many as there are latencies, where it does not say.
        "completed": _total("successful", "metrics.request_latency.successful.count"),
        "incomplete": _total("incomplete"),
        "failed": _total("errored"),
        "done": (list[_Request], "requests.successful"),
        "cut_off": (list[_Request], "requests.incomplete"),
        "duration_s": "duration",
        "start_time": (float, "start_time"),
        "end_time": (float, "end_time"),
        "warmup_duration": "warmup_duration",
        "cooldown_duration": "cooldown_duration",
    },
    needed=("metrics",),
    units={"ttft": MS, "itl": MS},
    more=_more,
    example={"strategy": {"type_": "poisson", "rate": 2.0}},
)
