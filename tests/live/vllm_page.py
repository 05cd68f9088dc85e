"""Pages as vLLM writes them, small: made here, with all that is read and some that is not."""

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
REASONS = ("stop", "length", "abort", "error")


def page(engines: tuple[str, ...] = ("0",), requests: int = 100, running: int = 6, waiting: int = 3) -> bytes:
    """Return what engines would say after so many requests of 40 and 80 prompt tokens and 30 and 60 of output."""
    lines = ["# HELP vllm:num_requests_running Requests that run.", "# TYPE vllm:num_requests_running gauge"]
    for engine in engines:
        lines += _engine(engine, requests, running, waiting)
    lines += ['vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 4.0']
    lines += ["process_start_time_seconds 1.7e9"]
    return ("\n".join(lines) + "\n").encode()


def _engine(engine: str, requests: int, running: int, waiting: int) -> list[str]:
    own = f'engine="{engine}",model_name="m"'
    begun = requests + running
    prompt, output = 60 * begun, 45 * requests + 10 * running

    def counter(name: str, value: float, more: str = "") -> list[str]:
        created = name.removesuffix("_total") + "_created"
        return [f"vllm:{name}{{{own}{more}}} {value:.1f}", f"vllm:{created}{{{own}{more}}} 1.7e9"]

    lines = [
        f"vllm:num_requests_running{{{own}}} {running:.1f}",
        f"vllm:num_requests_waiting{{{own}}} {waiting:.1f}",
        f'vllm:num_requests_waiting_by_reason{{{own},reason="capacity"}} {waiting:.1f}',
        f'vllm:num_requests_waiting_by_reason{{{own},reason="deferred"}} 0.0',
        f"vllm:kv_cache_usage_perc{{{own}}} 0.25",
        f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="2000"}} 1.0',
        *counter("prompt_tokens_total", prompt),
        *counter("prompt_tokens_by_source_total", prompt - 600, ',source="local_compute"'),
        *counter("prompt_tokens_by_source_total", 600, ',source="local_cache_hit"'),
        *counter("generation_tokens_total", output),
        *counter("num_preemptions_total", 2),
    ]
    for reason in REASONS:
        lines += counter(
            "request_success_total", requests - 3 if reason == "stop" else 1, f',finished_reason="{reason}"'
        )
    histograms = {
        "request_prompt_tokens": [(40, requests // 2), (80, requests - requests // 2)],
        "request_generation_tokens": [(30, requests // 2), (60, requests - requests // 2)],
        "iteration_tokens_total": [((prompt + output) / (5 * begun), 5 * begun)],
        "time_to_first_token_seconds": [(0.5, begun)],
    }
    for name, values in histograms.items():
        for bound in (*BUCKETS, float("inf")):
            count = sum(many for value, many in values if value <= bound)
            le = "+Inf" if bound == float("inf") else f"{bound}.0"
            lines.append(f'vllm:{name}_bucket{{{own},le="{le}"}} {count:.1f}')
        lines.append(f"vllm:{name}_count{{{own}}} {sum(many for _, many in values):.1f}")
        lines.append(f"vllm:{name}_sum{{{own}}} {sum(value * many for value, many in values):.1f}")
        lines.append(f"vllm:{name}_created{{{own}}} 1.7e9")
    return lines
