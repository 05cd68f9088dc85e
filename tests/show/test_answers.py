"""JSON, page and reference of an answer follow from its fields."""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import polars as pl
import pytest

from penstock.measuring.calibration.calibration import Calibration
from penstock.measuring.fitting.fit import Fit
from penstock.show.answers import Meaning, Shown, computed, filled, meanings, page, page_of, plain, table
from penstock.show.page import Fact, Line, Page, Section, Table, Verdict
from penstock.words import share, whole

LOAD, WORDS = Section("Load", why=True), Section("In words", ["Always said."])


class Estimate(NamedTuple):
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Limit:
    """A row."""

    name: Annotated[str, Meaning("Of the limit.", name="Limit")]
    load: Annotated[Estimate | None, Meaning("Of what it carries.", name="Load", format=share)]
    queue: Annotated[float, Meaning("Requests.", name="Queue", format=whole, spare=2)] = 0.0
    wait: Annotated[float, Meaning("Seconds.", name="Wait", spare=1)] = 0.0


@dataclasses.dataclass(frozen=True)
class Reading(Shown):
    """What a meter says."""

    load: Annotated[Estimate | None, Meaning("Share.", LOAD, "Load", lambda of: f"of {of.meter}", unknown="ask")]
    meter: Annotated[str, Meaning("Its name.")] = "one"
    limits: Annotated[Sequence[Limit], Meaning("By limit.", LOAD, words="How to read it.")] = ()
    notes: Annotated[tuple[str, ...], Meaning("What to mind.", LOAD, key="warnings")] = ()
    rest: Annotated[float, Meaning("Seconds.", key=None)] = 1.0
    own: object = None

    @computed(LOAD, "Twice", format=share, key=None)
    def twice(self) -> float | None:
        """Two of them."""
        return None if self.load is None else 2 * self.load.value

    @computed(WORDS)
    def sentence(self) -> str:
        """What it comes to."""
        return "" if self.load is None else "It is loaded."


FULL = Reading(Estimate(0.5, 0.4, float("inf")), limits=[Limit("memory", None, 1234.0)], notes=("Mind.",))


def test_json_has_the_fields_that_mean_something_under_their_keys() -> None:
    assert FULL.as_dict() == {
        "load": {"value": 0.5, "low": 0.4, "high": None}, "meter": "one",
        "limits": [{"name": "memory", "load": None, "queue": 1234.0, "wait": 0.0}],
        "warnings": ["Mind."], "sentence": "It is loaded.",
    }  # fmt: skip


def test_json_is_plain_whatever_a_field_holds() -> None:
    held = {
        1: (float("nan"), np.float64(2.5), np.arange(2)), "of": pl.DataFrame({"a": [1.0, float("inf")]}), "no": None,
        "set": frozenset({"a"}),
    }  # fmt: skip
    expected = {"1": [None, 2.5, [0, 1]], "of": [{"a": 1.0}, {"a": None}], "no": None, "set": ["a"]}
    assert json.loads(json.dumps(plain(held), allow_nan=False)) == expected


def test_a_section_has_what_its_fields_put_into_it() -> None:
    section = filled(FULL, LOAD)
    assert section.facts == [Fact("Load", "0.5", "(0.4 to inf) of one"), Fact("Twice", "100%")]
    assert section.tables == [
        Table(
            ["Limit", "Load", "Queue", "Wait"],
            [["memory", "-", "1,234", "0"]],
            "How to read it.",
            spare=["Wait", "Queue"],
        )
    ]
    assert (section.notes, section.why) == (["Mind."], True)
    assert filled(FULL, WORDS).paragraphs == ["Always said.", "It is loaded."]


def test_what_is_not_known_is_said_or_left_out_and_a_section_without_anything_says_nothing() -> None:
    unknown = Reading(None)
    assert filled(unknown, LOAD).facts == [Fact("Load", "?", "ask")]
    assert filled(unknown, WORDS) == Section("In words")


def test_columns_come_in_the_order_asked_for() -> None:
    assert table(FULL.limits, order="load name").columns == ["Load", "Limit"]


def test_an_answer_without_a_view_is_shown_by_its_fields() -> None:
    answer = Reading(None, "two")
    assert [section.title for section in answer.page("A").sections] == ["Load", "In words"]
    assert answer.page("A").title == "A"
    assert "ask" in answer._repr_html_()


def test_a_verdict_among_the_fields_comes_first() -> None:
    @dataclasses.dataclass(frozen=True)
    class Judged(Shown):
        """Judged."""

        verdict: Annotated[Verdict, Meaning("In a word.")]

    assert Judged(Verdict("stable", "So.")).page().verdicts == [Verdict("stable", "So.")]


def test_a_view_registers_another_page() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Shown):
        """Own."""

    page_of.register(Own, lambda answer, name="": Page(name, head=[Line(name, "Said.")]))
    assert page(Own(), "A").head == [Line("A", "Said.")]


@pytest.mark.parametrize("kind", [Reading, Fit])
def test_the_docstring_lists_what_fields_mean(kind: type) -> None:
    text = kind.__doc__ or ""
    stated = {field.name for field in dataclasses.fields(kind)} & set(meanings(kind))
    assert "Attributes\n----------\n" in text
    assert all(f"{name}\n    {meanings(kind)[name].text}" in text for name in stated)


def test_a_docstring_lists_attributes_in_the_order_of_the_fields() -> None:
    """Those that it lists itself, of which several may stand together, and those that have a meaning."""

    @dataclasses.dataclass
    class Rows(Shown):
        """Some rows.

        Attributes
        ----------
        kept, lost
            How many of each.
        common
            The same as one.
        """

        first: Annotated[int, Meaning("The first.")]
        kept: int
        lost: int
        rows: Annotated[str, Meaning("All of them.")]
        common: str

    listed = str(Rows.__doc__).partition("----------\n")[2].splitlines()
    assert listed[::2] == ["first", "kept, lost", "rows", "common"]
    assert listed[1::2] == ["    The first.", "    How many of each.", "    All of them.", "    The same as one."]


def test_the_docstring_of_an_answer_keeps_each_attribute() -> None:
    names = str(Calibration.__doc__).partition("----------\n")[2]
    listed = re.findall(r"\w+", " ".join(re.findall(r"^\S.*$", names, re.MULTILINE)))
    assert listed == [field.name for field in dataclasses.fields(Calibration)]
