"""Tests draw the same examples on every machine, and share the command line."""

import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")

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
