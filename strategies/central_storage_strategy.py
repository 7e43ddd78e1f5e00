"""Synchronous training on several devices of one machine, with one copy of the variables."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

# See mirrored_strategy.py for why these.
from tensorflow.python.distribute import (
    device_util,
    distribute_lib,
    distribute_utils,
    input_util,
    parameter_server_strategy,
)
from tensorflow.python.distribute.input_lib import InputWorkers
from tensorflow.python.distribute.values import DistributedVariable, SyncOnReadVariable

from tfdist import keras
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._devices import check_device, check_devices, is_cpu
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._local_reduce.local_all_reduce import LocalAllReduce, completed_pairs
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._variables.central_variable import CentralVariable
from tfdist.strategies._variables.graphs import unlist_components
from tfdist.strategies.communication_options import check_clip


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
        if _is_per_replica(options):
            raise NotImplementedError(
                "CentralStorageStrategy.experimental_distribute_dataset: expected replication mode "
                "PER_WORKER; PER_REPLICA needs distribute_datasets_from_function"
            )
        return tf.distribute.Strategy.experimental_distribute_dataset(self, dataset, options)


class CentralStorageExtended(
    NotedUpdates, BackgroundRelease, parameter_server_strategy.ParameterServerStrategyExtended
):
    """How the strategy creates variables, reduces and updates."""

    # TensorFlow reads it when it makes variables with one component per replica.
    _use_var_policy = False
    _compute_devices: tuple[str, ...]
    _variable_device: str

    def __init__(
        self,
        strategy: CentralStorageStrategy,
        compute_devices: Sequence[str] | None,
        parameter_device: str | None,
    ) -> None:
        super().__init__(
            strategy, compute_devices=compute_devices, parameter_device=parameter_device
        )
        self._compute_devices = tuple(self._compute_devices)
        self._variable_device = device_util.canonicalize(self._variable_device)
        self._parameter_devices = (self._variable_device,)
        self._cross_device_ops = LocalAllReduce(
            self._variable_device if is_cpu(self._variable_device) else self._worker_device
        )

    def _create_variable(self, next_creator, **kwargs):
        if (
            self._num_replicas_in_sync > 1
            and kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        ):
            return unlist_components(self._create_sync_on_read_variable(next_creator, **kwargs))
        return unlist_components(super()._create_variable(next_creator, **kwargs))

    def _create_var_creator(self, next_creator, **kwargs):
        creator = super()._create_var_creator(next_creator, **kwargs)
        if creator is next_creator:
            return creator

        def create(**kwargs):
            variable = creator(**kwargs)
            # TensorFlow has made it and added it to its graph; only its methods change.
            variable.__class__ = CentralVariable
            return variable

        return create

    def _create_sync_on_read_variable(self, next_creator, **kwargs):
        """Makes one component per replica, so that sums of replicas, such as metrics, do not mix.

        TensorFlow makes one variable, to which every replica assigns its sum as if it were the only
        replica.
        """

        def create_components(**kwargs):
            components = []
            for replica, device in enumerate(self._compute_devices):
                with tf.device(device):
                    components.append(next_creator(**kwargs))
                kwargs["initial_value"] = functools.partial(_initial_value, components[0])
                # A name that ends with "/" is not prefixed by the current scope.
                name = components[0].name.partition(":")[0]
                kwargs["name"] = f"{name}/replica_{replica + 1}/"
            return components

        kwargs.pop("colocate_with", None)
        return distribute_utils.create_mirrored_variable(
            self._container_strategy(),
            create_components,
            distribute_utils.VARIABLE_CLASS_MAPPING,
            distribute_utils.VARIABLE_POLICY_MAPPING,
            **kwargs,
        )

    def _distribute_datasets_from_function(self, dataset_fn, options):
        if not _is_per_replica(options):
            return super()._distribute_datasets_from_function(dataset_fn, options)
        # TensorFlow's class distributes one dataset, whatever the options are.
        replicas = self._num_replicas_in_sync
        contexts = [tf.distribute.InputContext(replicas, i, replicas) for i in range(replicas)]
        workers = InputWorkers([(self._worker_device, (d,)) for d in self._compute_devices])
        return input_util.get_distributed_datasets_from_function(
            dataset_fn, workers, contexts, self._container_strategy(), options
        )

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        pairs = completed_pairs(value_destination_pairs, self._compute_devices)
        return super()._batch_reduce_to(reduce_op, pairs, options)

    def _update(self, var, fn, args, kwargs, group):
        if not isinstance(var, DistributedVariable):
            return super()._update(var, fn, args, kwargs, group)
        updates = []
        for replica, component in enumerate(var.values):
            with tf.device(component.device), distribute_lib.UpdateContext(replica):
                updates.append(
                    fn(
                        component,
                        *distribute_utils.select_replica(replica, args),
                        **distribute_utils.select_replica(replica, kwargs),
                    )
                )
        return distribute_utils.update_regroup(self, updates, group)

    def read_var(self, var):
        if isinstance(var, SyncOnReadVariable):
            return var._get_cross_replica()
        return super().read_var(var)

    def value_container(self, val):
        return distribute_utils.value_container(super().value_container(val))


def _initial_value(variable: tf.Variable) -> tf.Tensor:
    eager = tf.compat.v1.executing_eagerly_outside_functions()
    return tf.identity(variable.value() if eager else variable.initial_value)


def _is_per_replica(options: tf.distribute.InputOptions | None) -> bool:
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == per_replica
