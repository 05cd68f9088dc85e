"""Results of vllm bench, inference-perf, AIPerf and GenAI-Perf: one JSON document per load."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, RootModel

from penstock import checks
from penstock.inputs.source import Source
from penstock.measuring.calibration.results import (
    MS,
    Entry,
    NoResult,
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

# vllm bench

_REGULAR = 1e6  # burstiness from which on gaps between requests are all alike
_AT_ONCE_S = 1.0  # in which a client that is told no rate sends all its requests


def is_vllm_bench(document: Any) -> bool:
    """Tell whether a JSON document is one of ``vllm bench serve --save-result``, or several in a list."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and "request_throughput" in first and "mean_ttft_ms" in first


def _no_limit(value: Any) -> Any:
    return None if value in ("inf", math.inf) else value


def _regular(value: Any) -> Any:
    return _REGULAR if value in ("inf", math.inf) else value


_Length = Annotated[int, Field(ge=0, le=10_000_000)]


class _VllmBench(Entry):
    completed: Number
    failed: Number | None = None
    duration: Number
    request_rate: Annotated[Number | None, BeforeValidator(_no_limit)] = None
    burstiness: Annotated[float | None, Field(gt=0), BeforeValidator(_regular)] = None
    max_concurrency: Number | None = None
    ramp_up_strategy: str | None = None
    request_throughput: Number
    total_input_tokens: Number = Field(validation_alias=AliasChoices("total_input_tokens", "total_input"))
    total_output_tokens: Number = Field(validation_alias=AliasChoices("total_output_tokens", "total_output"))
    latencies: list[Number] | None = None
    input_lens: list[_Length | None] | None = None
    output_lens: list[_Length | None] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    start_times: list[float] | None = None


_STATISTICS = {"mean": ("mean",), "p50": ("median", "p50"), "p90": ("p90",), "p99": ("p99",)}
_METRICS = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2el", "e2e_latency")}
_MILLISECONDS = {
    f"{statistic}_{metric}_ms": f"{column}_{name}_s"
    for column, metrics in _METRICS.items()
    for metric in metrics
    for name, known in _STATISTICS.items()
    for statistic in known
}
"""Keys of vllm bench (``e2e_latency``: of SGLang's) and the columns that they are."""


class _Milliseconds(RootModel[dict[str, Number | None]]):
    """The times of a result, by their keys."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def vllm_bench(document: Any, source: Source) -> list[Row]:
    """Return a row for each result; it waited for all requests."""
    entries = document if isinstance(document, list) else [document]
    return [_vllm_bench(one, source, f"result {number:,}: ") for number, one in enumerate(entries, 1)]


def _vllm_bench(document: Any, source: Source, place: str) -> Row:
    result = entry(_VllmBench, document, source, place)
    if result.ramp_up_strategy:
        raise source.fault(
            f"{place}ramp_up_strategy is {checks.shown(result.ramp_up_strategy)}, so the rate changed all the time, "
            "which is not simulated. Benchmark at rates that stay"
        )
    completed = result.completed
    if not completed:
        return {"unusable": "no request was completed"}
    row: Row = {"completed": completed, "incomplete": 0, "duration_s": result.duration}
    row |= _vllm_load(result, source, place) | failed(result.failed, completed)
    row |= {"prompt_tokens": result.total_input_tokens / completed}
    row |= {"output_tokens": result.total_output_tokens / completed}
    row |= {"requests_per_s": result.request_throughput}
    row |= _recorded(result)
    stated = {key: document[key] for key in _MILLISECONDS if key in document}
    for key, value in entry(_Milliseconds, stated, source, place).root.items():
        if value is not None:
            row.setdefault(_MILLISECONDS[key], value * MS)
    return row


def _vllm_load(result: _VllmBench, source: Source, place: str) -> Row:
    """Return gamma gaps at a rate, a number of requests under way, or all at once."""
    if result.request_rate:
        burstiness = result.burstiness or 1.0
        if burstiness >= _REGULAR:
            return open_loop("constant", result.request_rate, limit=result.max_concurrency)
        return open_loop("poisson", result.request_rate, burstiness, result.max_concurrency)
    if result.max_concurrency:
        return closed_loop(result.max_concurrency)
    if result.start_times and max(result.start_times) - min(result.start_times) > _AT_ONCE_S:
        raise source.fault(
            f"{place}no request rate is stated, but start_times are spread over "
            f"{max(result.start_times) - min(result.start_times):,.3g} s, as where a trace says when to send, which "
            "is not simulated. Benchmark with --request-rate or --max-concurrency"
        )
    return closed_loop(result.completed)


def _recorded(result: _VllmBench) -> Row:
    """Return what is known of every request: when it was sent, its lengths, and how long it took from end to end.

    Requests without output tokens failed. Answers of one token have no gaps, but a time from end to end.
    """
    row = _sent(result)
    e2e: list[float] = []
    if result.ttfts and result.itls and len(result.ttfts) == len(result.itls):
        e2e = [first + sum(gaps) for first, gaps in zip(result.ttfts, result.itls, strict=True) if first > 0]
    elif result.latencies:
        e2e = [latency for latency in result.latencies if latency > 0]
    if len(e2e) == result.completed and np.isfinite(e2e).all():
        row |= {"e2e_mean_s": float(np.mean(e2e)), "e2e_p50_s": float(np.median(e2e))}
        row |= {"e2e_p90_s": float(np.quantile(e2e, 0.9)), "e2e_p99_s": float(np.quantile(e2e, 0.99))}
    return row


def _sent(result: _VllmBench) -> Row:
    """Return the lengths of the requests that were completed, in the order in which they were sent, and when."""
    prompts, outputs = result.input_lens or [], result.output_lens or []
    starts = result.start_times or []
    if len(prompts) != len(outputs):
        return {}
    kept = [index for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)) if prompt and output]
    if not kept or len(kept) != result.completed:
        return {}
    row: Row = {}
    if len(starts) == len(prompts) and np.isfinite(starts).all():
        kept.sort(key=lambda index: starts[index])
        row["arrival_s"] = [starts[index] - starts[kept[0]] for index in kept]
    for name, known in (("prompt", prompts), ("output", outputs)):
        tokens = [known[index] or 0 for index in kept]
        row |= {f"{name}_lengths": tokens, f"{name}_std": float(np.std(tokens)) or None}
    return row


# inference-perf


class _Load(Entry):
    requested_rate: Number | None = None
    concurrency: Number | None = None
    send_duration: Number | None = None


class _Latency(Entry):
    """Its inter-token latency and time per output token count tokens as its own tokenizer sees them in each chunk.

    That is twice too many where the tokenizer begins each chunk with a token of its own, so neither is read.
    """

    request_latency: Statistics | None = None
    time_to_first_token: Statistics | None = None


class _Throughput(Entry):
    requests_per_sec: Number | None = None


class _Fallback(Entry):
    output: Number | None = None


class _Successes(Entry):
    count: Number
    latency: _Latency | None = None
    throughput: _Throughput | None = None
    prompt: Statistics | None = Field(None, validation_alias=AliasChoices("prompt_tokens", "prompt_len"))
    output_tokens: Statistics | None = None
    output_len: Statistics | None = None
    client_fallback_requests: _Fallback | None = None


class _Failures(Entry):
    count: Number | None = None


class _InferencePerf(Entry):
    load_summary: _Load
    successes: _Successes
    failures: _Failures | None = None


def is_inference_perf(document: Any) -> bool:
    """Tell whether a JSON document is a ``*_lifecycle_metrics.json`` of inference-perf."""
    return isinstance(document, dict) and "successes" in document and "load_summary" in document


def inference_perf(document: Any, source: Source) -> list[Row]:
    """Return one row. A stage sends at a rate for a while, with Poisson arrivals, and waits for all."""
    result = entry(_InferencePerf, document, source)
    load, good = result.load_summary, result.successes
    if not load.requested_rate and not load.concurrency:
        reason = (
            "states no requested_rate and no concurrency in load_summary, as the summary of all stages does, whose "
            "times are of several loads together. Give the stage_N_lifecycle_metrics.json beside it"
        )
        raise NoResult(str(source.fault(reason)))
    if not good.count:
        return [{"unusable": "no request was completed"}]
    rate = good.throughput.requests_per_sec if good.throughput else None
    row: Row = {"completed": good.count, "incomplete": 0, "requests_per_s": rate}
    # In a closed loop requested_rate only says how fast requests were handed to the workers.
    if load.concurrency:
        row |= closed_loop(load.concurrency)
    else:
        row |= open_loop("poisson", load.requested_rate or 0.0)
    row["duration_s"] = load.send_duration or None
    if load.concurrency and rate:
        row["duration_s"] = good.count / rate
    if good.latency:
        row |= times("ttft", good.latency.time_to_first_token, 1.0)
        row |= times("e2e", good.latency.request_latency, 1.0)
    row |= lengths("prompt", good.prompt) | lengths("output", good.output_tokens or good.output_len)
    notes = [failed(result.failures.count if result.failures else None, good.count).get("note")]
    if good.output_tokens is None or (good.client_fallback_requests and good.client_fallback_requests.output):
        notes.append("output tokens were counted by the client's tokenizer, not by the server")
    return [row | {"note": "; ".join(filter(None, notes)) or None}]


# AIPerf and GenAI-Perf

_PER_UNIT = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9}


class _Aiperf(Entry):
    request_throughput: Statistics | None = None
    request_count: Statistics | None = None
    error_request_count: Statistics | None = None
    benchmark_duration: Statistics | None = None
    time_to_first_token: Statistics | None = None
    inter_token_latency: Statistics | None = None
    request_latency: Statistics | None = None
    input_sequence_length: Statistics | None = None
    output: Statistics | None = Field(
        None, validation_alias=AliasChoices("output_sequence_length", "output_token_count")
    )
    was_cancelled: bool | None = None
    input_config: dict[str, Any] = Field(default_factory=dict)


class _Setting(Entry):
    """What AIPerf's command line, or GenAI-Perf's, says of the load."""

    concurrency: Number | None = None
    request_rate: Number | None = None
    pattern: str | None = Field(None, validation_alias=AliasChoices("arrival_pattern", "request_rate_mode"))
    arrival_smoothness: Number | None = None


class _Phase(Entry):
    kind: str | None = None
    name: str | None = None
    type: str
    rate: Number | None = None
    concurrency: Number | None = None
    smoothness: Number | None = None
    exclude_from_results: bool = False

    @property
    def measured(self) -> bool:
        return (self.kind or self.name) != "warmup" and not self.exclude_from_results


_HARMLESS = (
    *_Phase.model_fields, "requests", "duration", "sessions", "grace_period", "sla", "seamless",
    "failed_request_threshold",
)  # fmt: skip
"""Settings of a phase that are read, or that change nothing of the load."""
_UNLIKE = (
    "fixed_schedule", "user_centric_rate", "num_users", "request_rate_ramp_duration", "concurrency_ramp_duration",
    "prefill_concurrency", "request_cancellation_rate",
)  # fmt: skip
"""Settings, before there were phases, with which the load is not what rate and concurrency say."""


def is_aiperf(document: Any) -> bool:
    """Tell whether a JSON document is an export of AIPerf or GenAI-Perf: metrics with a unit and an average."""
    if not isinstance(document, dict):
        return False
    metric = document.get("time_to_first_token") or document.get("request_latency")
    return isinstance(metric, dict) and "unit" in metric and "avg" in metric


def aiperf(document: Any, source: Source) -> list[Row]:
    """Return one row; it waited for all requests.

    Its inter-token latency is (E2E - TTFT) / (output - 1) of a request, averaged over requests: `read_benchmarks` calls
    that ``tpot``.
    """
    result = entry(_Aiperf, document, source)
    if result.was_cancelled:
        raise source.fault("says was_cancelled: true, so how many requests were cut off is unknown. Run it to its end")
    throughput = result.request_throughput.mean if result.request_throughput else None
    completed = result.request_count.mean if result.request_count else None
    seconds = None
    if result.benchmark_duration and result.benchmark_duration.mean is not None:
        seconds = result.benchmark_duration.mean * _unit(source, "benchmark_duration", result.benchmark_duration, "sec")
    if completed is None and seconds and throughput:
        completed = round(seconds * throughput)
    if not completed:
        return [{"unusable": "no request was completed, or request_count is missing"}]
    if seconds is None and throughput:
        seconds = completed / throughput
    row: Row = {"completed": completed, "incomplete": 0, "duration_s": seconds, "requests_per_s": throughput}
    row |= _aiperf_load(result.input_config, source)
    for metric, name in (
        ("ttft", "time_to_first_token"),
        ("tpot", "inter_token_latency"),
        ("e2e", "request_latency"),
    ):
        part = getattr(result, name)
        row |= times(metric, part, _unit(source, name, part, "ms"))
    row |= lengths("prompt", result.input_sequence_length) | lengths("output", result.output)
    errors = result.error_request_count.mean if result.error_request_count else None
    return [row | failed(errors, completed)]


def _unit(source: Source, name: str, part: Statistics | None, usual: str) -> float:
    """Return seconds in the unit of a metric."""
    unit = (part.unit if part else None) or usual
    if unit.lower() not in _PER_UNIT:
        raise source.fault(
            f"{name}.unit is {checks.shown(unit)}, so how long that is, is unknown. Known are {', '.join(_PER_UNIT)}"
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
    load = entry(_Setting, stated, source, "in input_config, ")
    pattern = (load.pattern or ("constant" if "perf_analyzer" in settings else "poisson")).lower()
    if load.request_rate:
        return _at_rate(pattern, load.request_rate, load.arrival_smoothness, load.concurrency, source)
    if load.concurrency:
        return closed_loop(load.concurrency)
    raise source.fault("states no rate and no concurrency in input_config, so its load is unknown. Write a CSV instead")


def _phase_load(phases: Any, source: Source) -> Row:
    """Return the load of the one phase whose results these are."""
    listed = phases if isinstance(phases, list) else [phases]
    known = [entry(_Phase, phase, source, f"in input_config.phases[{number}], ") for number, phase in enumerate(listed)]
    measured = [(phase, raw) for phase, raw in zip(known, listed, strict=True) if phase.measured]
    if len(measured) != 1:
        raise source.fault(
            f"has the results of {len(measured):,} phases together (input_config.phases), but a row is one load. "
            "Benchmark each load in a run of its own"
        )
    phase, raw = measured[0]
    strange = next((key for key, value in raw.items() if key not in _HARMLESS and value not in (None, False)), None)
    if strange:
        raise _not_simulated(source, f"input_config.phases has {checks.shown(strange)}: {checks.shown(raw[strange])}")
    if phase.type == "concurrency":
        return closed_loop(phase.concurrency or 1)  # which AIPerf takes where none is given
    if phase.rate is None:
        raise _not_simulated(source, f"input_config.phases has the type {checks.shown(phase.type)} without a rate")
    return _at_rate(phase.type, phase.rate, phase.smoothness, phase.concurrency, source)


def _at_rate(kind: str, rate: float, smoothness: float | None, limit: float | None, source: Source) -> Row:
    if kind in ("poisson", "constant"):
        return open_loop(kind, rate, limit=limit)
    if kind == "gamma":
        return open_loop("poisson", rate, smoothness or 1.0, limit)
    raise _not_simulated(source, f"arrivals are of the kind {checks.shown(kind)}")


def _not_simulated(source: Source, what: str) -> Exception:
    return source.fault(
        f"{what}, a load that is not simulated. Benchmark with a rate (constant, Poisson or gamma) or a concurrency "
        "that stays"
    )


def _leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key with a plain value, however deep; of two with one name the last counts."""
    for key, value in settings.items() if isinstance(settings, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield key, value
