"""A page: verdicts and sections as one HTML file that a phone, a printer and a screen reader can use.

A section is paragraphs, facts, hypotheses, tables and figures. Charts are drawn to SVG when the page is written, so it
needs no network and no script.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
import vl_convert as vlc
from markupsafe import Markup, escape

from penstock import checks
from penstock.errors import InputError
from penstock.show import charts

GOOD = frozenset({"stable", "met", "held", "same"})
BAD = frozenset({"contradiction", "unstable", "critical", "missed", "fails", "outside"})
PLAIN = frozenset({"swept", "compared", "calibrated", "changed"})
"""Words that say what was done and judge nothing."""

_NUMBER = re.compile(r"[+-]?\.?\d")
_SENTENCE = 40  # letters of a line: no figure is as long
_PHRASE = 24  # letters of a line that would leave the other columns of a phone too little
_LOOK = {
    "aria": False,  # the chart has one description, its marks need none
    "background": "transparent",  # so that the shadow shows at the side where more of a wide chart is
    "padding": {"left": 5, "top": 5, "bottom": 5, "right": 24},  # fonts may be wider where the page is read
    "font": "Arial, Helvetica, 'Liberation Sans', sans-serif",  # of the widths that the layout was computed with
    "legend": {
        "orient": "bottom",
        "columns": 2,
        "columnPadding": 24,
        "labelLimit": 125,
        "titleLimit": 340,
        "labelFontSize": 12,
        "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 8}},
    },
    "axis": {"gridColor": charts.GRID, "labelFontSize": 12, "titleFontSize": 12},
    "title": {"fontSize": 13, "anchor": "start", "limit": 380},
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer in one word.

    Attributes
    ----------
    word
        ``stable``, ``unstable``, ``unknown``, ``met`` ...; good, bad and open ones differ in colour and in shape, and
        one that judges nothing has neither.
    reason
        One sentence.
    source
        What says so: a theorem, the simulation.
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
    columns, rows, caption
        What it shows.
    prose
        Whether all columns hold words, even if some begin with a figure.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    prose: bool = False

    @property
    def of_words(self) -> list[bool]:
        """Of each column whether it holds words and not figures, so that it is flush left and its lines may break."""
        return [
            self.prose
            or place == 0
            or self._longest(place) > _SENTENCE
            or not any(_NUMBER.match(row[place]) for row in self.rows)
            for place in range(len(self.columns))
        ]

    @property
    def stacks(self) -> bool:
        """Whether a phone shows each row as a list of its cells, because a cell is a phrase or a sentence."""
        return any(words and self._longest(place) > _PHRASE for place, words in enumerate(self.of_words))

    def _longest(self, place: int) -> int:
        """Return the letters of the longest line of a column."""
        return max((len(line) for row in self.rows for line in row[place].splitlines()), default=0)


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
        Whether a phone shows its charts with panels below one another, or lets those that need their width scroll
        sideways, instead of shrinking them below legibility.
    """

    title: str
    charts: Mapping[str, Any]
    tables: Sequence[Table]
    caption: str = ""
    wide: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str
    paragraphs: Sequence[str] = ()
    facts: Sequence[Fact] = ()
    hypotheses: Sequence[Hypothesis] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()


def write(
    path: Path,
    *,
    title: str,
    heading: str,
    verdicts: Sequence[Verdict],
    sections: Sequence[Section],
    notes: Sequence[str] = (),
) -> None:
    """Write one HTML page, whole or not at all.

    Parameters
    ----------
    path
        File to write; its folder is made where it is missing.
    title
        Name of what was asked about, such as the scenario.
    heading
        One line: workload, server, policies.
    verdicts
        What comes first; at least one.
    sections
        What follows, in this order.
    notes
        What to know before the sections are read.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    path = checks.writable("--report", path)
    page = render(title=title, heading=heading, verdicts=verdicts, sections=sections, notes=notes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        charts.write_whole(path, page.encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give another file to --report") from None


def render(
    *, title: str, heading: str, verdicts: Sequence[Verdict], sections: Sequence[Section], notes: Sequence[str] = ()
) -> str:
    """Return the page that `write` writes."""
    return rendered("report.html.j2", title=title, heading=heading, verdicts=verdicts, sections=sections, notes=notes)


def rendered(template: str, **values: Any) -> str:
    """Return a template of the package, filled in."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("penstock.show"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tone"] = _tone
    drawn = iter(range(1_000_000))
    environment.globals["stacked"] = charts.stacked
    environment.globals["svg"] = lambda chart, text: _svg(chart, text, f"c{next(drawn)}-")
    return environment.get_template(template).render(version=metadata.version("penstock-llm"), **values)


def _tone(word: str) -> str:
    """Return how a word looks: good, bad, open, or plain where it judges nothing."""
    tones = {"good": GOOD, "bad": BAD, "plain": PLAIN}
    return next((tone for tone, words in tones.items() if word in words), "open")


def _svg(chart: Any, text: str, prefix: str) -> Markup:
    """Draw a chart that scales to its container, with a text alternative and identifiers of its own on the page."""
    specification = chart.to_dict()
    specification["config"] = specification.get("config", {}) | _LOOK
    drawing = vlc.vegalite_to_svg(specification)
    start = drawing.index(">") + 1
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing[:start])
    assert size is not None
    inside = re.sub(r'(id="|url\(#)(?=(?:clip|gradient)_?\d+["\)])', rf"\g<1>{prefix}", drawing[start:])
    most = f"max-width:{1.25 * float(size[1]):.0f}px"
    return Markup(f'<svg role="img" aria-label="{escape(text)}" {size[0]} style="{most}">{inside}')
