"""Ctrl-C is one line and status 130, from the first line of Penstock that runs, in every command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli import COMMANDS

PYTHON = [sys.executable, "-X", "importtime"]  # says on standard error which module is there
HANDLER = "penstock.show.process"
SCRIPT = "from penstock.cli import main; main()"
LONG = """workload: {poisson: {rate: 3, prompt: 100, output: {geometric: 20}}}
server: {batch_time: {c_ms: 10, a_ms: 20, b0: 128}, token_budget: 256}
simulate: {requests: 3000000}
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a command in a group of its own, as a terminal does, and wait until it heeds Ctrl-C."""
    process = subprocess.Popen(
        [*PYTHON, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert any(HANDLER in line for line in process.stderr)
    return process


def after_ctrl_c(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Send Ctrl-C to the group; return status, answer and what else is said."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, [line for line in err.splitlines() if "import time:" not in line]


@pytest.mark.parametrize("start", [["-m", "penstock"], ["-c", SCRIPT]])
def test_nothing_else_is_imported_before_ctrl_c_is_heeded(start: list[str]) -> None:
    done = subprocess.run([*PYTHON, *start, "--version"], capture_output=True, text=True, check=True)
    loaded = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if "import time:" in line]
    first = loaded.index("penstock")
    between = loaded[first : loaded.index(HANDLER)]
    built_in = {"atexit", "gc"}
    assert set(between) - built_in == {"penstock", "penstock.show"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_is_interrupted_while_it_is_loaded_says_one_line(command: str) -> None:
    process = started("-m", "penstock", command)
    assert after_ctrl_c(process) == (130, "", ["penstock: interrupted"])


@pytest.mark.parametrize("start", [["-m", "penstock"], ["-c", SCRIPT]])
@pytest.mark.parametrize("after_s", [0.03, 0.1, 0.2, 0.3, 0.6])
def test_whenever_it_comes_it_is_one_line(start: list[str], after_s: float, tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(LONG)
    process = started(*start, "simulate", str(path))
    time.sleep(after_s)
    status, out, said = after_ctrl_c(process)
    assert (status, out) == (130, "")
    assert [line for line in said if not line.startswith("Compiling")] == ["penstock: interrupted"]
