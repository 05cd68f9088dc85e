"""What people have of benchmarks beside saved results: printed tables, names of tools, logs of engines."""

import pytest

from penstock import read_benchmarks
from penstock.errors import InputError
from penstock.measuring.fitting.readers import read_batches
from penstock.workload.traces import load

CONSOLE = """INFO a line of a log, which a paste may have
============ Serving Benchmark Result ============
Successful requests:                     300
Failed requests:                         2
Request rate configured (RPS):           4.00
Benchmark duration (s):                  95.26
Total input tokens:                      1228800
Total generated tokens:                  38400
Request throughput (req/s):              3.15
Output token throughput (tok/s):         403.11
---------------Time to First Token----------------
Mean TTFT (ms):                          746.02
Median TTFT (ms):                        623.51
P99 TTFT (ms):                           2416.46
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          67.08
==================================================
"""
SGLANG = """============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 32
Successful requests:                     300
Benchmark duration (s):                  637.27
Total input tokens:                      1200000
Total generated tokens:                  300000
Request throughput (req/s):              0.47
Mean E2E Latency (ms):                   65087.60
Mean TTFT (ms):                          15507.69
Mean ITL (ms):                           49.63
==================================================
"""


def test_the_table_that_vllm_prints_is_read_as_what_it_saves(tmp_path):
    path = tmp_path / "console.txt"
    path.write_text(CONSOLE)
    (row,) = read_benchmarks(path).iter_rows(named=True)
    assert (row["rate"], row["completed"], row["prompt_tokens"], row["output_tokens"]) == (4.0, 300, 4096, 128)
    assert row["duration_s"] == 95.26
    assert row["ttft_mean_s"] == pytest.approx(0.74602)
    assert row["ttft_p50_s"] == pytest.approx(0.62351)
    assert row["ttft_p99_s"] == pytest.approx(2.41646)
    assert row["tpot_mean_s"] == pytest.approx(0.06708)
    assert "2 of 302 requests failed" in row["note"]


def test_the_table_that_sglang_prints_names_its_engine(tmp_path):
    path = tmp_path / "console.txt"
    path.write_text(SGLANG + CONSOLE)
    first, second = read_benchmarks(path).iter_rows(named=True)
    assert (first["pattern"], first["in_flight"], first["engine"]) == ("closed", 32, "sglang")
    assert first["e2e_mean_s"] == pytest.approx(65.0876)
    assert (second["pattern"], second["engine"]) == ("poisson", None)


@pytest.mark.parametrize("header", [
    "ISL,OSL,Concurrency,N Req,TTFT (ms),TPOT (ms),E2EL (ms),Req Tput (RPS)",
    "isl,osl,concurrency,requests,Mean TTFT [ms],mean_tpot_ms,e2e_ms,rps",
    "Input Len,Output-Len,Max Concurrency,Num Requests,ttft_mean_ms,TPOT_avg(ms),latency_ms,Request Throughput (req/s)",
])  # fmt: skip
def test_names_that_tools_use_are_known_with_units_in_brackets(tmp_path, header):
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n128,64,4,8,52.5,24.3,1583.4,0.319\n")
    (row,) = read_benchmarks(path).iter_rows(named=True)
    assert (row["pattern"], row["in_flight"], row["completed"]) == ("closed", 4, 8)
    assert (row["prompt_tokens"], row["output_tokens"], row["requests_per_s"]) == (128, 64, 0.319)
    assert row["ttft_mean_s"] == pytest.approx(0.0525)
    assert row["tpot_mean_s"] == pytest.approx(0.0243)
    assert row["e2e_mean_s"] == pytest.approx(1.5834)


def test_tokens_per_second_are_no_requests_per_second(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("ISL,OSL,QPS,Duration (s),TTFT (ms),Throughput (tok/s)\n128,64,2,60,52.5,400\n")
    (row,) = read_benchmarks(path).iter_rows(named=True)
    assert (row["rate"], row["requests_per_s"]) == (2, None)


OTHERS = {
    "vLLM": "INFO 11-02 [loggers.py:127] Engine 000: Avg prompt throughput: 1203.1 tokens/s, Running: 12 reqs\n",
    "SGLang": "[2025-11-02 10:12:40] Prefill batch. #new-seq: 1, #new-token: 512, #running-req: 0\n",
    "genai-bench": '{"aggregated_metrics": {"num_concurrency": 4, "stats": {"ttft": {"mean": 0.1}}}}\n',
    "evalscope": '{"Number of concurrency": 5, "Average time to first token (s)": 0.1}\n',
    "llmperf": '{"num_concurrent_requests": 1, "results_ttft_s_mean": 0.2}\n',
}


@pytest.mark.parametrize("tool", OTHERS)
@pytest.mark.parametrize("read", [read_benchmarks, load, read_batches])
def test_what_is_not_read_is_named_with_what_to_ask_for(tmp_path, tool, read):
    path = tmp_path / "other.txt"
    path.write_text(OTHERS[tool])
    with pytest.raises(InputError) as refused:
        read(path)
    message = str(refused.value)
    assert tool in message
    assert "Give" in message or "Write" in message
    assert "\n" not in message
