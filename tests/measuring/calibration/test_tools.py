"""What each load generator states of its load is understood, or refused in one line."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import read_benchmarks
from penstock.measuring.calibration.predict import requests_of
from penstock.system.batch_time import Affine
from penstock.system.server import Server
from tests.measuring.calibration.test_benchmarks import AIPERF, VLLM, one, spread, written


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
    "request_throughput": 1.0,
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
    row = one(written(tmp_path / "a.json", VLLM | {"latencies": [0.04, 0.05, 0.06, 0.09]}))
    assert (row["e2e_mean_s"], row["e2e_p50_s"]) == (pytest.approx(0.06), pytest.approx(0.055))


def test_a_constant_rate_of_vllm_bench_is_an_infinite_burstiness(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", json.dumps(VLLM | {"burstiness": float("inf")})))
    assert (row["pattern"], row["burstiness"]) == ("constant", None)


def test_chunks_of_several_tokens_are_no_inter_token_latency(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | {"mean_e2el_ms": 50.0}))  # (50 - 30) / 2, stated 10
    assert (row["itl_mean_s"], row["note"]) == (0.01, None)
    row = one(written(tmp_path / "a.json", VLLM | {"mean_e2el_ms": 38.0, "mean_tpot_ms": 4.0}))
    assert row["itl_mean_s"] == pytest.approx(0.004)
    assert "ITL is stated as 10 ms" in row["note"]


def test_a_ramp_of_vllm_bench_is_sent_at_rates_that_rise(tmp_path: Path) -> None:
    many = {"num_prompts": 400, "completed": 400, "duration": 900.0, "request_throughput": 400 / 900}
    many |= {"total_input_tokens": 40_000, "total_output_tokens": 1_200}
    bounds = {"request_rate": "inf", "ramp_up_start_rps": 1, "ramp_up_end_rps": 4}
    ends = {}
    for kind in ("linear", "exponential"):
        row = one(written(tmp_path / "a.json", VLLM | many | bounds | {"ramp_up_strategy": kind, "burstiness": 1e3}))
        gaps = np.diff(row["arrival_s"])
        assert gaps[:20].mean() == pytest.approx(1.0, rel=0.15)
        assert gaps[-20:].mean() == pytest.approx(0.25, rel=0.15)
        assert (row["pattern"], row["load"]) == ("poisson", "ramp@1-4")
        ends[kind] = row["arrival_s"][-1]
    assert ends["exponential"] > ends["linear"], "it stays low for longer"


def test_a_ramp_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    ramp = VLLM | {"request_rate": "inf", "ramp_up_strategy": "stairs", "ramp_up_start_rps": 1, "ramp_up_end_rps": 4}
    assert "ramp_up_strategy is 'stairs' from 1.0 to 4.0" in refused(written(tmp_path / "a.json", ramp))


def test_requests_that_a_trace_timed_are_sent_when_they_were_sent(tmp_path: Path) -> None:
    lengths = {"input_lens": [100] * 4, "output_lens": [3] * 4}
    timed = VLLM | lengths | {"request_rate": "inf", "start_times": [10.0, 15.0, 19.0, 22.0], "duration": 13.0}
    row = one(written(tmp_path / "a.json", timed | {"request_throughput": 4 / 13}))
    assert (row["pattern"], row["arrival_s"], row["load"]) == ("poisson", [0.0, 5.0, 9.0, 12.0], "trace@0.25")
    assert row["ttft_each_s"] == row["e2e_each_s"] == [None] * 4, "the file does not say them"


def sent_by_vllm_bench(seed: int, count: int, rate: float) -> list[float]:
    """Return when vllm bench sends, as its documentation says: gamma gaps, stretched to count / rate."""
    gaps = np.random.RandomState(seed).gamma(0.5, 1 / (0.5 * rate), count)
    times = np.cumsum(gaps) * (count / rate) / gaps.sum()
    return list(times - times[0])


def test_files_without_start_times_are_sent_by_the_seed_that_another_shows(tmp_path: Path) -> None:
    """Or else by the usual one; where requests were sent at other times than any small seed's, by none."""

    def bench(name: str, count: int, rate: float, **more: Any) -> None:
        lasted = {"num_prompts": count, "completed": count, "duration": count / rate + 1, "request_rate": rate}
        totals = {"total_input_tokens": 100 * count, "total_output_tokens": 3 * count}
        lasted |= totals | {"request_throughput": count / (count / rate + 1)}
        written(tmp_path / name, VLLM | lasted | more)

    bench("b.json", 30, 2.0)
    alone = read_benchmarks(tmp_path / "b.json")["arrival_s"][0].to_list()
    assert alone == pytest.approx(sent_by_vllm_bench(0, 30, 2.0))
    details: dict[str, Any] = {"input_lens": [100] * 40, "output_lens": [3] * 40}
    bench("a.json", 40, 1.0, start_times=sent_by_vllm_bench(7, 40, 1.0), **details)
    table = read_benchmarks(tmp_path)
    assert table["arrival_s"][1].to_list() == pytest.approx(sent_by_vllm_bench(7, 30, 2.0))
    bench("a.json", 40, 1.0, start_times=[float(second) ** 1.1 for second in range(40)], **details)
    assert read_benchmarks(tmp_path)["arrival_s"][1] is None


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
    slow = {"request_throughput": {"unit": "requests/sec", "avg": 1.0}}
    row = one(written(tmp_path / "profile_export_aiperf.json", phases(warm, settings) | slow))
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


@pytest.mark.parametrize(
    "header",
    [
        "Run Info,Run Info,Benchmark,Request Counts\nRun ID,Profile,Strategy,Successful\n,,,\na,{},poisson@1.00,24\n",
        "Type,Name,Successful Requests,Successful Requests per second mean\nbenchmark,constant@2.50,78,1.3\n",
    ],
    ids=["csv from 0.4 on", "csv to 0.3"],
)
def test_tables_of_guidellm_are_refused_in_favour_of_its_json(header: Any, tmp_path: Path) -> None:
    assert refused(written(tmp_path / "a.csv", header)) == (
        "a.csv: is a table of GuideLLM, which is not read. Give the JSON that GuideLLM writes beside it."
    )


def test_rows_of_a_table_of_guidellm_as_json_are_refused_for_what_they_are(tmp_path: Path) -> None:
    rows = [{"Name": "constant@2.50", "Successful Requests per second mean": 1.3}]
    assert refused(written(tmp_path / "a.json", rows)) == (
        'a.json: is JSON with the columns of GuideLLM\'s table, such as "Successful Requests per second mean", '
        'not with its results, which stand under "benchmarks". Give the JSON that GuideLLM writes beside its table.'
    )


def benchmark(**changes: Any) -> dict[str, Any]:
    metrics = {
        "requests_per_second": spread(0.22, 0.22),
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
    several = {"benchmarks": [*benchmark()["benchmarks"], 7]}
    assert "benchmarks[1]: " in refused(written(tmp_path / "a.json", several))
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


def test_an_inter_token_latency_that_is_a_little_off_in_a_table_is_noted(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.csv", "rate,prompt,output,ttft_ms,itl_ms,e2e_ms\n2,500,11,100,15,300\n"))
    assert row["itl_mean_s"] == pytest.approx(0.015)
    assert "(E2E - TTFT) / (output - 1) is 20 ms" in row["note"]


# Metrics of one row against each other


def test_a_time_between_tokens_of_one_token_is_left_out_and_said(tmp_path: Path) -> None:
    table = "rate,prompt,output,ttft_ms,itl_ms\n2,500,1,100,20\n"
    row = read_benchmarks(written(tmp_path / "a.csv", table)).row(0, named=True)
    assert row["itl_mean_s"] is None
    assert "outputs of one token have none" in row["note"]


@pytest.mark.parametrize(
    ("columns", "values", "words"),
    [
        ("ttft_ms,itl_ms,e2e_ms", "100,9,300", "ITL is stated as 9 ms, but (E2E - TTFT) / (output - 1) is 20 ms"),
        ("ttft_ms,itl_ms,e2e_s", "100,20,300", "ITL is stated as 20 ms"),
        ("ttft_ms,itl_ms,e2e_ms", "400,20,300", "TTFT is 400 ms on average, longer than E2E with 300 ms"),
        ("ttft_p50_ms,ttft_p99_ms,itl_ms", "100,90,20", "TTFT p50 is 100 ms, above its p99 of 90 ms"),
        ("e2e_s,duration_s,incomplete", "300,60,0", "E2E is 300 s on average, longer than the benchmark with 60 s"),
        ("e2e_s,throughput,concurrency", "0.3,2,60", "0.6 under way, but a concurrency of 60 is stated"),
        ("e2e_s,throughput,completed,duration_s", "0.3,2,60,3", "2 requests/s in 3 s are not the 60 requests"),
        ("ttft_ms,itl_ms,throughput,concurrency", "100,20,2,60", "E2E of 0.3 s are 0.6 under way"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(columns: str, values: str, words: str, tmp_path: Path) -> None:
    said = refused(written(tmp_path / "a.csv", f"rate,prompt,output,{columns}\n2,500,11,{values}\n"))
    assert words in said
    assert "one of them is wrong" in said


def test_more_under_way_than_a_closed_loop_has_is_refused(tmp_path: Path) -> None:
    document = phases({"type": "concurrency", "concurrency": 2}) | {"request_latency": {"unit": "sec", "avg": 9.0}}
    document |= {"time_to_first_token": {"unit": "sec", "avg": 0.4}, "inter_token_latency": {"unit": "ms", "avg": 90.0}}
    assert "36 under way, but the client had 2" in refused(written(tmp_path / "profile_export_aiperf.json", document))


def test_lengths_that_a_tool_miscounts_are_found_by_its_own_metrics(tmp_path: Path) -> None:
    """ITL and TPOT agree, and E2E is theirs for a tenth of the tokens that are stated."""
    row = VLLM | {"mean_e2el_ms": 50.0, "total_output_tokens": 84}
    assert "ITL is stated as 10 ms" in refused(written(tmp_path / "a.json", row))


def test_answers_that_came_in_one_piece_have_no_first_token(tmp_path: Path) -> None:
    plain = {"time_to_first_token": AIPERF["request_latency"]}
    row = one(written(tmp_path / "profile_export_aiperf.json", phases({"type": "poisson", "rate": 4}) | plain))
    assert (row["ttft_mean_s"], row["itl_mean_s"], row["tpot_mean_s"], row["e2e_mean_s"]) == (None, None, None, 0.9)
    assert "answers were not streamed" in row["note"]


def test_a_rate_that_is_far_from_what_was_counted_is_counted(tmp_path: Path) -> None:
    row = one(written(tmp_path / "a.json", VLLM | {"request_throughput": 4.0}))
    assert row["requests_per_s"] == pytest.approx(4 / 3)
    assert "4 requests/s are stated, but 4 in 3 s are 1.333, which is used" in row["note"]


# What was sent


def test_lengths_have_the_quantiles_that_a_file_states(tmp_path: Path) -> None:
    """Half of the prompts have 10 tokens, half 190: a gamma of this mean and spread has neither."""
    two = {"mean": 100.0, "min": 10, "p10": 10, "p25": 10, "median": 100, "p75": 190, "p90": 190, "max": 190}
    stage = STAGE | {"successes": STAGE["successes"] | {"prompt_tokens": two}}
    row = one(written(tmp_path / "stage_0_lifecycle_metrics.json", stage))
    prompts = requests_of(row, Server(Affine(0.01, 1e-5), 512)).prompt_tokens
    assert (prompts <= 11).mean() > 0.2
    assert (prompts >= 185).mean() > 0.2
    assert prompts.max() <= 200
    assert prompts.mean() == pytest.approx(100, rel=0.02)


def test_requests_of_inference_perf_are_sent_within_its_sending_time(tmp_path: Path) -> None:
    timed = STAGE | {"benchmark_time_seconds": 26.0}
    row = one(written(tmp_path / "stage_0_lifecycle_metrics.json", timed))
    assert (row["sending_s"], row["duration_s"]) == (17.2, 26.0)
    assert requests_of(row, Server(Affine(0.01, 1e-5), 512)).arrival_s[-1] == pytest.approx(17.2)


def test_prefix_hits_that_a_file_states_are_read(tmp_path: Path) -> None:
    prompts = STAGE["successes"]["prompt_tokens"] | {"total": 4950.0, "cached": 1980.0}
    stage = STAGE | {"successes": STAGE["successes"] | {"prompt_tokens": prompts}}
    assert one(written(tmp_path / "stage_0_lifecycle_metrics.json", stage))["prefix_hits"] == pytest.approx(0.4)


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
