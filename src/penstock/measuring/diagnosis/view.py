"""A diagnosis as a page: what the whole is worth, a table of the loads, all said of each."""

from collections.abc import Mapping, Sequence

from penstock.measuring.diagnosis.diagnose import VERDICTS, Diagnosed, Diagnosis
from penstock.show.answers import page_of, table, texts
from penstock.show.page import BAD, MOST_LINES, Line, Page, Section, Table
from penstock.words import counted, digits, sentence

_NAMED = 4  # loads of a verdict that the head names
_WORTH = 6  # loads worth their numbers that it names, where there are no more
_SHAPES = 2  # whose rates it says
_GROUPS = MOST_LINES - 3  # verdicts that it explains


@page_of.register
def diagnosis_page(answer: Diagnosis) -> Page:
    """Show a diagnosis: the worst first."""
    rows = answer.rows
    return Page(
        title=answer.names,
        sections=[
            Section("Loads", tables=[_table(rows)], why=True),
            Section("Each load", [_all_of(row, name) for row, name in _names(rows).items()]),
        ],
        head=_head(rows, answer.names),
        why="a table of the loads",
        rest="all that is said of each",
    )


def _head(rows: Sequence[Diagnosed], name: str) -> list[Line]:
    """Say what the loads are worth, the worst first, what they show and what not."""
    if len(rows) == 1:
        return _head_of_one(rows[0], name)
    names = _names(rows)
    groups = {word: [row for row in rows if row.verdict == word] for word in VERDICTS}
    groups = {word: of for word, of in groups.items() if of}
    worth = [names[row] for row in rows if row.worth]
    which = f" ({', '.join(worth)})" if 0 < len(worth) <= min(_WORTH, len(rows) - 1) else ""
    kinds = ", ".join(f"{len(of):,} {word}" for word, of in groups.items())
    lines = [
        Line(
            name, f"{len(rows):,} loads, {len(worth):,} of them worth their numbers{which}: {kinds}"
        )
    ]
    lines += [
        Line(word, _group(of, names), judges=True) for word, of in list(groups.items())[:_GROUPS]
    ]
    rising = sorted((row for row in rows if row.shows), key=lambda row: row.carried_per_s or 0)
    if most := {row.shape: row for row in rising}:
        shown = [f"{names[row]} {row.shows}{_within(row)}" for row in most.values()]
        lines.append(Line("Shows", sentence(_few(shown, _SHAPES, "other shape", "; "))))
    hidden = "; ".join(f"{word} loads: {of[0].hides}" for word, of in groups.items())
    return [*lines, Line("Not shown", sentence(hidden))]


def _head_of_one(row: Diagnosed, name: str) -> list[Line]:
    few = "" if row.enough is None or row.worth else f"; {row.enough:,} requests would do"
    lines = [
        Line(name, row.load or "refused"),
        Line(row.verdict, sentence(f"{row.said[0]}{few}"), judges=True),
    ]
    if row.said[1:]:
        lines.append(Line("Mind", sentence("; ".join(row.said[1:]))))
    if row.shows:
        lines.append(Line("Shows", sentence(f"{row.shows}{_within(row)}")))
    return [*lines, Line("Not shown", sentence(row.hides))]


def _group(of: Sequence[Diagnosed], names: Mapping[Diagnosed, str]) -> str:
    """Say which loads have a verdict, and why the first has."""
    reason = of[0].said[0]
    which = _few([names[row] for row in of], _NAMED, "other")
    return sentence(f"{which}: {reason}" if len(of) == 1 else f"{which}. The first: {reason}")


def _few(texts: Sequence[str], most: int, noun: str, between: str = ", ") -> str:
    """Return the first of several texts, and how many others there are."""
    more = [f"and {counted(len(texts) - most, noun)}"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def _names(rows: Sequence[Diagnosed]) -> dict[Diagnosed, str]:
    """Name each load by its shape and rate, with its file where another file has such a load, and
    with its row in the table where its own has another.
    """
    names = {row: " ".join(filter(None, (row.shape, row.name))) for row in rows}
    for number, (row, name) in enumerate(names.items()):
        alike = [other.run for other in rows if (other.shape, other.name) == (row.shape, row.name)]
        places = [row.run] if len(set(alike)) > 1 else []
        places += [f"row {number}"] if alike.count(row.run) > 1 else []
        if places:
            names[row] = f"{name} ({', '.join(places)})"
    return names


def _within(row: Diagnosed) -> str:
    if row.interval is None:
        return ""
    low, high = map(digits, row.interval)
    return f" ({low} to {high})"


def _table(rows: Sequence[Diagnosed]) -> Table:
    """Lay out what the verdicts rest on."""
    caption = (
        "Under way: requests, by Little's law. Wait: share of a call before its first token. "
        "Calls: how many of them, one after the other, the run lasted. Enough: requests that would "
        "have been."
    )
    strong = [number for number, row in enumerate(rows) if row.verdict in BAD]
    order = (
        "verdict shape name requests sent_per_s carried_per_s under_way wait_share rounds enough"
    )
    return table(rows, caption, order=order, strong=strong).named("Row", texts(range(len(rows))))


def _all_of(row: Diagnosed, name: str) -> str:
    """Say all of one load, in one paragraph."""
    said = [sentence(text) for text in row.said]
    if row.shows:
        said.append(f"Shows: {row.shows}{_within(row)}.")
    said.append(f"Not shown: {row.hides}.")
    whole = name if row.run in name else f"{row.run} {name}"
    return f"{whole}: {row.verdict}. {' '.join(said)}"
