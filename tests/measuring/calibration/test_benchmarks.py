"""Each tool's results are read into the same columns; what cannot be used is said in one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import COLUMNS, FORMATS, read_benchmarks


def written(path: Path, content: Any) -> Path:
    """Write JSON, or text."""
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def one(path: Path, format: str | None = None) -> dict[str, Any]:
    """Return the only row."""
    table = read_benchmarks(path, format)
    assert table.schema == pl.Schema(COLUMNS)
    assert table.height == 1
    return table.row(0, named=True)


def spread(mean: float, median: float) -> dict[str, Any]:
    """Return statistics as GuideLLM nests them."""
    return {"successful": {"mean": mean, "median": median, "percentiles": {"p90": 2 * mean, "p99": 3 * mean}}}


GUIDELLM = {
    "metrics": {
        "requests_per_second": spread(2.4, 2.4),
        "request_concurrency": spread(1.2, 1),
        "request_latency": spread(0.5, 0.4),
        "prompt_token_count": spread(256.5, 256),
        "output_token_count": spread(64.2, 64),
        "time_to_first_token_ms": spread(20, 18),
        "inter_token_latency_ms": spread(7, 6.9),
    },
    "duration": 60.0,
}
DATA = "prompt_tokens=256,prompt_tokens_min=128,prompt_tokens_max=384,output_tokens=64,output_tokens_stdev=8"
STRATEGY = {"type_": "constant", "rate": 2.5, "max_concurrency": None, "initial_burst": True}
TOTALS = {"successful": 144, "errored": 0, "incomplete": 3, "total": 147}


@pytest.mark.parametrize(
    "entry",
    [
        {"args": {"strategy": STRATEGY}, "request_totals": TOTALS, "request_loader": {"data": DATA}},
        {"args": {"strategy": STRATEGY}, "run_stats": {"requests_made": TOTALS}, "request_loader": {"data": DATA}},
        {"config": {"strategy": STRATEGY, "requests": {"data": f"['{DATA}']"}}, "request_totals": TOTALS},
        {"config": {"strategy": STRATEGY, "requests": {"data": [DATA]}}, "request_totals": TOTALS},
    ],
)
def test_guidellm_json_of_several_versions(entry: dict[str, Any], tmp_path: Path) -> None:
    row = one(written(tmp_path / "benchmarks.json", {"benchmarks": [GUIDELLM | entry]}))
    assert (row["pattern"], row["rate"], row["burst"], row["in_flight"]) == ("constant", 2.5, 2, None)
    assert (row["completed"], row["incomplete"], row["duration_s"]) == (144, 3, 60.0)
    assert (row["shape"], row["prompt_low"], row["prompt_high"], row["output_std"]) == ("256+64", 128, 384, 8)
    assert [row["ttft_p50_s"], row["itl_mean_s"], row["e2e_p99_s"]] == pytest.approx([0.018, 0.007, 1.5])
    assert (row["prompt_tokens"], row["output_tokens"]) == (256.5, 64.2)


@pytest.mark.parametrize(
    ("strategy", "pattern", "in_flight"),
    [
        ({"type_": "synchronous"}, "closed", 1),
        ({"type_": "concurrent", "streams": 8}, "closed", 8),
        ({"type_": "throughput", "max_concurrency": None}, "closed", 3),  # as many as it cut off
        ({"type_": "throughput", "max_concurrency": 40}, "closed", 40),
        ({"type_": "poisson", "rate": 2.5}, "poisson", None),
    ],
)
def test_guidellm_strategies_are_load_patterns(
    strategy: dict[str, Any], pattern: str, in_flight: int | None, tmp_path: Path
) -> None:
    entry = GUIDELLM | {"args": {"strategy": strategy}, "request_totals": TOTALS}
    row = one(written(tmp_path / "benchmarks.json", {"benchmarks": [entry]}))
    assert (row["pattern"], row["in_flight"]) == (pattern, in_flight)


def test_guidellm_begins_with_a_burst_only_where_it_says_so(tmp_path: Path) -> None:
    for said, requests in (({"initial_burst": True}, 2), ({"initial_burst": False}, 0), ({}, 0)):
        entry = GUIDELLM | {"args": {"strategy": {"type_": "constant", "rate": 2.5} | said}, "request_totals": TOTALS}
        assert one(written(tmp_path / "benchmarks.json", {"benchmarks": [entry]}))["burst"] == requests


def test_a_table_has_a_burst_only_where_a_column_says_so(tmp_path: Path) -> None:
    text = "load,prompt,output,ttft_ms,burst\npoisson@20,64,64,20,\nconstant@20,64,64,20,20\n"
    assert read_benchmarks(written(tmp_path / "mine.csv", text))["burst"].to_list() == [None, 20]


def test_rows_that_a_table_says_not_to_use_are_left_out(sweeps: Path) -> None:
    assert read_benchmarks(sweeps / "tidy.csv").height == 153


VLLM = {
    "backend": "vllm",
    "num_prompts": 4,
    "request_rate": 2.0,
    "burstiness": 0.5,
    "max_concurrency": None,
    "duration": 3.0,
    "completed": 4,
    "total_input_tokens": 400,
    "total_output_tokens": 12,
    "request_throughput": 4 / 3,
    "mean_ttft_ms": 30.0,
    "median_ttft_ms": 25.0,
    "p99_ttft_ms": 60.0,
    "mean_tpot_ms": 9.0,
    "mean_itl_ms": 10.0,
    "median_itl_ms": 9.5,
}


def test_vllm_bench_json(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM))
    assert (row["pattern"], row["rate"], row["burstiness"], row["incomplete"]) == ("poisson", 2.0, 0.5, 0)
    assert (row["prompt_tokens"], row["output_tokens"], row["prompt_std"]) == (100, 3, None)
    assert [row["ttft_p50_s"], row["ttft_p99_s"], row["itl_mean_s"]] == pytest.approx([0.025, 0.06, 0.01])
    assert row["e2e_mean_s"] is None


def test_vllm_bench_json_with_details_has_spreads_and_end_to_end_times(tmp_path: Path) -> None:
    details = {
        "input_lens": [50, 150, 50, 150],
        "output_lens": [3, 3, 3, 3],
        "ttfts": [0.02, 0.02, 0.04, 0.04],
        "itls": [[0.01, 0.01]] * 4,
    }
    row = one(written(tmp_path / "a.json", VLLM | details | {"request_rate": "inf", "max_concurrency": 2}))
    assert (row["pattern"], row["in_flight"]) == ("closed", 2)
    assert (row["prompt_std"], row["output_std"]) == (50, None)
    assert row["e2e_mean_s"] == pytest.approx(0.05)


def test_vllm_bench_results_may_stand_one_per_line(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(VLLM | {"request_rate": rate}) for rate in (1.0, 2.0))
    assert read_benchmarks(written(tmp_path / "all.json", lines))["rate"].to_list() == [1.0, 2.0]


def test_inference_perf_json(tmp_path: Path) -> None:
    document = {
        "load_summary": {"count": 100, "requested_rate": 5.0, "achieved_rate": 4.9, "send_duration": 20.0},
        "successes": {
            "count": 99,
            "latency": {
                "request_latency": {"mean": 1.0, "median": 0.9, "p99": 2.0},
                "time_to_first_token": {"mean": 0.03, "median": 0.02, "p90": 0.05},
                "inter_token_latency": {"mean": 0.01},
            },
            "throughput": {"requests_per_sec": 4.8},
            "prompt_len": {"mean": 500.0, "p10": 400, "p90": 600},
            "output_len": {"mean": 100.0},
        },
        "failures": {"count": 1},
    }
    row = one(written(tmp_path / "stage_0_lifecycle_metrics.json", document))
    assert (row["pattern"], row["rate"], row["completed"], row["duration_s"]) == ("poisson", 5.0, 99, 99 / 4.8)
    assert [row["ttft_p50_s"], row["itl_mean_s"], row["e2e_p99_s"]] == pytest.approx([0.02, (1.0 - 0.03) / 99, 2.0])
    assert row["prompt_std"] == pytest.approx(78, rel=0.01)


AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 4.0},
    "request_count": {"unit": "requests", "avg": 80.0},
    "request_latency": {"unit": "ms", "avg": 900.0, "p50": 880.0, "p99": 1400.0, "std": 90.0},
    "time_to_first_token": {"unit": "ms", "avg": 40.0, "p50": 38.0, "p99": 90.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.0, "p50": 8.9},
    "input_sequence_length": {"unit": "tokens", "avg": 512.0, "std": 30.0},
    "output_sequence_length": {"unit": "tokens", "avg": 96.0},
}


@pytest.mark.parametrize(
    ("settings", "pattern", "in_flight", "rate"),
    [
        ({"loadgen": {"concurrency": 8}}, "closed", 8, None),
        ({"loadgen": {"request_rate": 4.0, "arrival_pattern": "poisson"}}, "poisson", None, 4.0),
        ({"loadgen": {"request_rate": 4.0, "arrival_pattern": "constant", "concurrency": 50}}, "constant", None, 4.0),
        ({"perf_analyzer": {"stimulus": {"request_rate": 4.0}}}, "constant", None, 4.0),  # GenAI-Perf
        ({"perf_analyzer": {"stimulus": {"concurrency": 8}}}, "closed", 8, None),
    ],
)
def test_aiperf_and_genai_perf_exports(
    settings: dict[str, Any], pattern: str, in_flight: int | None, rate: float | None, tmp_path: Path
) -> None:
    row = one(written(tmp_path / "profile_export_aiperf.json", AIPERF | {"input_config": settings}))
    assert (row["pattern"], row["in_flight"], row["rate"]) == (pattern, in_flight, rate)
    assert [row["ttft_p50_s"], row["tpot_mean_s"], row["e2e_mean_s"]] == pytest.approx([0.038, 0.009, 0.9])
    assert row["itl_mean_s"] == pytest.approx((0.9 - 0.04) / 95), "the mean over all gaps"
    assert (row["prompt_tokens"], row["prompt_std"], row["completed"], row["duration_s"]) == (512, 30, 80, 20)


CSV = "rate,prompt,output,ttft_ms,itl_p50_us,e2e_p99_s\n2,512,100,40,9000,1.5\n8,520,101,60,12000,3\n"


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = read_benchmarks(written(tmp_path / "mine.csv", CSV))
    assert table["pattern"].to_list() == ["poisson", "poisson"]
    assert table["ttft_mean_s"].to_list() == pytest.approx([0.04, 0.06])
    assert table["itl_p50_s"].to_list() == pytest.approx([0.009, 0.012])
    assert table["e2e_p99_s"].to_list() == [1.5, 3.0]
    assert table["shape"].to_list() == ["512+100", "512+100"]


def test_a_table_with_strategies_and_compressed(tmp_path: Path) -> None:
    text = "strategy,prompt,output,ttft_ms,itl_ms,completed,duration_s\nconcurrent@4,64,64,20,8,500,30\n"
    (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(text.encode()))
    row = one(tmp_path / "mine.csv.gz")
    assert (row["pattern"], row["in_flight"], row["load"]) == ("closed", 4, "concurrent@4")


def test_a_load_that_is_no_strategy_is_only_a_name(tmp_path: Path) -> None:
    row = one(written(tmp_path / "mine.csv", "load,rate,prompt,output,ttft_ms\nteam@prod,3,64,64,20\n"))
    assert (row["load"], row["pattern"], row["rate"]) == ("team@prod", "poisson", 3.0)


def test_a_strategy_that_is_not_known_is_no_poisson_load(tmp_path: Path) -> None:
    text = "strategy,rate,prompt,output,ttft_ms\nconstnat@5,5,64,64,20\n"
    with pytest.raises(InputError, match=r"line 2 has the strategy 'constnat@5', so its load is unknown"):
        read_benchmarks(written(tmp_path / "mine.csv", text))


def test_a_strategy_without_its_number_is_no_load(tmp_path: Path) -> None:
    text = "strategy,prompt,output,ttft_ms\nconcurrent@,64,64,20\n"
    with pytest.raises(InputError, match=r"line 2 has the strategy 'concurrent@', so its load is unknown"):
        read_benchmarks(written(tmp_path / "mine.csv", text))


def test_rows_that_say_too_little_are_left_out_and_counted(tmp_path: Path) -> None:
    table = read_benchmarks(written(tmp_path / "mine.csv", CSV + "0,512,100,40,9000,1.5\n,512,100,40,9000,1.5\n"))
    assert table.height == 2
    assert table["note"].to_list() == ["2 rows of mine.csv left out: no load is stated", None]


def test_a_limit_on_requests_at_once_beside_a_rate_is_read_where_it_may_bind(tmp_path: Path) -> None:
    many = {"completed": 40, "num_prompts": 40, "duration": 30.0, "request_throughput": 40 / 30, "failed": 2}
    totals = {"total_input_tokens": 4000, "total_output_tokens": 120, "max_concurrency": 16}
    row = one(written(tmp_path / "a.json", VLLM | many | totals))
    assert (row["pattern"], row["in_flight"], row["client_limit"]) == ("poisson", None, 16)
    few = one(written(tmp_path / "a.json", VLLM | {"max_concurrency": 16}))
    assert few["client_limit"] is None, "four requests are never more than sixteen"
    table = "rate,in_flight,requests_per_s,prompt,output,ttft_p50_ms,completed\n2,16,1.3,64,64,9,100\n"
    assert one(written(tmp_path / "mine.csv", table))["client_limit"] == 16


def test_several_files_are_one_table(tmp_path: Path) -> None:
    files = [written(tmp_path / "a.json", VLLM), written(tmp_path / "mine.csv", CSV)]
    table = read_benchmarks(files)
    assert table["row"].to_list() == [0, 1, 2]
    assert table["run"].to_list() == ["a.json", "mine.csv", "mine.csv"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", {"results": []}, "is JSON of no known benchmark"),
        ("a.json", "{", "cannot be read as JSON"),
        ("a.json", {"benchmarks": [{"metrics": {}}]}, "has no row that can be used (no strategy is stated)"),
        ("a.json", {"benchmarks": [{}]}, "benchmarks[0]: metrics is missing"),
        ("a.json", VLLM | {"completed": "none"}, "completed must be a number, not 'none'"),
        ("a.csv", "rate,ttft_ms\n1,2\n", "but a benchmark needs prompt and output"),
        ("a.csv", "rate,prompt,output,ttft_ms\nfast,1,2,3\n", "has the rate 'fast', which is no number"),
        ("a.csv", "rate,prompt,output,ttft_ms\n-1,10,20,3\n", "rate is -1.0, but must be a number"),
        ("a.csv", "rate,pattern,prompt,output,ttft_ms\n1,sine,10,20,3\n", "pattern is 'sine'"),
        ("a.csv", "rate,prompt,output,ttft_ms,duration_s\n5,10,20,3,9000000\n", "there were 45,000,000 requests"),
        ("a.csv", "rate,prompt,output,ttft_ms\n,10,20,3\n", "so it says nothing of a benchmark. State rate (req"),
        ("a.csv", "rate,prompt,output\n1,10,20\n", "can be used (no TTFT, ITL or E2E)"),
        ("none.csv", None, "does not exist"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(name: str, content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / name if content is None else written(tmp_path / name, content)
    with pytest.raises(InputError) as refused:
        read_benchmarks(path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_format_can_be_forced_and_must_be_known(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", VLLM)
    assert one(path, "vllm-bench")["rate"] == 2.0
    with pytest.raises(InputError, match="no known benchmark of the format aiperf"):
        read_benchmarks(path, "aiperf")
    with pytest.raises(InputError, match="did you mean 'guidellm'"):
        read_benchmarks(path, "guidelm")
    assert set(FORMATS) == {"guidellm", "vllm-bench", "inference-perf", "aiperf", "csv"}


def test_a_time_whose_unit_is_not_said_is_refused_with_what_to_call_it(tmp_path: Path) -> None:
    text = "rate,prompt,output,ttft_p50,itl_mean_ms\n1,500,60,21,9.4\n"
    with pytest.raises(InputError, match=r"column ttft_p50, a time whose unit is not said\. Call it ttft_p50_ms"):
        read_benchmarks(written(tmp_path / "mine.csv", text))
    beside = "rate,prompt,output,ttft_p50,ttft_mean_ms,itl_mean_ms\n1,500,60,21,22,9.4\n"
    assert read_benchmarks(written(tmp_path / "mine.csv", beside))["ttft_mean_s"].to_list() == [0.022]
