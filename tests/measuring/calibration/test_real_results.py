"""What real load generators wrote of a real vLLM server is read as the file itself, and its README, say."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import read_benchmarks
from penstock.measuring.calibration.calibrate import calibrate
from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.readers import read_batches

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def real(name: str) -> Path:
    path = SHARED / "real_vllm_cpu" / name
    if not path.exists():
        pytest.skip(f"no {name} in shared/data/real_vllm_cpu beside the repository")
    return path


def row_of(path: Path) -> dict[str, Any]:
    table = read_benchmarks(path)
    assert table.height == 1
    return table.row(0, named=True)


VLLM = [
    ("vb_100_r1", "poisson", 1.0, (100, 40), 20),
    ("vb_100_r2.5", "poisson", 2.5, (100, 40), 50),
    ("vb_100_r4", "poisson", 4.0, (100, 40), 80),
    ("vb_100_r5", "poisson", 5.0, (100, 40), 100),
    ("vb_100_c10", "closed", 10, (100, 40), 50),
    ("vb_250_r1", "poisson", 1.0, (250, 20), 20),
    ("vb_250_r2.5", "poisson", 2.5, (250, 20), 45),
]


@pytest.mark.parametrize(("name", "pattern", "load", "lengths", "completed"), VLLM)
def test_vllm_bench(name: str, pattern: str, load: float, lengths: tuple[int, int], completed: int) -> None:
    path = real(f"vllm_bench/{name}.json")
    row, stated = row_of(path), json.loads(path.read_text())
    assert (row["pattern"], row["in_flight" if pattern == "closed" else "rate"]) == (pattern, load)
    assert (row["completed"], row["incomplete"], row["note"]) == (completed, 0, None)
    assert (row["prompt_tokens"], row["output_tokens"]) == pytest.approx(lengths, rel=0.005)
    for metric, key in (("ttft", "ttft"), ("itl", "itl"), ("tpot", "tpot"), ("e2e", "e2el")):
        for column, name_there in (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99")):
            assert row[f"{metric}_{column}_s"] * 1e3 == pytest.approx(stated[f"{name_there}_{key}_ms"])
    per_token = (row["e2e_mean_s"] - row["ttft_mean_s"]) / (row["output_tokens"] - 1)
    assert row["itl_mean_s"] == pytest.approx(per_token, rel=0.01), "a few tokens come in one chunk"
    starts = stated.get("start_times")
    if starts is not None:
        assert row["arrival_s"] == sorted(one - min(starts) for one in starts)
        assert statistics.mean(row["ttft_each_s"]) == pytest.approx(row["ttft_mean_s"])
        assert statistics.mean(row["e2e_each_s"]) == pytest.approx(row["e2e_mean_s"])
    assert row["prompt_lengths"] == stated.get("input_lens")
    assert row["output_lengths"] == stated.get("output_lens")


def test_inference_perf_is_read_without_its_inter_token_latency_and_client_counts() -> None:
    for stage, rate in enumerate((1.0, 2.5, 4.0)):
        path = real(f"inference_perf/stage_{stage}_lifecycle_metrics.json")
        row, good = row_of(path), json.loads(path.read_text())["successes"]
        assert (row["pattern"], row["rate"], row["completed"]) == ("poisson", rate, good["count"])
        assert row["prompt_tokens"] == good["prompt_tokens"]["mean"] == pytest.approx(100, rel=0.02)
        assert row["output_tokens"] == good["output_tokens"]["mean"] == pytest.approx(40, rel=0.08)
        assert row["ttft_mean_s"] == good["latency"]["time_to_first_token"]["mean"]
        assert row["e2e_p99_s"] == good["latency"]["request_latency"]["p99"]
        decode = row["e2e_mean_s"] - row["ttft_mean_s"]
        assert row["itl_mean_s"] == pytest.approx(decode / (row["output_tokens"] - 1))
        assert row["itl_mean_s"] > 0.0405, "a batch of one decode takes 40.5 ms"
        assert row["itl_mean_s"] > 3 * good["latency"]["inter_token_latency"]["mean"]
        assert row["tpot_mean_s"] is None


def test_the_summary_of_all_stages_is_refused_for_what_it_is() -> None:
    with pytest.raises(InputError, match=r"of several loads together\. Give the stage_N"):
        read_benchmarks(real("inference_perf/summary_lifecycle_metrics.json"))


def test_aiperf_has_its_load_in_phases() -> None:
    path = real("aiperf/profile_export_aiperf.json")
    row, stated = row_of(path), json.loads(path.read_text())
    assert (row["pattern"], row["rate"], row["in_flight"]) == ("poisson", 2.0, None)
    assert (row["prompt_tokens"], row["output_tokens"], row["completed"]) == (100, 40, 30)
    for column, name in (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency"), ("e2e", "request_latency")):
        for statistic, key in (("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
            assert row[f"{column}_{statistic}_s"] * 1e3 == pytest.approx(stated[name][key])
    assert row["itl_mean_s"] * 1e3 == pytest.approx(stated["inter_token_latency"]["avg"])
    assert row["duration_s"] == stated["benchmark_duration"]["avg"]


def test_guidellm_is_read_as_its_requests_say() -> None:
    path = real("guidellm/poisson.json")
    table, stated = read_benchmarks(path), json.loads(path.read_text())["benchmarks"]
    assert table["rate"].to_list() == [1.0, 4.0]
    assert table["pattern"].unique().to_list() == ["poisson"]
    assert table["completed"].to_list() == [24, 63]
    assert table["incomplete"].to_list() == [0, 17]
    assert table["shape"].unique().to_list() == ["100+40"]
    for row, benchmark in zip(table.iter_rows(named=True), stated, strict=True):
        requests = benchmark["requests"]["successful"]
        for column, key, unit in (
            ("ttft", "time_to_first_token_ms", 1e3),
            ("itl", "inter_token_latency_ms", 1e3),
            ("e2e", "request_latency", 1.0),
        ):
            values = [request[key] for request in requests]
            assert row[f"{column}_mean_s"] * unit == pytest.approx(statistics.mean(values), rel=1e-6)
        assert row["tpot_mean_s"] is None, "GuideLLM's includes the first token"
        assert (row["prompt_tokens"], row["output_tokens"]) == (100, 40)
    assert table["output_lengths"].to_list() == [[40] * 24, None], "known where none was cut off"
    for arrivals, benchmark in zip(table["arrival_s"], stated, strict=True):
        sent = [*benchmark["requests"]["successful"], *benchmark["requests"]["incomplete"]]
        starts = sorted(request["request_start_time"] for request in sent)
        assert arrivals.to_list() == pytest.approx([start - starts[0] for start in starts])
    for row in table.iter_rows(named=True):
        for metric in ("ttft", "e2e"):
            each = row[f"{metric}_each_s"]
            assert len(each) == len(row["arrival_s"])
            done = [seconds for seconds in each if seconds is not None]
            assert len(done) == row["completed"], "the others were cut off"
            assert statistics.mean(done) == pytest.approx(row[f"{metric}_mean_s"], rel=1e-6)


def test_the_log_of_iterations_is_read_in_full() -> None:
    batches = read_batches(real("log/vllm_0.32.0_iterations.log.gz"))
    assert batches.left_out == 0
    assert batches.tokens.max() <= 128
    assert len(batches) == 2_017
    assert batches.context is not None
    assert batches.requests is not None
    assert batches.decode_tokens is not None
    truth = 0.040 + 0.5e-3 * batches.tokens + 10e-6 * batches.context
    prompts_alone = batches.decode_tokens == 0
    assert 0 < np.median((batches.seconds - truth)[prompts_alone]) < 2e-3, "scheduling is timed, too"
    assert abs(np.median(batches.seconds / truth) - 1) < 0.03
    assert batches.context_block is None, "requests were followed, as half a block would be a bad guess"
    assert batches.gap is not None
    assert 3e-3 < batches.gap.seconds < 8e-3, "as the README says"


@pytest.mark.parametrize("path", sorted((SHARED / "bad_inputs").glob("*")), ids=lambda path: path.name)
def test_an_odd_file_is_one_line_that_names_it_or_is_read(path: Path) -> None:
    read = read_batches if "fit" in path.name else read_benchmarks
    if path.name.startswith("01"):
        assert read(path).row(0, named=True)["pattern"] == "closed"  # type: ignore[union-attr]
        return
    with pytest.raises(InputError) as refused:
        read(path)
    assert str(refused.value).startswith(path.name)
    assert "\n" not in str(refused.value)


def test_the_log_tells_the_true_batch_times_and_the_gap() -> None:
    found = fit(read_batches(real("log/vllm_0.32.0_iterations.log.gz")), "composition-affine")
    truths = {"c": 0.040, "a": 0.5e-3, "decode_attention": 10e-6, "mixed_attention": 10e-6}
    for name, truth in truths.items():
        assert found.parameters[name][0] == pytest.approx(truth, rel=0.15), name
    for name in ("a", "decode_attention", "per_request"):
        _, low, high = found.parameters[name]
        assert low <= {**truths, "per_request": 0.0}[name] <= high, name
    assert found.parameters["gap"][0] == pytest.approx(5e-3, abs=3e-3)


def test_what_belongs_to_another_command_is_refused_for_what_it_is() -> None:
    for name, read, words in (
        ("metrics/metrics_light_1.txt", read_benchmarks, "is a page of Prometheus metrics"),
        ("log/vllm_0.32.0_iterations.log.gz", read_benchmarks, "Give it to `penstock fit`"),
        ("aiperf/profile_export_aiperf.json", read_batches, "Give it to `penstock calibrate`"),
        ("inference_perf/stage_0_lifecycle_metrics.json", read_batches, "Give it to `penstock calibrate`"),
        ("guidellm/poisson.json", read_batches, "Give it to `penstock calibrate`"),
        ("vllm_bench/vb_100_r1.json", read_batches, "Give it to `penstock calibrate`"),
    ):
        with pytest.raises(InputError, match=words):
            read(real(name))


def test_the_requests_of_vllm_bench_are_sent_as_its_seed_sent_them() -> None:
    """Two files have start times. Those of one follow from the seed that the other shows."""
    folder = real("vllm_bench")
    table = read_benchmarks(folder)
    times = {row["run"]: row["arrival_s"] for row in table.iter_rows(named=True)}
    assert all(times[f"vb_{name}.json"] for name in ("100_r2.5", "100_r5", "250_r1", "250_r2.5"))
    known, expected = np.array(times["vb_100_r1.json"]), np.array(times["vb_100_r4.json"])[:20]
    gaps = np.corrcoef(np.diff(known)[2:], np.diff(expected)[2:])[0, 1]
    assert gaps > 0.99, "one seed"
    drawn = np.array(times["vb_100_r5.json"])[:20]
    assert np.corrcoef(np.diff(drawn)[2:], np.diff(expected)[2:])[0, 1] > 0.9


def test_calibrated_on_its_bench_files_a_real_server_is_what_it_was_made_to_be() -> None:
    """Batches took 40 ms, 0.5 ms per token, 10 us per token of context, and the host 3 to 8 ms between them.

    Each file in turn is held out: they have 20 to 100 requests, so one alone is off by a tenth and more by chance.
    """
    table = read_benchmarks(real("vllm_bench"))
    told = {"token_budget": 128, "max_batch_size": 64, "kv_tokens": 32_000, "per_run": "nothing"}
    answers = []
    for held_out in table["run"]:
        fit_rows = [run != held_out for run in table["run"]]
        answers.append(calibrate(table, fit_rows=fit_rows, policy_params={"async_scheduling": False}, **told))  # type: ignore[arg-type]
    values = pl.DataFrame([dict(found.values) for found in answers]).median()
    assert 0.042 < values["step"][0] < 0.048
    assert values["per_token"][0] == pytest.approx(0.5e-3, rel=0.15)
    assert values["decode_attention"][0] == pytest.approx(10e-6, rel=0.2)
    judged = pl.concat(found.rows.filter(~pl.col("fitted")) for found in answers)
    off = judged.select(pl.col("ttft_error", "itl_error", "e2e_error").abs().median()).row(0)
    assert all(error < most for error, most in zip(off, (0.2, 0.05, 0.05), strict=True))
