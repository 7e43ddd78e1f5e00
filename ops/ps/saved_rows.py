"""Rows of embedding tables with their slots and usage, and their transfer by a worker."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfdist.ops import library
from tfdist.ops.library import Handle, c_structure
from tfdist.ops.ps.client import ParameterClient

_TICKS_PER_SECOND = 16


@c_structure("saved_rows")
class CSavedRows(ctypes.Structure):
    """Has the layout of `tfdist_ps_rows`."""

    _fields_ = [
        ("count", ctypes.c_uint64),
        ("removed_count", ctypes.c_uint64),
        ("ids", ctypes.c_void_p),
        ("used", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("content", ctypes.c_void_p),
        ("removed", ctypes.c_void_p),
    ]


_SCAN = library.CFunctions(
    "tfdist_ps_scan_",
    checked={
        "next": [
            Handle,
            Handle,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_bool,
            ctypes.POINTER(CSavedRows),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_bool),
        ],
    },
    plain={"end": [Handle]},
    returning={"begin": ([], Handle)},
)
_IMPORT = library.CFunctions(
    "tfdist_ps_import_",
    checked={
        "rows": [Handle, ctypes.c_int, ctypes.POINTER(CSavedRows), ctypes.c_uint64, ctypes.c_bool]
    },
)


@dataclasses.dataclass(frozen=True)
class SavedRows:
    """Some rows of a table.

    Attributes:
      ids: int64[n].
      used: uint32[n], the time of each row's last use in sixteenths of a second.
      counts: uint32[n], the number of uses of each row.
      content: float32[n, floats]; a row is its value followed by its slots.
      removed: int64, ids of rows that were removed.
    """

    ids: np.ndarray
    used: np.ndarray
    counts: np.ndarray
    content: np.ndarray
    removed: np.ndarray

    def later(self, seconds: float) -> SavedRows:
        """Returns the same rows with their time of use moved by `seconds`."""
        ticks = np.uint32(round(seconds * _TICKS_PER_SECOND) % 2**32)
        return dataclasses.replace(self, used=self.used + ticks)

    def as_c(self) -> CSavedRows:
        """Returns the structure that C functions take; it points into these arrays."""
        return CSavedRows(
            len(self.ids),
            len(self.removed),
            self.ids.ctypes.data,
            self.used.ctypes.data,
            self.counts.ctypes.data,
            self.content.ctypes.data,
            self.removed.ctypes.data,
        )

    @classmethod
    def from_c(cls, raw: CSavedRows, floats: int) -> SavedRows:
        """Returns a view of rows in memory that a C function returned.

        Args:
          raw: the structure that the function filled.
          floats: the number of floats of a row.
        """
        content = _array(raw.content, raw.count * floats, np.float32)
        return cls(
            _array(raw.ids, raw.count, np.int64),
            _array(raw.used, raw.count, np.uint32),
            _array(raw.counts, raw.count, np.uint32),
            content.reshape(raw.count, floats),
            _array(raw.removed, raw.removed_count, np.int64),
        )


def scan_rows(
    client: ParameterClient, table: int, server: int, slots: bool, max_rows: int = 1 << 16
) -> Iterator[SavedRows]:
    """Fetches all rows of a table from one server.

    The scan is not atomic: rows that are created or removed meanwhile may be missing or come twice.

    Args:
      client: a worker's.
      table: the table's id.
      server: the server's index.
      slots: fetch the slots too; else `content` has only the rows' values.
      max_rows: approximate maximum number of rows at a time.

    Yields:
      Rows, valid until the next.

    Raises:
      tf.errors.OpError: the server does not answer, or was restarted meanwhile.
    """
    scan = _SCAN.begin()
    raw, floats, more = CSavedRows(), ctypes.c_uint64(), ctypes.c_bool(True)
    try:
        while True:
            _SCAN.next(
                scan,
                client.handle,
                table,
                server,
                max_rows,
                slots,
                ctypes.byref(raw),
                ctypes.byref(floats),
                ctypes.byref(more),
            )
            if raw.count:
                yield SavedRows.from_c(raw, floats.value)
            if not more.value:
                return
    finally:
        _SCAN.end(scan)


def import_rows(client: ParameterClient, table: int, rows: SavedRows, slots: bool) -> None:
    """Writes rows to the servers that hold their ids; returns when the servers have them.

    Args:
      client: a worker's.
      table: the table's id.
      rows: their `content` has values and slots, or values only.
      slots: whether `content` has slots. Without them the slots begin as in new rows.

    Raises:
      tf.errors.InvalidArgumentError: the table's rows have another length.
      tf.errors.OpError: a server does not answer.
    """
    _IMPORT.rows(client.handle, table, ctypes.byref(rows.as_c()), rows.content.shape[1], slots)


def _array(address: int | None, count: int, dtype: type) -> np.ndarray:
    size = count * np.dtype(dtype).itemsize
    memory: Any = b""
    if size:
        assert address is not None
        memory = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, dtype)
