"""What a real engine does here, whichever runs it."""

import importlib
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.measuring.profiling.batching import Batch, Batching
from penstock.measuring.profiling.clock import Clock
from penstock.measuring.profiling.llama import LlamaShape
from penstock.words import counted


class RealEngine(ABC):
    """An engine that runs here, and whose batches are formed here, or mirrored.

    Attributes
    ----------
    clock
        What time goes by.
    policy, token_budget, max_running
        What forms the batches, and their limits; None: no limit.
    longest
        Most tokens of a request, prompt and output together.
    description, facts
        The engine in words, and the machine that it runs on.
    """

    max_running: int | None = None
    longest: int
    description: str
    facts: dict[str, str | int]

    def __init__(self, batching: Batching) -> None:
        self.clock = Clock()
        self._batching = batching
        self.policy = batching.policy
        self.token_budget = batching.token_budget

    def _describe(
        self,
        shape: LlamaShape,
        runtime: str,
        packages: Sequence[str],
        threads: int,
        accelerator: str | None = None,
    ) -> None:
        on = accelerator or counted(threads, "thread")
        self.description = f"{shape.describe()}, {runtime} on {on}"
        self.facts = machine(packages, threads, accelerator)

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return self._batching.busy

    @abstractmethod
    def submit(self, request: int, prompt: int, output: int) -> None:
        """Put a request of so many prompt and output tokens at the end of the queue."""

    @abstractmethod
    def step(self) -> Batch:
        """Run one batch to its end, and read its tokens."""


def imported(needs: str, extra: str, *modules: str) -> list[Any]:
    """Return modules of packages that are not always installed, or say how to install them."""
    try:
        return [importlib.import_module(module) for module in modules]
    except ImportError as error:
        raise InputError(
            f"{needs} ({error}); install it, in Penstock's checkout, with: pip install '.[{extra}]'"
        ) from None


def machine(
    packages: Sequence[str], threads: int, accelerator: str | None = None
) -> dict[str, str | int]:
    """Return facts about this machine; no names of hosts or users.

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
