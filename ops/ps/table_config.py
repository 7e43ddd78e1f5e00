"""An embedding table's configuration, as Python sends it to the servers."""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from tfdist.ops.library import c_structure
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind

_MAX_SLOTS = 3


class RowRule(enum.IntEnum):
    """Numbered as `RowRule` in core/ps/table/table_config.h."""

    ELEMENTWISE = 1
    ROWWISE_ADAGRAD = 2
    GROUP_FTRL = 3
    EXACT_ADAM = 4
    ADAFACTOR = 5
    LAMB = 6


class InitializerKind(enum.IntEnum):
    """Numbered as `InitializerKind` in core/ps/table/row_initializer.h."""

    CONSTANT = 1
    UNIFORM = 2
    NORMAL = 3
    TRUNCATED_NORMAL = 4


class EvictionPolicy(enum.IntEnum):
    """Numbered as `EvictionPolicy` in core/ps/table/table_config.h."""

    LRU = 1
    LFU = 2


@c_structure("row_initializer")
class RowInitializer(ctypes.Structure):
    """Has the layout of `RowInitializer` in core/ps/table/row_initializer.h."""

    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("a", ctypes.c_double),
        ("b", ctypes.c_double),
        ("seed", ctypes.c_uint64),
    ]


@c_structure("table_config")
class TableConfig(ctypes.Structure):
    """Has the layout of `TableConfig` in core/ps/table/table_config.h."""

    _fields_ = [
        ("width", ctypes.c_uint32),
        ("rule", ctypes.c_uint8),
        ("optimizer", OptimizerConfig),
        ("weight_decay", ctypes.c_double),
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

    def slots(self) -> dict[str, int]:
        """Returns the sizes of a row's slots, in floats, by name.

        Slots of the same name mean the same in every optimizer.
        """
        if self.rule == RowRule.ROWWISE_ADAGRAD:
            return {"row accumulator": 1}
        names = _SLOTS_OF_RULES.get(self.rule) or _elementwise_slots(self.optimizer)
        slots = dict.fromkeys(names, self.width)
        if self.rule == RowRule.EXACT_ADAM:
            slots["step"] = 1
        return slots

    def __init__(self, **fields: Any) -> None:
        defaults = {
            "width": 1,
            "rule": RowRule.ELEMENTWISE,
            "optimizer": OptimizerConfig(kind=OptimizerKind.SGD),
            "initializer": RowInitializer(InitializerKind.CONSTANT),
            "min_count": 1,
            "probability": 1.0,
            "policy": EvictionPolicy.LRU,
        }
        super().__init__(**{**defaults, **fields})


_SLOTS_OF_RULES = {
    RowRule.GROUP_FTRL: ("accumulator", "linear"),
    RowRule.EXACT_ADAM: ("momentum", "velocity"),
    RowRule.ADAFACTOR: ("velocity",),
    RowRule.LAMB: ("momentum", "velocity"),
}


def _elementwise_slots(optimizer: OptimizerConfig) -> list[str]:
    """In the order of core/ps/optimizers/optimizer.h; "change" includes the learning rate."""
    kind = OptimizerKind(optimizer.kind)
    if kind == OptimizerKind.SGD:
        return ["change"] if optimizer.momentum else []
    if kind == OptimizerKind.RMSPROP:
        names = {"velocity": True, "change": optimizer.momentum > 0, "mean": optimizer.centered}
        return [name for name, is_kept in names.items() if is_kept]
    if kind == OptimizerKind.ADAM:
        return ["momentum", "velocity", *(["largest velocity"] if optimizer.amsgrad else [])]
    return {
        OptimizerKind.ADAGRAD: ["accumulator"],
        OptimizerKind.ADAMAX: ["momentum", "norm"],
        OptimizerKind.FTRL: ["accumulator", "linear"],
        OptimizerKind.LION: ["momentum"],
        OptimizerKind.ADADELTA: ["squared gradient", "squared change"],
        OptimizerKind.NADAM: ["momentum", "velocity"],
    }[kind]
