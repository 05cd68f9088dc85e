"""`penstock calibrate` prints what it found and how far off its predictions are, in words or JSON."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conftest import Said

from penstock.system.batch_time_file import read_batch_time

FEW = ["--parameters", "step,per_token,overhead", "--fit-rows", "spread:2"]
TABLE = """rate,prompt,output,ttft_ms,itl_ms,e2e_ms,completed,incomplete
1,500,60,21,9.4,576,200,0
6,500,60,26,10.7,657,200,0
12,500,60,31,13.5,828,200,0
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    return path


def test_words_mark_rows_used_to_fit_and_fit_eighty_columns(penstock: Callable[..., Said], results: Path) -> None:
    said = penstock("calibrate", results, *FEW)[1]
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    marked = [line.split()[0] for line in lines if "500+60 poisson" in line]
    assert marked == ["*500+60", "500+60", "*500+60"]
    assert "Mean of |predicted / measured - 1|" in said
    assert "not asked for" in said


def test_json_is_all_of_it_and_nothing_else(penstock: Callable[..., Said], results: Path) -> None:
    document = json.loads(penstock("calibrate", results, *FEW, "--json")[1])
    assert document["rows_fitted"] == 2
    assert set(document["parameters"]) == {"step", "per_token", "overhead"}
    assert document["parameters"]["step"]["unit"] == "ms"
    assert [row["fitted"] for row in document["rows"]] == [True, False, True]
    assert set(document["errors"]) == {"fitted", "judged", "all"}


def test_files_are_written(penstock: Callable[..., Said], results: Path, tmp_path: Path) -> None:
    outputs = [
        "--output",
        tmp_path / "found.yaml",
        "--figures",
        tmp_path / "figures",
        "--report",
        tmp_path / "page.html",
    ]
    assert penstock("calibrate", results, *FEW, *outputs, "--description", "my server")[0] == 0
    assert read_batch_time(tmp_path / "found.yaml").description == "my server"
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {
        f"{name}.{end}" for name in ("predicted_over_measured", "errors_by_load") for end in ("svg", "png")
    }
    assert "Mean relative errors over the rows that were not used to fit" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fit-rows", "few"], "fit_rows is 'few'; give lowest:3"),
        (["--format", "guidelm"], "did you mean 'guidellm'"),
        (["--parameters", "step,speed"], "unknown parameter 'speed'"),
        (["--output", "mine.csv"], "is what is read, which would be lost"),
    ],
)
def test_bad_input_is_one_line(
    penstock: Callable[..., Said], results: Path, options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results.parent)
    status, out, err = penstock("calibrate", results, *options)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


CLOSED = "in_flight,pattern,prompt,output,ttft_p50_ms,itl_mean_ms,completed,duration_s\n8,closed,512,96,40,9.1,100,11\n"


def test_closed_loops_alone_are_printed_and_reported(penstock: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "closed.csv").write_text(CLOSED)
    status, out, _ = penstock("calibrate", tmp_path / "closed.csv", *FEW[:2], "--report", tmp_path / "page.html")
    assert status == 0
    assert "closed@8" in out
    assert (tmp_path / "page.html").exists()


def test_results_come_from_standard_input_too(penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b'{"benchmarks": []}')))
    status, out, err = penstock("calibrate", "-")
    assert (status, out) == (2, "")
    assert "standard input: has no row that can be used (it is empty)" in err


def test_the_limit_on_size_is_an_option(penstock: Callable[..., Said], results: Path) -> None:
    status, _, err = penstock("calibrate", results, "--max-gib", "0.0000001")
    assert status == 2
    assert "holds more than 1e-07 GiB" in err


def test_a_row_that_is_missed_is_named_and_strict_exits_with_one(
    penstock: Callable[..., Said], results: Path, tmp_path: Path
) -> None:
    assert penstock("calibrate", results, *FEW, "--strict")[0] == 0
    odd = tmp_path / "odd.csv"
    odd.write_text(TABLE.replace("6,500,60,26,", "6,500,60,2600,"))
    status, out, _ = penstock("calibrate", odd, *FEW)
    assert status == 0
    assert "Warning  1 of 3 rows are missed by more than 25%" in out
    assert "row 1 (500+60, poisson@6): time to first token off by -99%" in " ".join(out.split())
    assert penstock("calibrate", odd, *FEW, "--strict")[0] == 1
