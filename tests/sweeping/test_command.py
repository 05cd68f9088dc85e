"""The command line: ``penstock sweep``."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import penstock as ps
from penstock.show import progress
from penstock.sweeping.view import MOST_ROWS
from tests.conftest import Said

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


@pytest.fixture
def sweep(penstock: Callable[..., Said]) -> Callable[..., Said]:
    """Return `penstock sweep` with one process, so that no test waits for workers to start."""
    return lambda *words: penstock("sweep", *words, "--jobs", 1)


def test_the_json_is_the_table_of_the_library(scenario: Path, sweep: Callable[..., Said]) -> None:
    words = ("--vary", "server.token_budget=256,512", "--vary", "workload.poisson.rate=6:10:2", "--json")
    status, out, err = sweep(scenario, *words)
    assert (status, err) == (0, "")
    rows = ps.sweep(scenario, {"server.token_budget": [256, 512], "workload.poisson.rate": [6, 8, 10]}, jobs=1)
    assert json.loads(out)["points"] == rows.to_dicts()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal_and_names_what_varied(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = ("--vary", "server.max_num_batched_tokens=256,512,-1", "--vary", "server.max_batch_size=null,100")
    status, out, err = sweep(scenario, *words, "--all")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= width
    assert "none" in out
    assert re.search(r"server.max_num_batched_tokens +3 values  -1, 256, 512", out)
    assert re.search(r"server.max_batch_size +2 values  100, none", out)
    assert "token_budget is -1" in " ".join(out.split())


def test_of_many_points_the_best_are_shown_first(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    words = ("--vary", "workload.poisson.rate=1:18", "--sample", "30", "--sort", "throughput", "--all")
    status, out, _ = sweep(scenario, *words)
    assert status == 0
    assert f"The best {MOST_ROWS} of 30 by throughput" in out
    shown = [line.split() for line in out.splitlines() if line[:12].strip()[:1].isdigit() and " stable " in line]
    shown = shown[:MOST_ROWS]  # before the table of every point
    carried = [float(line[3]) for line in shown]
    assert carried == sorted(carried, reverse=True)


def test_what_was_finished_is_not_run_again_and_another_sweep_is_refused(
    scenario: Path, sweep: Callable[..., Said]
) -> None:
    out = scenario.with_name("t.parquet")
    words = (scenario, "--vary", "server.token_budget=256,512", "--out", out)
    assert sweep(*words)[0] == 0
    first = pl.read_parquet(out)
    assert sweep(*words)[0] == 0
    assert_frame_equal(pl.read_parquet(out), first, check_exact=True)
    status, said, err = sweep(*words, "--seed", 9)
    assert (status, said) == (2, "")
    assert "another sweep" in err
    assert err.count("\n") == 1
    assert_frame_equal(pl.read_parquet(out), first, check_exact=True)
    assert sweep(*words, "--seed", 9, "--fresh")[0] == 0
    assert pl.read_parquet(out)["seed"].to_list() == [9, 9]


def test_a_sweep_of_bad_points_leaves_nothing_that_refuses_the_corrected_one(
    scenario: Path, sweep: Callable[..., Said]
) -> None:
    out = scenario.with_name("t.parquet")
    assert sweep(scenario, "--vary", "workload.poisson.rate=-1,-2", "--out", out)[0] == 2
    assert not list(out.parent.glob("t.parquet*"))
    assert sweep(scenario, "--vary", "workload.poisson.rate=6,7", "--out", out)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "server.token_budgt=1,2"), "did you mean 'server.token_budget'"),
        (("--vary", "server.max_num_queued_tokens=1,2"), "`queue_limit: {max_num_queued_tokens: ...}`"),
        (("--vary", "server.token_budget"), "FIELD=VALUES|names no field and values"),
        (("--vary", "workload.poisson.rate=1:2"), "--sample"),
        (("--vary", "workload.poisson.rate=1,2", "--out", "t.txt"), "neither .parquet nor .csv"),
        (("--vary", "workload.poisson.rate=1,2", "--sort", "e2e"), "--sort"),
        (("--vary", "workload.poisson.rate=-1,-2"), "every point of the sweep is bad"),
        (("--vary", "workload.poisson.rate=1,2", "--sample", "0"), "sample is 0"),
        (("--vary", "workload.poisson.rate=1,2", "--vary", "workload.poisson.rate=3"), "stands twice"),
        (("--vary", "simulate.seed=1,2"), "--seeds"),
        ((), "no section `sweep`.*--vary server.token_budget=128,512"),
        (("--vary", "server=1"), "'server' is a whole section.*such as 'server.hardware'"),
        (("--vary", "workload.poisson.rate=1,.nan"), "'.nan' is no finite number"),
        (("--vary", "workload.poisson.rate=1,2", "--backend", "dsk"), "did you mean 'dask'"),
    ],
)
def test_bad_input_is_one_line_and_status_two(
    scenario: Path, sweep: Callable[..., Said], words: tuple[str, ...], said: str
) -> None:
    status, _, err = sweep(scenario, *words)
    assert status == 2
    assert err.count("\n") == 1
    assert re.search(said, err), err


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("folder.csv", "is a folder"),
        (".", "is a folder"),
        ("none/t.csv", "there is no folder"),
        ("scenario.yaml/t.csv", "is no folder"),
        ("a" * 300 + ".csv", "too long"),
        ("a" * 250 + ".csv", "too long"),
        ("~nobody-of-that-name/t.csv", "no path here"),
        ("/dev/null", "is a device"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_any_work(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, out: str, said: str
) -> None:
    monkeypatch.chdir(scenario.parent)
    Path("folder.csv").mkdir()
    monkeypatch.setattr("penstock.sweeping.sweep.sweep", None)  # calling it would be work
    status, printed, err = sweep(scenario, "--vary", "server.token_budget=512", "--out", out)
    assert (status, printed, err.count("\n")) == (2, "", 1)
    assert said in err
    assert out[:30] in err
    assert sorted(path.name for path in Path().iterdir()) == ["folder.csv", "scenario.yaml"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_odd_values_come_through_as_json_and_in_the_table(
    scenario: Path, sweep: Callable[..., Said], name: str
) -> None:
    out = scenario.with_name(name)
    words = ("--vary", "server.token_budget=512,true,null,1e300,99999999999999999999,[1],{a: 2}")
    status, printed, err = sweep(scenario, *words, "--out", out, "--json")
    assert (status, err) == (0, "")
    points = json.loads(printed)["points"]
    assert [point["error"] is None for point in points] == [True, *[False] * 6]
    read = pl.read_csv(out) if name.endswith("csv") else pl.read_parquet(out)
    assert read["error"].to_list() == [point["error"] for point in points]


def test_names_are_written_as_they_are(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither Rich's markup nor its emoji change them."""
    monkeypatch.chdir(scenario.parent)
    status, out, err = sweep(
        scenario, "--vary", "server.policy=orca,a:b,x:smile:y,'[red]orca'", "--out", "[red]:b:.csv", "--why"
    )
    assert status == 0
    assert "Table: [red]:b:.csv\n" in err
    for name in ("a:b", "x:smile:y", "[red]orca"):
        assert f"server.policy={name}: " in out
    scenario.rename("[red]:b:.yaml")
    assert "[red]:b:     1 run of 1 point" in sweep("[red]:b:.yaml", "--vary", "server.policy=orca")[1]


def test_a_log_shows_now_and_then_that_a_long_sweep_lives(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SAYS_EVERY_S", 0.01)
    words = ("--vary", "server.token_budget=256,512", "--vary", "simulate.requests=100000")
    err = sweep(scenario, *words)[2]
    assert re.fullmatch(r"(Sweeping: [012] of 2 points done\n)+", err)


def test_a_table_is_written_through_a_link(scenario: Path, sweep: Callable[..., Said]) -> None:
    link, target = scenario.with_name("t.csv"), scenario.with_name("real.csv")
    link.symlink_to(target)
    for _ in range(2):
        status, _, err = sweep(scenario, "--vary", "server.token_budget=512", "--out", link)
        assert (status, err) == (0, f"Table: {target}\n")
        assert link.is_symlink()
        assert pl.read_csv(target).height == 1


def test_a_sweep_refused_for_its_backend_writes_nothing(scenario: Path, sweep: Callable[..., Said]) -> None:
    out = scenario.with_name("t.csv")
    words = ("--vary", "server.token_budget=512", "--out", out)
    assert sweep(scenario, *words, "--backend", "slurm")[0] == 2
    assert [path.name for path in scenario.parent.iterdir()] == ["scenario.yaml"]


def test_networks_and_files_that_would_be_lost_are_refused(scenario: Path, sweep: Callable[..., Said]) -> None:
    network = Path(__file__).parents[2] / "examples" / "rybko_stolyar.yaml"
    assert "describes a network" in sweep(network, "--vary", "server.token_budget=1")[2]
    precious = scenario.with_name("t.csv")
    precious.write_text("precious\n")
    assert sweep(scenario, "--vary", "server.token_budget=512", "--out", precious)[0] == 2
    assert precious.read_text() == "precious\n"


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_where_every_point_is_bad_there_is_no_table(
    scenario: Path, sweep: Callable[..., Said], as_json: tuple[str, ...]
) -> None:
    out = scenario.with_name("t.csv")
    status, said, err = sweep(scenario, "--vary", "workload.poisson.rate=-1,-2", "--out", out, *as_json)
    assert (status, said) == (2, "")
    assert len(err.splitlines()) == 1
    assert not out.exists()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["penstock.sweeping.store.os.fsync", "polars.DataFrame.write_csv"])
def test_a_full_disk_names_the_table_and_what_is_kept(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The journal is what waits for the disk; it is full there, or only when the table is written."""
    out = scenario.with_name("t.csv")
    with monkeypatch.context() as full:
        full.setattr(where, no_room)
        status, said, err = sweep(scenario, "--vary", "workload.poisson.rate=1,2", "--out", out)
    assert (status, said) == (2, "")
    assert err.startswith(f"penstock: cannot write {out}: No space left on device; finished points are kept in t.csv.j")
    assert len(err.splitlines()) == 1
    assert sweep(scenario, "--vary", "workload.poisson.rate=1,2", "--out", out)[0] == 0
    assert pl.read_csv(out).height == 2


def test_no_output_overwrites_the_journal_or_a_file_that_varies(
    scenario: Path, sweep: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario.parent)
    Path("a.csv").write_text("tokens,ms\n1,5\n512,20\n")
    journal = ["--out", "z.csv", "--report", "z.csv.journal"]
    table = ["--vary", "server.batch_time.table=a.csv,b.csv", "--report", "a.csv"]
    for words in (["--vary", "server.token_budget=256,512", *journal], table):
        status, out, err = sweep(scenario, *words)
        assert (status, out) == (2, "")
        assert "be lost; give" in err
    assert not Path("z.csv.journal").exists()
    assert Path("a.csv").read_text().startswith("tokens")
