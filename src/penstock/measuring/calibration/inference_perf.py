"""Results of inference-perf: one JSON document per stage."""

from typing import Any

from penstock.inputs.source import Source
from penstock.measuring.calibration.result_fields import (
    NOTHING_COMPLETED,
    NoResult,
    Row,
    Statistics,
    add_note,
    closed_loop,
    entry,
    failed,
    fields,
    lengths,
    open_loop,
    times,
)

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


def belongs(document: Any) -> bool:
    """Tell whether a JSON document is a ``*_lifecycle_metrics.json`` of inference-perf."""
    return isinstance(document, dict) and "successes" in document and "load_summary" in document


def rows(document: Any, source: Source) -> list[Row]:
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
