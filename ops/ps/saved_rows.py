"""Rows of embeddings' tables, as servers save and restore them."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdist.ops.ps import server_calls

# Of `used`, in a second.
_TICKS = 16


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """Some rows of a table.

    Attributes:
      ids: int64.
      used: uint32, when each was used last, in sixteenths of a second.
      counts: uint32, how often each was used.
      content: float32, a row for each: its value and then its slots.
      removed: int64, ids of rows that are there no more.
    """

    ids: np.ndarray
    used: np.ndarray
    counts: np.ndarray
    content: np.ndarray
    removed: np.ndarray

    def later(self, seconds: float) -> SavedRows:
        """The same rows with their time of use moved by `seconds`."""
        ticks = np.uint32(round(seconds * _TICKS) % 2**32)
        return dataclasses.replace(self, used=self.used + ticks)

    def as_c(self) -> server_calls.Rows:
        """The structure that C functions take; it points into these arrays."""
        return server_calls.Rows(
            len(self.ids),
            len(self.removed),
            self.ids.ctypes.data,
            self.used.ctypes.data,
            self.counts.ctypes.data,
            self.content.ctypes.data,
            self.removed.ctypes.data,
        )


class SavedTable:
    """A table of a checkpoint.

    Args:
      name: its own.
      description: bytes that say how it was configured.
      content_floats: how many numbers a row has.
      learning_rate: of the last step that it has seen.
      step: that step.
      image: of a server, to fetch rows from.
      index: of this table there.
    """

    def __init__(
        self,
        name: str,
        description: bytes,
        content_floats: int,
        learning_rate: float,
        step: int,
        image: ctypes.c_int64 | None = None,
        index: int = 0,
    ) -> None:
        self.name = name
        self.description = description
        self.content_floats = content_floats
        self.learning_rate = learning_rate
        self.step = step
        self._image = image
        self._index = index

    def as_c(self) -> server_calls.SavedTable:
        """The structure that C functions take; it points to this object's bytes."""
        pointer = ctypes.cast(ctypes.c_char_p(self.description), ctypes.c_void_p)
        return server_calls.SavedTable(
            pointer, len(self.description), None, self.content_floats, self.learning_rate, self.step
        )

    def bits(self, most: int = 1 << 16) -> Iterator[SavedRows]:
        """Fetches its rows, about `most` at a time; each bit is valid until the next.

        Raises:
          tf.errors.ResourceExhaustedError: the server has no memory for the copy.
        """
        raw = server_calls.Rows()
        while True:
            found = server_calls.IMAGE.next_rows(self._image, self._index, most, ctypes.byref(raw))
            if found < 0:
                raise tf.errors.ResourceExhaustedError(
                    None, None, f"out of memory: a copy of the rows of table '{self.name}'"
                )
            if not found:
                return
            yield rows_from_c(raw, self.content_floats)


def saved_tables(image: ctypes.c_int64) -> list[SavedTable]:
    """Returns the tables of an image."""
    tables: list[SavedTable] = []
    raw = server_calls.SavedTable()
    while server_calls.IMAGE.table(image, len(tables), ctypes.byref(raw)):
        tables.append(
            SavedTable(
                raw.name.decode(errors="surrogateescape"),
                ctypes.string_at(raw.description, raw.description_bytes),
                raw.content_floats,
                raw.learning_rate,
                raw.step,
                image,
                len(tables),
            )
        )
    return tables


def rows_from_c(raw: server_calls.Rows, floats: int) -> SavedRows:
    """Rows in memory that C functions have given, of so many numbers each."""
    content = _array(raw.content, raw.count * floats, np.float32)
    return SavedRows(
        _array(raw.ids, raw.count, np.int64),
        _array(raw.used, raw.count, np.uint32),
        _array(raw.counts, raw.count, np.uint32),
        content.reshape(raw.count, floats),
        _array(raw.removed, raw.removed_count, np.int64),
    )


def _array(address: int | None, count: int, dtype: type) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    memory = (ctypes.c_uint8 * size).from_address(address) if size else b""
    return np.frombuffer(memory, dtype)
