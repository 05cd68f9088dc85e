"""A page: what an answer says, as plain data that a terminal, a browser and a notebook can show.

`penstock.show.terminal` prints any page, `penstock.show.html` writes any page as one file. A page
says what is in the answer and computes nothing; charts alone are drawn late, because a terminal has
no use for them.
"""

import abc
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

GOOD = frozenset({"stable", "met", "held", "same", "inside"})
BAD = frozenset(
    {
        "contradiction",
        "unstable",
        "critical",
        "missed",
        "unreachable",
        "fails",
        "outside",
        "overloaded",
    }
)
PLAIN = frozenset(
    {"swept", "compared", "calibrated", "changed", "fitted", "measured", "keep", "change"}
)
"""Words that say what was done and judge nothing."""
OPEN = frozenset({"unknown", "undecided", "not tested", "not checked", "differs"})

_NUMBER = re.compile(r"[+-]?\.?\d")
_SENTENCE = 40  # letters of a line: no figure is as long
_PHRASE = 24  # letters of a line that would leave the other columns of a phone too little


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer in one word.

    Attributes
    ----------
    word
        ``stable``, ``unstable``, ``unknown``, ``met`` ...; good, bad and open ones differ in colour
        and in shape, and one that judges nothing has neither.
    reason
        One sentence.
    source
        What says so: ``by Theorem 1(b)``, ``by simulation``.
    about
        What it is about, where there are several: a policy, a target.
    """

    word: str
    reason: str
    source: str = ""
    about: str = ""


@dataclasses.dataclass(frozen=True)
class Fact:
    """A figure with its name and what it means."""

    name: str
    figure: str
    explanation: str = ""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A condition of a theorem: ``held``, ``fails`` or ``not checked``, and why."""

    name: str
    state: str
    why: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text; the first column names the row. A line break in a cell is kept.

    Attributes
    ----------
    columns, rows
        What it shows.
    caption
        How to read it.
    title
        What it shows, where the section does not say so.
    prose
        Whether all columns hold words, even if some begin with a figure.
    strong
        Rows that matter most: the best one, or those that sum up others.
    spare
        Columns that a narrow terminal leaves out, the first one first.
    detail
        Whether a terminal leaves the whole table out.
    links
        Where the name of each row leads to, in a browser.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    title: str = ""
    prose: bool = False
    strong: Sequence[int] = ()
    spare: Sequence[str] = ()
    detail: bool = False
    links: Sequence[str] = ()

    @property
    def of_words(self) -> list[bool]:
        """Of each column whether it holds words and not figures: flush left, and its lines may
        break.
        """
        return [
            self.prose
            or index == 0
            or self._longest(index) > _SENTENCE
            or not any(_NUMBER.match(row[index]) for row in self.rows)
            for index in range(len(self.columns))
        ]

    @property
    def stacks(self) -> bool:
        """Whether a phone shows each row as a list of its cells, because a cell is a phrase or a
        sentence.
        """
        return any(
            words and self._longest(index) > _PHRASE for index, words in enumerate(self.of_words)
        )

    def without(self, column: str) -> "Table":
        """Return the table without a column."""
        kept = [index for index, name in enumerate(self.columns) if name != column]
        rows = [[row[index] for index in kept] for row in self.rows]
        return dataclasses.replace(self, columns=[self.columns[index] for index in kept], rows=rows)

    def _longest(self, index: int) -> int:
        """Return the letters of the longest line of a column."""
        return max((len(line) for row in self.rows for line in row[index].splitlines()), default=0)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Charts that belong together.

    Attributes
    ----------
    title
        What is drawn.
    charts
        Altair charts by what a reader who cannot see them should be told; each scales on its own.
    tables
        The figures that are drawn.
    caption
        How to read it.
    wide
        Whether a phone shows its charts with panels below one another, or lets those that need
        their width scroll sideways, instead of shrinking them below legibility.
    """

    title: str
    charts: Mapping[str, Any]
    tables: Sequence[Table]
    caption: str = ""
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes
    ----------
    title
        The heading.
    paragraphs, facts, hypotheses, tables
        What it says, in this order.
    commands
        What to copy into a shell: nothing is wrapped.
    figures
        Draws what it shows; a terminal never asks.
    notes
        What to know besides; a terminal says it last.
    """

    title: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    hypotheses: Sequence[Hypothesis] = ()
    tables: Sequence[Table] = ()
    commands: Sequence[str] = ()
    figures: Callable[[], Sequence[Figure]] = tuple
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Page:
    """All that is said of an answer.

    Attributes
    ----------
    title
        Name of what was asked about, such as the scenario.
    heading
        One line: workload, server, policies; may be empty.
    verdicts
        What comes first.
    sections
        What follows, in this order.
    notes
        What to know before the verdicts are read.
    """

    title: str
    heading: str
    verdicts: Sequence[Verdict] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()


class Shown(abc.ABC):
    """An answer that has a page, which a notebook shows."""

    @abc.abstractmethod
    def page(self) -> Page:
        """Return what is known, to be shown."""

    def _repr_html_(self) -> str:
        from penstock.show import html

        return html.render(self.page())
