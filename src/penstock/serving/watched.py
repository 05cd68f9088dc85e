"""Engines that are watched, for the second tab: the last answer, and the figures before it."""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import InputError
from penstock.live.given_engine import described_engine
from penstock.live.given_sources import Where, rounds_at
from penstock.live.rounds import Round
from penstock.live.settings import Settings
from penstock.live.watching import Watch
from penstock.show.answers import plain
from penstock.show.page import Page

_KEPT = 720  # rounds that are drawn: an hour, where one comes every 5 s


class Watched:
    """Engines that are asked again and again by a thread, from the construction on."""

    def __init__(self, places: Sequence[str], scenario: Path | None, every_s: float) -> None:
        engine = described_engine(scenario, None, None, {})
        rounds, _ = rounds_at(Where(places), None, every_s, once=False)
        self.rounds = 0
        self.last: dict[str, Any] = {}
        self._wait(["nothing was read yet"])
        self._engines = Watch(engine, Settings())
        self._before: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        threading.Thread(target=self._follow, args=(rounds,), daemon=True).start()

    def _follow(self, rounds: Iterator[Round]) -> None:
        for came in rounds:
            try:
                self._engines.take_round(came)
                if self._engines.any_read:
                    self._show()
                else:
                    self._wait(self._engines.unread)
            except InputError as error:  # the scenario does not fit what the engines say
                self._wait([str(error)])
            except Exception as error:  # a tab that stands still would show old figures as new
                self._wait([f"there is no answer ({type(error).__name__}: {error})"])
            self.rounds += 1

    def _wait(self, notes: list[str]) -> None:
        self.last = {"part": "waiting", "notes": notes}

    def _show(self) -> None:
        answer = self._engines.answer()
        together = answer.together
        figures = {"load": together.load, "arrival_rate": together.arrival_rate}
        estimates = {name: of and dataclasses.asdict(of) for name, of in figures.items()}
        self._before.append({"time_s": together.time_s, **estimates})
        self.last = plain(
            {
                "part": "answer",
                "asked_s": time.time(),
                "answer": answer.as_dict(),
                "page": page_as_dict(answer.page()),
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
