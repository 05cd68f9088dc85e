"""A terminal shows the newest page alone, and says how much of it does not fit."""

import pytest

from penstock.live.screen import Screen
from penstock.show.page import Fact, Page, Section


def page(name: str, facts: int) -> Page:
    return Page(name, "", sections=[Section("Facts", facts=[Fact(f"fact{n}", str(n)) for n in range(facts)])])


def test_each_page_takes_the_place_of_the_one_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Screen() as screen:
        screen.show(page("first", 3))
        capsys.readouterr()
        screen.show(page("second", 40))
        shown = capsys.readouterr().out
    assert "second" in shown
    assert "first" not in shown
    assert "fact0" in shown
    assert "fact20" not in shown
    assert "... 32 more lines: a taller window shows them" in shown
