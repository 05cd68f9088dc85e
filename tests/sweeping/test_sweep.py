"""Sweeps: the same rows whoever runs them, bad points as rows, nothing lost and nothing twice."""

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import penstock as ps
from penstock.document import read_document
from penstock.sweeping import tasks, workers
from penstock.sweeping.grid import Point
from penstock.sweeping.store import journal_of

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "azure_llm_2023_conv.csv"
VARY = {"server.token_budget": "256,512,1024", "workload.poisson.rate": "6:14:2"}


def test_a_row_is_what_the_library_says_of_its_point(scenario: Path) -> None:
    rows = ps.sweep(scenario, {"server.token_budget": [256, 1024], "server.max_batch_size": [None, 100]}, jobs=1)
    assert rows.height == 4
    batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
    workload = ps.Workload.poisson(10.0, 129, ps.Geometric(112), seed=0)
    for row in rows.iter_rows(named=True):
        server = ps.Server(batch_time, row["server.token_budget"], row["server.max_batch_size"])
        certificate = ps.certify(workload, server)
        assert row["theory"] == certificate.verdict
        assert row["rho"] == certificate.load.rho
        unknown = certificate.verdict == "unknown"
        assert row["verdict"] == (ps.verdict(workload, server).verdict if unknown else certificate.verdict)
        run = ps.simulate(workload, server, requests=1000, record="summary")
        assert (row["requests"], row["batches"]) == (run.arrived, run.n_batches)
        assert row["throughput"] == run.finished / run.seconds
        for latency in run.latency().iter_rows(named=True):
            name = latency["metric"].removesuffix("_s")
            assert all(row[f"{name}_{each}_s"] == latency[each] for each in ("mean", "p50", "p90", "p95", "p99"))


def test_rows_do_not_depend_on_the_number_of_workers(scenario: Path) -> None:
    assert_frame_equal(ps.sweep(scenario, VARY, jobs=1), ps.sweep(scenario, VARY, jobs=2), check_exact=True)


def test_no_more_workers_are_started_than_points_are_left(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    results = workers.Workers.results

    def counted(self: workers.Workers, function: Any, tasks: Any) -> Any:
        started.append(self.count)
        return results(dataclasses.replace(self, count=1), function, tasks)

    monkeypatch.setattr(workers.Workers, "results", counted)
    out, vary = scenario.with_name("t.csv"), {"server.token_budget": [64, 128, 256, 512, 1024]}
    for jobs, count in ((3, 3), (5, 5), (1000, 5)):
        ps.sweep(scenario, vary, jobs=jobs, out=out, fresh=True)
        assert started.pop() == count
    journal = journal_of(out)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
    ps.sweep(scenario, vary, jobs=1000, out=out)
    assert started == [2]
    ps.sweep(scenario, vary, jobs=1000, out=out)  # nothing is left, so no worker is started
    assert started == [2]


def test_without_fields_a_sweep_says_how_to_give_them(scenario: Path) -> None:
    with pytest.raises(ps.InputError, match=r"no section `sweep`.*--vary server\.token_budget=128,512"):
        ps.sweep(scenario)


def test_a_row_holds_no_number_that_json_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"verdict": "stable", "rho": math.nan, "max_rate": math.inf, "batches": 3}
    monkeypatch.setattr(tasks, "_found", lambda *_: found)
    row = tasks.run_point(tasks.Job({}, Path(), ()), Point(4, (), 0))
    assert row == {"point": 4, "verdict": "stable", "rho": None, "max_rate": None, "batches": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simulat: {requests: 9}", "did you mean 'simulate'"),
        ("server: &a {memory: *a}", "within itself"),
        ("server: {1: 2, a: 3}", "a key that is no text"),
    ],
)
def test_a_scenario_that_no_point_could_use_is_refused_at_once(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ps.InputError, match=said):
        ps.sweep(path, {"server.token_budget": [512]})


def test_a_value_too_long_to_name_a_file_is_a_bad_point(scenario: Path) -> None:
    rows = ps.sweep(scenario, {"server.policy": ["orca", "x" * 300, "a\0b"]}, jobs=1)
    assert rows["error"].is_null().to_list() == [True, False, False]


def test_rows_do_not_depend_on_the_order_of_the_values(scenario: Path) -> None:
    forth = ps.sweep(scenario, {"server.token_budget": [256, 512], "workload.poisson.rate": [6, 8]}, jobs=1)
    back = ps.sweep(scenario, {"workload.poisson.rate": [8, 6], "server.token_budget": [512, 256]}, jobs=1)
    order = ["server.token_budget", "workload.poisson.rate"]
    columns = [name for name in forth.columns if name != "point"]
    assert_frame_equal(forth.sort(order)[columns], back.sort(order)[columns], check_exact=True)


def test_points_see_the_same_requests_unless_each_has_a_seed_of_its_own(scenario: Path) -> None:
    vary = {"server.max_batch_size": [100_000, 200_000]}  # none is ever reached
    common = ps.sweep(scenario, vary, jobs=1)
    assert common["e2e_mean_s"][0] == common["e2e_mean_s"][1]
    own = ps.sweep(scenario, vary, jobs=1, independent=True)
    assert own["seed"].n_unique() == 2
    assert own["e2e_mean_s"][0] != own["e2e_mean_s"][1]
    several = ps.sweep(scenario, {"server.token_budget": [512]}, jobs=1, seeds=3, seed=5)
    assert several["seed"].to_list() == [5, 6, 7]
    assert several["e2e_mean_s"].n_unique() == 3


@pytest.mark.parametrize(
    ("simulate", "said"),
    [({"requests": 2e9}, "requests is 2,000,000,000"), ({"until": 1e9}, "until is 1e[+]09 s, for 1e[+]10 requests")],
)
def test_a_run_without_end_is_a_bad_point(scenario: Path, simulate: dict[str, Any], said: str) -> None:
    document = {**read_document(scenario), "simulate": simulate}
    rows = ps.sweep(document, {"server.token_budget": [512]}, jobs=1)
    assert re.search(f"simulate.{said}.*at most 1,000,000,000", rows["error"][0])


def test_a_bad_point_is_a_row_with_its_message(scenario: Path) -> None:
    rows = ps.sweep(scenario, {"server.token_budget": [512, -5, 0.5, 256], "workload.poisson.prompt": [129]}, jobs=1)
    assert rows["error"].is_null().to_list() == [True, False, False, True]
    assert "-5" in rows["error"][1]
    assert rows.filter(rows["error"].is_not_null())["rho"].is_null().all()


def test_the_section_sweep_of_a_scenario_says_what_varies_and_other_commands_pass_over_it(scenario: Path) -> None:
    section = "sweep: {vary: {server.token_budget: '256:1024:x2'}, seeds: 2}\n"
    scenario.write_text(scenario.read_text() + section)
    rows = ps.sweep(scenario, jobs=1)
    assert rows["server.token_budget"].to_list() == [256, 256, 512, 512, 1024, 1024]
    assert ps.sweep(scenario, {"server.policy": ["orca"]}, jobs=1, seeds=1).height == 1


def test_a_scenario_may_be_given_as_a_mapping_and_lengths_may_vary() -> None:
    scenario = {
        "workload": {"poisson": {"rate": 5, "prompt": 129, "output": {"geometric": 112}}},
        "server": {"hardware": "codellama-34b-a100-tp1", "token_budget": 512},
        "simulate": {"requests": 500},
    }
    rows = ps.sweep(scenario, {"workload.poisson.output.geometric": [50, 150]}, jobs=1)
    assert rows["rho"][0] < rows["rho"][1]


@pytest.mark.skipif(not TRACE.exists(), reason="needs the Azure traces of shared/data")
def test_a_swept_trace_is_that_of_the_scenario(tmp_path: Path) -> None:
    server = {"hardware": "codellama-34b-a100-tp1", "token_budget": 512}
    for arrivals in (None, "scaled", "poisson"):
        workload = {"trace": str(TRACE)} | ({} if arrivals is None else {"arrivals": arrivals, "rate": 1.0})
        scenario = {"workload": workload, "server": server, "simulate": {"requests": 2000, "seed": 3}}
        row = ps.sweep(scenario, {"server.token_budget": [512]}, jobs=1, test=False).row(0, named=True)
        same = ps.read_trace(TRACE, seed=3)
        same = same if arrivals is None else same.with_rate(1.0, arrivals)
        batch_time = ps.hardware("codellama-34b-a100-tp1").batch_time
        run = ps.simulate(same, ps.Server(batch_time, 512), requests=2000, record="summary")
        assert row["batches"] == run.n_batches
        assert row["e2e_p99_s"] == run.latency().filter(metric="e2e_s")["p99"][0]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_finished_sweep_is_read_again_and_not_run_again(scenario: Path, name: str) -> None:
    out = scenario.with_name(name)
    first = ps.sweep(scenario, VARY, out=out, jobs=1)
    before = journal_of(out).read_bytes()
    again = ps.sweep(scenario, VARY, out=out, jobs=1)
    assert_frame_equal(first, again, check_exact=True)
    assert journal_of(out).read_bytes() == before
    read = pl.read_csv(out) if name.endswith("csv") else pl.read_parquet(out)
    assert_frame_equal(read, first, check_exact=True, check_dtypes=name.endswith("parquet"))


def test_any_change_of_what_rows_depend_on_is_another_sweep(scenario: Path) -> None:
    out = scenario.with_name("t.csv")
    vary = {"server.token_budget": [256]}
    ps.sweep(scenario, vary, out=out, jobs=1)
    for change in ({"seed": 1}, {"seeds": 2}, {"independent": True}, {"vary": {"server.token_budget": [257]}}):
        with pytest.raises(ps.InputError, match="another sweep"):
            ps.sweep(scenario, **{"vary": vary, **change}, out=out, jobs=1)  # type: ignore[arg-type]
    scenario.write_text(scenario.read_text().replace("129", "130"))
    with pytest.raises(ps.InputError, match="--fresh"):
        ps.sweep(scenario, vary, out=out, jobs=1)
    assert ps.sweep(scenario, vary, out=out, jobs=1, fresh=True).height == 1


def test_a_trace_that_changed_is_another_sweep(tmp_path: Path) -> None:
    trace, out = tmp_path / "requests.csv", tmp_path / "t.csv"
    rows = "".join(f"{i / 5},{100 + i},{20}\n" for i in range(300))
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    path = tmp_path / "s.yaml"
    path.write_text("workload: {trace: requests.csv}\nserver: {hardware: codellama-34b-a100-tp1, token_budget: 512}\n")
    ps.sweep(path, {"server.token_budget": [256]}, out=out, jobs=1)
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows.replace(",20\n", ",21\n"))
    with pytest.raises(ps.InputError, match="another sweep"):
        ps.sweep(path, {"server.token_budget": [256]}, out=out, jobs=1)


@pytest.mark.slow
def test_memory_of_a_worker_does_not_grow_with_the_number_of_points(long_scenario: Path) -> None:
    code = """
import resource, sys, penstock as ps
from penstock.sweeping.sweep import set_up
from penstock.sweeping.tasks import run_point
asked = set_up(sys.argv[1], {"workload.poisson.rate": "6:12:0.2"})
peaks = []
for count, point in enumerate(asked.points):
    run_point(asked.job, point)
    if count in (6, 30):
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] / peaks[0])
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(long_scenario)], capture_output=True, text=True, check=True
    ).stdout
    assert float(said) < 1.05
