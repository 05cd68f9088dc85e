"""The one door through which files of the user are read: regular files, or standard input, of
bounded size.
"""

import difflib
import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from penstock import checks
from penstock.checks import shown
from penstock.errors import InputError

MOST_GIB = 2.0
"""What is read of one file, unpacked, where nothing else is asked for, in GiB."""

_LINE_SHARE = 128
_DOCUMENT_SHARE = 8
"""Of what a file may hold, a line of it is at most one part in so many, and a document that is read
as one: Python takes ten times as much memory for these as for bytes, and more.
"""
_MOST_VALUES = 20_000_000
"""Of such a document: each takes up to 72 bytes, however short it is written."""

_PARQUET = b"PAR1"
_SEPARATORS = (b",", b"[", b"{", b"\n")
_STANDARD_INPUT = "-"
_CHUNK = 1 << 20
_DEFLATE = 1_032
"""Bytes that a byte of deflate stands for at most."""


@dataclass(frozen=True)
class Source:
    """A file, decompressed where need be, and the errors that name it."""

    path: Path
    content: bytes | None  # decompressed; None: it can be read from the file as it is
    most_gib: float = MOST_GIB  # the limit that it was read under

    @classmethod
    def at(cls, path: str | Path, max_gib: float | None = None) -> "Source":
        """Look at a file; refuse one that is not there, holds nothing, or more than it may.

        The file may be compressed with gzip, and hold ``max_gib`` GiB unpacked (None: `MOST_GIB`);
        ``-`` is standard input, which can be read once. Pipes, devices and sockets are refused,
        since reading them may not end.
        """
        path = checks.path("the name of a file", path)
        most_gib = MOST_GIB
        if max_gib is not None:
            most_gib = max_gib
        checks.number("max_gib", most_gib, 1e-9, 1e6, "GiB", "a file is read into memory")
        source = cls(path, None, most_gib)
        try:
            if str(path) == _STANDARD_INPUT:
                if sys.stdin is None:
                    raise source.fault("is closed. Pipe a file into it, or name a file")
                source = source._with(_in_memory(_chunks(sys.stdin.buffer, source, "holds")))
            else:
                source._refuse_irregular()
            head = source._head()
            if head.startswith(b"\x1f\x8b"):
                source = source._unpacked()
                head = source._head()
        except InputError:
            raise
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise source.fault(
                f"cannot be read ({first_line(_reason(error))}). Fetch the file again"
            ) from None
        if not head:
            raise source.fault("is empty. Fetch the file again")
        if b"\0" in head and not head.startswith((_PARQUET, b"\xff\xfe", b"\xfe\xff")):
            raise source.fault(
                "holds bytes of zero, so it is not text. Name a table, a log or a document"
            )
        return source

    @property
    def name(self) -> str:
        """File name, for messages."""
        name = self.path.name or str(self.path)
        if name == _STANDARD_INPUT:
            return "standard input"
        if name.isprintable() and len(name) <= 80:
            return name
        return shown(name)

    @property
    def most_bytes(self) -> int:
        """What it may hold, in bytes."""
        return int(self.most_gib * 2**30)

    @property
    def most_line_bytes(self) -> int:
        """What one line or cell of it may hold, in bytes."""
        return max(self.most_bytes // _LINE_SHARE, _CHUNK)

    def open(self) -> BinaryIO:
        """Open the decompressed bytes."""
        if self.content is None:
            return self.path.open("rb")
        return io.BytesIO(self.content)

    def text(self, newline: str = "") -> io.TextIOWrapper:
        """Open it as text, without a byte order mark."""
        return io.TextIOWrapper(self.open(), encoding="utf-8-sig", newline=newline)

    def document(self) -> str:
        """Return all of its text, where that is to become one value."""
        most = max(self.most_bytes // _DOCUMENT_SHARE, _CHUNK)
        with self.open() as file:
            content = file.read(most + 1)
        if len(content) > most or sum(map(content.count, _SEPARATORS)) > _MOST_VALUES:
            raise self.fault(
                f"holds more than {most / 2**20:,.0f} MiB or {_MOST_VALUES:,} values in one "
                "document, which would take many times as much memory. Give a part of it"
            )
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise self.not_text() from None

    def refuse_long_lines(self) -> None:
        """Refuse a line longer than any table or log has; most readers copy it several times."""
        with self.open() as file:
            lines = _Lines(self, self.most_line_bytes)
            if file.seek(0, io.SEEK_END) > self.most_line_bytes:
                file.seek(0)
                while chunk := file.read(_CHUNK):
                    lines.add(chunk)

    def for_polars(self) -> Path | io.BytesIO:
        """Return what a reader of Polars takes."""
        if self.content is None:
            return self.path
        return io.BytesIO(self.content)

    def blank_lines_at_end(self) -> int:
        """Count the blank lines below the last row."""
        with self.open() as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - 65_536))
            tail = file.read()
        return max(0, tail[len(tail.rstrip(b"\r\n")) :].count(b"\n") - 1)

    def fault(self, message: str) -> InputError:
        """Return an error that begins with the file's name; the message needs no full stop."""
        return InputError(f"{self.name}: {message}.".replace("?.", "?"))

    def not_text(self) -> InputError:
        """Return the error for the first line that is not UTF-8."""
        with self.open() as file:
            for number, line in enumerate(file, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError:
                    return self.fault(
                        f"line {number:,} is not UTF-8 text. Save it as UTF-8, or fetch the file "
                        "again"
                    )
        return self.fault("is not UTF-8 text. Save it as UTF-8, or fetch the file again")

    def too_large(self, holds: str = "holds") -> InputError:
        """Return the error for more than is read of one file."""
        return self.fault(
            f"{holds} more than {self.most_gib:g} GiB, the most that is read of one file, since "
            "all of it must fit into memory. Give a part of it, or raise the limit: --max-gib, "
            "`max_gib` in a scenario or in Python"
        )

    def long_line(self, most: int) -> InputError:
        """Return the error for a line or a cell of more bytes than it may have."""
        return self.fault(
            f"has a line or a cell of more than {most / 2**20:,.0f} MiB, which would take many "
            "times as much memory. Check that it is the right file, and that its lines and quotes "
            "end"
        )

    def _with(self, content: bytes) -> "Source":
        return Source(self.path, content, self.most_gib)

    def _head(self) -> bytes:
        with self.open() as file:
            return file.read(4096)

    def _refuse_irregular(self) -> None:
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            neighbours: list[str] = []
            if self.path.parent.is_dir():
                neighbours = [file.name for file in self.path.parent.iterdir()]
            hint = ". Check the path"
            for close in difflib.get_close_matches(self.path.name, neighbours, n=1):
                hint = f"; did you mean {shown(close)}?"
            raise self.fault("does not exist" + hint) from None
        except (OSError, ValueError) as error:
            raise self.fault(f"cannot be looked for ({_reason(error)}). Check the path") from None
        if stat.S_ISDIR(status.st_mode):
            raise self.fault("is a directory. Name a file in it")
        if not stat.S_ISREG(status.st_mode):
            raise self.fault(
                "is a pipe, a device or a socket and no regular file, so reading it may never end. "
                "Name a regular file; where a command takes -, that is standard input"
            )
        if status.st_size > self.most_bytes:
            raise self.too_large()

    def _unpacked(self) -> "Source":
        """Decompress; where it may be more than is read, count it first without keeping it."""
        with self.open() as file:
            if file.seek(0, io.SEEK_END) * _DEFLATE > self.most_bytes:
                file.seek(0)
                for _ in _chunks(gzip.GzipFile(fileobj=file), self, "unpacks to"):
                    pass
            file.seek(0)
            return self._with(_in_memory(_chunks(gzip.GzipFile(fileobj=file), self, "unpacks to")))


def _reason(error: BaseException) -> object:
    """Return why reading failed, in the words of the system where it has some."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return error


def refuse_twice(paths: Iterable[Path]) -> None:
    """Refuse a file that is given twice: what it holds would count twice."""
    seen: set[str] = set()
    for path in paths:
        place = os.path.realpath(path)
        if place in seen:
            raise Source(path, None).fault(
                "is given twice, so what it holds would count twice. Give it once"
            )
        seen.add(place)


class _Lines:
    """Refuses a line as soon as it is too long, chunk by chunk."""

    def __init__(self, source: Source, most: int) -> None:
        self._source = source
        self._most = most
        self._begun = 0  # bytes since the last end of a line

    def add(self, chunk: bytes) -> None:
        """Look at the next chunk; lines within one are short."""
        first = chunk.find(b"\n")
        self._begun += len(chunk) if first < 0 else first
        if self._begun > self._most:
            raise self._source.long_line(self._most)
        if first >= 0:
            self._begun = len(chunk) - 1 - chunk.rfind(b"\n")


def _chunks(file: BinaryIO | gzip.GzipFile, source: Source, holds: str) -> Iterator[bytes]:
    """Yield everything, but no more than may be read, and no line that nothing can read."""
    size = 0
    lines = _Lines(source, max(source.most_bytes // _DOCUMENT_SHARE, _CHUNK))
    is_table = False
    while chunk := file.read(_CHUNK):
        is_table = is_table or (size == 0 and chunk.startswith(_PARQUET))
        size += len(chunk)
        if size > source.most_bytes:
            raise source.too_large(holds)
        if not is_table:  # bytes between two that happen to be ends of lines are no line
            lines.add(chunk)
        yield chunk


def _in_memory(chunks: Iterable[bytes]) -> bytes:
    content = io.BytesIO()
    for chunk in chunks:
        content.write(chunk)
    return content.getvalue()


def first_line(error: object) -> str:
    """Return the beginning of what an error says, on one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(" .")
