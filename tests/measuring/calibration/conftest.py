"""Shared data, where there are any, and benchmarks made by simulation."""

from pathlib import Path

import pytest

RUNS = Path(__file__).parents[3].parent / "shared" / "data" / "real_runs"


@pytest.fixture
def sweeps() -> Path:
    """Return the folder of GuideLLM sweeps."""
    folder = RUNS / "llm_inferno_guidellm_exp1"
    if not folder.is_dir():
        pytest.skip(f"no {folder.name} in shared/data/real_runs beside the repository")
    return folder
