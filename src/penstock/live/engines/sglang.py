"""SGLang: `srt/observability/metrics_collector.py`.

Its counters of prompt and generation tokens grow when a request finishes; those that grow as
tokens are computed are `realtime_tokens_total`, brought up to date only every so many batches, and
count the parts of a prompt as they are computed. Requests that are given up while they wait are
counted nowhere.
"""

from penstock.live.engines.engine_kind import Kind, Same
from penstock.live.engines.metric import Spread, Total

_REALTIME = "realtime_tokens_total"
_PREFILL = frozenset({"prefill_compute", "prefill_cache"})

SGLANG = Kind(
    name="SGLang",
    prefixes=("sglang:", "sglang_"),
    mark="num_running_reqs",
    identity=("model_name", "engine_type", "dp_rank", "WorkerId"),
    only={"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"},
    fields={
        "running": (Total("num_running_reqs"),),
        "waiting": (Total("num_queue_reqs"),),
        "finished": (Total("num_requests_total"),),
        "first_tokens": (Total("time_to_first_token_seconds_count"),),
        "ttft_s": (Total("time_to_first_token_seconds_sum"),),
        "prompt_tokens": (Total(_REALTIME, {"mode": _PREFILL}),),
        "cached_tokens": (Total(_REALTIME, {"mode": frozenset({"prefill_cache"})}),),
        "output_tokens": (Total(_REALTIME, {"mode": frozenset({"decode"})}),),
        "finished_prompt_tokens": (Total("prompt_tokens_total"),),
        "finished_output_tokens": (Total("generation_tokens_total"),),
        "prompt_spread": (Spread("prompt_tokens_histogram"),),
        "output_spread": (Spread("generation_tokens_histogram"),),
        "preemptions": (Total("num_retracted_requests_total"),),
        "kv_used": (Total("token_usage"),),
        "kv_tokens": (Total("max_total_num_tokens"),),
        "context_tokens": (Total("decode_sum_seq_lens"),),
    },
    # Series of a counter appear with its first request, so only gauges are always there.
    usual=frozenset({"running", "waiting", "kv_used"}),
    same=(
        Same(
            ("finished",), Total("num_requests_total"), Total("e2e_request_latency_seconds_count")
        ),
        Same(
            ("finished_prompt_tokens",),
            Total("prompt_tokens_total"),
            Total("prompt_tokens_histogram_sum"),
        ),
        Same(
            ("finished_output_tokens",),
            Total("generation_tokens_total"),
            Total("generation_tokens_histogram_sum"),
        ),
    ),
)
