"""Synchronous training on several devices of one machine, with one copy of the variables."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist import keras

# See mirrored_strategy.py for why these.
from tfdist.internals.tensorflow import distribute_lib
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._devices import check_device, check_devices
from tfdist.strategies._extended.central_storage import CentralStorageExtended, is_per_replica
from tfdist.strategies.communication_options import check_clip
from tfdist.tracebacks import ends_at_caller


class CentralStorageStrategy(StrategyBase, tf.distribute.experimental.CentralStorageStrategy):
    """Trains one model on several devices of one machine that share one copy of the variables.

    A drop-in for `tf.distribute.experimental.CentralStorageStrategy`.

    Variables and optimizer slots exist once, on the parameter device. Every compute device reads
    them and computes gradients on its share of each batch; one fused kernel sums the gradients,
    and the sum is applied once. Only variables that differ between replicas until they are read,
    such as the state of metrics, exist once per replica. Creating the strategy applies tfdist's
    repairs of Keras.

    Args:
      compute_devices: device names, such as `["GPU:0", "GPU:1"]`; `None` takes all GPUs, else
        "CPU:0".
      parameter_device: the device of the variables; `None` takes the compute device if there is
        only one, else "CPU:0".
      clip: the gradients that an optimizer of Keras 3 with `clipnorm`, `global_clipnorm` or
        `clipvalue` clips: "sum", the sum over all replicas, or "replica", each replica's gradients
        before they are summed.

    Raises:
      TypeError: `compute_devices` is not a list of device names, or `parameter_device` is not a
        device name.
      ValueError: no device, an unknown device, or a duplicate; or an unknown `clip`.

    Example:

    ```python
    strategy = tfdist.CentralStorageStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    model.fit(dataset)
    ```
    """

    @ends_at_caller
    def __init__(
        self,
        compute_devices: Sequence[str] | None = None,
        parameter_device: str | None = None,
        *,
        clip: str = "sum",
    ) -> None:
        keras.apply_repairs()
        compute_devices = check_devices("CentralStorageStrategy", compute_devices)
        if parameter_device is not None:
            parameter_device = check_device("CentralStorageStrategy", parameter_device)
        clip = check_clip("CentralStorageStrategy", clip)
        # Skips the parent's constructor, which would make its own extended object.
        distribute_lib.Strategy.__init__(
            self, CentralStorageExtended(self, compute_devices, parameter_device)
        )
        self.extended.clip = clip

    def _distribute(self, dataset, options):
        # Skips the parent's method, which reads a misspelt attribute of `options`.
        if is_per_replica(options):
            raise NotImplementedError(
                "CentralStorageStrategy.experimental_distribute_dataset: expected replication mode "
                "PER_WORKER; PER_REPLICA needs distribute_datasets_from_function"
            )
        return tf.distribute.Strategy.experimental_distribute_dataset(self, dataset, options)
