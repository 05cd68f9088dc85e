"""``penstock twin`` says in one line what cannot be done, before an engine is started."""

import importlib.util
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.errors import InputError
from penstock.measuring.profiling.command import profile
from penstock.measuring.twin.command import twin
from penstock.system.batch_time_file import read_batch_time

HERE = importlib.util.find_spec("openvino_genai") is not None
needs_openvino = pytest.mark.skipif(not HERE, reason="OpenVINO GenAI is not installed: pip install '.[test,openvino]'")

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(profile)
app.command()(twin)


def refused(*arguments: object) -> str:
    """Return the one line that is said."""
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert isinstance(found.exception, InputError), found.output
    said = str(found.exception)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rho", "x"), "--rho 'x'"),
        (("--rho", ""), "no load"),
        (("--rho", "7"), "a load is 7"),
        (("--seeds", "0"), "seeds"),
        (("--prompt", "{zipf: 3}"), "--prompt"),
        (("--output", "{geometric"), "--output"),
        (("--model", "huge"), "--model"),
        (("--engine", "tgi"), "unknown engine"),
        (("--clock", "sun"), "unknown clock"),
        (("--batch-time", "nowhere.yaml"), "nowhere.yaml"),
        (("--policy", "orca"), "scheduler of its own"),
        (("--report", "/"), "/"),
    ],
)
def test_a_twin_that_cannot_run_is_refused_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("twin", *arguments)


@pytest.mark.openvino
@needs_openvino
def test_a_profile_is_a_file_that_a_twin_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "tiny.yaml"
    tiny = ("--model", "tiny", "--token-budget", "48", "--clock", "paced")
    arguments = ["profile", str(made), "--seconds", "1.5", "--measurements", str(tmp_path / "m.csv"), *tiny]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Llama" in read_batch_time(made).description
    assert (tmp_path / "m.csv").exists()
    run = ["twin", "--batch-time", str(made), "--rho", ".4,1.5", "--seeds", "1", "--seconds", "1", "--backlog", ".3"]
    done = CliRunner().invoke(app, [*run, "--json", *tiny])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [trial["rho"] for trial in found["runs"]] == [0.4, 1.5]
    assert found["runs"][1]["predicted"] == "grows"
