"""The extended class of `MirroredStrategy`, which TensorFlow calls."""

from __future__ import annotations

import tensorflow as tf

# TensorFlow offers no public way to implement a strategy: these are the classes that Keras and
# Estimator test for, and the hooks that they call.
from tfdist.internals.tensorflow import distribute_utils, mirrored_strategy
from tfdist.strategies._devices import is_cpu
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._local_reduce.local_all_reduce import LocalAllReduce, completed_pairs
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._variables.graphs import unlist_components


class MirroredExtended(NotedUpdates, BackgroundRelease, mirrored_strategy.MirroredExtended):
    """The strategy's reductions; with GPUs they are TensorFlow's own."""

    def _create_variable(self, next_creator, **kwargs):
        return unlist_components(super()._create_variable(next_creator, **kwargs))

    def _make_collective_ops_with_fallbacks(self):
        # TensorFlow's collectives on CPU devices support one set of devices per process: a second
        # strategy's set collides with the first one's (tensorflow/tensorflow#62790).
        if all(map(is_cpu, self._devices)):
            return LocalAllReduce(self._devices[0])
        return super()._make_collective_ops_with_fallbacks()

    def _get_cross_device_ops(self, value):
        # LocalAllReduce reduces all dtypes together; TensorFlow reduces integers separately.
        if self._is_fused():
            return self._cross_device_ops
        return super()._get_cross_device_ops(value)

    def _reduce_to(self, reduce_op, value, destinations, options):
        # TensorFlow reduces to a CPU on one device, whatever the cross-device ops are.
        reduce_elsewhere = super()._reduce_to

        def reduce(leaf):
            if not isinstance(leaf, tf.distribute.DistributedValues):
                return reduce_elsewhere(reduce_op, leaf, destinations, options)
            return self._cross_device_ops.reduce(reduce_op, leaf, destinations, options)

        if not self._is_fused() or distribute_utils.is_mirrored(value):
            return reduce_elsewhere(reduce_op, value, destinations, options)
        return tf.nest.map_structure(reduce, value)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        pairs = completed_pairs(value_destination_pairs, self._devices)
        return super()._batch_reduce_to(reduce_op, pairs, options)

    def _is_fused(self) -> bool:
        return isinstance(self._cross_device_ops, LocalAllReduce)
