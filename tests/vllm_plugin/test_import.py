"""Penstock does without vLLM, and says how to get it where it is needed."""

import sys

import pytest


def test_the_plugin_without_vllm_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.v1.core.sched.async_scheduler"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "penstock.vllm_plugin", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'penstock\[vllm\]'"):
        import penstock.vllm_plugin  # noqa: F401


def test_importing_penstock_imports_neither_vllm_nor_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    code = "import sys, penstock; sys.exit(any(n in sys.modules for n in ('vllm', 'penstock.vllm_plugin')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
