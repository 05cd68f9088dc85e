"""Where vLLM is installed its own scheduler is driven as `tests/agreement/record_vllm.py` drives it."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RECORDER = Path(__file__).parents[1] / "agreement" / "record_vllm.py"


@pytest.fixture(scope="session")
def vllm() -> ModuleType:
    """The module that builds and drives vLLM's schedulers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    pytest.importorskip("vllm", reason="vLLM is not installed: pip install '.[test,vllm]'")
    sys.path.append(str(RECORDER.parent))  # what it shares with other recorders lies beside it
    spec = importlib.util.spec_from_file_location("record_vllm", RECORDER)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def scheduler(vllm: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Build a `PenstockScheduler`: ``scheduler(chosen, params, budget, max_seqs, num_blocks, **configuration)``."""
    from penstock.vllm_plugin import PenstockScheduler

    def make(chosen: str, params: Any, budget: int, max_seqs: int, num_blocks: int = 100_000, **more: Any) -> Any:
        monkeypatch.setenv("PENSTOCK_POLICY", chosen)
        monkeypatch.setenv("PENSTOCK_POLICY_PARAMS", ",".join(map(str, params)))
        return vllm.make_scheduler(budget, max_seqs, num_blocks, cls=PenstockScheduler, **more)

    return make
