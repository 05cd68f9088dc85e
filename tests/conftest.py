"""Tests draw the same examples on every machine, and share the command line."""

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Workers that share the cores gain nothing from threads of BLAS, which wait for each other in loops.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported, here and in the workers

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=30)
settings.load_profile("repeatable")

SIMULATOR = """
from penstock.kernel import apart, events, server
from penstock.system.engines import ENGINES
server.compiled_advance(False), server.compiled_advance(True), events.compiled_advance()
[*map(apart.address, [*apart.APART, *{engine.rule for engine in ENGINES.values()}])]
"""
"""Compiles what takes longest; what is kept, or what another process compiles just then, is not compiled again."""

WITHOUT_SIMULATOR = ("inputs", "reference_tests", "scenario", "show", "theory", "traces", "workload")
"""Rooms of tests of which few simulate."""

COMPILER = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin to compile, in a process that leaves the cores to those who collect and run tests."""
    if not hasattr(config, "workerinput") and getattr(config.option, "numprocesses", 0):
        config.stash[COMPILER] = subprocess.Popen([sys.executable, "-c", f"import os\nos.nice(5)\n{SIMULATOR}"])


def pytest_unconfigure(config: pytest.Config) -> None:
    """End that process where the tests have ended before."""
    if COMPILER in config.stash:
        config.stash[COMPILER].kill()
        config.stash[COMPILER].wait()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """Say what goes on beside the first tests."""
    if node.gateway.id == "gw0" and node.config.stash[COMPILER].poll() is None:
        node.config.pluginmanager.get_plugin("terminalreporter").write_line(
            "The simulator is compiled beside the first tests, once after each change of the kernel: some two minutes."
        )


@functools.cache
def simulates(file: Path) -> bool:
    """Whether a file stands in a room of tests that simulate."""
    return not any(file.is_relative_to(Path(__file__).parent / room) for room in WITHOUT_SIMULATOR)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the part of each worker begin with files whose tests do not simulate."""
    parts: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))]
    for _, file in itertools.groupby(sorted(items, key=lambda item: simulates(item.path)), key=lambda item: item.path):
        min(parts, key=len).extend(file)
    items[:] = itertools.chain(*parts)


@functools.cache
def simulator() -> None:
    """Wait until the simulator is compiled, and load it: the messages of those who wait belong to no test."""
    exec(SIMULATOR)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load the simulator before the first test that may need it."""
    if hasattr(item.config, "workerinput") and simulates(item.path):
        simulator()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run the tests of a real server one after another, in one process: what they time would be disturbed."""
    return 0 if config.option.markexpr == "vllm_server" else None


Said = tuple[int, str, str]
"""Exit status, standard output, standard error."""


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Return the command line, in this process, 80 columns wide."""
    from penstock.cli import main  # tests of the library alone need not wait for it

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        written = capsys.readouterr()
        return int(left.value.code or 0), written.out, written.err

    return run
