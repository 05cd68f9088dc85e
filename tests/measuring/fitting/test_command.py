"""`penstock fit` answers in words or JSON, writes what scenarios read, and says in one line what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.measuring.fitting.fit import fit
from penstock.measuring.fitting.readers import read_batches
from penstock.system.batch_time import Affine
from penstock.system.batch_time_file import read_batch_time
from tests.conftest import Said


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Write 120 batches that take 10 ms and 50 us a token, with 3% of noise."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 500, 120)
    ms = (10 + 0.05 * tokens) * (1 + 0.03 * rng.standard_normal(120))
    rows = [f"{b},{t},{machine}" for b, t, machine in zip(tokens, ms, ["a", "b"] * 60, strict=True)]
    path = tmp_path / "measured.csv"
    path.write_text("\n".join(["tokens,ms,machine", *rows]) + "\n")
    return path


def test_json_is_the_answer_of_the_library(penstock: Callable[..., Said], measured: Path) -> None:
    status, out, err = penstock("fit", measured, "--model", "affine", "--seed", 3, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(fit(read_batches(measured), "affine", seed=3).as_dict()))


def test_the_keys_of_the_json_are_as_documented(penstock: Callable[..., Said], measured: Path) -> None:
    found = json.loads(penstock("fit", measured, "--json")[1])
    assert list(found) == [
        "outliers", "left_out_rows", "tokens", "r2_without_outliers", "source", "batches", "mean_absolute_error",
        "error_quantiles", "bias", "r2", "model", "parameters", "candidates", "confidence", "warnings",
    ]  # fmt: skip
    assert found["model"] == "affine"
    a = found["parameters"]["a"]
    assert a["low"] < 5e-5 < a["high"]
    assert [one["name"] for one in found["candidates"]] == [
        "affine", "hinge", "steps", "table",
    ]  # fmt: skip


def test_words_name_the_model_its_parameters_and_what_it_was_chosen_from(
    penstock: Callable[..., Said], measured: Path
) -> None:
    status, head, _ = penstock("fit", measured)
    assert status == 0
    assert len([line for line in head.splitlines() if not line.startswith((" ", "--"))]) <= 6
    assert "FITTED       affine: the time of b tokens is c + a b." in head
    status, out, _ = penstock("fit", measured, "--all")
    assert max(map(len, out.splitlines())) <= 80
    for words in (
        "Least squares of relative errors",
        "each token",
        "95% intervals",
        "chosen",
        "R^2",
        "120",
    ):
        assert words in out
    assert "extrapolated" in out


def test_what_is_written_is_what_scenarios_read(penstock: Callable[..., Said], measured: Path, tmp_path: Path) -> None:
    file, folder, page = tmp_path / "batch-time.yaml", tmp_path / "figures", tmp_path / "fit.html"
    arguments = ("--output", file, "--figures", folder, "--report", page, "--description", "a model on a machine")
    status, _, err = penstock("fit", measured, "--model", "affine", *arguments)
    assert status == 0
    written = read_batch_time(file)
    assert isinstance(written.batch_time, Affine)
    assert written.batch_time.a == pytest.approx(5e-5, rel=0.05)
    assert written.description == "a model on a machine"
    assert "measured.csv" in written.source
    figures = ("batch_time_fit", "batch_time_errors")
    assert {path.name for path in folder.iterdir()} == {f"{f}.{kind}" for f in figures for kind in ("svg", "png")}
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "each token" in page.read_text()
    assert all(str(path) in err for path in (file, page))


def test_files_are_put_together_and_rows_chosen(penstock: Callable[..., Said], measured: Path) -> None:
    again = measured.with_name("again.csv")
    again.write_bytes(measured.read_bytes())
    both = json.loads(penstock("fit", measured, again, "--model", "affine", "--json")[1])
    some = json.loads(penstock("fit", measured, "--where", "machine=a", "--model", "affine", "--json")[1])
    small = json.loads(penstock("fit", measured, "--max-tokens", "100", "--model", "affine", "--json")[1])
    assert (both["batches"], some["batches"]) == (240, 60)
    assert small["tokens"][1] <= 100


def test_of_a_long_table_some_loads_are_shown_and_how_many_is_said_and_the_page_has_all(
    penstock: Callable[..., Said], measured: Path, tmp_path: Path
) -> None:
    _, out, _ = penstock("fit", measured, "--model", "table", "--why", "--report", tmp_path / "fit.html")
    shown = [line for line in out.splitlines() if line.startswith("t_")]
    loads = len(json.loads(penstock("fit", measured, "--model", "table", "--json")[1])["parameters"])
    assert len(shown) < loads
    assert f"{len(shown)} of {loads} token loads" in " ".join(out.split())
    assert (tmp_path / "fit.html").read_text().count("<span>t_") == len(shown) + loads


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "steps", "--confidence", "0.995"], "confidence is 0.995"),
        (["--model", "afine"], "did you mean 'affine'"),
        (["--format", "vlm"], "did you mean 'vllm'"),
        (["--where", "machine"], "names no column and value"),
        (["--where", "machine=c"], "no row whose 'machine' is 'c'"),
        (["--max-tokens", "0"], "the largest token load is 0"),
        (["--b0", "64"], "which model has it is open"),
        (["--model", "steps", "--confidence", "3"], "confidence is 3"),
        (["--output", "/"], "cannot write"),
    ],
)
def test_bad_options_are_one_line_and_status_2(
    arguments: list[str], words: str, penstock: Callable[..., Said], measured: Path
) -> None:
    status, out, err = penstock("fit", measured, *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_measurements_are_not_overwritten(penstock: Callable[..., Said], measured: Path) -> None:
    before = measured.read_text()
    status, _, err = penstock("fit", measured, "--output", measured)
    assert status == 2
    assert "would be lost" in err
    assert measured.read_text() == before


def test_a_file_that_is_not_there_is_one_line(penstock: Callable[..., Said], tmp_path: Path) -> None:
    status, out, err = penstock("fit", tmp_path / "none.csv")
    assert (status, out) == (2, "")
    assert "does not exist" in err
    assert len(err.splitlines()) == 1


def test_a_file_given_twice_is_refused(penstock: Callable[..., Said], measured: Path) -> None:
    status, _, err = penstock("fit", measured, measured)
    assert status == 2
    assert "is given twice" in err
