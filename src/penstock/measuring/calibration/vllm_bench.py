"""Results of vllm bench, and of SGLang's benchmark, which is alike, as saved or as printed."""

import math
import re
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_format import MS, Format, Number, Result
from penstock.measuring.calibration.result_row import Row, closed_loop, open_loop
from penstock.measuring.calibration.send_times import Schedule, ramp

_REGULAR = 1e6  # burstiness from which on gaps between requests are all alike
_MOST_SCHEDULED = 1_000_000  # requests whose times are worked out from a seed
_AT_ONCE_S = 1.0  # in which a client that is told no rate sends all its requests
_METRICS = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2el", "e2e_latency")}
_STATISTICS = {"mean": ("mean",), "p50": ("median", "p50"), "p90": ("p90",), "p99": ("p99",)}
# The keys of each column, in milliseconds; the first that says something counts.
_TIMES = {
    f"{metric}_{statistic}_s": [f"{word}_{name}_ms" for name in names for word in words]
    for metric, names in _METRICS.items()
    for statistic, words in _STATISTICS.items()
}


def _more(result: Result, row: Row) -> Row:
    """Return the load, lengths, and what is known of each request; it waited for all."""
    stated, completed = result.fields, row["completed"]
    others = {
        column: milliseconds * MS
        for column, (_, *keys) in _TIMES.items()
        for key in reversed(keys)
        if row[column] is None and (milliseconds := getattr(stated, key)) is not None
    }
    return {
        **others,
        "prompt_tokens": stated.prompt_total / completed,
        "output_tokens": stated.output_total / completed,
        "engine": "sglang" if str(stated.backend).startswith("sglang") else None,
        **_load(result),
        **_sent(stated),
        **_from_end_to_end(stated),
    }


def _load(result: Result) -> Row:
    """Return gamma gaps at a rate, which may rise, some requests under way, or all at once."""
    # SGLang's benchmark, whose files are alike, does not state the burstiness: its gaps are
    # exponential, and other random numbers come between them.
    stated = result.fields
    gamma_shape = stated.gamma_shape or 1.0
    count = int(stated.sent or stated.completed + (stated.failed or 0))
    if stated.ramp_up_strategy:
        rates = ramp(stated.ramp_up_strategy, stated.ramp_up_start, stated.ramp_up_end, count)
        if rates is None:
            raise result.fault(
                f"ramp_up_strategy is {checks.shown(stated.ramp_up_strategy)} from "
                f"{checks.shown(stated.ramp_up_start)} to {checks.shown(stated.ramp_up_end)} "
                "requests/s, so when requests came is unknown. Benchmark at rates that stay"
            )
        row = open_loop("poisson", count / float((1 / rates).sum()), gamma_shape)
        row |= {"load": f"ramp@{rates[0]:g}-{rates[-1]:g}", "client_limit": stated.max_concurrency}
        if count == stated.completed:
            row["schedule"] = Schedule(rates, gamma_shape, None)
        return row
    rate, limit = stated.request_rate, stated.max_concurrency
    if rate and gamma_shape >= _REGULAR:
        return open_loop("constant", rate, limit=limit)
    if rate:
        row = open_loop("poisson", rate, gamma_shape, limit)
        within = count / rate
        whole = count == stated.completed and 1 < count <= _MOST_SCHEDULED
        states_gaps = "gamma_shape" in stated.model_fields_set
        if states_gaps and whole and within <= stated.duration_s:
            row["schedule"] = Schedule(np.full(count, float(rate)), gamma_shape, within)
        return row
    if limit:
        return closed_loop(limit)
    starts = stated.start_times or [0.0]
    spread = max(starts) - min(starts)
    if spread > _AT_ONCE_S:  # a trace says when to send
        rate = (len(starts) - 1) / spread
        return open_loop("poisson", rate) | {"load": f"trace@{rate:.6g}"}
    return closed_loop(stated.completed)


def _from_end_to_end(stated: Any) -> Row:
    """Return how long requests took from end to end, where that is known of each."""
    # Those without output tokens failed. Answers of one token have no gaps, but an E2E.
    seconds = [latency for latency in _end_to_end(stated) if latency > 0]
    if len(seconds) != stated.completed or not np.isfinite(seconds).all():
        return {}
    return {
        "e2e_mean_s": float(np.mean(seconds)),
        "e2e_p50_s": float(np.median(seconds)),
        "e2e_p90_s": float(np.quantile(seconds, 0.9)),
        "e2e_p99_s": float(np.quantile(seconds, 0.99)),
    }


def _end_to_end(stated: Any) -> list[float]:
    """Return how long each took, 0 where it failed; nothing where the file does not say it."""
    if stated.ttfts and stated.itls and len(stated.ttfts) == len(stated.itls):
        each = zip(stated.ttfts, stated.itls, strict=True)
        return [first + sum(gaps) if first > 0 else 0.0 for first, gaps in each]
    return stated.latencies or []


def _sent(stated: Any) -> Row:
    """Return when completed requests were sent, their lengths and times in that order."""
    all_lengths = {"prompt": stated.input_lens or [], "output": stated.output_lens or []}
    prompts, outputs = all_lengths.values()
    starts = stated.start_times or []
    if len(prompts) != len(outputs):
        return {}
    done = [index for index in range(len(prompts)) if prompts[index] and outputs[index]]
    if not done or len(done) != stated.completed:
        return {}
    row: Row = {}
    if len(starts) == len(prompts) and np.isfinite(starts).all():
        done.sort(key=lambda index: starts[index])
        row["arrival_s"] = [starts[index] - starts[done[0]] for index in done]
        for column, seconds in ("ttft_each_s", stated.ttfts), ("e2e_each_s", _end_to_end(stated)):
            whole = seconds is not None and len(seconds) == len(starts)
            row[column] = [seconds[index] if whole else None for index in done]
    for name, of_all in all_lengths.items():
        tokens = [of_all[index] for index in done]
        row |= {f"{name}_lengths": tokens, f"{name}_std": float(np.std(tokens)) or None}
    return row


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


def _printed(source: Source) -> list[dict[str, Any]]:
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


def _where_infinite(other: float | None) -> BeforeValidator:
    return BeforeValidator(lambda value: other if value in ("inf", math.inf) else value)


_Length = Annotated[int, Field(ge=0, le=10_000_000)]
VLLM_BENCH = Format(
    name="vllm-bench",
    marks=("request_throughput mean_ttft_ms", "0.request_throughput 0.mean_ttft_ms"),
    names={
        "completed": "completed",
        "failed": "failed",
        "duration_s": "duration",
        "max_concurrency": "max_concurrency",
        "request_rate": (Annotated[Number | None, _where_infinite(None)], "request_rate"),
        "gamma_shape": (
            Annotated[float | None, Field(gt=0), _where_infinite(_REGULAR)],
            "burstiness",
        ),
        "ramp_up_strategy": (str, "ramp_up_strategy"),
        "backend": (Any, "backend"),
        "ramp_up_start": "ramp_up_start_rps",
        "ramp_up_end": "ramp_up_end_rps",
        "sent": "num_prompts",
        "requests_per_s": "request_throughput",
        "prompt_total": (Number, "total_input_tokens", "total_input"),
        "output_total": (Number, "total_output_tokens", "total_output"),
        "latencies": (list[Number], "latencies"),
        "input_lens": (list[_Length | None], "input_lens"),
        "output_lens": (list[_Length | None], "output_lens"),
        "ttfts": (list[float], "ttfts"),
        "itls": (list[list[float]], "itls"),
        "start_times": (list[float], "start_times"),
        **{column: keys[0] for column, keys in _TIMES.items()},
        **{key: key for keys in _TIMES.values() for key in keys[1:]},
    },
    needed=(
        "completed", "duration", "request_throughput", "total_input_tokens", "total_output_tokens",
    ),
    units=dict.fromkeys(_TIMES, MS),
    place="result {number:,}: ",
    more=_more,
    in_text=_printed,
    example={"request_rate": 2.0, "total_input_tokens": 12_000, "total_output_tokens": 4_920},
)  # fmt: skip
