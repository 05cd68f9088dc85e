"""vLLM: `vllm/v1/metrics/loggers.py`, also under Ray, and names that older versions had.

It counts no arrivals. Prompt tokens are counted whole at the first token; lengths only when a
request finishes. Rejections carry no label of an engine. Requests that clients give up are counted
nowhere.
"""

from penstock.live.engines.engine_kind import Kind
from penstock.live.engines.metric import Product, Spread, Sum, Total

_CACHED = ("local_cache_hit", "external_kv_transfer")
_USUAL = (
    "running", "waiting", "finished", "first_tokens", "ttft_s", "prompt_tokens", "output_tokens",
    "finished_prompt_tokens", "finished_output_tokens", "kv_used",
)  # fmt: skip

VLLM = Kind(
    name="vLLM",
    prefixes=("vllm:", "ray_vllm_", "ray_vllm:", "vllm_"),
    mark="num_requests_running",
    identity=("model_name", "engine", "ReplicaId", "WorkerId"),
    fields={
        "running": "num_requests_running",
        "waiting": "num_requests_waiting",
        "finished": "request_success_total",
        "refused": "admission_rejections_total",
        "first_tokens": "time_to_first_token_seconds_count",
        "ttft_s": "time_to_first_token_seconds_sum",
        "prompt_tokens": "prompt_tokens_total",
        "cached_tokens": (
            Total("prompt_tokens_by_source_total", {"source": _CACHED}),
            "prefix_cache_hits_total",
            "gpu_prefix_cache_hits_total",
        ),
        "output_tokens": "generation_tokens_total",
        "finished_prompt_tokens": "request_prompt_tokens_sum",
        "finished_output_tokens": "request_generation_tokens_sum",
        "prompt_spread": Spread("request_prompt_tokens"),
        "output_spread": Spread("request_generation_tokens"),
        "batches": "iteration_tokens_total_count",
        "batch_tokens": "iteration_tokens_total_sum",
        "preemptions": "num_preemptions_total",
        "kv_used": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "kv_tokens": (
            Product("cache_config_info", ("kv_cache_size_tokens",)),
            Product("cache_config_info", ("block_size", "num_gpu_blocks")),
        ),
        "kv_block": Product("cache_config_info", ("block_size",)),
    },
    usual=_USUAL,
    same={
        ("waiting",): ("num_requests_waiting", "num_requests_waiting_by_reason"),
        ("prompt_tokens", "cached_tokens"): (
            "prompt_tokens_total",
            "prompt_tokens_by_source_total",
        ),
        ("finished", "finished_prompt_tokens"): (
            "request_success_total",
            "request_prompt_tokens_count",
        ),
        ("finished", "finished_output_tokens"): (
            "request_success_total",
            "request_generation_tokens_count",
        ),
        ("batch_tokens", "prompt_tokens", "output_tokens"): (
            "iteration_tokens_total_sum",
            Sum(("prompt_tokens_total", "generation_tokens_total")),
        ),
    },
)
