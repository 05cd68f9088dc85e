"""What must be true of ``penstock hardware``."""

import json

import pytest
from typer.testing import CliRunner

from penstock.cli import command_line
from penstock.system.batch_time_file import BatchTimeSection
from penstock.system.presets import HARDWARE

run = CliRunner().invoke


def test_every_entry_is_listed_with_its_times():
    result = run(command_line(), ["hardware"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert all(name in result.output for name in HARDWARE)
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("name", HARDWARE)
def test_one_entry_says_its_parameters_its_source_and_its_licence(name):
    result = run(command_line(), ["hardware", name], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert "Source:" in result.output
    assert "Licence:" in result.output
    assert HARDWARE[name].description[:60] in result.output


def test_json_is_one_document_from_which_the_models_can_be_built(tmp_path):
    result = run(command_line(), ["hardware", "--json"])
    entries = json.loads(result.output)["hardware"]
    assert [entry["name"] for entry in entries] == list(HARDWARE)
    for entry in entries:
        assert (
            BatchTimeSection.model_validate(entry["batch_time"]).build(tmp_path) == HARDWARE[entry["name"]].batch_time
        )
