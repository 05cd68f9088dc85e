"""Recordings: what was read, written as it comes, and read again as if it came now."""

import dataclasses
import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from penstock import checks
from penstock.errors import InputError
from penstock.inputs.recording import FORMAT, MARK, Row, read_recording
from penstock.live.iterations_seen import Seen
from penstock.live.metrics_pages import Note
from penstock.live.rounds import Round
from penstock.live.scrape import Scrape

_MOST_WAITING = 1_000
"""Rounds without an engine that are kept until one is read."""
_FIELDS = frozenset(field.name for field in dataclasses.fields(Scrape))


class Recorder:
    """Writes rounds to a file that did not exist before, each as soon as it is there.

    The file is made when an engine has been read: what fails before leaves none behind.
    """

    def __init__(self, path: Path, every_s: float) -> None:
        checks.writable("--record", path)
        if path.exists():
            raise _exists(path)
        self._path = path
        self._kinds: set[str] = set()
        self._file: TextIO | None = None
        version = metadata.version("penstock-llm")
        header = {MARK: FORMAT, "penstock": version, "every_s": every_s}
        self._waiting = [_line(header)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, taken: Round) -> None:
        """Write a round."""
        new = {name: kind for name, kind in taken.kinds.items() if name not in self._kinds}
        self._kinds |= set(new)
        scrapes = [
            {key: value for key, value in vars(scrape).items() if value is not None}
            for scrape in taken.scrapes
        ]
        notes = [{"engine": note.engine, "text": note.text} for note in taken.notes]
        row = {"time_s": taken.time_s, "kinds": new, "scrapes": scrapes, "notes": notes}
        if taken.seen is not None:
            row["seen"] = taken.seen.as_dict()
        self._waiting.append(_line({k: v for k, v in row.items() if v or k != "kinds"}))
        if taken.scrapes or self._file is not None:
            self._write()
        elif len(self._waiting) > _MOST_WAITING:
            del self._waiting[1]  # the header stays

    def _write(self) -> None:
        """Write the lines that wait."""
        if self._file is None:
            try:
                self._file = self._path.open("x", encoding="utf-8")
            except FileExistsError:
                raise _exists(self._path) from None
        self._file.writelines(self._waiting)
        self._file.flush()  # what was read is there when this machine is not
        self._waiting.clear()


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _exists(path: Path) -> InputError:
    return InputError(
        f"--record {path} exists, and would be lost; give another file, or move it away"
    )


def replayed(path: Path) -> Iterator[Round]:
    """Yield the rounds of a recording."""
    rows, broken = read_recording(path)
    kinds: dict[str, str] = {}
    for index, row in enumerate(rows):
        kinds |= row.kinds
        taken = _round(row, kinds)
        if broken and index == len(rows) - 1:
            text = f"{broken:,} broken lines of the recording are left out"
            taken = dataclasses.replace(taken, notes=(*taken.notes, Note(path.name, text)))
        yield taken


def _round(row: Row, kinds: dict[str, str]) -> Round:
    """Return a row as a round; numbers that only a newer version knows are left out."""
    scrapes = (
        Scrape(**{key: value for key, value in scrape.items() if key in _FIELDS})
        for scrape in row.scrapes
    )
    notes = (Note(engine, text) for engine, text in row.notes)
    seen = None if row.seen is None else Seen.from_dict(row.seen)
    return Round(row.time_s, tuple(scrapes), tuple(notes), dict(kinds), seen)
