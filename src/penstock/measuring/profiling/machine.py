"""What a measurement was made on: processor, threads, versions; no names of hosts or users."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def machine(
    packages: Sequence[str], threads: int, accelerator: str | None = None
) -> dict[str, str | int]:
    """Return facts about this machine.

    Parameters
    ----------
    packages
        Distributions whose versions matter.
    threads
        Threads that the engine computes with.
    accelerator
        Name of the GPU; None: the processor computes.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    facts: dict[str, str | int] = {"processor": processor(), "cores": allowed, "threads": threads}
    if accelerator:
        facts["accelerator"] = accelerator
    facts["python"] = platform.python_version()
    return facts | {name: metadata.version(name) for name in packages}


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
