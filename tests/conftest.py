"""Tests draw the same examples on every machine, and share the command line."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import settings

# Workers that share the cores gain nothing from threads of BLAS, which wait for each other in loops.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported, here and in the workers

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")

COMPILED = (
    "from penstock.kernel import apart, events\nevents.compiled_advance(), [*map(apart.address, apart.APART)]",
    "from penstock.kernel import server\nserver.compiled_advance(False), server.compiled_advance(True)",
)
"""What takes longest to compile: the event loop, and beside it the rest, which takes half as long."""

SOON_S = 4.0  # what is kept is loaded by then


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Compile once, in two processes at a time, what each worker would compile anew, and say so meanwhile."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", 0):
        return
    said = config.pluginmanager.get_plugin("terminalreporter")
    began = time.monotonic()
    parts = [subprocess.Popen([sys.executable, "-c", part]) for part in COMPILED]
    try:
        for part in parts:
            part.wait(SOON_S)
    except subprocess.TimeoutExpired:  # else all is kept
        said.write_line(
            "Compiling the simulator before the first test, once after each change of the kernel: one to three minutes."
        )
        for part in parts:
            part.wait()
        said.write_line(f"Compiled in {time.monotonic() - began:,.0f} s.")


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
