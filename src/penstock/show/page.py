"""A page: what an answer says, as plain data that a terminal, a browser and a notebook can show.

`penstock.show.terminal` prints any page, `penstock.show.html` writes any page as one file. A page
says what is in the answer and computes nothing; charts alone are drawn late, because a terminal has
no use for them.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

GOOD = frozenset({"stable", "met", "held", "inside", "steady"})
BAD = frozenset(
    {"contradiction", "unstable", "critical", "missed", "unreachable", "fails", "outside"}
    | {"metastable", "overloaded", "refused", "filling", "held back", "too short"}
)
PLAIN = frozenset({"swept", "calibrated", "fitted", "keep", "change", "saturated", "closed"})
"""Words that say what was done and judge nothing."""
OPEN = frozenset({"unknown", "undecided", "not tested", "on trust", "not checked", "uncertain"})

_TONES = {"good": GOOD, "bad": BAD, "plain": PLAIN}

MOST_LINES = 6
"""Of a head, so that it is read at a glance."""

Depth = Literal["head", "why", "all"]
"""How much of a page a terminal shows: its head alone, what explains it too, or everything."""

_NUMBER = re.compile(r"[+-]?\.?\d")
_SENTENCE = 40  # letters of a line: no figure is as long
_PHRASE = 24  # letters of a line that would leave the other columns of a phone too little


def tone(word: str) -> str:
    """Return how a word looks: good, bad, open, or plain where it judges nothing."""
    return next((name for name, words in _TONES.items() if word in words), "open")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the head: what a reader must know at once."""

    label: str
    text: str
    judges: bool = False  # the label is a verdict's word, and looks like one


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer in one word."""

    word: str  # `stable`, `unknown`, `met` ...; good, bad and open ones differ in colour and shape
    reason: str  # one sentence
    source: str = ""  # what says so: `by Theorem 1(b)`, `by simulation`
    about: str = ""  # where there are several: a policy, a target


@dataclasses.dataclass(frozen=True)
class Fact:
    """A figure with its name and what it means."""

    name: str
    figure: str
    explanation: str = ""


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A condition of a theorem: ``held``, ``fails`` or ``on trust``, and why."""

    name: str
    state: str
    why: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text; the first column names the row. A line break in a cell is kept."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""  # how to read it
    title: str = ""  # where the section does not say so
    prose: bool = False  # all columns hold words, even if some begin with a figure
    strong: Sequence[int] = ()  # rows that matter most: the best one, or those that sum up others
    spare: Sequence[str] = ()  # columns that a narrow terminal leaves out, the first one first
    detail: bool = False  # a terminal shows it only if everything is asked for
    links: Sequence[str] = ()  # where the name of each row leads to, in a browser

    @classmethod
    def of(
        cls, cells: Mapping[str, Callable[[Any], str]], rows: Iterable[Any], **more: Any
    ) -> "Table":
        """Return a table of some things: by column, what it says of each."""
        return cls(list(cells), [[cell(row) for cell in cells.values()] for row in rows], **more)

    @property
    def of_words(self) -> list[bool]:
        """Say of each column whether it holds words: flush left, and its lines may break."""
        return [
            self.prose
            or index == 0
            or self._longest(index) > _SENTENCE
            or not any(_NUMBER.match(row[index]) for row in self.rows)
            for index in range(len(self.columns))
        ]

    @property
    def stacks(self) -> bool:
        """Whether a phone lists each row's cells, because a cell is a phrase or a sentence."""
        return any(
            words and self._longest(index) > _PHRASE for index, words in enumerate(self.of_words)
        )

    def named(self, column: str, names: Iterable[str]) -> "Table":
        """Return the table with a column before all others that names its rows."""
        rows = [(name, *row) for name, row in zip(names, self.rows, strict=True)]
        return dataclasses.replace(self, columns=[column, *self.columns], rows=rows)

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
    """Charts that belong together: on a page each scales on its own, in a file they are one."""

    name: str  # of its file
    title: str  # what is drawn
    # By what a reader who cannot see them should be told (`penstock.show.plot`).
    charts: Mapping[str, Any]
    tables: Sequence[Table] = ()  # the figures that are drawn
    caption: str = ""  # how to read it
    columns: int = 3  # of charts beside one another in its file
    # A phone shows its charts with panels below one another, or lets those that need their width
    # scroll sideways, instead of shrinking them below legibility.
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    hypotheses: Sequence[Hypothesis] = ()
    tables: Sequence[Table] = ()
    commands: Sequence[str] = ()  # to copy into a shell: nothing is wrapped
    figures: Callable[[], Sequence[Figure]] = tuple  # a terminal never asks
    notes: Sequence[str] = ()  # what to know besides; a terminal says it last, and explains with it
    why: bool = False  # it explains the head
    below: bool = False  # it stands below the head, however much is asked for

    @property
    def speaks(self) -> bool:
        """Whether it has words, and not figures alone."""
        return bool(
            self.paragraphs or self.facts or self.hypotheses or self.tables or self.commands
        )


@dataclasses.dataclass(frozen=True)
class Page:
    """All that is said of an answer: the head, behind it what explains it, and all the rest.

    A page without a head is shown whole.
    """

    title: str  # name of what was asked about, such as the scenario
    heading: str = ""  # one line: workload, server, policies; of a head, what it does not say
    verdicts: Sequence[Verdict] = ()  # come first
    sections: Sequence[Section] = ()
    notes: Sequence[str] = ()  # what to know before the verdicts are read
    head: Sequence[Line] = ()  # `MOST_LINES` at most; the first one is labelled with the title
    # What is behind the head, in a few words: verdicts, notes and sections that explain it, and all
    # the rest. Empty where there is nothing.
    why: str = ""
    rest: str = ""

    def __post_init__(self) -> None:
        assert len(self.head) <= MOST_LINES, f"a head has {len(self.head)} lines"

    @property
    def word(self) -> str:
        """The first verdict, or nothing where there is none."""
        judged = [line.label for line in self.head if line.judges]
        return next(iter(judged or [verdict.word for verdict in self.verdicts]), "")
