"""A page loses no word on a terminal of any width, and says the same in a browser."""

import dataclasses
import re

import pytest

from penstock.show import html
from penstock.show.page import Depth, Fact, Line, Page, Section, Table, Verdict
from penstock.show.terminal import print_head, print_page

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


def printed(
    page: Page,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    depth: Depth = "head",
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    print_page(page, depth=depth)
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


def test_names_of_rows_lead_where_they_should_in_a_browser() -> None:
    assert '<a href="orca.html">orca</a>' in html.render(PAGE)


HEAD = Page(
    "title",
    "heading",
    [Verdict("stable", "the load is 0.7.")],
    [
        Section("Hypotheses", ["This explains it."], why=True),
        Section("Statistics", ["This is the rest."], tables=[DETAIL], notes=["mind this"]),
    ],
    head=[Line("title", "1.2 requests/s"), Line("stable", "70% [of] what it can carry", judges=True)],
    why="hypotheses",
    rest="every statistic",
)
"""A page with a head."""


def test_a_head_is_printed_alone_and_names_what_is_behind_it(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    assert printed(HEAD, 80, monkeypatch, capsys).splitlines() == [
        "title        1.2 requests/s",
        "STABLE       70% [of] what it can carry",
        "--why: hypotheses   --all: every statistic",
    ]
    assert printed(dataclasses.replace(HEAD, why="", rest=""), 80, monkeypatch, capsys).endswith("carry\n")


@pytest.mark.parametrize("width", [0, 30, 45])
def test_a_head_loses_no_word_on_a_narrow_terminal(width: int, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    out = printed(HEAD, width, monkeypatch, capsys)
    assert max(map(len, out.splitlines())) <= max(width, 20)
    assert all(line.text.split() == [word for word in line.text.split() if word in out] for line in HEAD.head)


def test_why_prints_what_explains_the_head_and_all_the_rest(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    why = printed(HEAD, 80, monkeypatch, capsys, "why")
    assert "This explains it." in why
    assert "mind this" in why
    assert "the load is 0.7." in why
    assert "This is the rest." not in why
    assert "--why" not in why
    assert why.endswith("--all: every statistic\n")
    everything = printed(HEAD, 80, monkeypatch, capsys, "all")
    assert all(said in everything for said in ("This explains it.", "This is the rest.", "left out", "mind this"))
    assert "--" not in everything


def test_lines_that_were_begun_with_are_not_printed_again(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    whole = printed(HEAD, 80, monkeypatch, capsys)
    print_head(HEAD.head[:1])
    print_page(HEAD, begun=1)
    assert capsys.readouterr().out == whole


def test_a_browser_unfolds_what_is_behind_the_head() -> None:
    text = html.render(HEAD)
    assert "<title>stable: title</title>" in text
    head, why, rest = text.split('<details class="behind">')
    assert "1.2 requests/s" in head
    assert "the load is 0.7." not in head
    assert "the load is 0.7." in why
    assert "This explains it." in why
    assert "mind this" in why
    assert "This is the rest." in rest
    assert "left out" in rest


def test_a_head_has_six_lines_at_most() -> None:
    with pytest.raises(AssertionError, match="a head has 7 lines"):
        dataclasses.replace(HEAD, head=[Line(str(number), "") for number in range(7)])


def test_a_long_name_of_a_fact_leaves_room_for_what_explains_it_and_loses_no_number(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    name = "pool-controlled, maxweight, maxweight-tokens at 128, 256, 512, 1,024 and 2,048"
    page = Page("title", "", sections=[Section("", facts=[Fact(name, "", "Theorem 1(b): it carries all")])])
    said = printed(page, 80, monkeypatch, capsys).split()
    assert all(word in said for word in (*name.split(), "Theorem", "carries"))
