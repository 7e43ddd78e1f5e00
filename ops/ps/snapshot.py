"""Snapshots of a parameter server, for checkpoints."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.library import Handle, c_structure
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ops.ps.saved_rows import CSavedRows, SavedRows

# Names are bytes to the store: names that are not UTF-8 are saved and restored too.
ENCODING_ERRORS = "surrogateescape"
_NUMPY_DTYPES = {number: dtype.as_numpy_dtype for dtype, number in DTYPES.items()}


@c_structure("saved_table")
class CSavedTable(ctypes.Structure):
    """Has the layout of `tfdist_ps_saved_table` in core/ps/server/server_c_api.cc."""

    _fields_ = [
        ("description", ctypes.c_void_p),
        ("description_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("content_floats", ctypes.c_uint64),
        ("learning_rate", ctypes.c_double),
        ("step", ctypes.c_int64),
    ]


_Sizes = ctypes.POINTER(ctypes.c_uint64)
_SNAPSHOT = library.CFunctions(
    "tfdist_ps_snapshot_",
    plain={"free": [Handle]},
    returning={
        "count": ([Handle], ctypes.c_uint64),
        "time": ([Handle], ctypes.c_double),
        "unclaimed_count": ([Handle], ctypes.c_uint64),
        "table": ([Handle, ctypes.c_uint64, ctypes.POINTER(CSavedTable)], ctypes.c_bool),
        "next_rows": (
            [Handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(CSavedRows)],
            ctypes.c_int,
        ),
        "entry": (
            [
                Handle,
                ctypes.c_uint64,
                ctypes.POINTER(ctypes.c_char_p),
                ctypes.POINTER(ctypes.c_int),
                _Sizes,
                ctypes.POINTER(ctypes.c_void_p),
                _Sizes,
            ],
            ctypes.c_bool,
        ),
        "task": (
            [Handle, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p), _Sizes],
            ctypes.c_bool,
        ),
        "progress": ([Handle, ctypes.POINTER(_Sizes), _Sizes], ctypes.c_bool),
    },
)


class SavedTable:
    """A table of a checkpoint.

    Args:
      name: the table's name.
      description: its encoded configuration.
      content_floats: the number of floats of a row.
      learning_rate: of the last step that the table has seen.
      step: that step.
      snapshot: handle of a server's snapshot, from which `chunks` fetches rows.
      index: the table's index in the snapshot.
    """

    def __init__(
        self,
        name: str,
        description: bytes,
        content_floats: int,
        learning_rate: float,
        step: int,
        snapshot: Handle | None = None,
        index: int = 0,
    ) -> None:
        self.name = name
        self.description = description
        self.content_floats = content_floats
        self.learning_rate = learning_rate
        self.step = step
        self._snapshot = snapshot
        self._index = index

    def as_c(self) -> CSavedTable:
        """Returns the structure that C functions take; it points to this object's bytes."""
        pointer = ctypes.cast(ctypes.c_char_p(self.description), ctypes.c_void_p)
        return CSavedTable(
            pointer, len(self.description), None, self.content_floats, self.learning_rate, self.step
        )

    def chunks(self, max_rows: int = 1 << 16) -> Iterator[SavedRows]:
        """Fetches the rows, about `max_rows` at a time; each chunk is valid until the next.

        Raises:
          tf.errors.ResourceExhaustedError: the server has no memory for the copy.
        """
        raw = CSavedRows()
        while True:
            found = _SNAPSHOT.next_rows(self._snapshot, self._index, max_rows, ctypes.byref(raw))
            if found < 0:
                raise tf.errors.ResourceExhaustedError(
                    None, None, f"out of memory: a copy of the rows of table '{self.name}'"
                )
            if not found:
                return
            yield SavedRows.from_c(raw, self.content_floats)


_SERVED = library.CFunctions(
    "tfdist_ps_served_",
    checked={
        "table": [
            ctypes.POINTER(CSavedTable),
            ctypes.c_char_p,
            ctypes.c_uint64,
            _Sizes,
            _Sizes,
            _Sizes,
        ]
    },
)
_MAX_DESCRIPTION = 4096


@dataclasses.dataclass(frozen=True)
class ReadOnlyTable:
    """A saved table as a read-only server has it.

    Attributes:
      table: without slots, unless values depend on them, and without evictions.
      width: the floats of a row's value.
      floats: the first floats of a saved row, which are kept.
    """

    table: SavedTable
    width: int
    floats: int


def read_only(saved: SavedTable) -> ReadOnlyTable:
    """Returns a saved table as a read-only server has it.

    Raises:
      tf.errors.InvalidArgumentError: its description makes no sense.
    """
    description = ctypes.create_string_buffer(_MAX_DESCRIPTION)
    needed, width, floats = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    _SERVED.table(
        ctypes.byref(saved.as_c()),
        description,
        _MAX_DESCRIPTION,
        ctypes.byref(needed),
        ctypes.byref(width),
        ctypes.byref(floats),
    )
    table = SavedTable(
        saved.name,
        description.raw[: needed.value],
        floats.value,
        saved.learning_rate,
        saved.step,
    )
    return ReadOnlyTable(table, width.value, floats.value)


@dataclasses.dataclass(frozen=True)
class ServerSnapshot:
    """The state of a server at one moment.

    Attributes:
      shards: flat arrays by name; they are the store's own memory.
      progress: opaque numbers that tell a server which pushes it has applied.
      unclaimed: shards, by name, from a job with another number of servers that no worker has
        asked this server for yet.
      tables: of a checkpoint.
      tasks: the numbers of trained records of data tasks, by name.
      time: when it was taken, in the time of its rows (core/ps/table/row_clock.h); 0: unknown.
    """

    shards: Mapping[str, np.ndarray]
    progress: np.ndarray
    unclaimed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    tables: Sequence[SavedTable] = ()
    tasks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    time: float = 0.0


@contextlib.contextmanager
def open_snapshot(snapshot: Handle) -> Iterator[ServerSnapshot]:
    """Gives access to a snapshot's memory, and frees it at the end."""
    try:
        shards = _shards(snapshot)
        split = len(shards) - _SNAPSHOT.unclaimed_count(snapshot)
        yield ServerSnapshot(
            dict(shards[:split]),
            _progress(snapshot),
            dict(shards[split:]),
            _tables(snapshot),
            _tasks(snapshot),
            _SNAPSHOT.time(snapshot),
        )
    finally:
        _SNAPSHOT.free(snapshot)


def _shards(snapshot: Handle) -> list[tuple[str, np.ndarray]]:
    """The shards by name; the last `unclaimed_count` of them are unclaimed."""
    shards = []
    name, data = ctypes.c_char_p(), ctypes.c_void_p()
    dtype, elements, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    for i in range(_SNAPSHOT.count(snapshot)):
        _SNAPSHOT.entry(
            snapshot,
            i,
            ctypes.byref(name),
            ctypes.byref(dtype),
            ctypes.byref(elements),
            ctypes.byref(data),
            ctypes.byref(size),
        )
        assert name.value is not None
        memory: Any = b""
        if size.value:
            assert data.value is not None
            memory = (ctypes.c_uint8 * size.value).from_address(data.value)
        array = np.frombuffer(memory, _NUMPY_DTYPES[dtype.value])
        shards.append((name.value.decode(errors=ENCODING_ERRORS), array))
    return shards


def _progress(snapshot: Handle) -> np.ndarray:
    numbers, count = _Sizes(), ctypes.c_uint64()
    _SNAPSHOT.progress(snapshot, ctypes.byref(numbers), ctypes.byref(count))
    # Copied: it is small, and callers may keep it.
    return np.array(numbers[: count.value], np.uint64)


def _tables(snapshot: Handle) -> list[SavedTable]:
    tables: list[SavedTable] = []
    raw = CSavedTable()
    while _SNAPSHOT.table(snapshot, len(tables), ctypes.byref(raw)):
        tables.append(
            SavedTable(
                raw.name.decode(errors=ENCODING_ERRORS),
                ctypes.string_at(raw.description, raw.description_bytes),
                raw.content_floats,
                raw.learning_rate,
                raw.step,
                snapshot,
                len(tables),
            )
        )
    return tables


def _tasks(snapshot: Handle) -> dict[str, int]:
    tasks: dict[str, int] = {}
    name, trained = ctypes.c_char_p(), ctypes.c_uint64()
    while _SNAPSHOT.task(snapshot, len(tasks), ctypes.byref(name), ctypes.byref(trained)):
        assert name.value is not None
        tasks[name.value.decode()] = trained.value
    return tasks
