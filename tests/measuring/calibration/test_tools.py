"""What each load generator states of its load is understood, or refused in one line."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.measuring.calibration.test_benchmarks import AIPERF, VLLM, one, spread, written

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import read_benchmarks
from penstock.measuring.calibration.predict import requests_of
from penstock.system.batch_time import Affine
from penstock.system.server import Server


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_benchmarks(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(path.name)
    return str(error.value)


# vllm bench

DETAILS = {  # the second failed, the third has one token
    "num_prompts": 4,
    "failed": 1,
    "completed": 3,
    "total_input_tokens": 600,
    "total_output_tokens": 7,
    "input_lens": [100, 999, 200, 300],
    "output_lens": [3, 0, 1, 3],
    "ttfts": [0.02, 0.0, 0.05, 0.04],
    "itls": [[0.01, 0.02], [], [], [0.01, 0.01]],
    "mean_itl_ms": 12.5,
    "mean_ttft_ms": 110 / 3,
}


def test_details_of_vllm_bench_count_answers_of_one_token_and_no_failures(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | DETAILS))
    assert row["e2e_mean_s"] == pytest.approx((0.05 + 0.05 + 0.06) / 3)
    assert (row["prompt_lengths"], row["output_lengths"]) == ([100, 200, 300], [3, 1, 3])
    assert row["note"] == "1 of 4 requests failed and are not simulated"


def test_recorded_lengths_are_simulated_as_they_were_sent(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | DETAILS))
    sent = requests_of(row, Server(Affine(0.01, 1e-5), 512))
    assert sent.prompt_tokens.tolist() == [100, 200, 300]
    assert sent.output_tokens.tolist() == [3, 1, 3]


def test_latencies_without_details_are_the_times_from_end_to_end(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | {"latencies": [1.0, 2.0, 3.0, 6.0]}))
    assert (row["e2e_mean_s"], row["e2e_p50_s"]) == (3.0, 2.5)


def test_a_constant_rate_of_vllm_bench_is_an_infinite_burstiness(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", json.dumps(VLLM | {"burstiness": float("inf")})))
    assert (row["pattern"], row["burstiness"]) == ("constant", None)


def test_chunks_of_several_tokens_are_no_inter_token_latency(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | {"mean_e2el_ms": 50.0}))  # (50 - 30) / 2, stated 10
    assert (row["itl_mean_s"], row["note"]) == (0.01, None)
    row = one(written(tmp_path / "a.json", VLLM | {"mean_e2el_ms": 38.0}))
    assert row["itl_mean_s"] == pytest.approx(0.004)
    assert "ITL is stated as 10 ms" in row["note"]


def test_loads_of_vllm_bench_that_are_not_simulated_are_refused(tmp_path: Path) -> None:
    ramp = VLLM | {"request_rate": "inf", "ramp_up_strategy": "linear"}
    assert "ramp_up_strategy is 'linear', so the rate changed" in refused(written(tmp_path / "a.json", ramp))
    timed = VLLM | {"request_rate": "inf", "start_times": [0.0, 5.0, 9.0, 12.0]}
    assert "start_times are spread over 12 s" in refused(written(tmp_path / "a.json", timed))


# inference-perf

STAGE = {
    "load_summary": {"count": 50, "requested_rate": 2.5, "achieved_rate": 2.9, "send_duration": 17.2},
    "successes": {
        "count": 50,
        "latency": {
            "request_latency": {"mean": 4.4, "median": 4.3, "p90": 6.0, "p99": 8.4},
            "time_to_first_token": {"mean": 2.2, "median": 2.1, "p90": 3.2, "p99": 6.9},
            "inter_token_latency": {"mean": 0.011, "median": 0.0},
            "time_per_output_token": {"mean": 0.011},
        },
        "throughput": {"requests_per_sec": 1.9},
        "prompt_tokens": {"mean": 99.0, "p10": 85.0, "p90": 116.0},
        "output_tokens": {"mean": 41.0, "p10": 30.0, "p90": 49.0},
        "output_len": {"mean": 195.0},
    },
    "failures": {"count": 2},
}


def test_inference_perf_takes_the_servers_counts_and_no_inter_token_latency(tmp_path: Path) -> None:
    row = one(written(tmp_path / "stage_0_lifecycle_metrics.json", STAGE))
    assert (row["prompt_tokens"], row["output_tokens"]) == (99.0, 41.0)
    assert row["itl_mean_s"] == pytest.approx((4.4 - 2.2) / 40)
    assert (row["itl_p50_s"], row["tpot_mean_s"]) == (None, None)
    assert row["note"] == "2 of 52 requests failed and are not simulated"


def test_a_concurrency_of_inference_perf_is_a_closed_loop(tmp_path: Path) -> None:
    closed = STAGE | {"load_summary": {"count": 50, "requested_rate": 50.0, "concurrency": 8, "send_duration": 20}}
    row = one(written(tmp_path / "stage_0_lifecycle_metrics.json", closed))
    assert (row["pattern"], row["in_flight"], row["rate"]) == ("closed", 8, None)
    assert row["duration_s"] == pytest.approx(50 / 1.9)


def test_a_summary_of_inference_perf_is_refused(tmp_path: Path) -> None:
    summary = STAGE | {"load_summary": {"count": 150}}
    assert "Give the stage_N" in refused(written(tmp_path / "summary_lifecycle_metrics.json", summary))


# AIPerf


def phases(*settings: dict[str, Any]) -> dict[str, Any]:
    return AIPERF | {"input_config": {"phases": [{"name": "profiling", "requests": 80} | one for one in settings]}}


@pytest.mark.parametrize(
    ("settings", "pattern", "load", "burstiness"),
    [
        ({"type": "poisson", "rate": 2.0}, "poisson", 2.0, None),
        ({"type": "constant", "rate": 2.0, "concurrency": 50}, "constant", 2.0, None),
        ({"type": "gamma", "rate": 2.0, "smoothness": 0.5}, "poisson", 2.0, 0.5),
        ({"type": "concurrency", "concurrency": 8}, "closed", 8, None),
        ({"type": "concurrency"}, "closed", 1, None),
    ],
)
def test_a_phase_of_aiperf_is_a_load(
    settings: dict[str, Any], pattern: str, load: float, burstiness: float | None, tmp_path: Path
) -> None:
    warm = {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 3}
    row = one(written(tmp_path / "profile_export_aiperf.json", phases(warm, settings)))
    assert (row["pattern"], row["burstiness"]) == (pattern, burstiness)
    assert row["in_flight" if pattern == "closed" else "rate"] == load


def test_a_single_phase_of_aiperf_may_stand_without_a_list(tmp_path: Path) -> None:
    alone = AIPERF | {"input_config": {"phases": {"type": "poisson", "rate": 2.0}}}
    assert one(written(tmp_path / "profile_export_aiperf.json", alone))["rate"] == 2.0


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (phases({"type": "poisson", "rate": 1}, {"type": "poisson", "rate": 2}), "results of 2 phases together"),
        (phases({"type": "poisson", "rate": 1, "rate_ramp": {"duration": 9}}), "'rate_ramp'"),
        (phases({"type": "fixed_schedule"}), "the type 'fixed_schedule' without a rate"),
        (phases({"type": "user_centric", "rate": 2, "users": 9}), "'users'"),
        (phases({"rate": 2}), "type is missing"),
        (AIPERF | {"input_config": {"loadgen": {"user_centric_rate": 2.0}}}, "user_centric_rate"),
        (AIPERF | {"input_config": {}}, "no rate and no concurrency"),
        (AIPERF | {"was_cancelled": True}, "was_cancelled"),
        (
            phases({"type": "poisson", "rate": 2}) | {"request_latency": {"unit": "days", "avg": 1.0}},
            "request_latency.unit is 'days'",
        ),
    ],
)
def test_loads_of_aiperf_that_are_not_understood_are_refused(
    document: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refused(written(tmp_path / "profile_export_aiperf.json", document))


# GuideLLM

STATISTICS = {"mean": 1.0, "median": 0.9, "std_dev": 0.2, "eleven": [0.1] * 7 + [1.8, 1.9, 2.5, 3.0]}
METRICS = {  # of requests of 100 + 40 tokens: E2E = TTFT + 39 ITL
    ("Request Latency", "Sec"): 2.15,
    ("Time to First Token", "ms"): 200.0,
    ("Time per Output Token", "ms"): 53.0,
    ("Inter Token Latency", "ms"): 50.0,
    ("Server Throughput", "Requests/Sec"): 1.3,
    ("Server Throughput", "Concurrency"): 2.8,
    ("Token Metrics", "Input Tokens"): 100.0,
    ("Token Metrics", "Output Tokens"): 40.0,
}
Columns = list[tuple[tuple[str, str, str], Any]]


def groups(strategy: str, counts: tuple[int, int, int], streamed: tuple[str, ...] = (), scale: float = 1.0) -> Columns:
    """Return a line of GuideLLM's CSV as it writes it: no columns of a status that a metric has nothing of."""
    rates = {"rate": [1.0, 4.125]}
    head = [
        (("Run Info", "Profile", ""), json.dumps(rates)),
        (("Run Info", "Requests", ""), json.dumps({"data": ["prompt_tokens=100,output_tokens=40"]})),
        (("Benchmark", "Strategy", ""), strategy),
        (("Timings", "Duration", "Sec"), 18.0),
        *zip([("Request Counts", name, "") for name in ("Successful", "Incomplete", "Errored")], counts, strict=True),
    ]
    middle = []
    for (group, name), mean in METRICS.items():
        for status in ("Successful", *(streamed if "Token" in group else streamed[:1])):
            off = (1.0 if group.startswith(("Token", "Server")) else scale) * (1 if status == "Successful" else 7)
            eleven = f"[{', '.join(str(mean * off * share) for share in STATISTICS['eleven'])}]"
            values = (mean * off, mean * off * 0.9, 0.0, eleven)
            parts = ("Mean", "Median", "Std Dev", "Percentiles")
            middle += [((group, f"{status} {name}", part), v) for part, v in zip(parts, values, strict=True)]
    return [*head, *middle, (("Scheduler", "Queued", "Avg"), 0.5)]


def write_groups(path: Path, *lines: Columns) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(zip(*(column for column, _ in lines[0]), strict=True))
        writer.writerows([value for _, value in line] for line in lines)
    return path


def test_the_csv_of_guidellm_is_read_below_its_three_lines_of_header(tmp_path: Path) -> None:
    path = write_groups(
        tmp_path / "benchmarks.csv", groups("poisson@1.00", (24, 0, 0)), groups("poisson@4.12", (63, 0, 0))
    )
    table = read_benchmarks(path)
    assert table["rate"].to_list() == [1.0, 4.125], "the profile has all digits"
    row = table.row(0, named=True)
    assert (row["pattern"], row["completed"], row["incomplete"], row["shape"]) == ("poisson", 24, 0, "100+40")
    assert [row["ttft_mean_s"], row["itl_mean_s"], row["e2e_mean_s"]] == pytest.approx([0.2, 0.05, 2.15])
    assert [row["ttft_p50_s"], row["ttft_p90_s"], row["ttft_p99_s"]] == pytest.approx([0.18, 0.36, 0.5])
    assert (row["prompt_tokens"], row["output_tokens"], row["requests_per_s"]) == (100, 40, 1.3)


def test_a_line_of_guidellms_csv_whose_columns_are_shifted_is_read_by_its_own_counts(tmp_path: Path) -> None:
    first = groups("synchronous", (24, 1, 0), ("Incomplete",))
    path = write_groups(tmp_path / "a.csv", first, groups("poisson@4.12", (63, 0, 0), scale=2.0))
    table = read_benchmarks(path)
    assert table["pattern"].to_list() == ["closed", "poisson"]
    assert table["ttft_mean_s"].to_list() == pytest.approx([0.2, 0.4])
    assert table["note"].to_list() == [None, None]


def test_a_line_of_guidellms_csv_whose_columns_cannot_be_told_is_left_out(tmp_path: Path) -> None:
    odd = groups("poisson@4.12", (63, 1, 0), ("Incomplete",))
    del odd[-9:-5]  # one metric has nothing of the incomplete request
    path = write_groups(tmp_path / "a.csv", groups("poisson@1.00", (24, 0, 0)), odd)
    table = read_benchmarks(path)
    assert table["rate"].to_list() == [1.0]
    assert "shifted against the header" in table["note"][0]


def test_the_csv_of_guidellm_03_is_its_table_of_statistics(tmp_path: Path) -> None:
    names = {
        "Requests per second": 1.3, "Request concurrency": 2.8, "Request latency": 2.15, "Prompt token count": 100.0,
        "Output token count": 40.0, "Time to first token ms": 200.0, "Inter token latency ms": 50.0,
    }  # fmt: skip
    flat: dict[str, Any] = {"Name": "constant@2.50", "Duration": 60.0, "Successful Requests": 144}
    flat |= {"Incomplete Requests": 3, "Errored Requests": 0}
    for name, mean in names.items():
        flat |= {f"Successful {name} mean": mean, f"Successful {name} median": mean}
        flat |= {f"Successful {name} [min, 0.1, 1, 5, 10, 25, 75, 90, 95, 99, max]": str([mean] * 11)}
    flat |= {"Args": json.dumps({"strategy": {"type_": "constant", "rate": 2.5, "initial_burst": True}})}
    flat |= {"Request Loader": json.dumps({"data": "prompt_tokens=100,output_tokens=40"})}
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([flat.keys(), flat.values()])
    row = one(tmp_path / "a.csv")
    assert (row["pattern"], row["rate"], row["burst"], row["incomplete"]) == ("constant", 2.5, 2, 3)
    assert [row["ttft_p90_s"], row["itl_mean_s"], row["e2e_mean_s"]] == pytest.approx([0.2, 0.05, 2.15])


def benchmark(**changes: Any) -> dict[str, Any]:
    metrics = {
        "requests_per_second": spread(2.4, 2.4),
        "request_latency": spread(0.034, 0.03),
        "prompt_token_count": spread(256.0, 256),
        "output_token_count": spread(3.0, 3),
        "time_to_first_token_ms": spread(20, 18),
        "inter_token_latency_ms": spread(7, 6.9),
    }
    totals = {"successful": 2, "errored": 0, "incomplete": 0}
    entry = {"config": {"strategy": {"type_": "poisson", "rate": 2.0}}, "request_totals": totals, "duration": 9.0}
    return {"benchmarks": [{"metrics": metrics} | entry | changes]}


def test_guidellm_has_the_lengths_of_all_requests_where_none_was_cut_off(tmp_path: Path) -> None:
    requests = {"successful": [{"prompt_tokens": 250, "output_tokens": 2}, {"prompt_tokens": 262, "output_tokens": 4}]}
    row = one(written(tmp_path / "a.json", benchmark(requests=requests)))
    assert (row["prompt_lengths"], row["output_lengths"]) == ([250, 262], [2, 4])


def test_strategies_of_guidellm_that_are_not_understood_are_refused(tmp_path: Path) -> None:
    for strategy in ({"type_": "trace"}, {"type_": "poisson"}, {"type_": "concurrent"}):
        path = written(tmp_path / "a.json", benchmark(config={"strategy": strategy}))
        assert f"the strategy '{strategy['type_']}' is not known" in refused(path)


def test_what_is_no_benchmark_of_guidellm_is_refused_in_one_line(tmp_path: Path) -> None:
    flat = {"Successful Time to first token ms mean": 20.0}
    assert "benchmarks[1]: " in refused(written(tmp_path / "a.json", [{"Name": "constant@2"} | flat, 7]))
    requests = {"successful": [{"prompt_tokens": 10**400, "output_tokens": 2}] * 2}
    path = written(tmp_path / "a.json", json.dumps(benchmark(requests=requests)))
    assert "prompt_tokens must be at most 1e+07" in refused(path)


def test_a_benchmark_of_guidellm_that_completed_nothing_is_left_out_with_a_note(tmp_path: Path) -> None:
    nothing = benchmark(request_totals={"successful": 0, "errored": 9, "incomplete": 0})
    both = {"benchmarks": benchmark()["benchmarks"] + nothing["benchmarks"]}
    row = one(written(tmp_path / "a.json", both))
    assert row["note"] == "1 row of a.json left out: no request was completed"
    assert "(no request was completed)" in refused(written(tmp_path / "b.json", nothing))


# Tables of one's own


def test_rows_with_e2e_alone_are_read(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.csv", "rate,prompt,output,e2e_mean_ms\n2,500,60,900\n"))
    assert (row["e2e_mean_s"], row["itl_mean_s"]) == (pytest.approx(0.9), None)


def test_an_inter_token_latency_that_contradicts_the_rest_of_a_table_is_noted(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.csv", "rate,prompt,output,ttft_ms,itl_ms,e2e_ms\n2,500,11,100,9,300\n"))
    assert row["itl_mean_s"] == pytest.approx(0.009)
    assert "(E2E - TTFT) / (output - 1) is 20 ms" in row["note"]


# Whatever is wrong in a file, it is said in one line

ODD = [None, float("nan"), float("inf"), -1, 1e300, 10**400, "x", "8", [], {}, [{}], True, 0, 1e-320, "inf"]


def mutated(document: Any, rng: random.Random) -> Any:
    """Return a copy in which one value, somewhere, is another or is gone."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.15:
        return rng.choice(ODD)
    copy = dict(document) if isinstance(document, dict) else list(document)
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    if rng.random() < 0.1:
        del copy[key]
    else:
        copy[key] = mutated(copy[key], rng)
    return copy


@pytest.mark.parametrize(
    "document",
    [VLLM | DETAILS, STAGE, phases({"type": "poisson", "rate": 2.0}), benchmark()],
    ids=["vllm-bench", "inference-perf", "aiperf", "guidellm"],
)
def test_odd_values_are_refused_in_one_line_or_harmless(document: dict[str, Any], tmp_path: Path) -> None:
    rng = random.Random(1)
    said = []
    for _ in range(250):
        path = written(tmp_path / "a.json", json.dumps(mutated(document, rng)))
        try:
            read_benchmarks(path)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 20
    assert not any("\n" in line for line in said)
