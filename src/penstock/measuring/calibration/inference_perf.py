"""Results of inference-perf: one JSON document per stage."""

from penstock.measuring.calibration.result_format import (
    Format,
    NoResult,
    Result,
    Statistics,
    lengths,
)
from penstock.measuring.calibration.result_row import Row, add_note, closed_loop, open_loop


def _more(result: Result, row: Row) -> Row:
    """Return the load: a stage sends at a rate for a while, Poisson, and waits for all."""
    stated = result.fields
    if not stated.requested_rate and not stated.concurrent:
        reason = (
            "states no requested_rate and no concurrency in load_summary, as the summary of all "
            "stages does, whose times are of several loads together. Give the "
            "stage_N_lifecycle_metrics.json beside it"
        )
        raise NoResult(str(result.fault(reason)))
    # In a closed loop requested_rate only says how fast requests were handed to the workers.
    if stated.concurrent:
        more = closed_loop(stated.concurrent)
    else:
        more = open_loop("poisson", stated.requested_rate) | {"sending_s": stated.sending}
    more["duration_s"] = row["duration_s"] or None
    if stated.cached and stated.prompt_total:
        more["prefix_hits"] = min(stated.cached / stated.prompt_total, 1.0)
    if stated.output is None:
        more |= lengths("output", stated.output_len)
    if stated.output is None or stated.fallback:
        add_note(row, "output tokens were counted by the client's tokenizer, not by the server")
    return more


# Its inter-token latency and time per output token count tokens as its own tokenizer sees them in
# each chunk. That is twice too many where the tokenizer begins each chunk with a token of its own,
# so neither is read.
INFERENCE_PERF = Format(
    name="inference-perf",
    marks=("successes load_summary",),
    names={
        "requested_rate": "load_summary.requested_rate",
        "concurrent": "load_summary.concurrency",
        "sending": "load_summary.send_duration",
        "duration_s": "benchmark_time_seconds",
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
    more=_more,
    example={"load_summary": {"requested_rate": 2.0}},
)
