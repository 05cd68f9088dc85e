"""What only an extra brings is asked for in one line, which says how to install it."""

import importlib.util
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SWEEP = ("sweep", ROOT / "examples" / "azure_code.yaml", "--vary", "workload.rate=1,1.1", "--backend")


@pytest.mark.parametrize(
    ("command", "extra", "module"),
    [
        (("serve",), "serve", "uvicorn"),
        (("serve", "--watch", "localhost:1"), "live", "zmq"),
        (("watch", "localhost:1"), "live", "prometheus_client"),
        ((*SWEEP, "loky"), "sweep", "joblib"),
        ((*SWEEP, "ray"), "ray", "ray"),
        ((*SWEEP, "dask"), "dask", "distributed"),
    ],
)
def test_without_a_module_a_command_says_which_extra_brings_it(
    penstock: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[object, ...],
    extra: str,
    module: str,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    status, out, err = penstock(*command)
    assert (status, out) == (2, "")
    assert err.endswith(f" needs {module}, which is not installed; run `pip install 'penstock-llm[{extra}]'`\n")
    assert err.count("\n") == 1
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
