"""What flags of vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM are in a scenario, or why nothing is."""

from penstock.fields import Key

ENGINE_NAMES = {
    "token_budget": (
        "token_budget",
        "max_num_batched_tokens",
        "chunked_prefill_size",
        "max_num_tokens",
    ),
    "max_batch_size": ("max_batch_size", "max_num_seqs", "max_running_requests"),
    "order": ("order", "scheduling_policy"),
    "kv_blocks": ("kv_blocks", "num_gpu_blocks", "num_gpu_blocks_override"),
    "kv_tokens": ("kv_tokens", "max_total_tokens"),
    "block_size": ("block_size", "page_size"),
}
"""What vLLM, SGLang and TensorRT-LLM call the limits, which a server takes under these names."""

QUEUE_LIMITS = {
    "requests": "max_num_queued_reqs",
    "prompt_tokens": "max_num_queued_tokens",
    "waiting": "max_queued_requests",
}
"""What vLLM and SGLang call the limits on a queue."""

TENSOR_PARALLEL = ("tensor_parallel", "tensor_parallel_size", "tp_size", "tp")
EXPERT_PARALLEL = ("expert_parallel", "expert_parallel_size", "ep_size", "ep")
GPU_SHARE = ("gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction")


def key(limit: str, name: str = "") -> Key:
    """Return what files call a limit: ``name``, or its own, or as an engine does."""
    return Key(name or limit, others=ENGINE_NAMES[limit])


_SHAPE = "hardware: {model: ..., gpu: ..., "
_DRAFTS = "policy: vllm, policy_params: {drafts: ..., acceptance: ..., method: ..."

_GIVEN = {
    "of a server it is `FLAG: ...`": " ".join(n for names in ENGINE_NAMES.values() for n in names),
    "of a server it is `token_budget: ...`": "max_num_scheduled_tokens",
    "of a server it is `max_batch_size: ...`": "max_num_active_seqs",
    "clients who wait are `workload: {closed: {clients: ..., prompt: ..., output: ...}}`":
        "max_concurrency concurrency",
    "of a server it is `order: priority`": "enable_priority_scheduling",
    "of a server it is `queue_limit: {FLAG: ...}`": " ".join(QUEUE_LIMITS.values()),
    "counted in tokens it is `kv_tokens: ...`": "kv_cache_memory_bytes num_gpu_tokens",
    f"it is given as `{_SHAPE[:-2]}}}`": "model model_path",
    f"it is given as `{_SHAPE}tensor_parallel: ...}}`": " ".join(TENSOR_PARALLEL),
    f"it is given as `{_SHAPE}tensor_parallel: ..., expert_parallel: ...}}`, of a mixture of "
    "experts": " ".join((*EXPERT_PARALLEL, "enable_expert_parallel", "moe_expert_parallel_size")),
    f"it is given as `{_SHAPE}precision: ...}}` (bf16, fp8, fp4, int4); a name such as "
    "Qwen3-32B-AWQ says it, and a config.json":
        "precision dtype quantization q quantization_config",
    f"it is given as `{_SHAPE}kv_precision: ...}}` (bf16, fp8)": "kv_precision kv_cache_dtype",
    "it is given as `gpu: {memory_gib: ...}`": "memory_gib gpu_memory_gib",
    "it is given as `gpu: {gpu_memory_utilization: ...}`": " ".join(
        (*GPU_SHARE, "device_memory_utilization", "kv_cache_free_gpu_memory_fraction",
         "kv_cache_free_gpu_mem_fraction")
    ),
    "it is given as `memory: {tokens: ..., FLAG: ...}`": "admission too_long watermark",
    "it is given as `memory: {prefix_caching: ...}`; prefixes are known where the trace or the "
    "workflow says what prompts have in common":
        "prefix_caching enable_prefix_caching enable_block_reuse disable_radix_cache",
    f"drafts are given as `{_DRAFTS}}}`":
        "speculative_config sc spec_tokens spec_method spec_model drafts num_speculative_tokens "
        "acceptance method",
    f"beside drafts it is given as `{_DRAFTS}, FLAG: ...}}`":
        "draft_lookahead parallel_drafting mtp_modules num_nextn_predict_layers",
    "the other way round it is `policy: sglang, policy_params: {priority_preemption: ...}`":
        "disable_priority_preemption",
    "the other way round it is `policy: sglang, policy_params: {overlap_schedule: ...}`":
        "disable_overlap_schedule",
    "a scheduler of your own is `policy: file.py:function`": "scheduler_cls",
    "lengths come from the workload; what memory never holds goes with `memory: {too_long: drop}`, "
    "and vllm cuts outputs at `policy: vllm, policy_params: {max_model_len: ...}`":
        "context_length max_context_length max_seq_len max_sequence_length max_input_len "
        "max_input_length max_output_len max_total_len max_new_tokens max_tokens",
    "in a network a pool has `replicas: ...`, and `penstock plan` finds how many are needed; ranks "
    "that wait for each other in each batch (a mixture of experts) are not modelled":
        "data_parallel_size dp dp_size num_replicas replicas",
    "in a network a pool has `router: ...`": "load_balance_method router",
    "it is beside the server: `simulate: {seed: ...}`": "seed random_seed",
}  # fmt: skip
"""What a flag is here, by what is said of it: a part of a scenario in backticks."""

_NOT_MODELLED = {
    "vLLM 0.33 has it no more":
        "max_num_partial_prefills max_long_partial_prefills num_scheduler_steps swap_space "
        "max_seq_len_to_capture num_cpu_blocks preemption_mode num_lookahead_slots "
        "scheduler_delay_factor use_v2_block_manager",
    "which adapters may share a batch (LoRA) is not modelled": "lora loras peft",
    "other limits on those that wait are not modelled": "max_queue queued abort",
    "KV memory that a sliding window gives back is not modelled":
        "swa sliding attention_chunk max_attention_window sink_token",
    "memory for layers of several kinds, and for states, is not modelled":
        "hybrid_kv hybrid_kvcache mamba ssm replayssm linear_attn c128 dtype_skip",
    "prefill and decode apart are `disaggregated` in a workflow of a network; other connectors are "
    "not modelled":
        "kv_transfer kv_connector kv_cache_connector disaggregation pdmux pd reserved_decode",
    "what is kept beside the GPU's memory, and comes back, is not modelled":
        "offload offloading hicache hierarchical hisparse lmcache flexkv host_cache linker kt "
        "kv_sharing unified_memory paged_experts weights_cpu draft_weights",
    "a context that is spread over GPUs is not modelled":
        "dcp pcp cp context_parallel kv_cache_interleave kv_cache_sharding cache_layer_split",
    "batches of several pipeline stages at once are not modelled": "pipeline_parallel pp",
    "when SGLang holds prompts back is not modelled":
        "prefill_max_requests prefill_decode_interval prefill_delayer min_free_slots "
        "continuous_decode recv_interval dynamic_chunking optimistic_prefill",
    "which cached prefix is given up first is as the engine has it by default":
        "eviction partial_reuse hash_algo retention prefix_match radix_cache thinking_cache "
        "chunked_prefix",
    "other ways of TensorRT-LLM to cut and batch prompts are not modelled":
        "context_chunking batching_type chunked_context_fmha",
    "beams are not modelled": "beam best_of",
    "inputs beside text are not modelled":
        "mm multimodal media image video encoder language asr ec_transfer ec_manager",
    f"drafts are modelled as vLLM makes them, with `{_DRAFTS}}}`": "speculative spec draft eagle",
    "data-parallel ranks, which wait for each other in each batch, are not modelled":
        "dp dwdp data_parallel attention_dp moe_dense_tp moe_data_parallel elastic ep_join "
        "max_ep_size dpn dpr dpl dpa dpp dpb dph dpe dpm",
    "it changes no batch that is modelled":
        "log logging logprobs metrics enable_trace trace_modules traces otlp nvtx canary ssl api "
        "asc host port http2 h11 grpc uds sidecar headless template parser tool tokenizer "
        "tokens_only thinking cohere fingerprint download load_format load_snapshot load_publish "
        "load_mode loader safetensors weight_cache weight_version tqdm gc jit map_location ckpt "
        "wait_weights revision trust served hf warmup warmups stat profile debug dump response "
        "return stream streaming fastapi allow allowed dist middleware root_path nnodes node_rank "
        "master timeout ray worker workers memory_saver sleep bucket buckets labels sigquit "
        "environ patterns storage hooks plugin processors checksum notify keep_alive embedding "
        "server_load effort hidden_state decrypted_config time_cost watermark_key "
        "watermark_context_window watermark_mixing_probability watermark_max_probability "
        "watermark_default_enabled watermark_enforce_all",
    "it changes the time of a batch, which `batch_time` fitted to such an engine has in it":
        "backend attention attn graph cudagraph compile compilation cc ac eager kernel reduce "
        "monokernel megakernel fused fusion fuseep moe experts eplb reduction nccl flashinfer "
        "gpu_id modelopt quant quantize quantization dequant overlap dbo ubatch tbo deepep fp64 "
        "tf32 lm_head symm mscclpp waterfill sampling dsa dc indexer diffusion dllm deterministic "
        "device numa expert_placement expert_distribution expert_location expert_balancedness "
        "ep_dispatch ep_weight optimization performance p2p layernorm sm_group op_priority rl",
    "it is not modelled":
        "config runner prefill_only default_priority impl override_generation overrides "
        "override_args convert grammar outlines constrained",
}  # fmt: skip
"""Words of flags, by why nothing in a scenario stands for them; the first that fits counts."""


def plain(flag: str) -> str:
    """Return the name of a flag that may be spelled as on a command line."""
    return flag.lstrip("-").replace("-", "_")


def hint(name: str, setting: str | None) -> str | None:
    """Say what a flag is here, if not that ``setting``, or why it is nothing; None: no flag."""
    for text, flags in _GIVEN.items():
        if name in flags.split():
            return text.replace("FLAG", name)
    if setting is not None:
        return setting
    for why, words in _NOT_MODELLED.items():
        if any(f"_{word}_" in f"_{name}_" for word in words.split()):
            return f"{why}; leave it out"
    switch = name.startswith(("enable_", "disable_", "enforce_", "use_"))
    return "it is not modelled; leave it out" if switch else None
