"""Logical CPU devices, as several devices of one process."""

import tensorflow as tf


def two_devices() -> None:
    """Divides the CPU into two devices; before TensorFlow has used it."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
