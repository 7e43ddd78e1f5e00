"""An optimizer's configuration, as Python sends it to the servers."""

from __future__ import annotations

import ctypes
import enum

from tfdist.ops.library import c_structure


class OptimizerKind(enum.IntEnum):
    """Numbered as `OptimizerKind` in core/ps/optimizers/optimizer.h."""

    SGD = 1
    ADAGRAD = 2
    RMSPROP = 3
    ADAM = 4
    ADAMAX = 5
    FTRL = 6
    LION = 7
    ADADELTA = 8
    NADAM = 9


@c_structure("optimizer_config")
class OptimizerConfig(ctypes.Structure):
    """Has the layout of `OptimizerConfig` in core/ps/optimizers/optimizer.h.

    Its fields are named like the arguments of Keras's optimizers.
    """

    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("nesterov", ctypes.c_bool),
        ("centered", ctypes.c_bool),
        ("amsgrad", ctypes.c_bool),
        ("momentum", ctypes.c_double),
        ("rho", ctypes.c_double),
        ("beta_1", ctypes.c_double),
        ("beta_2", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("learning_rate_power", ctypes.c_double),
        ("l1_regularization_strength", ctypes.c_double),
        ("l2_regularization_strength", ctypes.c_double),
        ("l2_shrinkage_regularization_strength", ctypes.c_double),
        ("beta", ctypes.c_double),
        ("beta_2_decay", ctypes.c_double),
        ("epsilon_1", ctypes.c_double),
        ("epsilon_2", ctypes.c_double),
        ("clip_threshold", ctypes.c_double),
    ]
