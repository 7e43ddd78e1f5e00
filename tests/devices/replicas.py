"""Several logical CPU devices in the process that runs the tests, and strategies on them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import tfdist

DEVICES = 4

# At import, because TensorFlow's devices cannot change after the first use of one.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * DEVICES
)


def make_strategy(kind: str, replicas: int, **options: Any) -> tf.distribute.Strategy:
    """Makes a strategy with `replicas` logical CPU devices.

    Args:
      kind: "mirrored", or "central" with the variables on CPU:0.
      replicas: the number of compute devices.
      **options: further arguments of the strategy.
    """
    devices = [f"CPU:{i}" for i in range(replicas)]
    if kind == "mirrored":
        return tfdist.MirroredStrategy(devices, **options)
    return tfdist.CentralStorageStrategy(devices, "CPU:0", **options)
