"""The C functions of a parameter server, in core/ps/server/server_c_api.cc."""

from __future__ import annotations

import ctypes
import dataclasses

from tfdist.ops import library
from tfdist.ops.ps.server_records import ServerStats, TableStats

Handle = ctypes.c_int64


class Options(ctypes.Structure):
    """Laid out as `tfdist_ps_server_options` in core/ps/server/server_c_api.cc."""

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
        ("worker_timeout_seconds", ctypes.c_double),
        ("start_timeout_seconds", ctypes.c_double),
        ("compensation_lambda", ctypes.c_double),
        ("trace_events", ctypes.c_uint64),
        ("memory_budget", ctypes.c_uint64),
    ]


class Stats(ctypes.Structure):
    """Laid out as `ServerStats` in core/ps/server/server.h."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(ServerStats)]


class Event(ctypes.Structure):
    """Laid out as `TraceEvent` in core/ps/server/server.h."""

    _fields_ = [
        ("nanoseconds", ctypes.c_uint64),
        ("worker", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("clock", ctypes.c_uint64),
        ("slowest", ctypes.c_uint64),
    ]


class TableNumbers(ctypes.Structure):
    """Laid out as `TableStats` in core/ps/table/table.h."""

    _fields_ = [(field.name, ctypes.c_uint64) for field in dataclasses.fields(TableStats)]


class Rows(ctypes.Structure):
    """Laid out as `tfdist_ps_rows`."""

    _fields_ = [
        ("count", ctypes.c_uint64),
        ("removed_count", ctypes.c_uint64),
        ("ids", ctypes.c_void_p),
        ("used", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("content", ctypes.c_void_p),
        ("removed", ctypes.c_void_p),
    ]


class SavedTable(ctypes.Structure):
    """Laid out as `tfdist_ps_saved_table`."""

    _fields_ = [
        ("description", ctypes.c_void_p),
        ("description_bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("content_floats", ctypes.c_uint64),
        ("learning_rate", ctypes.c_double),
        ("step", ctypes.c_int64),
    ]


Int = ctypes.POINTER(ctypes.c_int)
Long = ctypes.POINTER(ctypes.c_uint64)
Pointer = ctypes.POINTER(ctypes.c_void_p)
SERVER = library.CFunctions(
    "tfdist_ps_server_",
    checked={
        "create": [
            ctypes.POINTER(Options),
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(Handle),
            Int,
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
        "restore_table": [Handle, ctypes.POINTER(SavedTable), Int],
        "restore_rows": [Handle, ctypes.c_int, ctypes.POINTER(Rows), ctypes.c_int, ctypes.c_int],
        "restore_end": [Handle],
        "replay_log": [Handle, ctypes.c_char_p, Long, Long],
        "checkpoint": [Handle, ctypes.c_bool, ctypes.c_char_p, ctypes.POINTER(Handle)],
        "restore_progress": [Handle, Long, ctypes.c_uint64],
        "start": [Handle, ctypes.c_char_p],
    },
    plain={
        "stats": [Handle, ctypes.POINTER(Stats)],
        "waits": [Handle, ctypes.POINTER(ctypes.c_bool)],
        "close": [Handle],
        "restore_nothing": [Handle],
        "restore_time": [Handle, ctypes.c_double],
        "begin_log": [Handle, ctypes.c_char_p],
        "saved": [Handle],
    },
    returning={
        "incarnation": ([Handle], ctypes.c_uint64),
        "wait_event": (
            [Handle, ctypes.c_double, Int, Int, ctypes.c_char_p, ctypes.c_size_t],
            ctypes.c_int,
        ),
        "table_stats": (
            [
                Handle,
                ctypes.c_uint64,
                ctypes.c_char_p,
                ctypes.c_size_t,
                ctypes.POINTER(TableNumbers),
            ],
            ctypes.c_bool,
        ),
        "trace": ([Handle, ctypes.POINTER(Event), ctypes.c_uint64], ctypes.c_uint64),
    },
)
IMAGE = library.CFunctions(
    "tfdist_ps_snapshot_",
    plain={"free": [Handle]},
    returning={
        "count": ([Handle], ctypes.c_uint64),
        "time": ([Handle], ctypes.c_double),
        "unclaimed_count": ([Handle], ctypes.c_uint64),
        "table": ([Handle, ctypes.c_uint64, ctypes.POINTER(SavedTable)], ctypes.c_bool),
        "next_rows": (
            [Handle, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(Rows)],
            ctypes.c_int,
        ),
        "entry": (
            [
                Handle,
                ctypes.c_uint64,
                ctypes.POINTER(ctypes.c_char_p),
                Int,
                Long,
                Pointer,
                Long,
            ],
            ctypes.c_bool,
        ),
        "progress": ([Handle, ctypes.POINTER(Long), Long], ctypes.c_bool),
    },
)
