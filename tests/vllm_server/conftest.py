"""A real vLLM server, where vLLM is installed for CPUs."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def vllm_for_cpus() -> None:
    """Skip where there is none."""
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if not version.endswith("+cpu"):
        pytest.skip("vLLM is not installed for CPUs: docs/how-to/real-vllm-server.md says how")
