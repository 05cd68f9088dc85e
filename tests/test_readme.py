"""Every example in the README and in docstrings does what it says."""

import doctest
import importlib
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.scenario.scenario import build

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_examples_run_in_order_and_the_first_has_nine_lines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    examples = blocks("python")
    assert len(examples[0].strip().splitlines()) == 9
    (tmp_path / "readme.py").write_text("\n".join(examples))
    exec(compile("\n".join(examples), str(tmp_path / "readme.py"), "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert printed.startswith("stable the load is 0.7")
    assert printed.strip().splitlines()[-1].startswith("True False ")


def test_what_the_first_command_prints_is_shown(
    penstock: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten lines of it, each as it is printed; rows of intervals and the rest are left out."""
    monkeypatch.chdir(Path(__file__).parents[1])
    monkeypatch.setenv("COLUMNS", "96")
    (shown,) = blocks("text")
    printed = [line.rstrip() for line in penstock("check", "examples/azure_code.yaml")[1].splitlines()]
    shown_lines = [line for line in shown.splitlines() if line not in ("", "...")]
    assert len(shown_lines) >= 9
    assert [line for line in shown_lines if line not in printed] == []


def test_the_scenarios_are_valid(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens,priority\n0,100,20,0\n1,200,30,1\n")
    for scenario in map(yaml.safe_load, blocks("yaml")):
        assert build(scenario, tmp_path).server.max_batch_size == 128


def test_it_is_read_in_two_minutes() -> None:
    assert 90 <= len(README.splitlines()) <= 110
    assert max(len(line) for line in README.splitlines() if not line.startswith(("|", "!"))) <= 100


def test_there_are_exactly_two_commands_and_they_name_real_files() -> None:
    commands = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert commands == ["pip install . && penstock check examples/azure_code.yaml", "pip install '.[test]' && pytest"]
    assert (Path(__file__).parents[1] / "examples" / "azure_code.yaml").exists()


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if not module.name.endswith(("__main__", "vllm_plugin"))  # vLLM is not installed here
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_give_what_they_show(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
