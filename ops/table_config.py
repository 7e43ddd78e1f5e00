"""How Python describes an embedding's table to the servers."""

from __future__ import annotations

import ctypes
import enum

from tfdist.ops.optimizer_config import OptimizerConfig, OptimizerKind

_MAX_SLOTS = 3


class RowRule(enum.IntEnum):
    """Numbered as `RowRule` in core/ps/table_config.h."""

    ELEMENTWISE = 1
    ROWWISE_ADAGRAD = 2
    GROUP_FTRL = 3
    EXACT_ADAM = 4


class InitializerKind(enum.IntEnum):
    """Numbered as `InitializerKind` in core/ps/row_initializer.h."""

    CONSTANT = 1
    UNIFORM = 2
    NORMAL = 3
    TRUNCATED_NORMAL = 4


class EvictionPolicy(enum.IntEnum):
    """Numbered as `EvictionPolicy` in core/ps/table_config.h."""

    LRU = 1
    LFU = 2


class RowInitializer(ctypes.Structure):
    """Laid out as `RowInitializer` in core/ps/row_initializer.h."""

    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("a", ctypes.c_double),
        ("b", ctypes.c_double),
        ("seed", ctypes.c_uint64),
    ]


class TableConfig(ctypes.Structure):
    """Laid out as `TableConfig` in core/ps/table_config.h."""

    _fields_ = [
        ("width", ctypes.c_uint32),
        ("rule", ctypes.c_uint8),
        ("optimizer", OptimizerConfig),
        ("group_penalty", ctypes.c_double),
        ("first_slots", ctypes.c_double * _MAX_SLOTS),
        ("initializer", RowInitializer),
        ("min_count", ctypes.c_uint32),
        ("probability", ctypes.c_double),
        ("max_rows", ctypes.c_uint64),
        ("policy", ctypes.c_uint8),
        ("ttl_seconds", ctypes.c_double),
        ("min_norm", ctypes.c_double),
    ]

    def __init__(self, **fields) -> None:
        whole = {
            "width": 1,
            "rule": RowRule.ELEMENTWISE,
            "optimizer": OptimizerConfig(kind=OptimizerKind.SGD),
            "initializer": RowInitializer(InitializerKind.CONSTANT),
            "min_count": 1,
            "probability": 1.0,
            "policy": EvictionPolicy.LRU,
        }
        super().__init__(**{**whole, **fields})
