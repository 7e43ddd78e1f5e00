"""Moves lists of tensors between the devices of one process."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library


def copy_to_devices(tensors: Sequence[tf.Tensor], devices: Sequence[str]) -> list[list[tf.Tensor]]:
    """Makes tensors available on each of several devices, a whole list in one step.

    Logical CPU devices share memory, so nothing is copied. TensorFlow alone copies nothing either,
    but sends each tensor separately; for small tensors that takes longer than adding them.

    Args:
      tensors: of any shapes and dtypes, on one device.
      devices: the destinations; "" is the current device.

    Returns:
      For each device a list of the tensors, with the same shapes and dtypes.

    Example:
      >>> copy_to_devices([tf.constant(1.0), tf.constant([2])], ["CPU:0", "CPU:0"])[1][1].numpy()
      array([2], dtype=int32)
    """
    values = as_tensors(tensors)
    source = values[0].device if values else ""
    if len(values) < 2 or not all(map(_is_cpu, [source, *devices])):
        return [_copied(values, device) for device in devices]
    with tf.device(source):
        bundle = library.graph_ops().tfdist_bundle(inputs=values)
    types = [value.dtype for value in values]
    # Eager tensors know their shapes.
    shapes = [] if tf.executing_eagerly() else [value.shape for value in values]
    received = []
    for device in devices:
        with tf.device(device):
            received.append(library.graph_ops().tfdist_unbundle(bundle, types, shapes))
    return received


def as_tensors(values: Sequence) -> list[tf.Tensor]:
    """Converts values to tensors."""
    # tf.convert_to_tensor takes microseconds in eager code, even for a tensor.
    return [v if isinstance(v, tf.Tensor) else tf.convert_to_tensor(v) for v in values]


def _is_cpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type in (None, "CPU")


def _copied(values: list[tf.Tensor], device: str) -> list[tf.Tensor]:
    with tf.device(device):
        return [tf.identity(value) for value in values]
