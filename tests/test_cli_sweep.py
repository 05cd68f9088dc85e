"""The command line: ``penstock sweep``."""

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import penstock as ps
from penstock import terminal_sweep
from penstock.cli import main

SCENARIO = """\
workload: {poisson: {rate: 10, prompt: 129, output: {geometric: 112}}}
server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
simulate: {requests: 1000, seed: 0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run a command line; return its status and what it printed on both streams."""
    import sys

    before, sys.argv = sys.argv, ["penstock", "sweep", *map(str, words), "--jobs", "1"]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_json_is_the_table_of_the_library(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--vary", "server.token_budget=256,512", "--vary", "workload.poisson.rate=6:10:2", "--json")
    status, out, err = run(capsys, scenario, *words)
    assert (status, err) == (0, "")
    rows = ps.sweep(scenario, {"server.token_budget": [256, 512], "workload.poisson.rate": [6, 8, 10]}, jobs=1)
    assert json.loads(out)["points"] == rows.to_dicts()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_names_what_varied(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ("--vary", "server.max_num_batched_tokens=256,512,-1", "--vary", "server.max_batch_size=null,100")
    status, out, err = run(capsys, scenario, *words)
    assert (status, err) == (0, "")
    table = [line for line in out.splitlines() if not line.startswith(("Bad", "scenario:"))]
    assert max(map(len, table)) <= width
    assert "none" in out
    assert "varied server.max_num_batched_tokens (3), server.max_batch_size (2)" in out
    assert "token_budget is -1" in out


def test_of_many_points_the_best_are_shown_first(
    scenario: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    words = ("--vary", "workload.poisson.rate=1:18", "--sample", "30", "--sort", "throughput")
    status, out, _ = run(capsys, scenario, *words)
    assert status == 0
    assert f"the best {terminal_sweep.MOST_ROWS} of 30 by throughput" in out
    shown = [line.split() for line in out.splitlines() if line[:12].strip()[:1].isdigit() and " stable " in line]
    carried = [float(line[3]) for line in shown]
    assert carried == sorted(carried, reverse=True)


def test_what_was_finished_is_not_run_again_and_another_sweep_is_refused(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = scenario.with_name("t.parquet")
    words = (scenario, "--vary", "server.token_budget=256,512", "--out", out)
    assert run(capsys, *words)[0] == 0
    first = pl.read_parquet(out)
    assert run(capsys, *words)[0] == 0
    assert_frame_equal(pl.read_parquet(out), first, check_exact=True)
    status, said, err = run(capsys, *words, "--seed", 9)
    assert (status, said) == (2, "")
    assert "another sweep" in err
    assert err.count("\n") == 1
    assert_frame_equal(pl.read_parquet(out), first, check_exact=True)
    assert run(capsys, *words, "--seed", 9, "--fresh")[0] == 0
    assert pl.read_parquet(out)["seed"].to_list() == [9, 9]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "server.token_budgt=1,2"), "did you mean 'server.token_budget'"),
        (("--vary", "server.token_budget"), "FIELD=VALUES|names no field and values"),
        (("--vary", "workload.poisson.rate=1:2"), "--sample"),
        (("--vary", "workload.poisson.rate=1,2", "--out", "t.txt"), "neither .parquet nor .csv"),
        (("--vary", "workload.poisson.rate=1,2", "--sort", "e2e"), "--sort"),
        (("--vary", "workload.poisson.rate=-1,-2"), "every point of the sweep is bad"),
        (("--vary", "workload.poisson.rate=1,2", "--sample", "0"), "sample is 0"),
        (("--vary", "workload.poisson.rate=1,2", "--vary", "workload.poisson.rate=3"), "stands twice"),
        (("--vary", "simulate.seed=1,2"), "--seeds"),
        ((), "vary is missing"),
    ],
)
def test_bad_input_is_one_line_and_status_two(
    scenario: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    import re

    status, _, err = run(capsys, scenario, *words)
    assert status == 2
    assert err.count("\n") == 1
    assert re.search(said, err), err


def test_networks_and_files_that_would_be_lost_are_refused(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = Path(__file__).parents[1] / "examples" / "rybko_stolyar.yaml"
    assert "describes a network" in run(capsys, network, "--vary", "server.token_budget=1")[2]
    precious = scenario.with_name("t.csv")
    precious.write_text("precious\n")
    assert run(capsys, scenario, "--vary", "server.token_budget=512", "--out", precious)[0] == 2
    assert precious.read_text() == "precious\n"
