"""A log of vLLM that grows: followed as ``tail -F`` does, also when it is rotated or cut."""

import os
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InputError
from penstock.inputs.source import Source as File
from penstock.live.iterations import Came
from penstock.measuring.fitting.batches import MeasuredBatches
from penstock.measuring.fitting.vllm_log import ITERATION, find_iterations, is_size

_MOST_BYTES = 64 * 2**20  # that are read at once; the rest follows
_LONGEST_LINE = 1 << 20


class GrowingLog:
    """A log from its beginning on."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._rest = b""
        is_new = path.is_file() and path.stat().st_size == 0  # its engine has just begun
        if not is_new and File.at(path).content is not None:
            raise InputError(
                f"--log {path} is compressed, and so does not grow; give the log that the engine "
                "writes, or this one to `penstock fit`"
            )
        self._file: BinaryIO = path.open("rb")

    def take(self) -> Came:
        """Return the lines on iterations that were written since."""
        content = self._file.read(_MOST_BYTES)
        notes = []
        if len(content) < _MOST_BYTES and self._is_replaced():
            notes.append("the log was rotated, and is followed from the new one's beginning")
            self._file.close()
            self._file = self._path.open("rb")
            content += b"\n" + self._file.read(_MOST_BYTES)
        *lines, rest = (self._rest + content).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        sizes = [index for index, line in enumerate(lines) if is_size(line)]
        begun = sizes[-1] if sizes else 0
        records = [line for line in lines[begun:] if ITERATION in line]
        head = lines[begun] if sizes else b""
        return Came(records, head, anew=bool(sizes), notes=notes)

    def batches(self, file: File) -> MeasuredBatches:
        """Read lines."""
        return find_iterations(file)

    def _is_replaced(self) -> bool:
        """Return whether another file has its name, or it was cut."""
        try:
            now = self._path.stat()
        except OSError:
            return False
        own = os.fstat(self._file.fileno())
        return not os.path.samestat(now, own) or now.st_size < self._file.tell()
