"""What a terminal shows while work goes on: what, how far, and how long still, whatever the words."""

import collections
import io
import re
import subprocess
import sys
import time

import numba
import pytest
from rich.console import Console

from penstock.kernel import kept_code
from penstock.show import compiling, progress, progress_line


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 80 columns, without patience."""
    written = io.StringIO()
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(progress_line, "Console", lambda **_: Console(file=written, force_terminal=True, width=80))
    return written


def wait_until_shown() -> None:
    progress._open[-1]._timer.join()


def last_line() -> str:
    """The line as it is now."""
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(progress._open[-1].progress.get_renderable())
    (line,) = captured.get().splitlines()
    return line


def test_long_words_squeeze_neither_bar_nor_times(shown: io.StringIO) -> None:
    with progress.bar("Planning") as show:
        wait_until_shown()
        task = progress._open[-1].progress.tasks[0]
        task.get_time = iter(range(1000)).__next__  # a second between any two looks
        for share in (0.1, 0.2, 0.5):
            show(share, "8 x codellama-34b-a100-tp4, token budget 512, max batch size 128, " * 3)
        line = last_line()
    assert len(line) <= 80
    assert "Planning: 8 x codellama" in line
    assert "━" * (progress_line.BAR_WIDTH // 2) in line
    assert " 50% " in line
    assert line.rstrip().endswith(" left")


def test_work_that_reports_nothing_is_shown_with_the_time_it_has_taken(shown: io.StringIO) -> None:
    with progress.bar("Fitting"):
        wait_until_shown()
        assert "Fitting" in last_line()
        assert "0:00:0" in last_line()
    assert "Fitting" in shown.getvalue()
    assert progress._open == []


def test_work_that_is_counted_says_how_many_are_done_and_how_fast_it_went_on(shown: io.StringIO) -> None:
    with progress.count("Sweeping", "point") as report:
        wait_until_shown()
        report(2, 4)
        assert "Sweeping: 2 of 4 points " in last_line()
        assert "/s" not in last_line()
        report(3, 4)
        assert re.search(r"Sweeping: 3 of 4 points, [\d.,e+]+/s", last_line())


def test_work_done_in_a_moment_is_not_shown(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 3600.0)
    with progress.bar("Fitting"):
        pass
    assert shown.getvalue() == ""


def test_where_there_is_no_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bar("Fitting") as show:
        show(0.5, "all of it")
    assert capsys.readouterr() == ("", "")


def test_what_is_compiled_is_said_in_the_place_of_the_work_and_how_far_it_is(
    shown: io.StringIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.core.event, "_registered", collections.defaultdict(list))  # none of an earlier test
    monkeypatch.setattr(compiling, "LOOKS_EVERY_S", 0.01)
    compiling.announce_compilation.__wrapped__()
    lines: list[str] = []

    @numba.njit
    def inner(x):  # type: ignore[no-untyped-def]
        return x - 1

    def look(x):  # type: ignore[no-untyped-def]
        return x + 1

    @numba.extending.overload(look)
    def _(x):  # type: ignore[no-untyped-def]
        wait_until_shown()
        while (" of 2 " not in last_line() and " of 1 " not in last_line()) or "0 of 2 " in last_line():
            time.sleep(0.01)
        lines.append(last_line())  # runs while the caller is compiled
        return lambda x: x + 1

    def first(x):  # type: ignore[no-untyped-def]
        return look(inner(x))

    def second(x):  # type: ignore[no-untyped-def]
        return look(x)

    numba.njit(first)(1)
    with progress.bar("Simulating"):
        wait_until_shown()
        numba.njit(second)(1.0)
        assert "Simulating" in last_line()
    assert "Compiling test progress, once: 1 of 2 f" in lines[0]
    assert "32%" in lines[0]
    assert "Simulating" not in "".join(lines)
    assert progress._open == []
    assert capsys.readouterr().err == ""


def test_who_waits_for_another_process_that_compiles_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.core.event, "_registered", collections.defaultdict(list))
    compiling.announce_compilation.__wrapped__()
    with numba.core.event.trigger_event(kept_code.WAITING, {"function": "advance"}):
        (line,) = progress._open
    assert line.title in capsys.readouterr().err == f"{line.title} ...\n"
    assert "another process, which compiles advance" in line.title
    assert progress._open == []


def test_how_many_functions_are_compiled_is_known_beforehand() -> None:
    """As many as are compiled, but for those with arguments of two kinds."""
    source = """
from numba.core import event
from penstock.kernel import kept_code, server
from penstock.show import compiling
counted = []
class Counts(event.Listener):
    def on_start(self, about):
        counted.append(counted[0] if counted else compiling.functions_of(about.data["dispatcher"]))
    def on_end(self, about):
        pass
kept_code._Kept.load_overload = lambda *_: None
kept_code._Kept.save_overload = lambda *_: None
event.register("numba:compile", Counts())
server.compiled_advance(False)
print(counted[0], len(counted))
"""
    expected, compiled = map(int, subprocess.check_output([sys.executable, "-c", source], text=True).split())
    assert 0.7 * compiled < expected < 1.4 * compiled


def test_a_log_is_told_once_that_something_is_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.core.event, "_registered", collections.defaultdict(list))
    compiling.announce_compilation.__wrapped__()
    for number in (1, 1.0):
        numba.njit(lambda x: x + 1)(number)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Compiling, once for the simulator")
