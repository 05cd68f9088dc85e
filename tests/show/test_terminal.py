"""A page loses no word on a terminal of any width, and says the same as Markdown and in a browser."""

import re

import pytest

from penstock.show import html
from penstock.show.markdown import markdown
from penstock.show.page import Fact, Page, Section, Table, Verdict
from penstock.show.terminal import print_page

ADDRESS = "https://example.org/a/long/path/that/no/terminal/of/forty/columns/can/hold.html"
TABLE = Table(
    ("Policy", "Rate\nper s", "Delay", "Why"),
    [("sarathi", "1,234.5", "0.123", "it is work-conserving"), ("orca", "1,023.4", "0.456", "there is a [limit]")],
    "Rates are simulated.",
    spare=("Delay", "Rate\nper s"),
    links=("sarathi.html", "orca.html"),
)
DETAIL = Table(("Name",), [("left out",)], detail=True)
PAGE = Page(
    "title",
    "heading",
    [Verdict("stable", "the load is 0.7.", about="sarathi")],
    [Section("Rates", ["In all."], [Fact("Load", "0.7", "of one")], tables=[TABLE, DETAIL], notes=["mind this"])],
)


def printed(page: Page, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    print_page(page)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [0, 20, 30, 45, 80])
def test_no_line_is_too_wide_and_no_cell_that_is_not_spare_is_lost(width: int, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    out = printed(PAGE, width, monkeypatch, capsys)
    assert max(map(len, out.splitlines())) <= max(width, 20)
    together = re.sub(r"\s", "", out)
    kept = [cell for row in TABLE.rows for cell in (row[0], row[3])]
    assert all(re.sub(r"\s", "", cell) in together for cell in ("sarathi", *kept, *TABLE.caption.split()))
    assert "leftout" not in together


@pytest.mark.parametrize(("width", "shown"), [(80, ("1,234.5", "0.123")), (41, ("1,234.5",)), (36, ())])
def test_spare_columns_are_left_out_the_first_one_first(
    width: int, shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(PAGE, width, monkeypatch, capsys)
    assert [cell for cell in TABLE.rows[0][1:3] if cell in out] == list(shown)


def test_an_address_is_printed_on_one_line(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    page = Page("title", "heading", sections=[Section("Where", ["Here:", ADDRESS])])
    assert ADDRESS in printed(page, 40, monkeypatch, capsys).splitlines()


def test_markdown_has_every_table_that_a_terminal_shows() -> None:
    text = markdown(PAGE)
    assert "| orca | 1,023.4 | 0.456 | there is a [limit] |" in text
    assert "| Policy | Rate per s | Delay | Why |\n| --- | ---: | ---: | --- |" in text
    assert all(words in text for words in ("**stable** sarathi", "### Rates", "Load: 0.7", "Note: mind this"))
    assert "left out" not in text


def test_names_of_rows_lead_where_they_should_in_a_browser() -> None:
    assert '<a href="orca.html">orca</a>' in html.render(PAGE)
