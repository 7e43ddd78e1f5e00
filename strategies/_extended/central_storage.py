"""The extended class of `CentralStorageStrategy`, which TensorFlow calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

# See mirrored_strategy.py for why these.
from tfdist.internals.tensorflow import (
    DistributedVariable,
    InputWorkers,
    SyncOnReadVariable,
    device_util,
    distribute_lib,
    distribute_utils,
    input_util,
    parameter_server_strategy,
)
from tfdist.strategies._devices import is_cpu
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._local_reduce.local_all_reduce import LocalAllReduce, completed_pairs
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._variables.central_variable import CentralVariable
from tfdist.strategies._variables.graphs import unlist_components


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
        strategy: tf.distribute.Strategy,
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
        if not is_per_replica(options):
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


def is_per_replica(options: tf.distribute.InputOptions | None) -> bool:
    per_replica = tf.distribute.InputReplicationMode.PER_REPLICA
    return options is not None and options.experimental_replication_mode == per_replica
