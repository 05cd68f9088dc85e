"""`penstock calibrate` prints what it found and how far off its predictions are, in words or JSON."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.measuring.calibration import calibrate as calibrations
from penstock.system.batch_time_file import read_batch_time
from tests.asked_once import asked_once
from tests.conftest import Said

FEW = ["--parameters", "step,per_token,overhead", "--fit-rows", "spread:2"]
TOLD = ["--parameters", "step,per_request,overhead", "--fit-rows", "spread:2"]
TABLE = """rate,prompt,output,ttft_ms,itl_ms,e2e_ms,completed,incomplete
1,500,60,21,9.4,576,200,0
6,500,60,26,10.7,657,200,0
12,500,60,31,13.5,828,200,0
"""


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_once(monkeypatch, calibrations, "calibrate")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE)
    return path


def test_words_mark_rows_used_to_fit_and_fit_eighty_columns(penstock: Callable[..., Said], results: Path) -> None:
    said = penstock("calibrate", results, *FEW, "--all")[1]
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    marked = [line.split()[:2] for line in lines if "500+60  poisson" in line]
    assert marked == [["0", "*500+60"], ["1", "500+60"], ["2", "*500+60"]]
    assert "Means of |predicted / measured - 1|" in said
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
    assert names == {f"predicted_over_measured.{end}" for end in ("svg", "png")}
    assert "Mean relative errors over 1 row that was not used to fit, of 3" in (tmp_path / "page.html").read_text()


def test_errors_are_drawn_over_the_load_where_it_was_measured(penstock: Callable[..., Said], tmp_path: Path) -> None:
    header, *rows = TABLE.splitlines()
    served = [f"{header},rps", *(f"{row},{rate}" for row, rate in zip(rows, (1.0, 5.9, 11.5), strict=True))]
    (tmp_path / "mine.csv").write_text("\n".join(served) + "\n")
    assert penstock("calibrate", tmp_path / "mine.csv", *FEW, "--figures", tmp_path / "f")[0] == 0
    assert {path.stem for path in (tmp_path / "f").iterdir()} == {"predicted_over_measured", "errors_by_load"}
    assert "Requests/s over what the server carries" in (tmp_path / "f" / "errors_by_load.svg").read_text()


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
    status, out, _ = penstock(
        "calibrate", tmp_path / "closed.csv", *FEW[:2], "--all", "--report", tmp_path / "page.html"
    )
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
    assert penstock("calibrate", results, *TOLD, "--strict")[0] == 0
    odd = tmp_path / "odd.csv"
    odd.write_text(TABLE.replace("6,500,60,26,10.7,657,", "6,500,60,2600,10.7,,"))
    status, out, _ = penstock("calibrate", odd, *TOLD)
    assert status == 0
    assert "MISSED The calibration missed 1 of 3 benchmark results by more than 25%" in words(out)
    assert "row 1 (500+60, poisson@6): time to first token off by -99% (predicted" in " ".join(out.split())
    assert "measured 2.6 s)" in " ".join(out.split())
    assert penstock("calibrate", odd, *TOLD, "--strict")[0] == 1


def words(out: str) -> str:
    """Return what was printed without the breaks of lines."""
    return " ".join(out.split())


def test_rows_of_several_files_are_told_apart(penstock: Callable[..., Said], results: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text(TABLE.replace("6,500,60,26,10.7,657,", "6,500,60,2600,10.7,,"))
    out = penstock("calibrate", results, tmp_path / "other.csv", *FEW, "--all")[1]
    assert max(map(len, out.splitlines())) <= 80
    assert "row 4 (other.csv, 500+60, poisson@6): time to first token off by " in words(out)
    assert "Files: rows 0 to 2 mine.csv, rows 3 to 5 other.csv." in words(out)


def test_files_of_one_name_in_two_folders_are_two_runs(
    penstock: Callable[..., Said], results: Path, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    again = tmp_path / "b" / results.name
    again.write_text(TABLE)
    document = json.loads(penstock("calibrate", results, again, *FEW, "--json")[1])
    assert {row["run"] for row in document["rows"]} == {str(results), str(again)}


def test_limits_that_were_not_given_are_said_to_be_assumed(penstock: Callable[..., Said], results: Path) -> None:
    out = words(penstock("calibrate", results, *FEW, "--all")[1])
    assert "token budget and max batch size assumed, give --token-budget and --max-batch-size" in out
    assert "1,024 assumed, give --max-batch-size" in out
    out = words(penstock("calibrate", results, *FEW, "--token-budget", 2048, "--max-batch-size", 64, "--all")[1])
    assert "assumed, give" not in out
    assert "stated: 64" in out


def test_a_calibration_that_nothing_judges_says_so(penstock: Callable[..., Said], results: Path) -> None:
    said = "no row was left to judge this by"
    assert said not in words(penstock("calibrate", results, *FEW)[1])
    page = results.parent / "page.html"
    every = ["--fit-rows", "all", "--report", page]
    out = words(penstock("calibrate", results, *FEW[:2], *every)[1])
    assert said in out
    assert "or fit fewer (--fit-rows lowest:1)" in out
    assert said in page.read_text()
    document = json.loads(penstock("calibrate", results, *FEW[:2], *every[:2], "--json")[1])
    assert any(said in warning for warning in document["warnings"])


def test_an_overhead_far_above_that_of_front_ends_is_said_to_be_a_queue(
    penstock: Callable[..., Said], tmp_path: Path
) -> None:
    slow = tmp_path / "slow.csv"
    late = TABLE.replace("60,21,9.4,576", "60,1521,9.4,").replace("60,26,10.7,657", "60,1526,10.7,")
    slow.write_text(late.replace("60,31,13.5,828", "60,1531,13.5,"))
    assert "is more than front ends take: requests rather waited in a queue" in words(
        penstock("calibrate", slow, *FEW)[1]
    )


def test_a_folder_is_read_and_what_is_no_result_is_left_out_with_a_note(
    penstock: Callable[..., Said], results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    status, _, err = penstock("calibrate", folder)
    assert (status, "is a folder without .json or .csv files" in err) == (2, True)
    (folder / "config.yaml").write_text("load: 1\n")
    (folder / "mine.csv").write_text(TABLE)
    out = words(penstock("calibrate", folder, *FEW, "--why")[1])
    assert "3 loads" in out
    assert "left out, as no benchmark results: config.yaml" in out


def test_what_tools_write_beside_their_results_is_left_out_unless_it_is_all(
    penstock: Callable[..., Said], results: Path, tmp_path: Path
) -> None:
    inputs = tmp_path / "inputs.json"
    inputs.write_text('{"data": []}')
    out = words(penstock("calibrate", results, inputs, *FEW, "--why")[1])
    assert "left out, as no benchmark results: inputs.json" in out
    status, _, err = penstock("calibrate", inputs)
    assert status == 2
    assert "inputs.json: is JSON of no known benchmark" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", "-1"], "seed is -1"),
        (["--fit-rows", "spread:" + "9" * 5_000], "give lowest:3, spread:3"),
        (["--max-batch-size", "0"], "max_batch_size is 0"),
        (["mine.csv"], "mine.csv: is given twice"),
        (["./mine.csv"], "mine.csv: is given twice"),
    ],
)
def test_no_value_is_taken_for_another(
    penstock: Callable[..., Said],
    results: Path,
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(results.parent)
    status, out, err = penstock("calibrate", "mine.csv", *options)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_more_rows_than_there_are_mean_all(penstock: Callable[..., Said], results: Path) -> None:
    many = penstock("calibrate", results, *FEW[:2], "--fit-rows", "spread:999999999999", "--json")[1]
    assert json.loads(many)["rows_fitted"] == 3


def test_two_columns_of_one_time_are_refused(penstock: Callable[..., Said], results: Path) -> None:
    results.write_text("rate,prompt,output,ttft_mean_ms,ttft_mean_s\n1,500,60,21,9\n")
    status, _, err = penstock("calibrate", results)
    assert status == 2
    assert "columns ttft_mean_ms and ttft_mean_s, so which one is meant is unclear" in err


@pytest.mark.parametrize("command", ["calibrate", "fit"])
def test_closed_standard_input_is_refused(
    penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    status, _, err = penstock(command, "-")
    assert status == 2
    assert "standard input: is closed" in err


def test_outputs_of_one_token_have_no_panel_of_gaps(penstock: Callable[..., Said], tmp_path: Path) -> None:
    table = tmp_path / "c.csv"
    rows = "1,100,1,30,5\n2,100,1,30,5\n"
    table.write_text(f"rate,prompt,output,ttft_mean_ms,itl_mean_ms\n{rows}")
    shape = "--model", "Llama-3.1-8B", "--gpu", "h100-sxm"
    status, _, err = penstock("calibrate", table, *shape, "--figures", tmp_path / "d")
    assert status == 0, err
    assert (tmp_path / "d" / "predicted_over_measured.svg").exists()


def test_settings_of_the_policy_are_simulated(penstock: Callable[..., Said], results: Path) -> None:
    """A server that composes no batch ahead lets requests in sooner, so a first token costs more than it seems."""

    def per_token(*settings: str) -> float:
        document = json.loads(penstock("calibrate", results, *FEW, "--json", *settings)[1])
        return float(document["parameters"]["per_token"]["value"])

    assert per_token("--policy-param", "async_scheduling=false") != pytest.approx(per_token(), rel=0.05)
    _, _, err = penstock("calibrate", results, *FEW, "--policy-param", "async_scheduling")
    assert "--policy-param is 'async_scheduling'" in err
    _, _, err = penstock("calibrate", results, *FEW, "--policy-param", "asink=1")
    assert "asink" in err


def test_prefix_hits_and_declared_lengths_can_be_said(penstock: Callable[..., Said], results: Path) -> None:
    _, _, err = penstock("calibrate", results, *FEW, "--prefix-hits", "0.5")
    assert "prefix hits are given, but no KV memory" in words(err)

    def per_token(*options: str) -> float:
        given = ("--kv-tokens", "100000", "--json", *options)
        return float(json.loads(penstock("calibrate", results, *FEW, *given)[1])["parameters"]["per_token"]["value"])

    assert per_token("--prefix-hits", "0.8") > 1.5 * per_token(), "fewer tokens are computed in the same time"
    alone = ("--policy-param", "async_scheduling=false")
    assert per_token("--declared-tokens", "100", *alone) == per_token(*alone), "vLLM takes no notice"


def test_prefix_hits_that_a_file_states_need_a_memory_to_be_simulated(
    penstock: Callable[..., Said], tmp_path: Path
) -> None:
    cached = tmp_path / "cached.csv"
    lines = [line + ("prefix_hits" if "rate" in line else "0.8") for line in TABLE.replace("\n", ",\n").splitlines()]
    cached.write_text("\n".join(lines))
    assert "prefix hits that the file states are not simulated; give kv_tokens (3 rows)" in words(
        penstock("calibrate", cached, *FEW, "--why")[1]
    )
    assert "not simulated" not in penstock("calibrate", cached, *FEW, "--kv-tokens", "100000", "--why")[1]


def test_the_first_word_promises_no_more_than_the_rows_tell(penstock: Callable[..., Said], results: Path) -> None:
    def word(*options: object) -> str:
        lines = penstock("calibrate", results, "--token-budget", 2048, "--max-batch-size", 256, *options)[1]
        return next(line for line in lines.splitlines() if "mean relative errors" in line.lower())

    assert word(*TOLD).startswith("CALIBRATED ")
    assert word("--fit-rows", "spread:2").startswith("UNCERTAIN "), "7 of 8 costs are assumed"
    assert word("--fit-rows", "spread:3").startswith("NOT CHECKED ")
