"""Structures and C functions of core/ps/client/client_c_api.cc."""

from __future__ import annotations

import ctypes

from tfdist.ops import library
from tfdist.ops.library import Handle, c_structure
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.table_config import TableConfig


@c_structure("client_options")
class ClientOptions(ctypes.Structure):
    """Has the layout of `ClientOptions` in core/ps/client/client.h."""

    _fields_ = [
        ("worker", ctypes.c_int),
        ("workers", ctypes.c_int),
        ("process", ctypes.c_uint64),
        ("servers", ctypes.c_int),
        ("timeout_seconds", ctypes.c_double),
        ("expose", ctypes.c_bool),
        ("n_push", ctypes.c_int),
        ("n_fetch", ctypes.c_int),
    ]


@c_structure("client_stats")
class ClientStats(ctypes.Structure):
    """Has the layout of `ClientStats` in core/ps/client/client.h."""

    _fields_ = [
        ("pulls", ctypes.c_uint64),
        ("pushes", ctypes.c_uint64),
        ("dropped_pushes", ctypes.c_uint64),
        ("refused_pushes", ctypes.c_uint64),
        ("bytes_pulled", ctypes.c_uint64),
        ("bytes_pushed", ctypes.c_uint64),
        ("pull_nanoseconds", ctypes.c_uint64),
        ("push_nanoseconds", ctypes.c_uint64),
        ("reconnections", ctypes.c_uint64),
    ]


@c_structure("lookup_stats")
class LookupStats(ctypes.Structure):
    """Has the layout of `LookupStats` in core/ps/client/lookups/lookups.h."""

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


_Ints = ctypes.POINTER(ctypes.c_int)
_Longs = ctypes.POINTER(ctypes.c_uint64)
CLIENT = library.CFunctions(
    "tfdist_ps_client_",
    checked={
        "create": [ctypes.POINTER(ClientOptions), ctypes.POINTER(Handle)],
        "connect": [
            Handle,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_double,
        ],
        "wait_for_lost": [Handle, ctypes.c_double, _Ints],
        "add_parameter": [
            Handle,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_int,
            _Ints,
            ctypes.POINTER(ctypes.c_char_p),
            _Longs,
            _Longs,
            _Ints,
        ],
        "bind": [
            Handle,
            ctypes.POINTER(OptimizerConfig),
            ctypes.c_int,
            _Ints,
            _Ints,
            _Ints,
            ctypes.POINTER(ctypes.c_double),
        ],
        "create_table": [
            Handle,
            ctypes.c_char_p,
            ctypes.POINTER(TableConfig),
            ctypes.c_bool,
            _Ints,
        ],
        "set_cache": [Handle, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64],
        "set_served_cache": [Handle, ctypes.c_int, ctypes.c_uint64, ctypes.c_double],
        "resolve": [
            Handle,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_bool),
        ],
        "repeat_commit": [Handle, ctypes.POINTER(ctypes.c_bool)],
        "push_accumulated": [Handle],
        "flush": [Handle, ctypes.c_double],
        "leave": [Handle, ctypes.c_double],
    },
    plain={
        "give_up": [Handle, ctypes.c_int, ctypes.c_int, ctypes.c_char_p],
        "readmit": [Handle, ctypes.c_int],
        "exclude": [Handle, ctypes.c_int],
        "set_lookup_group": [Handle, ctypes.c_int64, ctypes.c_int, ctypes.c_uint64],
        "stats": [Handle, ctypes.POINTER(ClientStats)],
        "traffic": [
            Handle,
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.POINTER(ctypes.c_uint64),
            ctypes.c_int,
        ],
        "lookup_stats": [Handle, ctypes.POINTER(LookupStats)],
        "add_batch": [Handle, ctypes.c_uint64, _Longs, ctypes.c_uint64],
        "forget_stream": [Handle, ctypes.c_uint64],
        "begin_unit": [Handle, ctypes.c_uint64],
        "begin_steps": [Handle, ctypes.c_uint64, ctypes.c_uint64],
        "close": [Handle],
        "waiting": [Handle, ctypes.c_double, ctypes.c_char_p, ctypes.c_size_t],
    },
    returning={
        "silent": ([Handle, ctypes.c_double], ctypes.c_int),
        "take_refused": ([Handle, _Longs, ctypes.c_uint64, _Longs], ctypes.c_uint64),
    },
)
