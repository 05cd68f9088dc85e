"""Results of vllm bench, and of SGLang's benchmark, which is alike: one JSON document per load."""

import math
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.result_fields import (
    MS,
    NOTHING_COMPLETED,
    Number,
    Row,
    closed_loop,
    entry,
    failed,
    fields,
    listed,
    open_loop,
)
from penstock.measuring.calibration.send_times import Schedule, ramp

_REGULAR = 1e6  # burstiness from which on gaps between requests are all alike
_MOST_SCHEDULED = 1_000_000  # requests whose times are worked out from a seed
_AT_ONCE_S = 1.0  # in which a client that is told no rate sends all its requests


def belongs(document: Any) -> bool:
    """Tell whether a document is one of ``vllm bench serve --save-result``, or a list of them."""
    first = next(iter(listed(document)), None)
    return isinstance(first, dict) and "request_throughput" in first and "mean_ttft_ms" in first


def _where_infinite(other: float | None) -> BeforeValidator:
    return BeforeValidator(lambda value: other if value in ("inf", math.inf) else value)


_Burstiness = Annotated[float | None, Field(gt=0), _where_infinite(_REGULAR)]
_Length = Annotated[int, Field(ge=0, le=10_000_000)]
_VLLM_BENCH = fields(
    {
        **{name: name for name in ("completed", "failed", "duration", "max_concurrency")},
        "request_rate": (Annotated[Number | None, _where_infinite(None)], "request_rate"),
        "burstiness": (_Burstiness, "burstiness"),
        "ramp_up_strategy": (str, "ramp_up_strategy"),
        "backend": (Any, "backend"),
        "ramp_up_start": "ramp_up_start_rps",
        "ramp_up_end": "ramp_up_end_rps",
        "sent": "num_prompts",
        "requests_per_s": "request_throughput",
        "prompt_tokens": (Number, "total_input_tokens", "total_input"),
        "output_tokens": (Number, "total_output_tokens", "total_output"),
        "latencies": (list[Number], "latencies"),
        "input_lens": (list[_Length | None], "input_lens"),
        "output_lens": (list[_Length | None], "output_lens"),
        "ttfts": (list[float], "ttfts"),
        "itls": (list[list[float]], "itls"),
        "start_times": (list[float], "start_times"),
    },
    needed=(
        "completed", "duration", "request_throughput", "total_input_tokens", "total_output_tokens",
    ),
)  # fmt: skip
_STATISTICS = {"mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p99": "p99"}
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
# Keys of vllm bench (``e2e_latency``: of SGLang's) and the columns that they are.
_MILLISECONDS = {
    f"{statistic}_{metric}_ms": f"{_METRICS[metric]}_{_STATISTICS[statistic]}_s"
    for metric in _METRICS
    for statistic in _STATISTICS
}
_VLLM_TIMES = fields({key: key for key in _MILLISECONDS})


def rows(document: Any, source: Source) -> list[Row]:
    """Return a row for each result; it waited for all requests."""
    return [
        _vllm_bench(result, source, f"result {number:,}: ")
        for number, result in enumerate(listed(document), 1)
    ]


def _vllm_bench(document: Any, source: Source, place: str) -> Row:
    result = entry(_VLLM_BENCH, document, source, place)
    completed = result.completed
    if not completed:
        return NOTHING_COMPLETED
    row = {
        "completed": completed,
        "incomplete": 0,
        "duration_s": result.duration,
        "prompt_tokens": result.prompt_tokens / completed,
        "output_tokens": result.output_tokens / completed,
        "requests_per_s": result.requests_per_s,
        "note": failed(result.failed, completed),
        "engine": "sglang" if str(result.backend).startswith("sglang") else None,
        **_vllm_load(result, source, place, "burstiness" in document),
        **_sent(result),
        **_from_end_to_end(result),
    }
    stated = entry(_VLLM_TIMES, document, source, place)
    for key, column in _MILLISECONDS.items():
        value = getattr(stated, key)
        if value is not None:
            row.setdefault(column, value * MS)
    return row


def _vllm_load(result: Any, source: Source, place: str, states_gaps: bool) -> Row:
    """Return gamma gaps at a rate, which may rise, some requests under way, or all at once."""
    # SGLang's benchmark, whose files are alike, does not state the burstiness: its gaps are
    # exponential, and other random numbers come between them.
    burstiness = result.burstiness or 1.0
    starts = result.start_times or [0.0]
    count = int(result.sent or result.completed + (result.failed or 0))
    if result.ramp_up_strategy:
        rates = ramp(result.ramp_up_strategy, result.ramp_up_start, result.ramp_up_end, count)
        if rates is None:
            raise source.fault(
                f"{place}ramp_up_strategy is {checks.shown(result.ramp_up_strategy)} from "
                f"{checks.shown(result.ramp_up_start)} to {checks.shown(result.ramp_up_end)} "
                "requests/s, so when requests came is unknown. Benchmark at rates that stay"
            )
        row = open_loop("poisson", count / float((1 / rates).sum()), burstiness)
        row |= {"load": f"ramp@{rates[0]:g}-{rates[-1]:g}", "client_limit": result.max_concurrency}
        if count == result.completed:
            row["schedule"] = Schedule(rates, burstiness, None)
        return row
    if result.request_rate:
        if burstiness >= _REGULAR:
            return open_loop("constant", result.request_rate, limit=result.max_concurrency)
        row = open_loop("poisson", result.request_rate, burstiness, result.max_concurrency)
        within = count / result.request_rate
        whole = count == result.completed and 1 < count <= _MOST_SCHEDULED
        if states_gaps and whole and within <= result.duration:
            rates = np.full(count, float(result.request_rate))
            row["schedule"] = Schedule(rates, burstiness, within)
        return row
    if result.max_concurrency:
        return closed_loop(result.max_concurrency)
    spread = max(starts) - min(starts)
    if spread > _AT_ONCE_S:  # a trace says when to send
        rate = (len(starts) - 1) / spread
        return open_loop("poisson", rate) | {"load": f"trace@{rate:.6g}"}
    return closed_loop(result.completed)


def _from_end_to_end(result: Any) -> Row:
    """Return how long requests took from end to end, where that is known of each."""
    # Those without output tokens failed. Answers of one token have no gaps, but an E2E.
    seconds = [latency for latency in _end_to_end(result) if latency > 0]
    if len(seconds) != result.completed or not np.isfinite(seconds).all():
        return {}
    return {
        "e2e_mean_s": float(np.mean(seconds)),
        "e2e_p50_s": float(np.median(seconds)),
        "e2e_p90_s": float(np.quantile(seconds, 0.9)),
        "e2e_p99_s": float(np.quantile(seconds, 0.99)),
    }


def _end_to_end(result: Any) -> list[float]:
    """Return how long each took, 0 where it failed; nothing where the file does not say it."""
    if result.ttfts and result.itls and len(result.ttfts) == len(result.itls):
        each = zip(result.ttfts, result.itls, strict=True)
        return [first + sum(gaps) if first > 0 else 0.0 for first, gaps in each]
    return result.latencies or []


def _sent(result: Any) -> Row:
    """Return when completed requests were sent, their lengths and times in that order."""
    all_lengths = {"prompt": result.input_lens or [], "output": result.output_lens or []}
    prompts, outputs = all_lengths.values()
    starts = result.start_times or []
    if len(prompts) != len(outputs):
        return {}
    done = [index for index in range(len(prompts)) if prompts[index] and outputs[index]]
    if not done or len(done) != result.completed:
        return {}
    row: Row = {}
    if len(starts) == len(prompts) and np.isfinite(starts).all():
        done.sort(key=lambda index: starts[index])
        row["arrival_s"] = [starts[index] - starts[done[0]] for index in done]
        for column, seconds in ("ttft_each_s", result.ttfts), ("e2e_each_s", _end_to_end(result)):
            whole = seconds is not None and len(seconds) == len(starts)
            row[column] = [seconds[index] if whole else None for index in done]
    for name, of_all in all_lengths.items():
        tokens = [of_all[index] for index in done]
        row |= {f"{name}_lengths": tokens, f"{name}_std": float(np.std(tokens)) or None}
    return row
