"""Files of tools that are not read: what each is, and what to ask of the tool in its place."""

import re

from penstock.inputs.source import Source

_HEAD = 1 << 18
_TABLE = (
    "Write its numbers as a table with the columns concurrency (or rate), isl, osl, ttft_mean_s, "
    "tpot_mean_s, requests and duration_s"
)
_OTHERS = {
    rb"Avg (?:prompt|generation) throughput:|vLLM API server version|\[core\.py:\d+\]": (
        "the log of vLLM, which has means over ten seconds and no requests. Give `penstock "
        "calibrate` what `vllm bench serve --save-result` writes, or `penstock fit` the log of an "
        "engine started with --enable-logging-iteration-details"
    ),
    rb"(?:Prefill|Decode) batch[.,]? ?(?:\[\d+\])?.{0,8}#(?:new-seq|running-req)|server_args=": (
        "the log of SGLang, which has some of its batches without their times. Give `penstock "
        "calibrate` what `bench_serving --output-file` writes, or `penstock fit` the metrics of "
        "--enable-forward-pass-metrics"
    ),
    rb'"aggregated_metrics"|"experiment_metadata"|"num_concurrency"': (
        f"a result of genai-bench, which is not read. {_TABLE}"
    ),
    rb"Average time to first token|Number of concurrency|\bAverage TTFT\b": (
        f"a result of evalscope perf, which is not read. {_TABLE}"
    ),
    rb"results_ttft_s|results_inter_token_latency_s|number_total_tokens": (
        f"a result of llmperf, which is not read. {_TABLE}"
    ),
    rb"PERFORMANCE OVERVIEW|TensorRT-LLM Version": (
        f"the report of trtllm-bench, which is not read. {_TABLE}"
    ),
    rb"Type,Name,Request Count|Running \d+\w+ test @": (
        "a result of a tool for web servers, which knows no tokens. Measure with `vllm bench serve "
        "--save-result`, GuideLLM or AIPerf"
    ),
}
"""By what stands in them."""


def refuse_other_tools(source: Source) -> None:
    """Refuse a file that is known and not read, with what to ask of its tool."""
    with source.open() as file:
        head = file.read(_HEAD)
    for mark, what in _OTHERS.items():
        if re.search(mark, head):
            raise source.fault(f"is {what}")
