"""`penstock diagnose` says of each load what it is worth, from figures by hand and real files."""

import collections
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import InputError
from penstock.measuring.calibration.benchmarks import read_benchmarks
from penstock.measuring.diagnosis.diagnose import Diagnosis, diagnose
from tests.conftest import Said

SHARED = Path(__file__).parents[3].parent / "shared" / "data"

OPEN = "rate,pattern,prompt,output,ttft_mean_s,itl_mean_s,completed,incomplete,duration_s,in_flight\n"
CLOSED = "in_flight,prompt,output,ttft_mean_s,itl_mean_s,completed,incomplete,duration_s\n"


def told(folder: Path, text: str) -> Diagnosis:
    path = folder / "mine.csv"
    path.write_text(text)
    return diagnose(path)


@pytest.mark.parametrize(
    ("header", "row", "verdict"),
    [
        (OPEN, "10,poisson,100,101,0.05,0.02,1000,0,102,", "steady"),
        (OPEN, "10,poisson,100,101,10,0.02,1000,0,130,", "filling"),  # 100 wait, and 3 x 32 are chance
        (OPEN, "10,poisson,100,101,3,0.02,1000,0,104,", "unknown"),  # 30 wait: it may be chance
        (OPEN, "10,poisson,100,101,0.05,0.02,1000,0,252,8", "held back"),  # 4/s x 2.05 s are 8.2 under way
        (OPEN, "10,poisson,100,101,0.05,0.02,1000,0,102,64", "steady"),  # 20 of 64 under way
        (OPEN, "10,poisson,100,101,0.05,0.02,90,0,11,", "too short"),  # 9 s, calls of 2
        (OPEN, "0.1,poisson,100,101,0.05,0.02,20,0,202,", "too short"),  # 20 requests
        (CLOSED, "8,100,101,0.05,0.02,1000,0,256", "closed"),
        (CLOSED, "8,100,101,2,0.02,1000,0,500", "saturated"),  # half of each call is a wait
        (CLOSED, "8,16000,5,0.1,0.02,1000,0,22", "closed"),  # a prompt takes that long by itself
        (CLOSED, "100,100,101,0.05,0.02,300,0,6", "too short"),  # three rounds
    ],
)
def test_a_load_is_told_by_its_summary(header: str, row: str, verdict: str, tmp_path: Path) -> None:
    (one,) = told(tmp_path, header + row).rows
    assert one.verdict == verdict, one.said
    assert one.worth is (verdict not in ("filling", "held back", "too short"))


def detailed(arrival: Any, ttft: Any, gap: Any, limit: int | None = None, rate: Any = 10.0) -> dict[str, Any]:
    """Return what vllm bench saves of requests of 100 and 11 tokens, each with its time."""
    count = arrival.size
    e2e = ttft + 10 * gap
    stated = {
        f"{name}_{metric}_ms": float(take(seconds) * 1e3)
        for metric, seconds in (("ttft", ttft), ("itl", gap), ("tpot", gap), ("e2el", e2e))
        for name, take in (("mean", np.mean), ("median", np.median), ("p99", lambda of: np.quantile(of, 0.99)))
    }
    duration = float((arrival + e2e).max())
    return stated | {
        "backend": "vllm", "request_rate": rate, "burstiness": 1.0, "max_concurrency": limit, "duration": duration,
        "num_prompts": count, "completed": count, "total_input_tokens": 100 * count, "total_output_tokens": 11 * count,
        "request_throughput": count / duration, "input_lens": [100] * count, "output_lens": [11] * count,
        "start_times": arrival.tolist(), "ttfts": ttft.tolist(), "itls": [[one] * 10 for one in gap.tolist()],
    }  # fmt: skip


def of(folder: Path, document: dict[str, Any]) -> Any:
    path = folder / "a.json"
    path.write_text(json.dumps(document))
    (row,) = diagnose(path).rows
    return row


def test_times_of_each_request_tell_a_queue_that_grows_from_one_that_stands(tmp_path: Path) -> None:
    """The means are alike; so are batches that grow, where nobody waits for a first token."""
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(0.1, 1000))
    gap = np.full(1000, 0.02)
    wait = rng.exponential(6.0, 1000)
    assert of(tmp_path, detailed(arrival, wait, gap)).verdict == "steady"
    growing = of(tmp_path, detailed(arrival, np.sort(wait), gap))
    assert growing.verdict == "filling"
    assert growing.said[0].startswith("9.78 requests/s came and fewer left")
    batches = of(tmp_path, detailed(arrival, np.full(1000, 0.02), np.linspace(0.02, 1.5, 1000)))
    assert (batches.verdict, "first token" in batches.said[0]) == ("filling", False)


def test_a_steady_load_has_intervals_and_says_how_many_requests_would_bound_the_p99(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(0.1, 5000))
    row = of(tmp_path, detailed(arrival, rng.exponential(0.1, 5000), np.full(5000, 0.02)))
    ttft = next(text for text in row.said if text.startswith("TTFT"))
    assert re.match(r"TTFT: mean 1?\d\d ms \(9\d\.\d ms to 10\d ms\), p99 4\d\d ms \(4\d\d ms to 5\d\d ms\)", ttft)
    assert row.enough is None, "fifty requests beyond the p99, each a burst of its own"
    few = of(tmp_path, detailed(arrival[:400], rng.exponential(0.1, 400), np.full(400, 0.02)))
    assert few.enough is not None
    assert few.enough >= 800
    assert any(text.startswith("nothing bounds the p99") for text in few.said)


def test_an_overloaded_server_shows_the_rate_at_which_requests_left(tmp_path: Path) -> None:
    """Ten come each second and eight leave: so much is carried, with its interval."""
    arrival = np.arange(2000) / 10
    leaves = 1 + np.arange(2000) / 8
    row = of(tmp_path, detailed(arrival, leaves - arrival - 0.2, np.full(2000, 0.02)))
    assert row.verdict == "filling"
    assert row.carried_per_s == pytest.approx(8, rel=0.01)
    assert row.interval == pytest.approx((8, 8), abs=0.1)
    assert row.shows == "carries 8 requests/s"


def test_clients_that_send_in_step_are_not_taken_for_a_queue(tmp_path: Path) -> None:
    """Each takes as long as the others from end to end, but prompts are done one after the other."""
    ttft = np.tile(np.linspace(0.1, 2, 32), 10)
    arrival = np.repeat(np.arange(10) * 4.0, 32)
    row = of(tmp_path, detailed(arrival, ttft, (4 - ttft) / 10, 32, "inf"))
    assert row.verdict == "closed"
    assert any("send in step" in text for text in row.said)


def test_what_more_clients_do_not_raise_is_the_most_that_is_carried(tmp_path: Path) -> None:
    rows = "8,100,101,0.05,0.02,1000,0,256\n64,100,101,0.05,0.02,2000,0,64\n128,100,101,0.05,0.041,2000,0,63\n"
    verdicts = [row.verdict for row in told(tmp_path, CLOSED + rows).rows]
    assert verdicts == ["closed", "saturated", "saturated"]


def test_numbers_that_contradict_each_other_are_a_diagnosis_and_no_refusal_of_the_others(tmp_path: Path) -> None:
    table = "rate,prompt,output,ttft_mean_ms,itl_mean_ms,e2e_mean_ms,completed,incomplete\n"
    good, bad = "1,100,100,50,20,2030,300,0\n", "2,100,100,3000,20,2030,300,0\n"
    answer = told(tmp_path, table + good + bad)
    assert [row.verdict for row in answer.rows] == ["steady", "refused"]
    assert "longer than E2E" in answer.rows[1].said[0]
    with pytest.raises(InputError, match="longer than E2E"):
        read_benchmarks(tmp_path / "mine.csv")
    (tmp_path / "b.json").write_text(json.dumps({"benchmarks": [{}]}))
    both = diagnose([tmp_path / "mine.csv", tmp_path / "b.json"])
    assert [row.verdict for row in both.rows] == ["steady", "refused", "refused"]
    assert "metrics is missing" in both.rows[2].said[0]
    with pytest.raises(InputError, match="metrics is missing"):
        diagnose(tmp_path / "b.json")


def test_a_file_that_is_no_benchmark_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1024,1\n")
    with pytest.raises(InputError, match="no load is stated"):
        diagnose(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("path", "verdicts"),
    [
        ("real_vllm_cpu/vllm_bench/vb_100_c10.json", ["closed"]),
        ("real_vllm_cpu/vllm_bench/vb_100_r1.json", ["too short"]),
        ("real_vllm_cpu/vllm_bench/vb_100_r4.json", ["steady"]),
        ("real_vllm_cpu/aiperf/profile_export_aiperf.json", ["too short"]),
        ("real_vllm_cpu/guidellm/poisson.json", ["too short", "too short"]),
        ("real_vllm_cpu/inference_perf", ["too short", "too short", "filling"]),
        ("user_cases/c01_bench_serving.jsonl", ["closed"]),
        ("user_cases/c02_console.txt", ["filling"]),
        ("user_cases/c10_awq_closed.csv", ["closed", "saturated"]),
        ("user_cases/c20_isl_osl.csv", ["too short"] * 3),
    ],
)
def test_real_files(path: str, verdicts: list[str]) -> None:
    if not (SHARED / path).exists():
        pytest.skip(f"no {path} in shared/data beside the repository")
    assert [row.verdict for row in diagnose(SHARED / path).rows] == verdicts


def test_a_rate_that_rises_is_said(tmp_path: Path) -> None:
    steady = detailed(np.arange(400) / 10, np.full(400, 0.1), np.full(400, 0.02), rate="inf")
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 5, "ramp_up_end_rps": 15}
    assert any("of no one rate" in text for text in of(tmp_path, steady | ramp).said)


def test_real_sweeps_are_steady_but_for_the_shortest_and_the_fullest() -> None:
    """At 512 in flight long prompts wait; of 4,096 tokens the longest runs have not ten calls."""
    path = SHARED / "real_runs" / "llm_inferno_guidellm_exp1" / "tidy.csv"
    if not path.exists():
        pytest.skip("no tidy.csv in shared/data beside the repository")
    counts = collections.Counter(row.verdict for row in diagnose(path).rows)
    assert counts == {"steady": 121, "closed": 16, "too short": 9, "saturated": 7}


def test_the_answer_is_six_lines_and_a_status_for_ci(penstock: Callable[..., Said], tmp_path: Path) -> None:
    rows = [
        "10,poisson,100,101,0.05,0.02,1000,0,102,", "10,poisson,100,101,10,0.02,1000,0,130,",
        "10,poisson,100,101,3,0.02,1000,0,104,", "10,poisson,100,101,0.05,0.02,1000,0,252,8",
        "0.1,poisson,100,101,0.05,0.02,20,0,202,",
    ]  # fmt: skip
    path = tmp_path / "mine.csv"
    path.write_text(OPEN + "\n".join(rows))
    status, said, _ = penstock("diagnose", path, "--strict")
    lines = said.splitlines()
    assert status == 1
    assert max(map(len, lines)) <= 80
    labels = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert labels[:-1] == ["mine.csv", "FILLING", "HELD BACK", "TOO SHORT", "Shows", "Not shown"]
    document = json.loads(penstock("diagnose", path, "--json")[1])
    assert document["worth"] is False
    assert [row["verdict"] for row in document["rows"]] == ["steady", "filling", "unknown", "held back", "too short"]
    everything = penstock("diagnose", path, "--all", "--report", tmp_path / "a.html")[1]
    assert " ".join(everything.split()).count("Not shown:") == 5
    assert "FILLING" in (tmp_path / "a.html").read_text().upper()
    path.write_text(OPEN + rows[0])
    assert penstock("diagnose", path, "--strict")[0] == 0


def test_the_head_names_what_is_worth_its_numbers_and_tells_loads_of_one_name_apart(tmp_path: Path) -> None:
    head = "rate,in_flight,prompt,output,ttft_mean_s,itl_mean_s,completed,incomplete,duration_s\n"
    rows = ["2,,1000,200,0.09,0.021,1200,0,605", "8,,1000,200,9.4,0.044,1200,0,184"]
    for name, of in (("a.csv", rows), ("b.csv", [*rows[1:], "8,16,1000,200,0.12,0.028,1200,0,427"])):
        (tmp_path / name).write_text(head + "\n".join(of) + "\n")
    said = {line.label: line.text for line in diagnose([tmp_path / "a.csv", tmp_path / "b.csv"], names="x").page().head}
    assert said["x"].startswith("4 loads, 1 of them worth their numbers (1000+200 poisson@2): ")
    assert said["filling"].startswith("1000+200 poisson@8 (a.csv), 1000+200 poisson@8 (b.csv, row 2). The first: ")
    assert said["held back"].startswith("1000+200 poisson@8 (b.csv, row 3): ")
