"""Results of vllm bench, inference-perf, AIPerf and GenAI-Perf: one JSON document per load."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.results import (
    MS,
    NOTHING_COMPLETED,
    NoResult,
    Number,
    Row,
    Statistics,
    add_note,
    closed_loop,
    entry,
    failed,
    fields,
    lengths,
    mean,
    open_loop,
    times,
)
from penstock.measuring.calibration.send_times import Schedule, ramp

# vllm bench

_REGULAR = 1e6  # burstiness from which on gaps between requests are all alike
_MOST_SCHEDULED = 1_000_000  # requests whose times are worked out from a seed
_AT_ONCE_S = 1.0  # in which a client that is told no rate sends all its requests


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_vllm_bench(document: Any) -> bool:
    """Tell whether a document is one of ``vllm bench serve --save-result``, or a list of them."""
    first = next(iter(_listed(document)), None)
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


def vllm_bench(document: Any, source: Source) -> list[Row]:
    """Return a row for each result; it waited for all requests."""
    return [
        _vllm_bench(result, source, f"result {number:,}: ")
        for number, result in enumerate(_listed(document), 1)
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
    """Return gamma gaps at a rate, which may rise, a number of requests under way, or all at once.

    SGLang's benchmark, whose files are alike, does not state the burstiness: its gaps are
    exponential, and other random numbers come between them.
    """
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
    """Return how long requests took from end to end, where that is known of each.

    Requests without output tokens failed. Answers of one token have no gaps, but a time from end to
    end.
    """
    seconds: list[float] = []
    if result.ttfts and result.itls and len(result.ttfts) == len(result.itls):
        each = zip(result.ttfts, result.itls, strict=True)
        seconds = [first + sum(gaps) for first, gaps in each if first > 0]
    elif result.latencies:
        seconds = [latency for latency in result.latencies if latency > 0]
    if len(seconds) != result.completed or not np.isfinite(seconds).all():
        return {}
    return {
        "e2e_mean_s": float(np.mean(seconds)),
        "e2e_p50_s": float(np.median(seconds)),
        "e2e_p90_s": float(np.quantile(seconds, 0.9)),
        "e2e_p99_s": float(np.quantile(seconds, 0.99)),
    }


def _sent(result: Any) -> Row:
    """Return when completed requests were sent, and their lengths in that order."""
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
    for name, of_all in all_lengths.items():
        tokens = [of_all[index] for index in done]
        row |= {f"{name}_lengths": tokens, f"{name}_std": float(np.std(tokens)) or None}
    return row


# inference-perf

# Of inference-perf. Its inter-token latency and time per output token count tokens as its own
# tokenizer sees them in each chunk. That is twice too many where the tokenizer begins each chunk
# with a token of its own, so neither is read.
_INFERENCE_PERF = fields(
    {
        "rate": "load_summary.requested_rate",
        "concurrency": "load_summary.concurrency",
        "send_duration": "load_summary.send_duration",
        "duration": "benchmark_time_seconds",
        "cached": "successes.prompt_tokens.cached",
        "prompt_total": "successes.prompt_tokens.total",
        "completed": "successes.count",
        "e2e": (Statistics, "successes.latency.request_latency"),
        "ttft": (Statistics, "successes.latency.time_to_first_token"),
        "requests_per_s": "successes.throughput.requests_per_sec",
        "prompt": (Statistics, "successes.prompt_tokens", "successes.prompt_len"),
        "output": (Statistics, "successes.output_tokens"),
        "output_len": (Statistics, "successes.output_len"),
        "fallback": "successes.client_fallback_requests.output",
        "failed": "failures.count",
    },
    needed=("load_summary", "successes", "successes.count"),
)


def is_inference_perf(document: Any) -> bool:
    """Tell whether a JSON document is a ``*_lifecycle_metrics.json`` of inference-perf."""
    return isinstance(document, dict) and "successes" in document and "load_summary" in document


def inference_perf(document: Any, source: Source) -> list[Row]:
    """Return one row: a stage sends at a rate for a while, Poisson, and waits for all."""
    result = entry(_INFERENCE_PERF, document, source)
    if not result.rate and not result.concurrency:
        reason = (
            "states no requested_rate and no concurrency in load_summary, as the summary of all "
            "stages does, whose times are of several loads together. Give the "
            "stage_N_lifecycle_metrics.json beside it"
        )
        raise NoResult(str(source.fault(reason)))
    if not result.completed:
        return [NOTHING_COMPLETED]
    duration = result.duration or None
    if duration is None and result.requests_per_s:
        duration = result.completed / result.requests_per_s
    # In a closed loop requested_rate only says how fast requests were handed to the workers.
    if result.concurrency:
        load = closed_loop(result.concurrency)
    else:
        load = open_loop("poisson", result.rate) | {"sending_s": result.send_duration}
    row = {
        "completed": result.completed,
        "incomplete": 0,
        "requests_per_s": result.requests_per_s,
        "duration_s": duration,
        "note": failed(result.failed, result.completed),
        **load,
        **times(result, {"ttft": 1.0, "e2e": 1.0}),
        **lengths("prompt", result.prompt),
        **lengths("output", result.output or result.output_len),
    }
    if result.cached and result.prompt_total:
        row["prefix_hits"] = min(result.cached / result.prompt_total, 1.0)
    if result.output is None or result.fallback:
        add_note(row, "output tokens were counted by the client's tokenizer, not by the server")
    return [row]


# AIPerf and GenAI-Perf

_PER_UNIT = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9,
}  # fmt: skip
# Its inter-token latency is (E2E - TTFT) / (output - 1) of a request, averaged over requests.
_AIPERF_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2e": "request_latency",
}
_AIPERF = fields(
    {
        "requests_per_s": (Statistics, "request_throughput"),
        "completed": (Statistics, "request_count"),
        "failed": (Statistics, "error_request_count"),
        "duration": (Statistics, "benchmark_duration"),
        **{metric: (Statistics, key) for metric, key in _AIPERF_METRICS.items()},
        "prompt": (Statistics, "input_sequence_length"),
        "output": (Statistics, "output_sequence_length", "output_token_count"),
        "was_cancelled": (bool, "was_cancelled"),
        "input_config": (dict[str, Any], "input_config"),
    },
    input_config={},
)
# What AIPerf's command line, or GenAI-Perf's, says of the load.
_SETTING = fields(
    {
        **{name: name for name in ("concurrency", "request_rate", "arrival_smoothness")},
        "pattern": (str, "arrival_pattern", "request_rate_mode"),
    }
)
_PHASE_FIELDS: dict[str, str | tuple[Any, ...]] = {
    **{name: (str, name) for name in ("kind", "name", "type")},
    **{name: name for name in ("rate", "concurrency", "smoothness")},
    "exclude_from_results": (bool, "exclude_from_results"),
}
_PHASE = fields(_PHASE_FIELDS, needed=("type",), exclude_from_results=False)
# Settings of a phase that are read, or that change nothing of the load.
_HARMLESS = (
    *_PHASE_FIELDS, "requests", "duration", "sessions", "grace_period", "sla", "seamless",
    "failed_request_threshold",
)  # fmt: skip
# Settings, before there were phases, with which the load is not what rate and concurrency say.
_UNLIKE = (
    "fixed_schedule", "user_centric_rate", "num_users", "request_rate_ramp_duration",
    "concurrency_ramp_duration", "prefill_concurrency", "request_cancellation_rate",
)  # fmt: skip


def is_aiperf(document: Any) -> bool:
    """Tell whether a document is an export of AIPerf or GenAI-Perf: a unit and an average."""
    if not isinstance(document, dict):
        return False
    metric = document.get("time_to_first_token") or document.get("request_latency")
    return isinstance(metric, dict) and "unit" in metric and "avg" in metric


def aiperf(document: Any, source: Source) -> list[Row]:
    """Return one row; it waited for all requests."""
    result = entry(_AIPERF, document, source)
    if result.was_cancelled:
        raise source.fault(
            "says was_cancelled: true, so how many requests were cut off is unknown. Run it to "
            "its end"
        )
    throughput, completed, seconds = map(
        mean, (result.requests_per_s, result.completed, result.duration)
    )
    if seconds is not None:
        seconds *= _unit(source, "benchmark_duration", result.duration, "sec")
    if completed is None and seconds and throughput:
        completed = round(seconds * throughput)
    if not completed:
        return [{"unusable": "no request was completed, or request_count is missing"}]
    if seconds is None and throughput:
        seconds = completed / throughput
    load = _aiperf_load(result.input_config, source)
    units = {
        metric: _unit(source, key, getattr(result, metric), "ms")
        for metric, key in _AIPERF_METRICS.items()
    }
    row = {
        "completed": completed,
        "incomplete": 0,
        "duration_s": seconds,
        "requests_per_s": throughput,
        "note": failed(mean(result.failed), completed),
        **load,
        **times(result, units),
        **lengths("prompt", result.prompt),
        **lengths("output", result.output),
    }
    return [row]


def _unit(source: Source, name: str, part: Any, usual: str) -> float:
    """Return seconds in the unit of a metric."""
    unit = (part.unit if part else None) or usual
    if unit.lower() not in _PER_UNIT:
        raise source.fault(
            f"{name}.unit is {checks.shown(unit)}, so how long that is, is unknown. Known are "
            f"{', '.join(_PER_UNIT)}"
        )
    return _PER_UNIT[unit.lower()]


def _aiperf_load(settings: Mapping[str, Any], source: Source) -> Row:
    """Return the load that ``input_config`` states."""
    if "phases" in settings:
        return _phase_load(settings["phases"], source)
    stated = dict(_leaves(settings))
    unlike = next((name for name in _UNLIKE if stated.get(name)), None)
    if unlike:
        raise _not_simulated(source, f"input_config has {unlike}: {checks.shown(stated[unlike])}")
    load = entry(_SETTING, stated, source, "in input_config, ")
    usual = "constant" if "perf_analyzer" in settings else "poisson"
    if load.request_rate:
        kind = (load.pattern or usual).lower()
        return _at_rate(kind, load.request_rate, load.arrival_smoothness, load.concurrency, source)
    if load.concurrency:
        return closed_loop(load.concurrency)
    raise source.fault(
        "states no rate and no concurrency in input_config, so its load is unknown. Write a CSV "
        "instead"
    )


def _phase_load(phases: Any, source: Source) -> Row:
    """Return the load of the one phase whose results these are."""
    measured = []
    for number, raw in enumerate(_listed(phases)):
        phase = entry(_PHASE, raw, source, f"in input_config.phases[{number}], ")
        if (phase.kind or phase.name) != "warmup" and not phase.exclude_from_results:
            measured.append((phase, raw))
    if len(measured) != 1:
        raise source.fault(
            f"has the results of {len(measured):,} phases together (input_config.phases), but a "
            "row is one load. Benchmark each load in a run of its own"
        )
    phase, raw = measured[0]
    for key, value in raw.items():
        if key not in _HARMLESS and value not in (None, False):
            what = f"{checks.shown(key)}: {checks.shown(value)}"
            raise _not_simulated(source, f"input_config.phases has {what}")
    if phase.type == "concurrency":
        return closed_loop(phase.concurrency or 1)  # which AIPerf takes where none is given
    if phase.rate is None:
        kind = checks.shown(phase.type)
        raise _not_simulated(source, f"input_config.phases has the type {kind} without a rate")
    return _at_rate(phase.type, phase.rate, phase.smoothness, phase.concurrency, source)


def _at_rate(
    kind: str, rate: float, smoothness: float | None, limit: float | None, source: Source
) -> Row:
    if kind in ("poisson", "constant"):
        return open_loop(kind, rate, limit=limit)
    if kind == "gamma":
        return open_loop("poisson", rate, smoothness or 1.0, limit)
    raise _not_simulated(source, f"arrivals are of the kind {checks.shown(kind)}")


def _not_simulated(source: Source, what: str) -> Exception:
    return source.fault(
        f"{what}, a load that is not simulated. Benchmark with a rate (constant, Poisson or gamma) "
        "or a concurrency that stays"
    )


def _leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with a plain value, however deep; of two with one name the last counts."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield key, value
