"""A parameter server: its store, its schedule and its connections, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.library import Handle, c_structure
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ops.ps.saved_rows import CSavedRows, SavedRows
from tfdist.ops.ps.server_records import ServerEvent, ServerStats, TableStats, TraceEvent
from tfdist.ops.ps.snapshot import (
    ENCODING_ERRORS,
    CSavedTable,
    SavedTable,
    ServerSnapshot,
    open_snapshot,
)

_MODES = {"async": 1, "sync": 2, "ssp": 3}
_COMPENSATIONS = {None: 0, "dc-asgd": 1, "adadelay": 2, "adaptive-revision": 3}
_EVENTS = {1: "came", 2: "left", 3: "lost", 4: "log"}
_TRACE_KINDS = {1: "pull", 2: "push", 3: "drop", 4: "close", 5: "undo"}
_TEXT_BYTES = 1024
_THREADS = 2


@c_structure("server_options")
class _Options(ctypes.Structure):
    """Has the layout of `tfdist_ps_server_options` in core/ps/server/server_c_api.cc."""

    _fields_ = [
        ("index", ctypes.c_int32),
        ("mode", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("num_aggregate", ctypes.c_int32),
        ("staleness", ctypes.c_int32),
        ("hogwild", ctypes.c_int32),
        ("compensation", ctypes.c_int32),
        ("refuse_unlogged", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("has_chief", ctypes.c_int32),
        ("elastic", ctypes.c_int32),
        ("read_only", ctypes.c_int32),
        ("worker_timeout_seconds", ctypes.c_double),
        ("start_timeout_seconds", ctypes.c_double),
        ("compensation_lambda", ctypes.c_double),
        ("trace_events", ctypes.c_uint64),
        ("memory_budget", ctypes.c_uint64),
    ]


@c_structure("server_stats")
class _Stats(ctypes.Structure):
    """Has the layout of `ServerStats` in core/ps/server/server.h."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(ServerStats)]


@c_structure("trace_event")
class _Event(ctypes.Structure):
    """Has the layout of `TraceEvent` in core/ps/server/server.h."""

    _fields_ = [
        ("nanoseconds", ctypes.c_uint64),
        ("worker", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("clock", ctypes.c_uint64),
        ("slowest", ctypes.c_uint64),
    ]


@c_structure("table_stats")
class _TableStats(ctypes.Structure):
    """Has the layout of `TableStats` in core/ps/table/table.h."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(TableStats)]


_Int = ctypes.POINTER(ctypes.c_int)
_Long = ctypes.POINTER(ctypes.c_uint64)
_SERVER = library.CFunctions(
    "tfdist_ps_server_",
    checked={
        "create": [
            ctypes.POINTER(_Options),
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(Handle),
            _Int,
        ],
        "restore_shard": [
            Handle,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_uint64,
            ctypes.c_bool,
        ],
        "restore_table": [Handle, ctypes.POINTER(CSavedTable), _Int],
        "restore_rows": [
            Handle,
            ctypes.c_int,
            ctypes.POINTER(CSavedRows),
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
        ],
        "restore_end": [Handle],
        "update_rows": [
            Handle,
            ctypes.c_char_p,
            ctypes.POINTER(CSavedRows),
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
        ],
        "set_step": [Handle, ctypes.c_char_p, ctypes.c_double, ctypes.c_int64],
        "retain_rows": [Handle, ctypes.c_char_p, ctypes.c_uint32],
        "replay_log": [Handle, ctypes.c_char_p, _Long, _Long],
        "checkpoint": [Handle, ctypes.c_bool, ctypes.c_char_p, ctypes.POINTER(Handle)],
        "restore_progress": [Handle, _Long, ctypes.c_uint64],
        "start": [Handle, ctypes.c_char_p],
    },
    plain={
        "stats": [Handle, ctypes.POINTER(_Stats)],
        "waits": [Handle, ctypes.POINTER(ctypes.c_bool)],
        "close": [Handle],
        "restore_nothing": [Handle],
        "restore_time": [Handle, ctypes.c_double],
        "begin_log": [Handle, ctypes.c_char_p],
        "saved": [Handle],
        "restore_task": [Handle, ctypes.c_char_p, ctypes.c_uint64],
        "forget_tasks": [Handle, ctypes.c_char_p, ctypes.c_char_p],
    },
    returning={
        "open_task": ([Handle, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64], ctypes.c_uint64),
        "advance_task": ([Handle, ctypes.c_uint64, ctypes.c_uint64], ctypes.c_uint64),
        "close_task": ([Handle, ctypes.c_uint64, ctypes.c_bool], ctypes.c_uint64),
        "incarnation": ([Handle], ctypes.c_uint64),
        "wait_event": (
            [Handle, ctypes.c_double, _Int, _Int, ctypes.c_char_p, ctypes.c_size_t],
            ctypes.c_int,
        ),
        "table_stats": (
            [
                Handle,
                ctypes.c_uint64,
                ctypes.c_char_p,
                ctypes.c_size_t,
                ctypes.POINTER(_TableStats),
            ],
            ctypes.c_bool,
        ),
        "trace": ([Handle, ctypes.POINTER(_Event), ctypes.c_uint64], ctypes.c_uint64),
    },
)


class ParameterServer:
    """Holds shards of variables, applies workers' pushes and answers their pulls.

    It listens as soon as it exists; `start` lets workers connect.

    Args:
      index: the server's index in the job.
      config: a `tfdist.ps.config.PsConfig`, or an object with its attributes.
      port: TCP port of the data connections; 0 lets the kernel choose.
      has_chief: messages call rank 0 the chief, and rank 1 worker 0.
      interface: numeric address of this host to listen on; "" for all addresses.
      peer_memory: whether the server and workers of the same machine and user read values out of
        each other's memory, where the system permits it.
      memory: maximum number of bytes to hold; 0: no limit.
      read_only: it answers `config.workers` readers at most, whatever rank they name, and refuses
        requests that would change something; `update_rows` changes its rows.

    Raises:
      tf.errors.UnavailableError: the port cannot be bound.
    """

    def __init__(
        self,
        index: int,
        config: Any,
        port: int = 0,
        has_chief: bool = False,
        *,
        interface: str = "127.0.0.1",
        peer_memory: bool = True,
        memory: int = 0,
        read_only: bool = False,
    ) -> None:
        handle, bound_port = Handle(), ctypes.c_int()
        options = _Options(
            index=index,
            mode=_MODES[config.mode],
            workers=config.workers,
            num_aggregate=config.num_aggregate,
            staleness=config.staleness,
            hogwild=config.hogwild,
            compensation=_COMPENSATIONS[config.compensation],
            refuse_unlogged=config.durability == "refuse",
            threads=_THREADS,
            has_chief=has_chief,
            elastic=config.elastic,
            read_only=read_only,
            worker_timeout_seconds=config.worker_timeout,
            start_timeout_seconds=config.start_timeout,
            compensation_lambda=config.compensation_lambda,
            trace_events=config.trace_events,
            memory_budget=memory,
        )
        _SERVER.create(
            *(ctypes.byref(options), interface.encode(), port, int(peer_memory)),
            *(ctypes.byref(handle), ctypes.byref(bound_port)),
        )
        self._handle = handle.value
        self._workers = config.workers
        self._trace_events = config.trace_events
        self.port = bound_port.value

    @property
    def incarnation(self) -> int:
        """A random number that tells this store from its predecessors."""
        return _SERVER.incarnation(self._handle)

    def restore(self, snapshot: ServerSnapshot) -> None:
        """Restores all but tables, before `start`; tables are restored by `restore_rows`.

        Raises:
          tf.errors.InvalidArgumentError: it does not come from `checkpoint`.
        """
        for shards, unclaimed in ((snapshot.shards, False), (snapshot.unclaimed, True)):
            for name, array in shards.items():
                array = np.ascontiguousarray(array)
                _SERVER.restore_shard(
                    self._handle,
                    name.encode(errors=ENCODING_ERRORS),
                    DTYPES[tf.as_dtype(array.dtype)],
                    array.size,
                    array.ctypes.data,
                    array.nbytes,
                    unclaimed,
                )
        _SERVER.restore_time(self._handle, snapshot.time)
        progress = np.ascontiguousarray(snapshot.progress, np.uint64)
        _SERVER.restore_progress(self._handle, progress.ctypes.data_as(_Long), progress.size)
        for task, trained in snapshot.tasks.items():
            _SERVER.restore_task(self._handle, task.encode(), trained)

    def restore_table(self, table: SavedTable) -> int:
        """Creates a table, or finds the table of this name; returns its id for `restore_rows`.

        Raises:
          tf.errors.InvalidArgumentError: its description is invalid, or another one.
        """
        index = ctypes.c_int()
        _SERVER.restore_table(self._handle, ctypes.byref(table.as_c()), ctypes.byref(index))
        return index.value

    def restore_rows(self, table: int, rows: SavedRows, server: int = 0, servers: int = 1) -> None:
        """Writes rows and removes others, before `start`.

        Args:
          table: from `restore_table`.
          rows: as wide as the table's.
          server: takes only the rows that this one of `servers` holds.
          servers: the number of servers.

        Raises:
          tf.errors.InvalidArgumentError: the rows are not as wide as the table's.
        """
        floats = rows.content.shape[1]
        _SERVER.restore_rows(
            self._handle, table, ctypes.byref(rows.as_c()), floats, server, servers
        )

    def update_rows(self, table: str, rows: SavedRows, server: int, servers: int) -> None:
        """Writes rows of a read-only server that has started, and removes others.

        Each row changes at once; a lookup of several rows may see some of them changed.

        Args:
          table: the table's name.
          rows, server, servers: as for `restore_rows`.

        Raises:
          tf.errors.InvalidArgumentError: there is no such table, or the rows have another length.
          tf.errors.ResourceExhaustedError: there is no memory; then a part of it is done.
        """
        floats = rows.content.shape[1]
        _SERVER.update_rows(
            self._handle, table.encode(), ctypes.byref(rows.as_c()), floats, server, servers
        )

    def set_step(self, table: SavedTable) -> None:
        """Sets the last step that the rows of a served table have seen.

        Rows that catch up with steps depend on it.

        Raises:
          tf.errors.InvalidArgumentError: there is no such table.
        """
        _SERVER.set_step(self._handle, table.name.encode(), table.learning_rate, table.step)

    def retain_rows(self, table: str, used: int) -> None:
        """Removes the rows of a served table whose time of use is another one.

        Raises:
          tf.errors.InvalidArgumentError: there is no such table.
        """
        _SERVER.retain_rows(self._handle, table.encode(), used)

    def restore_nothing(self) -> None:
        """Drops everything restored so far."""
        _SERVER.restore_nothing(self._handle)

    def end_restore(self) -> None:
        """Checks the restored state and adopts it, as `start` does.

        Raises:
          tf.errors.InvalidArgumentError: the restored state is invalid.
        """
        _SERVER.restore_end(self._handle)

    def replay_log(self, path: str) -> tuple[int, int]:
        """Applies the log records that are later than the restored state; before `start`.

        A damaged record is left out. An event of kind "log" names it.

        Returns:
          The number of applied records, and the number of bytes at the end that are no record.

        Raises:
          tf.errors.OpError: the file cannot be read, is no log, or is of tables of other
            configurations.
        """
        records, left_out = ctypes.c_uint64(), ctypes.c_uint64()
        _SERVER.replay_log(
            self._handle, path.encode(), ctypes.byref(records), ctypes.byref(left_out)
        )
        return records.value, left_out.value

    def begin_log(self, path: str) -> None:
        """Logs changes of rows in a new file from now on; a failure is an event."""
        _SERVER.begin_log(self._handle, path.encode())

    def start(self, key: bytes) -> None:
        """Lets workers connect that prove these 32 bytes and name the `incarnation`."""
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
        _SERVER.start(self._handle, key)

    @contextlib.contextmanager
    def checkpoint(self, changed_only: bool, log_path: str | None) -> Iterator[ServerSnapshot]:
        """Takes a snapshot between two pushes, while the server continues. One at a time.

        The arrays are the server's memory and must not be kept. `SavedTable.chunks` fetches rows.

        Args:
          changed_only: only rows that changed since the previous checkpoint.
          log_path: a file for changes of rows from this moment on.
        """
        handle = Handle()
        _SERVER.checkpoint(
            self._handle, changed_only, (log_path or "").encode(), ctypes.byref(handle)
        )
        with open_snapshot(handle) as content:
            yield content

    def saved(self) -> None:
        """Tells the server that its latest checkpoint is on disk."""
        _SERVER.saved(self._handle)

    def open_task(self, lease: int, task: str, trained: int) -> int:
        """Admits pushes that train records of a data task.

        Args:
          lease: unique; the pushes name it.
          task: the task's name, which outlives the lease, and this process if there are snapshots.
          trained: the task has at least so many trained records.

        Returns:
          The number of its trained records.
        """
        return _SERVER.open_task(self._handle, lease, task.encode(), trained)

    def advance_task(self, lease: int, trained: int = 0) -> int:
        """Returns the number of trained records, which becomes at least `trained`; 0 if closed."""
        return _SERVER.advance_task(self._handle, lease, trained)

    def close_task(self, lease: int, *, forgets: bool) -> int:
        """Refuses later pushes of a lease.

        Args:
          lease: as in `open_task`.
          forgets: whether the number of the task's trained records is not needed any more.

        Returns:
          The final number of trained records.
        """
        return _SERVER.close_task(self._handle, lease, forgets)

    def forget_tasks(self, first: str, last: str) -> None:
        """Forgets the tasks whose names are from `first` to `last`, without `last`."""
        _SERVER.forget_tasks(self._handle, first.encode(), last.encode())

    def wait_for_event(self, seconds: float) -> ServerEvent | None:
        """Returns the next event, or `None` after `seconds`."""
        kind, worker = ctypes.c_int(), ctypes.c_int()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        found = _SERVER.wait_event(
            self._handle, seconds, ctypes.byref(kind), ctypes.byref(worker), text, _TEXT_BYTES
        )
        if found != 1:
            return None
        return ServerEvent(_EVENTS[kind.value], worker.value, text.value.decode(errors="replace"))

    def waits(self) -> list[int]:
        """Returns, for each worker, the set of workers whose next step its own step waits for.

        Returns:
          One number for each rank; bit r of a number stands for rank r.
        """
        waits = np.zeros((self._workers, self._workers), bool)
        _SERVER.waits(self._handle, waits.ctypes.data_as(ctypes.POINTER(ctypes.c_bool)))
        sets = np.packbits(waits, axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in sets]

    def stats(self) -> ServerStats:
        """Returns the counters; workers may be served meanwhile."""
        raw = _Stats()
        _SERVER.stats(self._handle, ctypes.byref(raw))
        return ServerStats(*(getattr(raw, field.name) for field in dataclasses.fields(ServerStats)))

    def table_stats(self) -> dict[str, TableStats]:
        """Returns the counters of each table by its name."""
        stats: dict[str, TableStats] = {}
        name, raw = ctypes.create_string_buffer(_TEXT_BYTES), _TableStats()
        while _SERVER.table_stats(self._handle, len(stats), name, _TEXT_BYTES, ctypes.byref(raw)):
            numbers = (getattr(raw, field.name) for field in dataclasses.fields(TableStats))
            stats[name.value.decode(errors="replace")] = TableStats(*numbers)
        return stats

    def trace(self) -> list[TraceEvent]:
        """Returns the latest `trace_events` events of the configuration, oldest first."""
        events = (_Event * self._trace_events)()
        count = _SERVER.trace(self._handle, events, self._trace_events)
        return [
            TraceEvent(e.nanoseconds / 1e9, e.worker, _TRACE_KINDS[e.kind], e.clock, e.slowest)
            for e in events[:count]
        ]

    def close(self) -> None:
        """Closes all connections and frees the store. May be called again."""
        _SERVER.close(self._handle)
