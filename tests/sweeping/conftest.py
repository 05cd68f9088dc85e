"""A scenario that takes milliseconds, and what other processes run."""

from pathlib import Path

import pytest

SCENARIO = """\
workload: {poisson: {rate: 10, prompt: 129, output: {geometric: 112}}}
server: {hardware: codellama-34b-a100-tp1, token_budget: 512, policy: sarathi}
simulate: {requests: REQUESTS, seed: 0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario of a thousand requests."""
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.replace("REQUESTS", "1000"))
    return path


@pytest.fixture
def long_scenario(tmp_path: Path) -> Path:
    """A scenario whose points take some ten milliseconds."""
    path = tmp_path / "long.yaml"
    path.write_text(SCENARIO.replace("REQUESTS", "40000"))
    return path
