"""What a Parquet file holds, unpacked, as its footer says: its rows do not tell how long lists and
texts are. The footer is Thrift in its compact protocol.
"""

import struct
from collections.abc import Collection
from typing import Any, BinaryIO

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_FIELD = 8
"""Bytes of a value in memory, at least."""
_MOST_BYTES = 64 * 2**20
"""Of a footer."""
_DEEPEST = 32

# fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData
_ROW_GROUPS, _COLUMNS, _META, _PATH, _VALUES, _UNPACKED = 4, 1, 3, 3, 5, 6


def unpacked_bytes(file: BinaryIO, columns: Collection[str]) -> int:
    """Return how many bytes some columns take in memory, at least."""
    length = file.seek(0, 2)
    file.seek(max(length - 8, 0))
    tail = file.read(8)
    if len(tail) < 8 or tail[4:] != b"PAR1":
        raise ValueError("the end of the file is missing")
    size = int(struct.unpack("<I", tail[:4])[0])
    if size > min(length - 8, _MOST_BYTES):
        raise ValueError("its footer is larger than it can be")
    file.seek(length - 8 - size)
    try:
        footer = _Reader(file.read(size)).record()
        chunks = [chunk[_META] for group in footer[_ROW_GROUPS] for chunk in group[_COLUMNS]]
        return sum(
            max(chunk[_UNPACKED], chunk[_VALUES] * _FIELD)
            for chunk in chunks
            if chunk[_PATH][0].decode() in columns
        )
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its footer cannot be read") from error


class _Reader:
    """Records of Thrift: their fields by number, with lists; names are not in them."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def record(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of the record that begins here."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self._whole()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise LookupError(kind)
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind < _DOUBLE:
            return self._whole()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.record(depth + 1)
        raise LookupError(kind)  # no map is in a footer

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._unsigned()
        if count > len(self._content):  # each takes a byte
            raise LookupError(count)
        if kind in (_TRUE, _FALSE):
            return [self._byte() == _TRUE for _ in range(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        return self._content[self._at - count : self._at]

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def _whole(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
