"""Files of rows of embeddings' tables.

```
  "tfdist rows 1\n"
  piece: about    JSON: the checkpoint's number, the one that it follows, the tables
  piece: rows     ids int64, removed int64, used uint32, counts uint32, content float32
  ...
  piece: end      how many pieces there were, and a checksum of their checksums
```

A piece is a header and arrays without anything between them, with a checksum of its own, so that
rows go from the server's memory to the file and back without being held a second time. A file that
follows another has what changed since: rows to be put in place, and ids of removed ones.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from tfdist import ops
from tfdist.errors import CheckpointError

_MAGIC = b"tfdist rows 1\n"
# Kind, table, rows, removed rows, floats of a row, checksum of all of it but this.
_HEADER = struct.Struct("<IIQQII")
_ABOUT, _ROWS, _END = 1, 2, 3
# More would be no table's row.
_MOST_FLOATS = 1 << 18


@dataclasses.dataclass(frozen=True)
class About:
    """What a file of rows says of itself.

    Args:
      number: of its checkpoint.
      follows: number and `seal` of the file of which it has the changes, or `None`.
      tables: what it has rows of.
    """

    number: int
    follows: tuple[int, int] | None
    tables: Sequence[ops.SavedTable]


@dataclasses.dataclass(frozen=True)
class Written:
    """What was written.

    Args:
      seal: a number by which other files know this one.
      rows: how many rows it has.
    """

    seal: int
    rows: int


def write(file: BinaryIO, about: About) -> Written:
    """Fetches the tables' rows and writes them, bit by bit.

    Raises:
      OSError, tf.errors.OpError: the file system refused.
    """
    writer = _Writer(file)
    text = json.dumps(
        {
            "number": about.number,
            "follows": about.follows,
            "tables": [
                {
                    "name": table.name,
                    "description": table.description.hex(),
                    "floats": table.content_floats,
                    "learning_rate": table.learning_rate,
                    "step": table.step,
                }
                for table in about.tables
            ],
        }
    ).encode()
    writer.add(_ABOUT, 0, 0, 0, len(text), [np.frombuffer(text, np.uint8)])
    count = 0
    for i, table in enumerate(about.tables):
        for rows in table.chunks():
            arrays = [rows.ids, rows.removed, rows.used, rows.counts, rows.content]
            writer.add(_ROWS, i, len(rows.ids), len(rows.removed), table.content_floats, arrays)
            count += len(rows.ids)
    return Written(writer.end(), count)


class Reader:
    """Reads a file of rows.

    Args:
      file: to read from.
      path: what messages call it.

    Raises:
      CheckpointError: it is something else, or damaged.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._pieces = 0
        self._sums = 0
        self.seal: int | None = None  # once all was read
        magic = file.read(len(_MAGIC))
        if magic != _MAGIC:
            raise CheckpointError(
                f"{path} is damaged: expected a file that begins with {_MAGIC!r}, received "
                f"{bytes(magic)!r}"
            )
        kind, _, count, removed, size, body = self._piece()
        try:
            if kind != _ABOUT or count or removed:
                raise ValueError(f"it begins with a piece of kind {kind}")
            fields = json.loads(bytes(body[:size]).decode())
            self.about = _about(fields)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error

    def rows(self) -> Iterator[tuple[int, ops.SavedRows]]:
        """Gives the rows with the number of their table; each bit is valid until the next.

        Raises:
          CheckpointError: the file is truncated or altered.
        """
        while True:
            sums = self._sums
            kind, table, count, removed, floats, body = self._piece()
            if kind == _END:
                if (count, removed) != (self._pieces - 1, sums) or self._file.read(1):
                    raise CheckpointError(f"{self._path} is damaged: its end does not fit")
                self.seal = sums
                return
            if (
                kind != _ROWS
                or table >= len(self.about.tables)
                or floats != self.about.tables[table].content_floats
            ):
                raise CheckpointError(f"{self._path} is damaged: a piece does not fit")
            yield table, _split(body, count, removed, floats)

    def _piece(self) -> tuple[int, int, int, int, int, memoryview]:
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise CheckpointError(f"{self._path} is damaged: it has no end")
        kind, table, count, removed, floats, checksum = _HEADER.unpack(header)
        body = memoryview(self._read(_body_bytes(kind, count, removed, floats)))
        found = zlib.crc32(body, zlib.crc32(header[:-4]))
        if found != checksum:
            raise CheckpointError(
                f"{self._path} is damaged: expected checksum {checksum:08x}, received {found:08x}"
            )
        self._pieces += 1
        self._sums = _mix(self._sums, checksum)
        return kind, table, count, removed, floats, body

    def _read(self, size: int) -> bytes:
        # By parts: what a damaged header says is not worth the memory for it.
        parts = []
        while size > 0:
            part = self._file.read(min(size, 1 << 26))
            if not part:
                raise CheckpointError(f"{self._path} is damaged: it is truncated")
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pieces = 0
        self._sums = 0
        file.write(_MAGIC)

    def add(
        self,
        kind: int,
        table: int,
        count: int,
        removed: int,
        floats: int,
        arrays: Iterable[np.ndarray],
    ) -> None:
        header = _HEADER.pack(kind, table, count, removed, floats, 0)[:-4]
        checksum = zlib.crc32(header)
        bodies = [memoryview(array).cast("B") for array in arrays if array.size]
        for body in bodies:
            checksum = zlib.crc32(body, checksum)
        self._file.write(header + struct.pack("<I", checksum))
        for body in bodies:
            self._file.write(body)
        self._pieces += 1
        self._sums = _mix(self._sums, checksum)

    def end(self) -> int:
        seal = self._sums
        self.add(_END, 0, self._pieces, seal, 0, [])
        return seal


def _about(fields: Any) -> About:
    follows = fields["follows"]
    tables = [
        ops.SavedTable(
            table["name"],
            bytes.fromhex(table["description"]),
            table["floats"],
            table["learning_rate"],
            table["step"],
        )
        for table in fields["tables"]
    ]
    return About(fields["number"], None if follows is None else tuple(follows), tables)


def _body_bytes(kind: int, count: int, removed: int, floats: int) -> int:
    if kind == _ABOUT:
        return floats
    if kind == _ROWS and floats <= _MOST_FLOATS:
        return count * (16 + 4 * floats) + 8 * removed
    return 0


def _split(body: memoryview, count: int, removed: int, floats: int) -> ops.SavedRows:
    at = 0

    def take(items: int, dtype: type) -> np.ndarray:
        nonlocal at
        array = np.frombuffer(body, dtype, items, at)
        at += array.nbytes
        return array

    ids, gone = take(count, np.int64), take(removed, np.int64)
    used, counts = take(count, np.uint32), take(count, np.uint32)
    content = take(count * floats, np.float32).reshape(count, floats)
    return ops.SavedRows(ids, used, counts, content, gone)


def _mix(sums: int, checksum: int) -> int:
    return (sums * 0x9E3779B97F4A7C15 + checksum + 1) % (1 << 63)
