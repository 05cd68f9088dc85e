"""A table, figure or lemma of the paper: what is published, what was measured, and whether the two agree."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

import penstock as ps
from penstock.show.page import Figure, Page, Section, Table, Verdict
from penstock.traces import catalogue
from penstock.words import counted

DATA: Path | None = None
"""A folder with recorded traces and layer times, which ``--data`` gives."""

LOOK_ALIKES = {"azure-llm-2023-code": "azure-code", "azure-llm-2023-conv": "azure-conv"}
"""Recorded traces, and the preset that stands for each where it is not on this machine."""

MOST_ROWS = 40  # of a table on the page; the CSV has all


class Claim(NamedTuple):
    """One thing that is published, or proved, and what was measured; both as they are printed, with units."""

    what: str
    published: str
    measured: str
    same: bool
    why: str

    @property
    def verdict(self) -> str:
        """In a word."""
        return "same" if self.same else "differs"


class Item:
    """What a script collects, from its first line on: ``Item(__name__, __doc__)``.

    The first line of the script says what it shows and, in brackets, where that stands in the paper.
    """

    def __init__(self, module: str, doc: str | None) -> None:
        self.name = module.rpartition(".")[2].replace("_", "-")
        self.title, self.source = titled(doc)
        self.claims: list[Claim] = []
        self.notes: list[str] = []
        self.tables: list[Table] = []
        self.charts: Mapping[str, Any] = {}
        self.rows = pl.DataFrame()
        self.caption = ""
        self.data_absent = False  # whether a look-alike or a preset stood for recorded data

    def claim(self, what: str, published: str, measured: str, same: bool, why: str = "", known: str = "") -> None:
        """Add a claim: ``why`` is said where it differs, ``known`` in any case."""
        reason = known or ("" if same else why)
        if not same and not reason:
            raise ValueError(f"the claim {what!r} differs without a reason; give one")
        self.claims.append(Claim(what, published, measured, bool(same), reason))

    def note(self, sentence: str) -> None:
        """Add a sentence on how it was measured, or what was assumed; without its full stop."""
        self.notes.append(sentence.removesuffix("."))

    def show(self, rows: pl.DataFrame, charts: Mapping[str, Any], caption: str) -> None:
        """Give what was measured: the rows of the CSV file, and charts by what one who cannot see them is told."""
        self.rows, self.charts, self.caption = rows, charts, caption

    def trace(self, name: str) -> tuple[ps.Workload, str]:
        """Return a recorded trace, or its look-alike, and what has to be said of it.

        It is looked for in the data, as ``azure_llm_2023_code.csv``, then among those that ``penstock traces get``
        has fetched.
        """
        file = f"{name.replace('-', '_')}.csv"
        folders = () if DATA is None else (DATA, DATA / "traces")
        for path in (*(folder / file for folder in folders), catalogue.path_of(name)):
            if path is not None and path.is_file():
                trace = ps.read_trace(path)
                return trace, f"{name}: the public trace, {trace.lengths.prompt_tokens.size:,} requests"
        self.data_absent = True
        preset = LOOK_ALIKES[name]
        return ps.Workload.preset(preset), (
            f"{name} is not here (`penstock traces get {name}`, or --data), so its look-alike {preset} was drawn"
        )

    def file(self, path: str) -> Path | None:
        """Return a file or folder of the data, or None where it is not here."""
        found = None if DATA is None else DATA / path
        if found is None or not found.exists():
            self.data_absent = True
            return None
        return found

    @property
    def figures(self) -> dict[str, tuple[str, Any]]:
        """What is told of each chart, and the chart, by the name of its file, numbered if there are several."""
        numbered = len(self.charts) > 1
        names = (f"{self.name}-{i}" if numbered else self.name for i in range(1, len(self.charts) + 1))
        return dict(zip(names, self.charts.items(), strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept of it: everything but its rows and drawings."""
        return {
            "title": self.title,
            "source": self.source,
            "figures": {f"{name}.svg": text for name, (text, _) in self.figures.items()},
            "caption": self.caption,
            "claims": [claim._asdict() for claim in self.claims],
            "notes": self.notes,
        }

    @property
    def verdict(self) -> Verdict:
        """Whether all claims are as published, in a word and a sentence."""
        differ = sum(not claim.same for claim in self.claims)
        claims = counted(len(self.claims), "claim")
        if not self.claims:
            return Verdict("undecided", "nothing was measured, as recorded data are not here; see the notes.")
        if differ:
            return Verdict("differs", f"{differ:,} of {claims} differ, each with its reason below.")
        return Verdict("same", f"{claims}, all as published or proved.")

    def sections(self, title: str = "") -> list[Section]:
        """Return each claim with its verdict, then why some differ, then what was measured."""
        claims = [(claim.what, claim.published, claim.measured, claim.verdict) for claim in self.claims]
        columns = ("Claim", "Published or known", "Measured", "Verdict")
        reasons = [(claim.what, claim.why) for claim in self.claims if claim.why]
        why = [Table(("Claim", "Remark"), reasons, prose=True)] if reasons else []
        cells = [tuple(map(cell, row)) for row in self.rows.head(MOST_ROWS).iter_rows()]
        more = f"The first {MOST_ROWS} rows; all {self.rows.height:,} are in {self.name}.csv."
        rows = Table([n.replace("_", " ") for n in self.rows.columns], cells, more * (self.rows.height > MOST_ROWS))
        figure = Figure(self.name, self.title, self.charts, [rows], self.caption, wide=True)
        return [
            Section(title, tables=[Table(columns, claims, prose=True), *why]),
            Section("", tables=self.tables, figures=lambda: [figure], notes=self.notes),
        ]


def titled(doc: str | None) -> tuple[str, str]:
    """Return what the first line of a script says: what it shows, and where that stands in the paper."""
    first = re.fullmatch(r"(.*) \((.*)\)\.", (doc or "").partition("\n")[0])
    if first is None:
        raise ValueError('a script begins with """What it shows (where it stands in the paper).')
    return first[1], first[2]


def page(items: list[Item], whole: bool = True) -> Page:
    """Show one item, or a line for each of several with what differs and why, and then, as a whole, all of each."""
    if len(items) == 1:
        return Page(items[0].title, f"{items[0].name}, {items[0].source}", [items[0].verdict], items[0].sections())
    counts = [sum(claim.same for claim in item.claims) for item in items]
    rows = [
        (item.name, item.title, item.source, f"{same}", f"{len(item.claims) - same}")
        for item, same in zip(items, counts, strict=True)
    ]
    total = sum(len(item.claims) for item in items)
    heading = f"{counted(total, 'claim')}: {sum(counts):,} same, {total - sum(counts):,} differ, each with its reason"
    sections = [
        Section("", tables=[Table(("Item", "Shows", "In the paper", "Same", "Differ"), rows, spare=("Shows",))])
    ]
    if whole:
        for item in items:
            sections += item.sections(f"{item.name}: {item.title} ({item.source})")
    else:
        reasons = [(item.name, c.what, c.why) for item in items for c in item.claims if not c.same]
        sections.append(Section("Why", tables=[Table(("Item", "Claim", "Reason"), reasons, prose=True)]))
    return Page("The paper, measured again", heading, sections=sections)


def cell(value: object) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
