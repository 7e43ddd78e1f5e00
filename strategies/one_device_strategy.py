"""Training on one explicitly named device."""

from __future__ import annotations

import tensorflow as tf

from tfdist import keras

# See mirrored_strategy.py for why these.
from tfdist.internals.tensorflow import distribute_lib
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._devices import check_device
from tfdist.strategies._extended.one_device import OneDeviceExtended
from tfdist.tracebacks import ends_at_caller


class OneDeviceStrategy(StrategyBase, tf.distribute.OneDeviceStrategy):
    """Places variables and computation on one device.

    A drop-in for `tf.distribute.OneDeviceStrategy`, for scripts that take any strategy.

    Args:
      device: a device name, such as "GPU:0" or "/device:CPU:0".

    Raises:
      TypeError: `device` is not a string.
      ValueError: there is no such device.
    """

    @ends_at_caller
    def __init__(self, device: str) -> None:
        keras.apply_repairs()
        # Skips the parent's constructor, which would make its own extended object.
        extended = OneDeviceExtended(self, check_device("OneDeviceStrategy", device))
        distribute_lib.Strategy.__init__(self, extended)
