"""Checks of device names that a user passes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.internals.tensorflow import device_util


def check_devices(strategy: str, devices: Sequence | None) -> list[str] | None:
    """Checks that every device exists on this machine and is named once.

    Args:
      strategy: the strategy's name, for messages.
      devices: names such as "GPU:0" or "/device:CPU:1", or `tf.config.LogicalDevice`s.

    Returns:
      The names; `None` for `None`.

    Raises:
      TypeError: not a list or tuple of names.
      ValueError: no device, an unknown one, or one named twice.
    """
    if devices is None:
        return None
    found = [_name(device) for device in devices] if isinstance(devices, list | tuple) else [None]
    names = [name for name in found if name is not None]
    if len(names) < len(found):
        raise TypeError(f"{strategy}: expected a list of device names, received {devices!r}")
    if not names:
        raise ValueError(f"{strategy}: expected at least one device, received {devices!r}")
    resolved = [_resolve(strategy, name) for name in names]
    if len(set(resolved)) < len(resolved):
        raise ValueError(f"{strategy}: expected each device once, received {names!r}")
    return names


def check_device(strategy: str, device: object) -> str:
    """Checks that a device exists on this machine; as `check_devices`, for one device."""
    name = _name(device)
    if name is None:
        raise TypeError(f"{strategy}: expected a device name, received {device!r}")
    _resolve(strategy, name)
    return name


def is_cpu(device: str) -> bool:
    """Whether a short or full device name names a CPU."""
    return tf.DeviceSpec.from_string(device_util.canonicalize(device)).device_type == "CPU"


def _name(device: object) -> str | None:
    if isinstance(device, tf.config.LogicalDevice):
        return device.name
    return device if isinstance(device, str) else None


def _resolve(strategy: str, name: str) -> str:
    """The full name of a device."""
    try:
        device = tf.DeviceSpec.from_string(name)
    except ValueError as error:
        raise ValueError(
            f"{strategy}: expected a device name, received {name!r}: {error}"
        ) from error
    if device.device_type is None:
        raise ValueError(f"{strategy}: expected a device name such as 'CPU:0', received {name!r}")
    resolved = device_util.resolve(name)
    # A session of TensorFlow 1 may have devices that this process does not know yet.
    if tf.compat.v1.executing_eagerly_outside_functions():
        present = [_type_and_index(found.name) for found in tf.config.list_logical_devices()]
        is_here = device.job in (None, "localhost") and _type_and_index(resolved) in present
        if not is_here:
            raise ValueError(
                f"{strategy}: no device {name!r} on this machine, found {', '.join(present)}. A "
                "CPU can be divided with tf.config.set_logical_device_configuration."
            )
    return resolved


def _type_and_index(name: str) -> str:
    device = tf.DeviceSpec.from_string(name)
    return f"{device.device_type}:{device.device_index}"
