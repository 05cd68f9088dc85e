"""``penstock profile`` says in one line what cannot be done, before an engine is started."""

import importlib.util
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import command_line
from penstock.errors import InputError


def refused(*arguments: object) -> str:
    """Return the one line that is said."""
    found = CliRunner().invoke(command_line(["profile"]), ["profile", *map(str, arguments)])
    assert isinstance(found.exception, InputError), found.output
    said = str(found.exception)
    assert "\n" not in said
    return said


def test_a_profile_that_cannot_be_written_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)
    assert "is no folder" in refused(tmp_path / "a.yaml", "--measurements", "/dev/null/m.csv")


@pytest.mark.skipif(importlib.util.find_spec("openvino_genai") is not None, reason="OpenVINO GenAI is installed here")
def test_without_an_engine_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    assert refused(tmp_path / "a.yaml").endswith("pip install '.[openvino]'")
