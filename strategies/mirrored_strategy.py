"""Synchronous training on several devices of one machine, each with a full copy of the model."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist import keras

# TensorFlow offers no public way to implement a strategy: these are the classes that Keras and
# Estimator test for, and the hooks that they call.
from tfdist.internals.tensorflow import distribute_lib
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._devices import check_devices
from tfdist.strategies._extended.mirrored import MirroredExtended
from tfdist.strategies.communication_options import check_clip
from tfdist.tracebacks import ends_at_caller


class MirroredStrategy(StrategyBase, tf.distribute.MirroredStrategy):
    """Trains one model on several devices of one machine, with a copy of the variables on each.

    A drop-in for `tf.distribute.MirroredStrategy`.

    Every device computes gradients on its share of each batch; their sum is applied on all devices,
    so that the copies stay equal. On CPU devices one fused kernel sums all gradients; on GPUs
    TensorFlow's NCCL does. Creating the strategy applies tfdist's repairs of Keras.

    Args:
      devices: device names, such as `["GPU:0", "GPU:1"]`; `None` takes all GPUs, else all logical
        CPUs.
      cross_device_ops: a `tf.distribute.CrossDeviceOps` that replaces tfdist's.
      clip: the gradients that an optimizer of Keras 3 with `clipnorm`, `global_clipnorm` or
        `clipvalue` clips: "sum", the sum over all replicas, or "replica", each replica's gradients
        before they are summed.

    Raises:
      TypeError: `devices` is not a list of device names.
      ValueError: no device, an unknown device, or a duplicate; or an unknown `clip`.

    Example:

    ```python
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    model.fit(dataset)
    ```
    """

    @ends_at_caller
    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        *,
        clip: str = "sum",
    ) -> None:
        keras.apply_repairs()
        devices = check_devices("MirroredStrategy", devices)
        clip = check_clip("MirroredStrategy", clip)
        # Skips the parent's constructor, which would make its own extended object.
        distribute_lib.Strategy.__init__(self, MirroredExtended(self, devices, cross_device_ops))
        self.extended.clip = clip
