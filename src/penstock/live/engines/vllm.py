"""vLLM: `vllm/v1/metrics/loggers.py`, also under Ray, and names that older versions had.

It counts no arrivals. Prompt tokens are counted whole at the first token; lengths only when a
request finishes. Rejections carry no label of an engine. Requests that clients give up are counted
nowhere.
"""

from penstock.live.engines.engine_kind import Kind, Same
from penstock.live.engines.metric import Product, Spread, Sum, Total

_CACHED = frozenset({"local_cache_hit", "external_kv_transfer"})

VLLM = Kind(
    name="vLLM",
    prefixes=("vllm:", "ray_vllm_", "ray_vllm:", "vllm_"),
    mark="num_requests_running",
    identity=("model_name", "engine", "ReplicaId", "WorkerId"),
    fields={
        "running": (Total("num_requests_running"),),
        "waiting": (Total("num_requests_waiting"),),
        "finished": (Total("request_success_total"),),
        "refused": (Total("admission_rejections_total"),),
        "first_tokens": (Total("time_to_first_token_seconds_count"),),
        "ttft_s": (Total("time_to_first_token_seconds_sum"),),
        "prompt_tokens": (Total("prompt_tokens_total"),),
        "cached_tokens": (
            Total("prompt_tokens_by_source_total", {"source": _CACHED}),
            Total("prefix_cache_hits_total"),
            Total("gpu_prefix_cache_hits_total"),
        ),
        "output_tokens": (Total("generation_tokens_total"),),
        "finished_prompt_tokens": (Total("request_prompt_tokens_sum"),),
        "finished_output_tokens": (Total("request_generation_tokens_sum"),),
        "prompt_spread": (Spread("request_prompt_tokens"),),
        "output_spread": (Spread("request_generation_tokens"),),
        "batches": (Total("iteration_tokens_total_count"),),
        "batch_tokens": (Total("iteration_tokens_total_sum"),),
        "preemptions": (Total("num_preemptions_total"),),
        "kv_used": (Total("kv_cache_usage_perc"), Total("gpu_cache_usage_perc")),
        "kv_tokens": (
            Product("cache_config_info", ("kv_cache_size_tokens",)),
            Product("cache_config_info", ("block_size", "num_gpu_blocks")),
        ),
        "kv_block": (Product("cache_config_info", ("block_size",)),),
    },
    usual=frozenset(
        {
            "running",
            "waiting",
            "finished",
            "first_tokens",
            "ttft_s",
            "prompt_tokens",
            "output_tokens",
            "finished_prompt_tokens",
            "finished_output_tokens",
            "kv_used",
        }
    ),
    same=(
        Same(("waiting",), Total("num_requests_waiting"), Total("num_requests_waiting_by_reason")),
        Same(
            ("prompt_tokens", "cached_tokens"),
            Total("prompt_tokens_total"),
            Total("prompt_tokens_by_source_total"),
        ),
        Same(
            ("finished", "finished_prompt_tokens"),
            Total("request_success_total"),
            Total("request_prompt_tokens_count"),
        ),
        Same(
            ("finished", "finished_output_tokens"),
            Total("request_success_total"),
            Total("request_generation_tokens_count"),
        ),
        Same(
            ("batch_tokens", "prompt_tokens", "output_tokens"),
            Total("iteration_tokens_total_sum"),
            Sum((Total("prompt_tokens_total"), Total("generation_tokens_total"))),
        ),
    ),
)
