"""Answer questions with the version of Penstock that Python finds, all in one process.

Usage: ``python ask.py QUESTIONS ANSWERS``: a file with a command in each line, and where to write
its answer, a line of JSON each, as it comes. Commands run in the folder where this is started.
"""

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

MOST_SECONDS = 120
"""Of a processor, for an answer; then it is `TooLate`, and the next one is asked for."""

MOST_CHARACTERS = 400
"""Of an answer that is no JSON: enough to know it again."""


def answer(command: str) -> dict[str, Any]:
    """Return the exit status of a command, what it printed, and what it complained of."""
    from penstock.cli import main

    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        # Read by another name: Penstock sends its output nowhere where it cannot write.
        files = [Path(name) / stream for stream in ("out", "errors")]
        with files[0].open("w") as out, files[1].open("w") as errors:
            status = _status(main, shlex.split(command), out, errors)
        said, complaints = files[0].read_text(), files[1].read_text().splitlines()
    refused = [line for line in complaints if line.startswith("penstock: ")]
    return {
        "status": status,
        "answer": _document(said),
        "refusal": refused[-1] if refused else "",
        "seconds": round(time.perf_counter() - begun, 3),
    }


def _document(said: str) -> Any:
    """Return a document, a list of one from each line, or else how a text begins."""
    for text in (said, f"[{','.join(said.splitlines())}]"):
        try:
            return json.loads(text) if said else ""
        except ValueError:
            continue
    return said[:MOST_CHARACTERS]


def _status(main: Any, words: list[str], out: TextIO, errors: TextIO) -> int | str:
    """Run a command, and return its exit status, or the name of what it raised."""
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv, sys.stdout, sys.stderr = ["penstock", *words], out, errors
    signal.signal(signal.SIGPROF, _too_late)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:  # a traceback: the worst answer, and one that can be compared
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.argv, sys.stdout, sys.stderr = before
    return 0


class TooLate(Exception):
    """No answer in time."""


def _too_late(*_: object) -> None:
    raise TooLate


if __name__ == "__main__":
    os.environ |= {"TZ": "UTC", "COLUMNS": "100", "XDG_CACHE_HOME": str(Path("cache").resolve())}
    time.tzset()
    with Path(sys.argv[2]).open("w") as answers:
        for line in Path(sys.argv[1]).read_text().splitlines():
            json.dump({"question": line} | answer(line), answers)
            answers.write("\n")
            answers.flush()
