"""Every example in the README and in docstrings does what it says."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.planning.scenario import read_plan
from penstock.scenario import build
from penstock.scenario_network import build_network, describes_network

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


def test_the_scenarios_are_valid(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens,priority\n0,100,20,0\n1,200,30,1\n")
    networks = 0
    for scenario in map(yaml.safe_load, blocks("yaml")):
        if describes_network(scenario):
            networks += 1
            assert build_network(scenario, tmp_path, "readme").network.replicas.tolist() == [1, 3]
        elif "plan" in scenario:
            path = tmp_path / "plan.yaml"
            path.write_text(yaml.safe_dump(scenario))
            assert len(read_plan(path).space) == 576  # as the text says
        else:
            assert build(scenario, tmp_path).server.max_batch_size == 128
    assert networks == 1


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
