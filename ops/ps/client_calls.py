"""The C functions of a worker's client, in core/ps/client/client_c_api.cc."""

from __future__ import annotations

import ctypes

from tfdist.ops import library
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.table_config import TableConfig

Handle = ctypes.c_int64


class Options(ctypes.Structure):
    """Laid out as `ClientOptions` in core/ps/client/client.h."""

    _fields_ = [
        ("worker", ctypes.c_int),
        ("workers", ctypes.c_int),
        ("process", ctypes.c_uint64),
        ("servers", ctypes.c_int),
        ("timeout_seconds", ctypes.c_double),
        ("lend", ctypes.c_bool),
    ]


class Stats(ctypes.Structure):
    """Laid out as `ClientStats` in core/ps/client/client.h."""

    _fields_ = [
        ("pulls", ctypes.c_uint64),
        ("pushes", ctypes.c_uint64),
        ("dropped_pushes", ctypes.c_uint64),
        ("bytes_pulled", ctypes.c_uint64),
        ("bytes_pushed", ctypes.c_uint64),
        ("pull_nanoseconds", ctypes.c_uint64),
        ("push_nanoseconds", ctypes.c_uint64),
        ("reconnections", ctypes.c_uint64),
    ]


class LookupStats(ctypes.Structure):
    """Laid out as `LookupStats` in core/ps/client/lookups/lookups.h."""

    _fields_ = [
        ("lookups", ctypes.c_uint64),
        ("lookup_ids", ctypes.c_uint64),
        ("lookup_rows", ctypes.c_uint64),
        ("lookup_bytes", ctypes.c_uint64),
        ("lookup_nanoseconds", ctypes.c_uint64),
        ("prefetched", ctypes.c_uint64),
        ("prefetch_hits", ctypes.c_uint64),
        ("cache_lookups", ctypes.c_uint64),
        ("cache_hits", ctypes.c_uint64),
    ]


Ints = ctypes.POINTER(ctypes.c_int)
Longs = ctypes.POINTER(ctypes.c_uint64)
CALLS = library.CFunctions(
    "tfdist_ps_client_",
    checked={
        "create": [ctypes.POINTER(Options), ctypes.POINTER(Handle)],
        "connect": [
            Handle,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_double,
        ],
        "wait_for_lost": [Handle, ctypes.c_double, Ints],
        "add_parameter": [
            Handle,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_int,
            Ints,
            ctypes.POINTER(ctypes.c_char_p),
            Longs,
            Longs,
            Ints,
        ],
        "bind": [
            Handle,
            ctypes.POINTER(OptimizerConfig),
            ctypes.c_int,
            Ints,
            Ints,
            Ints,
            ctypes.POINTER(ctypes.c_double),
        ],
        "create_table": [
            Handle,
            ctypes.c_char_p,
            ctypes.POINTER(TableConfig),
            ctypes.c_bool,
            Ints,
        ],
        "set_cache": [Handle, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64],
        "flush": [Handle, ctypes.c_double],
        "leave": [Handle, ctypes.c_double],
    },
    plain={
        "give_up": [Handle, ctypes.c_int, ctypes.c_int, ctypes.c_char_p],
        "exclude": [Handle, ctypes.c_int],
        "set_lookup_group": [Handle, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64],
        "stats": [Handle, ctypes.POINTER(Stats)],
        "lookup_stats": [Handle, ctypes.POINTER(LookupStats)],
        "close": [Handle],
        "waiting": [Handle, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t],
    },
)
