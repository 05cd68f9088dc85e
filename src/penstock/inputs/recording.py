"""Recordings of `penstock watch`: lines of JSON, a header and then what was read, round by round.

``{"penstock_recording": 1, "penstock": "0.1.0", ...}``, then for each round ``{"time_s": 0.0,
"kinds": {...}, "scrapes": [{"engine": "a:8000", "time_s": 0.0, "running": 3, ...}], "notes":
[{"engine": "a:8000", "text": "..."}]}``.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from penstock.inputs.source import Source

FORMAT = 1
MARK = "penstock_recording"
LATEST_S = 1e10
"""Unix time in the year 2286; in milliseconds it would be in 1970."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One round."""

    time_s: float  # when it ended, Unix time
    # What each engine said: `engine`, `time_s`, and the numbers that are known.
    scrapes: tuple[dict[str, Any], ...]
    notes: tuple[tuple[str, str], ...]  # engine and text of what happened
    kinds: dict[str, str]  # of engines that were met for the first time, by name
    seen: dict[str, Any] | None = None  # of the engines' iterations


def read_recording(path: str | Path) -> tuple[list[Row], int]:
    """Return the rounds of a recording, and how many lines of it are broken."""
    source = Source.at(path)
    source.refuse_long_lines()
    rows: list[Row] = []
    broken = 0
    with source.text() as file:
        try:
            _check_header(file.readline(1 << 16), source)
            for line in file:
                row = _row(line)
                if row is None:
                    broken += 1
                else:
                    rows.append(row)
        except UnicodeDecodeError:
            raise source.not_text() from None
    if not rows:
        raise source.fault("is a recording without a round that can be read. Record it again")
    return rows, broken


def _check_header(line: str, source: Source) -> None:
    number = _document(line).get(MARK)
    if isinstance(number, int) and number > FORMAT:
        raise source.fault(
            f"is a recording of format {number}, but this version reads up to {FORMAT}. "
            "Take a newer Penstock"
        )
    if number != FORMAT:
        raise source.fault(
            "is no recording of `penstock watch`. Make one with `penstock watch URL --record FILE`"
        )


def _document(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict):
        return {}
    return document


def _row(line: str) -> Row | None:
    """Return the round of a line, None where it is none."""
    document = _document(line)
    scrapes, notes = document.get("scrapes"), document.get("notes")
    time_s, kinds = _number(document.get("time_s"), LATEST_S), document.get("kinds") or {}
    if time_s is None or not isinstance(scrapes, list) or not isinstance(notes, list):
        return None
    read = [_scrape(scrape) for scrape in scrapes]
    texts = [_note(note) for note in notes]
    if None in read or None in texts or not isinstance(kinds, dict):
        return None
    seen = document.get("seen")
    if not isinstance(seen, dict):
        seen = None
    return Row(time_s, tuple(filter(None, read)), tuple(filter(None, texts)), kinds, seen)


def _scrape(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not isinstance(value.get("engine"), str):
        return None
    numbers = {
        key: _number(number, LATEST_S if key == "time_s" else math.inf)
        for key, number in value.items()
        if key != "engine"
    }
    if None in numbers.values() or "time_s" not in numbers:
        return None
    return {"engine": value["engine"], **numbers}


def _note(value: Any) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return None
    engine, text = value.get("engine"), value.get("text")
    return (engine, text) if isinstance(engine, str) and isinstance(text, str) else None


def _number(value: Any, most: float = math.inf) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and 0 <= number <= most else None
