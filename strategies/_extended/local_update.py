"""The extended class of `LocalUpdateStrategy`, which TensorFlow calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.errors import ClusterConfigError

# As for MultiWorkerMirroredStrategy, this strategy's base.
from tfdist.internals.tensorflow import (
    DistributedVariable,
    SyncOnReadVariable,
    ag_ctx,
    distribute_lib,
    regroup,
    select_replica,
)
from tfdist.strategies._extended.multi_worker_mirrored import (
    MultiWorkerMirroredExtended,
    is_end_of_data_check,
)
from tfdist.strategies._local_updates.local_updates import LocalUpdates
from tfdist.strategies.communication_options import CommunicationOptions, is_variable


class LocalUpdateExtended(MultiWorkerMirroredExtended):
    """A strategy whose workers apply their own gradients."""

    local_updates: LocalUpdates

    def __init__(self, strategy: tf.distribute.Strategy, *args: Any) -> None:
        super().__init__(strategy, *args)
        if len(self.worker_devices) != 1:
            raise ClusterConfigError(
                "LocalUpdateStrategy: expected one device on every worker, but this one has "
                f"{len(self.worker_devices)}: {', '.join(self.worker_devices)}"
            )
        self._functions: weakref.WeakKeyDictionary[Callable, Callable] = weakref.WeakKeyDictionary()

    def _create_variable(self, next_creator, **kwargs):
        variable = super()._create_variable(next_creator, **kwargs)
        if _is_statistic(variable):
            self.local_updates.average(variable)
        return variable

    def _call_for_each_replica(self, fn, args, kwargs):
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            # The step is within the function, so that a round can end in its graph.
            if fn not in self._functions:
                inner = fn.python_function
                self._functions[fn] = fn._clone(
                    python_function=lambda *a, **k: self._call_for_each_replica(inner, a, k)
                )
            return self._functions[fn](*args, **kwargs)
        if not tf.executing_eagerly():
            fn = tf.__internal__.autograph.tf_convert(fn, ag_ctx.control_status_ctx())
        args, kwargs = select_replica(0, args), select_replica(0, kwargs)
        if self.local_updates.is_in_step:  # an optimizer's branch
            return self._run_replica(fn, args, kwargs)
        with self.local_updates.step(_rows((args, kwargs))):
            return self._run_replica(fn, args, kwargs)

    def _run_replica(self, fn: Callable, args: tuple, kwargs: dict) -> Nested:
        # Not in a thread, as TensorFlow does for several replicas: they may not update variables
        # in a branch, which a worker without rows needs.
        replica_id = self._get_replica_id_in_sync_group(0)
        strategy = self._container_strategy()
        with (
            tf.device(self._devices[0]),
            distribute_lib.ReplicaContext(strategy, replica_id),
        ):
            result = fn(*args, **kwargs)
        return regroup((result,))

    def _reduce_to(self, reduce_op, value, destinations, options):
        if isinstance(value, SyncOnReadVariable):
            # Statistics cover all workers after a synchronization. In a step, where tf_keras
            # reads its metrics, they are the worker's own.
            if _is_statistic(value) or self.local_updates.is_in_step:
                return value.values[0].read_value()
        if self.communicator is None or not is_end_of_data_check(reduce_op, value):
            return super()._reduce_to(reduce_op, value, destinations, options)
        if self.local_updates.is_asynchronous:  # each worker ends its epoch by itself
            return value
        return self._has_more_data(value, destinations, options)

    def _has_more_data(
        self, value: tf.Tensor, destinations: tf.Tensor | str, options: CommunicationOptions
    ) -> tf.Tensor:
        """Whether any worker has more data, int64[1, 1], by their last exchange.

        Without a known length of the data they would have to ask in each step. They ask once in a
        round. A worker whose data has ended makes steps without rows until then.
        """
        reduce = super()._reduce_to
        asked = self.local_updates.asked

        def ask() -> tf.Tensor:
            summed = reduce(tf.distribute.ReduceOp.SUM, value, destinations, options)
            total = self._local_results(summed)[0]
            asked.assign(tf.cast(tf.reduce_any(total > 0), tf.int64))
            return total

        def go_on() -> tf.Tensor:
            asked.assign_add(1)
            return tf.maximum(value, 1)

        every = self.local_updates.sync_every
        return tf.cond(asked % every == 0, ask, go_on)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        variables = [v for _, v in value_destination_pairs if is_variable(v)]
        if self.local_updates.is_in_step and variables:
            raise ValueError(
                "LocalUpdateStrategy: expected an optimizer of Keras 3 or of tf_keras, not of "
                "tf_keras.optimizers.legacy or tf.compat.v1, but such a one reduces the gradient "
                f"of {variables[0].name!r}"
            )
        return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)


def _is_statistic(variable: object) -> bool:
    """Whether a worker updates a variable by itself, of which the model has the mean."""
    return (
        isinstance(variable, SyncOnReadVariable)
        and variable.aggregation == tf.VariableAggregation.MEAN
        and variable.dtype.is_floating
    )


def _rows(arguments: Nested) -> tf.Tensor:
    """The rows of a step, float64[]: of the first tensor that has any dimension."""
    for leaf in tf.nest.flatten(arguments):
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.float64)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.float64)
        if tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable | DistributedVariable):
            if leaf.shape.rank is None or leaf.shape.rank > 0:
                known = None if leaf.shape.rank is None else leaf.shape[0]
                rows = tf.shape(leaf, tf.int64)[0] if known is None else known
                return tf.cast(rows, tf.float64)
    return tf.constant(1.0, tf.float64)
