"""The Python face of a parameter server's store."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops.ps import server_calls
from tfdist.ops.ps.parameter_client import DTYPES
from tfdist.ops.ps.saved_rows import SavedRows, SavedTable, saved_tables
from tfdist.ops.ps.server_calls import IMAGE, SERVER
from tfdist.ops.ps.server_records import (
    ServerEvent,
    ServerSnapshot,
    ServerStats,
    TableStats,
    TraceEvent,
)

_NUMPY_DTYPES = {number: dtype.as_numpy_dtype for dtype, number in DTYPES.items()}
_MODES = {"async": 1, "sync": 2, "ssp": 3}
_COMPENSATIONS = {None: 0, "dc-asgd": 1, "adadelay": 2}
_EVENTS = {1: "came", 2: "left", 3: "lost", 4: "log"}
_TRACE_KINDS = {1: "pull", 2: "push", 3: "drop", 4: "close"}
_TEXT_BYTES = 1024
# Names are bytes to the store: those that are no text are saved and restored all the same.
_ERRORS = "surrogateescape"
_THREADS = 2


class ParameterServer:
    """Holds shards of variables, applies what workers push and sends what they pull.

    It listens from its creation on; `start` lets workers in.

    Args:
      index: which server of the job it is.
      config: a `tfdist.ps.config.PsConfig`, or anything with its attributes.
      port: TCP port of the data connections; 0 lets the kernel choose.
      has_chief: messages call rank 0 the chief, and rank 1 worker 0.
      interface: numeric address of this host to listen on; "" for all there are.
      peer_memory: whether workers of this machine and user, and the server, read values out of each
        other's memory, where the system lets them.
      memory: bytes that it may hold; 0: as many as there are.

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
    ) -> None:
        handle, bound_port = server_calls.Handle(), ctypes.c_int()
        options = server_calls.Options(
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
            worker_timeout_seconds=config.worker_timeout,
            start_timeout_seconds=config.start_timeout,
            compensation_lambda=config.compensation_lambda,
            trace_events=config.trace_events,
            memory_budget=memory,
        )
        SERVER.create(
            *(ctypes.byref(options), interface.encode(), port, int(peer_memory)),
            *(ctypes.byref(handle), ctypes.byref(bound_port)),
        )
        self._handle = handle.value
        self._workers = config.workers
        self._trace_events = config.trace_events
        self.port = bound_port.value

    @property
    def incarnation(self) -> int:
        """A random number that tells this store from one that was here before."""
        return SERVER.incarnation(self._handle)

    def restore(self, image: ServerSnapshot) -> None:
        """Takes what a server held, before `start`; its tables apart, by `restore_rows`.

        Raises:
          tf.errors.InvalidArgumentError: it is not what `checkpoint` gives.
        """
        for shards, aside in ((image.shards, False), (image.aside, True)):
            for name, array in shards.items():
                array = np.ascontiguousarray(array)
                SERVER.restore_shard(
                    self._handle,
                    name.encode(errors=_ERRORS),
                    DTYPES[tf.as_dtype(array.dtype)],
                    array.size,
                    array.ctypes.data,
                    array.nbytes,
                    aside,
                )
        SERVER.restore_time(self._handle, image.time)
        progress = np.ascontiguousarray(image.progress, np.uint64)
        SERVER.restore_progress(
            self._handle, progress.ctypes.data_as(server_calls.Long), progress.size
        )

    def restore_table(self, table: SavedTable) -> int:
        """Makes a table, or finds that of this name; returns its number for `restore_rows`.

        Raises:
          tf.errors.InvalidArgumentError: its description makes no sense, or is another one.
        """
        index = ctypes.c_int()
        SERVER.restore_table(self._handle, ctypes.byref(table.as_c()), ctypes.byref(index))
        return index.value

    def restore_rows(self, table: int, rows: SavedRows, server: int = 0, servers: int = 1) -> None:
        """Puts rows in place and removes others, before `start`.

        Args:
          table: of `restore_table`.
          rows: as wide as the table's are.
          server: with `servers`, takes only what this one of so many is to hold.
          servers: how many there are.
        """
        SERVER.restore_rows(self._handle, table, ctypes.byref(rows.as_c()), server, servers)

    def restore_nothing(self) -> None:
        """Forgets what was restored so far."""
        SERVER.restore_nothing(self._handle)

    def end_restore(self) -> None:
        """Takes what was restored, as `start` does.

        Raises:
          tf.errors.InvalidArgumentError: it is not what a server holds.
        """
        SERVER.restore_end(self._handle)

    def replay_log(self, path: str) -> tuple[int, int]:
        """Applies what a log holds beyond what was restored; before `start`.

        Returns:
          How many records were whole, and how many bytes at the end were not.

        Raises:
          tf.errors.OpError: the file cannot be read, is no log, or is of tables of other
            configurations.
        """
        records, left_out = ctypes.c_uint64(), ctypes.c_uint64()
        SERVER.replay_log(
            self._handle, path.encode(), ctypes.byref(records), ctypes.byref(left_out)
        )
        return records.value, left_out.value

    def begin_log(self, path: str) -> None:
        """Keeps what is applied to rows from now on in a new file; a failure is an event."""
        SERVER.begin_log(self._handle, path.encode())

    def start(self, key: bytes) -> None:
        """Lets in workers that prove these 32 bytes and say the `incarnation`."""
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
        SERVER.start(self._handle, key)

    @contextlib.contextmanager
    def checkpoint(self, changed_only: bool, log_path: str | None) -> Iterator[ServerSnapshot]:
        """Gives what the server holds now, between two pushes; it goes on meanwhile.

        The arrays are the server's memory: they are not to be kept. Rows of tables are fetched bit
        by bit. One at a time.

        Args:
          changed_only: of rows, only those that changed since the checkpoint before.
          log_path: a file for what is applied to rows from this moment on.
        """
        image = server_calls.Handle()
        SERVER.checkpoint(
            self._handle, changed_only, (log_path or "").encode(), ctypes.byref(image)
        )
        with _held(image) as content:
            yield content

    def saved(self) -> None:
        """Says that what `checkpoint` gave last is on disk."""
        SERVER.saved(self._handle)

    def wait_for_event(self, seconds: float) -> ServerEvent | None:
        """Returns what happens next, or `None` after `seconds`."""
        kind, worker = ctypes.c_int(), ctypes.c_int()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        found = SERVER.wait_event(
            self._handle, seconds, ctypes.byref(kind), ctypes.byref(worker), text, _TEXT_BYTES
        )
        if found != 1:
            return None
        return ServerEvent(_EVENTS[kind.value], worker.value, text.value.decode(errors="replace"))

    def waits(self) -> list[int]:
        """For each worker, the set of those without whose next step its own cannot go on.

        Returns:
          By rank; in each number bit r is rank r's.
        """
        waits = np.zeros((self._workers, self._workers), bool)
        SERVER.waits(self._handle, waits.ctypes.data_as(ctypes.POINTER(ctypes.c_bool)))
        sets = np.packbits(waits, axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in sets]

    def stats(self) -> ServerStats:
        """The counters, also while workers are served."""
        raw = server_calls.Stats()
        SERVER.stats(self._handle, ctypes.byref(raw))
        return ServerStats(*(getattr(raw, field.name) for field in dataclasses.fields(ServerStats)))

    def table_stats(self) -> dict[str, TableStats]:
        """The counters of each table by its name."""
        stats = {}
        name, raw = ctypes.create_string_buffer(_TEXT_BYTES), server_calls.TableNumbers()
        while SERVER.table_stats(self._handle, len(stats), name, _TEXT_BYTES, ctypes.byref(raw)):
            numbers = (getattr(raw, field.name) for field in dataclasses.fields(TableStats))
            stats[name.value.decode(errors="replace")] = TableStats(*numbers)
        return stats

    def trace(self) -> list[TraceEvent]:
        """The latest events, oldest first, as many as the configuration asked for."""
        events = (server_calls.Event * self._trace_events)()
        count = SERVER.trace(self._handle, events, self._trace_events)
        return [
            TraceEvent(e.nanoseconds / 1e9, e.worker, _TRACE_KINDS[e.kind], e.clock, e.slowest)
            for e in events[:count]
        ]

    def close(self) -> None:
        """Closes all connections and frees what is held. May be called again."""
        SERVER.close(self._handle)


@contextlib.contextmanager
def _held(image: ctypes.c_int64) -> Iterator[ServerSnapshot]:
    try:
        shards = _shards(image)
        split = len(shards) - IMAGE.unclaimed_count(image)
        yield ServerSnapshot(
            dict(shards[:split]),
            _progress(image),
            dict(shards[split:]),
            saved_tables(image),
            IMAGE.time(image),
        )
    finally:
        IMAGE.free(image)


def _shards(image: ctypes.c_int64) -> list[tuple[str, np.ndarray]]:
    shards = []
    name, data = ctypes.c_char_p(), ctypes.c_void_p()
    dtype, elements, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
    for i in range(IMAGE.count(image)):
        IMAGE.entry(
            image,
            i,
            ctypes.byref(name),
            ctypes.byref(dtype),
            ctypes.byref(elements),
            ctypes.byref(data),
            ctypes.byref(size),
        )
        memory = (ctypes.c_uint8 * size.value).from_address(data.value) if size.value else b""
        array = np.frombuffer(memory, _NUMPY_DTYPES[dtype.value])
        shards.append((name.value.decode(errors=_ERRORS), array))
    return shards


def _progress(image: ctypes.c_int64) -> np.ndarray:
    numbers, count = server_calls.Long(), ctypes.c_uint64()
    IMAGE.progress(image, ctypes.byref(numbers), ctypes.byref(count))
    # Copied: this is small, and may be kept.
    return np.array(numbers[: count.value], np.uint64)
