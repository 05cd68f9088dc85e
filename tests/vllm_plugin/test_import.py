"""Penstock does without vLLM, and says how to get it where it is needed."""

import importlib
import sys
from types import ModuleType

import pytest

import penstock


def test_the_plugin_without_vllm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.v1.core.sched.async_scheduler"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "penstock.vllm_plugin", raising=False)
    with pytest.raises(ImportError, match=r"pip install '\.\[vllm\]'"):
        import penstock.vllm_plugin  # noqa: F401


def test_the_plugin_beside_anothers_package_of_the_same_name_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anothers = ModuleType("penstock")
    anothers.__path__ = penstock.__path__  # its `__init__.py` lies in our folder
    monkeypatch.setitem(sys.modules, "penstock", anothers)
    monkeypatch.delitem(sys.modules, "penstock.vllm_plugin", raising=False)
    with pytest.raises(ImportError, match=r"another project .* && pip install penstock-llm$"):
        importlib.import_module("penstock.vllm_plugin")


def test_importing_penstock_imports_neither_vllm_nor_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    code = "import sys, penstock; sys.exit(any(n in sys.modules for n in ('vllm', 'penstock.vllm_plugin')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
