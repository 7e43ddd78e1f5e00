"""Files of rows of embedding tables.

```
  "tfdist rows 1\n"
  piece: about    JSON: the checkpoint's number, its base, the tables
  piece: rows     ids int64, removed int64, used uint32, counts uint32, content float32
  ...
  piece: end      the number of pieces, and a checksum of their checksums
```

A piece is a header and arrays without gaps, with its own checksum, so that rows go from the
server's memory to the file and back without a second copy. A file with a base has the changes since
then: rows to insert or replace, and ids of removed rows.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from tfdist.errors import CheckpointError
from tfdist.ops.ps.saved_rows import SavedRows
from tfdist.ops.ps.snapshot import SavedTable

if TYPE_CHECKING:
    pass

_MAGIC = b"tfdist rows 1\n"
# Kind, table, rows, removed rows, floats of a row, checksum of the piece without this field.
_HEADER = struct.Struct("<IIQQII")
_ABOUT, _ROWS, _END = 1, 2, 3
# Maximum width of a row.
_MAX_FLOATS = 1 << 18


@dataclasses.dataclass(frozen=True)
class About:
    """The first piece of a file of rows.

    Args:
      number: the checkpoint's number.
      base: number and checksum of the file that the changes apply to; `None` if it has all rows.
      tables: the tables.
    """

    number: int
    base: tuple[int, int] | None
    tables: Sequence[SavedTable]


@dataclasses.dataclass(frozen=True)
class Written:
    """The result of `write`.

    Args:
      checksum: identifies the file in files that are based on it.
      rows: the number of rows.
      removed: the number of removed rows.
    """

    checksum: int
    rows: int
    removed: int


def write(file: BinaryIO, about: About) -> Written:
    """Fetches the tables' rows and writes them, chunk by chunk.

    Raises:
      OSError, tf.errors.OpError: the file system refused.
    """
    rows = ((i, rows) for i, table in enumerate(about.tables) for rows in table.chunks())
    return write_rows(file, about, rows)


def write_rows(file: BinaryIO, about: About, pieces: Iterable[tuple[int, SavedRows]]) -> Written:
    """Writes rows of any origin.

    Args:
      file: the open file.
      about: describes them; its tables have no rows of their own.
      pieces: rows with the index of their table. If an id occurs twice, its last row counts.

    Raises:
      OSError, tf.errors.OpError: the file system refused.
    """
    writer = _Writer(file)
    text = json.dumps(
        {
            "number": about.number,
            "follows": about.base,
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
    count = removed = 0
    for i, rows in pieces:
        arrays = [rows.ids, rows.removed, rows.used, rows.counts, rows.content]
        floats = about.tables[i].content_floats
        writer.add(_ROWS, i, len(rows.ids), len(rows.removed), floats, arrays)
        count += len(rows.ids)
        removed += len(rows.removed)
    return Written(writer.end(), count, removed)


class Reader:
    """Reads a file of rows.

    Args:
      file: the open file.
      path: its name in messages.

    Raises:
      CheckpointError: it is no file of rows, or damaged.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._pieces = 0
        self._running_checksum = 0
        self.checksum: int | None = None  # of the file, after its last row
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
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error

    def rows(self) -> Iterator[tuple[int, SavedRows]]:
        """Yields chunks of rows with the index of their table; each is valid until the next.

        Raises:
          CheckpointError: the file is truncated or altered.
        """
        while True:
            file_checksum = self._running_checksum
            kind, table, count, removed, floats, body = self._piece()
            if kind == _END:
                if (count, removed) != (self._pieces - 1, file_checksum) or self._file.read(1):
                    raise CheckpointError(f"{self._path} is damaged: its end does not fit")
                self.checksum = file_checksum
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
        self._running_checksum = _mix(self._running_checksum, checksum)
        return kind, table, count, removed, floats, body

    def _read(self, size: int) -> bytes:
        # In parts: a damaged header may ask for more memory than there is.
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
        self._running_checksum = 0
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
        bodies = [array.data.cast("B") for array in arrays if array.size]
        for body in bodies:
            checksum = zlib.crc32(body, checksum)
        self._file.write(header + struct.pack("<I", checksum))
        for body in bodies:
            self._file.write(body)
        self._pieces += 1
        self._running_checksum = _mix(self._running_checksum, checksum)

    def end(self) -> int:
        checksum = self._running_checksum
        self.add(_END, 0, self._pieces, checksum, 0, [])
        return checksum


def _about(fields: dict[str, Any]) -> About:
    base = fields["follows"]
    if base is not None:
        number, checksum = base
        base = (_integer("base", number), _integer("base", checksum))
    return About(_integer("number", fields["number"]), base, [_table(t) for t in fields["tables"]])


def _table(fields: dict[str, Any]) -> SavedTable:
    if not isinstance(fields["name"], str):
        raise ValueError(f"name: expected a text, received {fields['name']!r:.50}")
    return SavedTable(
        fields["name"],
        bytes.fromhex(fields["description"]),
        _integer("floats", fields["floats"], _MAX_FLOATS),
        float(fields["learning_rate"]),
        _integer("step", fields["step"]),
    )


def _integer(name: str, value: Any, limit: int = 2**63 - 1) -> int:
    if type(value) is int and 0 <= value <= limit:
        return value
    raise ValueError(f"{name}: expected a number from 0 to {limit}, received {value!r:.50}")


def _body_bytes(kind: int, count: int, removed: int, floats: int) -> int:
    if kind == _ABOUT:
        return floats
    if kind == _ROWS and floats <= _MAX_FLOATS:
        return count * (16 + 4 * floats) + 8 * removed
    return 0


def _split(body: memoryview, count: int, removed: int, floats: int) -> SavedRows:
    at = 0

    def take(items: int, dtype: type) -> np.ndarray:
        nonlocal at
        array: np.ndarray = np.frombuffer(body, dtype, items, at)
        at += array.nbytes
        return array

    ids, removed_ids = take(count, np.int64), take(removed, np.int64)
    used, counts = take(count, np.uint32), take(count, np.uint32)
    content = take(count * floats, np.float32).reshape(count, floats)
    return SavedRows(ids, used, counts, content, removed_ids)


def _mix(running: int, checksum: int) -> int:
    return (running * 0x9E3779B97F4A7C15 + checksum + 1) % (1 << 63)
