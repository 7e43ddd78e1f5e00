"""Reduces the values of one process's replicas with the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils, distribute_utils, values_util
from tensorflow.python.distribute.cross_device_ops import get_devices_from, simple_broadcast
from tensorflow.python.distribute.values import Mirrored, PerReplica, SyncOnReadVariable
from tensorflow.python.saved_model import save_context

from tfdist import ops
from tfdist.ops.local.copy_to_devices import as_tensors
from tfdist.ops.local.local_reduce import DTYPES


class LocalAllReduce(tf.distribute.CrossDeviceOps):
    """Sums whole lists of tensors over the replicas of one process, in one pass over memory.

    Replicas on logical CPU devices share memory, so that the sum exists once, whoever reads it.

    Args:
      device: the CPU device that reduces; TensorFlow copies what lies on others.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def reduce_implementation(self, reduce_op, per_replica_value, destinations, options):
        if isinstance(per_replica_value, SyncOnReadVariable):
            return self._read(reduce_op, per_replica_value, destinations)
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        _refuse_to_be_saved()
        values = [value.values for value, _ in value_destination_pairs]
        with tf.device(self._device):
            reduced = reduce_replicas(reduce_op, values)
        by_devices: dict[tuple[str, ...], list[int]] = {}
        for i, (_, destinations) in enumerate(value_destination_pairs):
            by_devices.setdefault(tuple(get_devices_from(destinations)), []).append(i)
        for devices, positions in by_devices.items():
            mirrored = mirror([reduced[i] for i in positions], devices)
            for i, value in zip(positions, mirrored, strict=True):
                reduced[i] = value
        return reduced

    def _read(self, reduce_op, variable, destinations):
        """Reads a variable of which each replica has its own value.

        With TensorFlow's own ops, so that a function that reads one may be saved: there all
        replicas' values are the first one's, and a mean is as it should be. (TensorFlow keeps
        functions that read sums from being saved.)
        """
        with tf.device(self._device):
            value = tf.add_n([tf.convert_to_tensor(of_one) for of_one in variable.values])
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                value = cross_device_utils.divide_by_n_tensors_or_indexed_slices(
                    value, len(variable.values)
                )
        return simple_broadcast(value, destinations)

    def _gather_implementation(self, per_replica_value, destinations, axis, options):
        with tf.device(self._device):
            gathered = tf.concat(per_replica_value.values, axis)
        return self.broadcast(gathered, destinations)


def _refuse_to_be_saved() -> None:
    """A saved model is for one replica: it must neither reduce nor need our op library."""
    if save_context.in_save_context() and tf.inside_function():
        raise ValueError(
            "a function that reduces over the replicas of a strategy cannot be saved: save one "
            "that computes what a single replica does"
        )
    values_util.mark_as_unsaveable()  # in case the function is saved as it was traced now


def of_replicas(value_destination_pairs: Sequence[tuple], devices: Sequence[str]) -> list[tuple]:
    """Completes what TensorFlow asks to reduce over the replicas on `devices`.

    Where all replicas hold the very same tensor TensorFlow passes it once, as if it were one
    replica's, and its "sum" is the tensor itself. And it refuses a destination without a device,
    such as the argument of a tf.function; that is the first device.
    """
    pairs = []
    for value, destination in value_destination_pairs:
        if len(devices) > 1 and not isinstance(value, tf.distribute.DistributedValues):
            value = PerReplica([value] * len(devices))
        pairs.append((value, placed(destination, devices)))
    return pairs


def placed(destination, devices: Sequence[str]):
    """The destination, or the first of `devices` in place of a tensor or string without one."""
    device = destination if isinstance(destination, str) else getattr(destination, "device", None)
    return devices[0] if device == "" else destination


def mirror(values: Sequence, devices: Sequence[str]) -> list:
    """Gives every device all values, tensors or `tf.IndexedSlices`, in one step."""
    tensors = tf.nest.flatten(values, expand_composites=True)
    copies = [
        tf.nest.pack_sequence_as(values, copy, expand_composites=True)
        for copy in ops.copy_to_devices(tensors, devices)
    ]
    return [distribute_utils.regroup(v, wrap_class=Mirrored) for v in zip(*copies, strict=True)]


def reduce_replicas(reduce_op, values: Sequence[Sequence]) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces each of `values` over the replicas, on the current device.

    Args:
      reduce_op: SUM or MEAN, a `tf.distribute.ReduceOp`. The mean of integers is a float64, as in
        `tf.distribute`.
      values: for each value one tensor per replica, of equal shapes and dtypes; or
        `tf.IndexedSlices`, whose rows of one index are added.

    Returns:
      For each value its sum or mean.
    """
    sums: list = [None] * len(values)
    fused: dict[int, list[tf.Tensor]] = {}
    for i, replicas in enumerate(values):
        if any(isinstance(value, tf.IndexedSlices) for value in replicas):
            sums[i] = sum_rows(cross_device_utils.aggregate_tensors_or_indexed_slices(replicas))
            continue
        tensors = as_tensors(replicas)
        if tensors[0].dtype in DTYPES:
            fused[i] = tensors
        else:
            sums[i] = tf.add_n(tensors)
    if fused:
        by_replica = list(zip(*fused.values(), strict=True))
        for i, value in zip(fused, ops.local_reduce(by_replica), strict=True):
            sums[i] = value
    if reduce_op == tf.distribute.ReduceOp.SUM:
        return sums
    divide = cross_device_utils.divide_by_n_tensors_or_indexed_slices
    return [divide(value, len(of)) for value, of in zip(sums, values, strict=True)]


def sum_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds the rows that have the same index.

    Optimizers that square a gradient, such as Adam and Adagrad, would otherwise add the squares.
    """
    unique, position = tf.unique(slices.indices)
    shape = slices.dense_shape
    return tf.IndexedSlices(
        values=tf.math.unsorted_segment_sum(slices.values, position, tf.size(unique)),
        indices=unique,
        # Gradients have a tensor, callers may have passed a tuple, which TensorFlow cannot nest.
        dense_shape=None if shape is None else tf.convert_to_tensor(shape),
    )
