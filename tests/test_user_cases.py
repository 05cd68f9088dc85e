"""Files that users had: what each answers, or refuses, in the words that are right for it.

Configs of models are asked in `tests/system/models/test_configs.py`, times of recordings in
`tests/workload/test_recorded_times.py`, pages of engines in `tests/live/test_worst_engine.py`, agents in
`tests/system/test_prefix_cache.py`.
"""

import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import read_benchmarks

CASES = Path(__file__).parents[1].parent / "shared" / "data" / "user_cases"
pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the user cases are not beside the repository")
Penstock = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken/bt_decreasing", "a batch of 64 tokens takes 40 ms, and one of 1 takes 50 ms"),
        ("broken/bt_dup", "has 64 tokens with 11 and with 99 ms"),
        ("broken/coarse", "arrivals 'poisson'. Arrival times are stamped every 10 s: 399 requests come at 5 instants"),
        ("broken/mean_gt_max", "the max of a length is 1,000 tokens, below its mean of 10,000"),
        ("broken/recording_pib", "which is more than is drawn; check its counters"),
        ("broken/vseq", "vllm does not start with fewer tokens than requests in a batch"),
        ("toolong", "needs 6,257 blocks of 16, but the KV memory has 4,789, so it never fits"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(penstock: Penstock, name: str, said: str) -> None:
    status, _, error = penstock("check", CASES / f"{name}.yaml")
    assert status == 2
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken/gap", "without it, it is 0.9465"),
        ("broken/moon_s", "If they are seconds it is 1"),
        ("broken/ms_as_s", "If they are milliseconds it is 1.019"),
        ("broken/ms", "KV memory of 458,832 tokens (estimated)"),
        ("seventy_b", "UNDECIDED because of the batch times"),
        ("ramp", "1,200 s from 20,053 s on bring 5 requests/s, a load of 1.47"),
        ("ramp", "`day: trace` what its busiest hour needs"),
    ],
)
def test_what_is_doubted_stands_in_the_first_lines(
    penstock: Penstock, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CASES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if name == "ramp":
        runpy.run_path("c07_ramp.py")
    _, written, _ = penstock("check", f"{name}.yaml")
    assert said in " ".join(written.split())
    assert name != "ramp" or "First token" not in written


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("c01_bench_serving.jsonl", {"engine": "sglang", "in_flight": 32, "ttft_mean_s": 15.50769}),
        ("c02_console.txt", {"engine": None, "rate": 4.0, "ttft_mean_s": 17.74602, "ttft_p50_s": 19.92351}),
        ("c10_awq_closed.csv", {"in_flight": 1, "ttft_mean_s": 3.345, "itl_mean_s": 0.02063}),
        ("c20_isl_osl.csv", {"prompt_tokens": 128, "in_flight": 1, "ttft_mean_s": 0.0525, "e2e_mean_s": 3.1335}),
    ],
)
def test_results_of_benchmarks_are_read_as_they_are(name: str, first: dict[str, object]) -> None:
    row = read_benchmarks(CASES / name).row(0, named=True)
    assert {key: row.get(key) for key in first} == pytest.approx(first)
