"""Flags of vLLM, SGLang and TensorRT-LLM that a scenario does not have under that name, and what
each would be here.
"""

_LENGTHS = (
    "lengths come from the workload: cap them there with `max`, or drop longer ones with memory: "
    "{too_long: drop}"
)
_MODEL = (
    "the model is part of the batch times: choose `hardware`, and for its KV memory gpu: {model: "
    "..., memory_gib: 80}"
)
_PARALLEL = (
    "how a model is split is part of the batch times: choose `hardware`, and for KV memory gpu: "
    "{tensor_parallel: ...}"
)
_SHARE = (
    "it is given in gpu: {memory_gib: 80, gpu_memory_utilization: ...}, from which KV memory "
    "follows"
)
_REPLICAS = (
    "one scenario is one replica: give it its share of the rate, or ask `penstock plan` for how "
    "many are needed"
)
_NO_PART = (
    "it changes the time of a batch, which is measured: fit batch times to an engine that has it, "
    "and give batch_time"
)
_NOT_MODELLED = "it is not modelled here; leave it out"
_PREFIX = (
    "it is given in memory: {prefix_caching: true}, and is on where the trace or the workflow says "
    "what prompts have in common"
)

EXPLAINED = {
    **dict.fromkeys(
        (
            "max_model_len", "context_length", "max_context_length", "max_seq_len",
            "max_sequence_length",
            "max_input_len", "max_input_length", "max_output_len", "max_total_len",
            "max_new_tokens", "max_tokens",
        ),
        _LENGTHS,
    ),
    **dict.fromkeys(("model", "model_path", "served_model_name", "dtype", "tokenizer"), _MODEL),
    **dict.fromkeys(
        (
            "tensor_parallel_size", "tensor_parallel", "tp", "tp_size",
            "expert_parallel_size", "ep", "ep_size", "enable_expert_parallel",
            "moe_expert_parallel_size",
        ),
        _PARALLEL,
    ),
    **dict.fromkeys(("data_parallel_size", "dp", "dp_size", "num_replicas"), _REPLICAS),
    **dict.fromkeys(
        (
            "gpu_memory_utilization", "mem_fraction_static", "kv_cache_free_gpu_memory_fraction",
            "kv_cache_free_gpu_mem_fraction", "free_gpu_memory_fraction", "memory_gib",
            "gpu_memory_gib",
        ),
        _SHARE,
    ),
    **dict.fromkeys(("kv_cache_memory_bytes", "num_gpu_tokens"), "it is given as tokens: "
                                                                 "max_total_tokens"),
    **dict.fromkeys(
        (
            "enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "lora_modules",
            "lora_paths", "max_loras_per_batch", "max_loaded_loras", "fully_sharded_loras",
            "lora_config", "peft_cache_config",
        ),
        f"which adapters may share a batch (LoRA): {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "sliding_window", "disable_sliding_window", "swa_full_tokens_ratio",
            "disable_hybrid_swa_memory", "swa_prefix_tails", "attention_chunk_size",
            "max_attention_window", "sink_token_length",
        ),
        f"KV memory that a sliding window gives back: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "disable_hybrid_kv_cache_manager", "mamba_block_size", "hybrid_kvcache_ratio",
            "mamba_cache_mode", "mamba_cache_dtype", "max_mamba_cache_size",
            "mamba_full_memory_ratio",
        ),
        f"KV memory of layers of several kinds: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "enable_dp_attention", "dp_attention", "enable_attention_dp", "attention_dp_config",
            "enable_dp_lm_head", "moe_dense_tp_size", "data_parallel_size_local",
        ),
        f"data-parallel ranks, which wait for each other in each batch: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "pipeline_parallel_size", "pp", "pp_size", "pp_max_micro_batch_size",
            "pp_async_batch_depth", "enable_dynamic_chunking",
        ),
        f"batches of several pipeline stages at once: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "num_cpu_blocks", "swap_space", "cpu_offload_gb", "kv_offloading_size",
            "kv_offloading_backend", "kv_transfer_config", "kv_connector", "kv_cache_connector",
            "kv_connector_config", "host_cache_size", "enable_hierarchical_cache", "hicache_ratio",
            "hicache_size", "enable_lmcache",
        ),
        f"KV memory that is kept elsewhere, and comes back: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        ("max_queued_requests", "abort_on_priority_when_disabled", "max_queue_size"),
        f"requests that are turned away or aborted: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        (
            "prefill_max_requests", "prefill_decode_interval", "prefill_decode_interval_min_bs",
            "enable_prefill_delayer", "min_free_slots_delay", "num_continuous_decode_steps",
            "scheduler_recv_interval",
        ),
        f"when SGLang holds prompts back: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(
        ("radix_eviction_policy", "enable_partial_reuse", "prefix_caching_hash_algo"),
        "which cached prefix is given up first is as the engine has it by default; leave it out",
    ),
    **dict.fromkeys(
        ("context_chunking_policy", "batching_type", "enable_chunked_context_fmha"),
        f"other ways of TensorRT-LLM to cut and batch prompts: {_NOT_MODELLED}",
    ),
    **dict.fromkeys(("max_beam_width", "beam_width", "best_of"), f"beams: {_NOT_MODELLED}"),
    **dict.fromkeys(
        ("decode_context_parallel_size", "prefill_context_parallel_size", "dcp_size",
         "attn_cp_size", "context_parallel_size"),
        f"a context that is spread over GPUs: {_NOT_MODELLED}",
    ),
    "disable_priority_preemption": "it is given the other way round: priority_preemption: false",
    "scheduler_cls": "a scheduler of your own is given as `policy: file.py:function`",
    **dict.fromkeys(
        ("quantization", "kv_cache_dtype", "enforce_eager", "attention_backend",
        "max_seq_len_to_capture",
         "speculative_config", "speculative_algorithm",
         "cuda_graph_max_bs"),
        _NO_PART,
    ),
    **dict.fromkeys(("schedule_policy",), "the order of the queue is given as `order`: fcfs or "
                                          "priority"),
    **dict.fromkeys(("enable_prefix_caching", "enable_block_reuse"), _PREFIX),
    "disable_radix_cache": "it is given in memory: {prefix_caching: false}",
    "max_concurrency": "requests arrive at the rate of the workload; max_num_seqs limits those "
                       "that run",
    "max_num_active_seqs": "it is given as max_num_seqs",
    "seed": "it is given in simulate: {seed: ...}",
}  # fmt: skip
"""By flag, with underscores: the end of a sentence that says it is no key of a server."""
