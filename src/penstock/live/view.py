"""What watching found, as a Page."""

from collections.abc import Callable, Sequence

from penstock.live.reading import AHEAD, COMES, LOAD, Answer, Reading, clock
from penstock.show.answers import UNKNOWN, cell, filled, page_of
from penstock.show.page import Page, Section, Table, Verdict
from penstock.words import counted, digits, gathered, sentence, share, span_of_time, whole


@page_of.register
def watch_page(answer: Answer) -> Page:
    """Show the verdict, the load and its limits, what comes, and how long until what."""
    reading = answer.together
    engines = counted(reading.engines, "engine")
    watched = f"{span_of_time(reading.watched_s)}, {counted(reading.scrapes, 'scrape')}"
    one = reading.engines == 1 and len(answer.engines) == 1
    name = answer.engines[0].engine if one else engines
    return Page(
        title=name,
        heading=f"watched for {watched}, until {clock(answer.time_s)}",
        verdicts=[_verdict(reading)],
        sections=[
            *(filled(reading, section) for section in (LOAD, COMES, AHEAD)),
            Section("Engines", tables=[] if one else [_engine_table(answer.engines)]),
            Section("", notes=_notes(answer)),
        ],
    )


def _verdict(reading: Reading) -> Verdict:
    decided = reading.verdict in ("stable", "unstable")
    source = f"by the drift test at alpha {reading.alpha:g}" if decided else ""
    return Verdict(reading.verdict, sentence(reading.reason.rstrip(".")), source)


def _engine_table(readings: Sequence[Reading]) -> Table:
    cells: dict[str, Callable[[Reading], str]] = {
        "Engine": lambda of: of.engine,
        "Verdict": lambda of: of.verdict,
        "Load": lambda of: cell(of.load, digits, UNKNOWN),
        "Requests/s": lambda of: cell(of.arrival_rate, digits, UNKNOWN),
        "Running": lambda of: cell(of.running, whole, UNKNOWN),
        "Waiting": lambda of: of.wait,
        "KV": lambda of: cell(of.kv_used, share, UNKNOWN),
        "Backlog": lambda of: cell(of.backlog_tokens, whole, UNKNOWN),
    }
    return Table.of(cells, readings, spare=("Backlog", "Running"))


def _notes(answer: Answer) -> list[str]:
    """Return what happened, each once with the engines that it happened to."""
    said = {reading.engine: reading.notes for reading in answer.engines}
    known = {note for notes in said.values() for note in notes}
    known |= {f"{engine}: {note}" for engine, notes in said.items() for note in notes}
    own = [note for note in answer.together.notes if note not in known]
    return [*dict.fromkeys([*own, *gathered(said)])]
