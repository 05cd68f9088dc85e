"""Results that survive kill -9: a journal beside the file, one line for each finished point.

The first line says whose results they are (a fingerprint); each other one is a point. Lines are
appended whole and flushed; the disk is waited for now and then. Each ends with a checksum: one torn
by a crash, or changed since, is passed over, and its point run again.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import polars as pl

from penstock import checks
from penstock.errors import DISK_FULL, InputError

Row = dict[str, Any]

MEANING = 3
"""Of a row: raised when the same scenario would give another row, or a journal is written in
another way.
"""

_SYNC_S = 1.0
_FORMATS = (".parquet", ".csv")
_HEAD = b'{"sweep": "'


def fingerprint(description: Mapping[str, Any]) -> str:
    """Return a digest of what the results depend on; refuse what has none."""
    try:
        text = json.dumps({"meaning": MEANING, **description}, sort_keys=True, default=str)
    except TypeError as error:
        raise InputError(
            f"a mapping of the scenario has a key that is no text ({error}); put it in quotes"
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return a digest of what a file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked_output(path: Any) -> Path:
    """Return the path of a table that can be written, its format known by its name."""
    out = checks.path("--out", path)
    if os.path.islink(out):  # what it leads to is written, and the link kept
        out = Path(os.path.realpath(out))
        if os.path.islink(out):
            raise InputError(
                f"cannot write {out}: it is a link that leads nowhere but to itself; give another "
                "file"
            )
    if os.path.isdir(out):  # never raises, whatever the name
        raise InputError(
            f"cannot write {out}: it is a folder; give a file, such as {out / 'sweep.csv'}"
        )
    if out.name.lower() in _FORMATS:
        raise InputError(
            f"--out {out} is an ending without a name; give {out.with_name('sweep' + out.name)}"
        )
    if os.path.isdir(journal_of(out)):
        raise InputError(
            f"cannot write {out}: {journal_of(out)}, where finished points go, is a folder; move "
            "it, or give "
            "another file"
        )
    for written in (out, journal_of(out)):  # longer names may be too long
        checks.writable("--out", written)
    if out.suffix.lower() not in _FORMATS:
        raise InputError(
            f"--out {out} ends in neither .parquet nor .csv, which says what to write; give one "
            "of them"
        )
    return out


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table as a whole or not at all, in the format that its name says."""
    draft = path.with_name(f".{path.name}.part")
    try:
        if path.suffix.lower() == ".csv":
            table.write_csv(draft)
        else:
            table.write_parquet(draft)
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def named_if_full(out: Path) -> Iterator[None]:
    """Name the table where its disk is full, and say that what is finished is not lost."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        if (
            isinstance(error, OSError) and error.errno not in DISK_FULL
        ):  # of a worker, a trace, the terminal
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise InputError(
            f"cannot write {out}: {reason}; finished points are kept in {journal_of(out).name} as "
            "far as there was "
            "room: make some, and the same call goes on from there"
        ) from None


class Journal:
    """A sweep's finished points, by place, on disk beside the table, as ``NAME.journal``."""

    def __init__(self, path: Path, file: IO[bytes], digest: str, rows: dict[int, Row]) -> None:
        self.path, self.rows = path, rows
        self._file, self._digest, self._synced = file, digest, time.monotonic()
        self._head = b"" if rows else _head(digest)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, out: Path, digest: str, *, fresh: bool = False) -> Iterator["Journal"]:
        """Open the journal of a table, and go on where it stopped."""
        path = journal_of(out)
        if out.exists() and not fresh and not (path.exists() and path.stat().st_size):
            raise InputError(
                f"{out} exists, but no {path.name} beside it says what it holds, so it would be "
                "lost; give another "
                "file, or --fresh to begin anew"
            )
        with _opened(path) as file:
            _lock(file, out)
            rows = {} if fresh else _read(file, out, digest)
            # the head is written with the first row: what fails before it leaves no results behind
            if not rows:
                file.truncate(0)
            journal = cls(path, file, digest, rows)
            try:
                yield journal
            finally:
                journal.sync()

    def add(self, row: Row) -> bool:
        """Append a finished point, unless it is there already; return whether it was new."""
        if row["point"] in self.rows:
            return False
        text = json.dumps(row, allow_nan=False, default=str)
        self._file.write(self._head + _sealed(text.encode(), self._digest))
        self._file.flush()
        self._head = b""
        self.rows[row["point"]] = row
        if time.monotonic() - self._synced > _SYNC_S:
            self.sync()
        return True

    def sync(self) -> None:
        """Wait until the disk has it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()


def journal_of(out: Path) -> Path:
    """Return where the journal of a table lies."""
    return out.with_name(out.name + ".journal")


def _head(digest: str) -> bytes:
    return _HEAD + digest.encode() + b'"}\n'


def _sealed(text: bytes, digest: str) -> bytes:
    """Return a line: the text, a tab, which JSON has not, and a checksum with whose it is."""
    return b"%b\t%08x\n" % (text, zlib.crc32(digest.encode() + text))


def _lock(file: IO[bytes], out: Path) -> None:
    """Let one sweep at a time write a journal; the lock ends with the process, however it ends."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"another sweep is writing {out} now; wait for it, or give another file"
        ) from None


def _read(file: IO[bytes], out: Path, digest: str) -> dict[int, Row]:
    """Return the finished points, and leave the file at the end of its last whole line."""
    file.seek(0)
    head = file.readline()
    if not head.endswith(b"\n") and _HEAD.startswith(head[: len(_HEAD)]):  # new, or torn
        return {}
    if not head.startswith(_HEAD):
        raise InputError(
            f"{file.name} is no journal of a sweep, which is kept under this name; move it, or "
            "give another --out"
        )
    if head != _head(digest):
        raise InputError(
            f"{out} holds the results of another sweep (the scenario, its files, the fields or "
            "the seeds differ, or an "
            "older Penstock made it); give another file, or --fresh to begin anew"
        )
    rows: dict[int, Row] = {}
    end = len(head)
    for line in file:
        if not line.endswith(b"\n"):  # torn
            break
        end += len(line)
        text = line.rpartition(b"\t")[0]
        if line == _sealed(text, digest):
            row = json.loads(text)
            rows.setdefault(row["point"], row)
    file.truncate(end)
    file.seek(end)
    return rows


def _opened(path: Path) -> IO[bytes]:
    """Open a file to read it and to write at its end."""
    try:
        return path.open("a+b")
    except (OSError, ValueError) as error:  # it may not be written to; its name holds a zero
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"cannot write {checks.shown(str(path))}: {reason}; give another file to --out"
        ) from None
