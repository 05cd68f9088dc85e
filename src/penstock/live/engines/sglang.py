"""SGLang: `srt/observability/metrics_collector.py`.

Its counters of prompt and generation tokens grow when a request finishes; those that grow as
tokens are computed are `realtime_tokens_total`, brought up to date only every so many batches, and
count the parts of a prompt as they are computed. Requests that are given up while they wait are
counted nowhere.
"""

from penstock.live.engines.engine_kind import Kind
from penstock.live.engines.metric import Spread, Total


def _realtime(*modes: str) -> Total:
    return Total("realtime_tokens_total", {"mode": modes})


SGLANG = Kind(
    name="SGLang",
    prefixes=("sglang:", "sglang_"),
    mark="num_running_reqs",
    identity=("model_name", "engine_type", "dp_rank", "WorkerId"),
    only={"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"},
    fields={
        "running": "num_running_reqs",
        "waiting": "num_queue_reqs",
        "finished": "num_requests_total",
        "first_tokens": "time_to_first_token_seconds_count",
        "ttft_s": "time_to_first_token_seconds_sum",
        "prompt_tokens": _realtime("prefill_compute", "prefill_cache"),
        "cached_tokens": _realtime("prefill_cache"),
        "output_tokens": _realtime("decode"),
        "finished_prompt_tokens": "prompt_tokens_total",
        "finished_output_tokens": "generation_tokens_total",
        "prompt_spread": Spread("prompt_tokens_histogram"),
        "output_spread": Spread("generation_tokens_histogram"),
        "preemptions": "num_retracted_requests_total",
        "kv_used": "token_usage",
        "kv_tokens": "max_total_num_tokens",
        "context_tokens": "decode_sum_seq_lens",
    },
    # Series of a counter appear with its first request, so only gauges are always there.
    usual=("running", "waiting", "kv_used"),
    same={
        ("finished",): ("num_requests_total", "e2e_request_latency_seconds_count"),
        ("finished_prompt_tokens",): ("prompt_tokens_total", "prompt_tokens_histogram_sum"),
        ("finished_output_tokens",): ("generation_tokens_total", "generation_tokens_histogram_sum"),
    },
)
