"""Engines that are watched, for the second tab: the last answer, and the figures before it."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.live.command import finite
from penstock.live.engine_limits import described_engine
from penstock.live.places import Where, rounds_at
from penstock.live.rounds import Round
from penstock.live.settings import Settings
from penstock.live.view import watch_page
from penstock.live.watching import Watch
from penstock.show.page import Page
from penstock.show.progress import announce_compilation

_KEPT = 720  # rounds that are drawn: an hour, where one comes every 5 s


class Watched:
    """Engines that are asked again and again by a thread, from the construction on.

    Parameters
    ----------
    places
        Addresses of engines.
    scenario
        What each engine is; None: not known.
    every_s
        Seconds between rounds.

    Raises
    ------
    InputError
        If an address cannot be used.
    """

    def __init__(self, places: Sequence[str], scenario: Path | None, every_s: float) -> None:
        engine = described_engine(scenario, None, None, {})
        rounds, _ = rounds_at(Where(places), None, every_s, once=False)
        self.rounds = 0
        self.last: dict[str, Any] = {"part": "waiting", "notes": ["nothing was read yet"]}
        self._watch = Watch(engine, Settings(0.05, None, None, 0.8))
        self._before: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        announce_compilation()
        threading.Thread(target=self._follow, args=(rounds,), daemon=True).start()

    def _follow(self, rounds: Iterator[Round]) -> None:
        answered = False
        for taken in rounds:
            for scrape in taken.scrapes:
                self._watch.take(scrape)
            for note in taken.notes:
                self._watch.note(note.engine, note.text)
            answered = answered or bool(taken.scrapes)
            notes = [f"{note.engine} {note.text}" for note in taken.notes]
            try:
                if answered:
                    self._answer()
            except InputError as error:  # the scenario does not fit what the engines say
                answered = False
                notes.append(str(error))
            if not answered:
                self.last = {"part": "waiting", "notes": notes}
            self.rounds += 1

    def _answer(self) -> None:
        answer = self._watch.answer()
        together = answer.together
        figures = {"load": together.load, "arrival_rate": together.arrival_rate}
        estimates = {name: of and dataclasses.asdict(of) for name, of in figures.items()}
        self._before.append({"time_s": together.time_s, **estimates})
        self.last = finite(
            {
                "part": "answer",
                "asked_s": time.time(),
                "answer": answer.as_dict(),
                "page": page_as_dict(watch_page(answer)),
                "before": list(self._before),
            }
        )


def page_as_dict(page: Page) -> dict[str, Any]:
    """Return a page without figures as plain data."""
    return {
        "title": page.title,
        "heading": page.heading,
        "verdicts": [dataclasses.asdict(verdict) for verdict in page.verdicts],
        "sections": [
            {
                "title": section.title,
                "facts": [dataclasses.asdict(fact) for fact in section.facts],
                "tables": [
                    {"columns": list(table.columns), "rows": [list(row) for row in table.rows]}
                    for table in section.tables
                ],
                "notes": list(section.notes),
            }
            for section in page.sections
        ],
    }
