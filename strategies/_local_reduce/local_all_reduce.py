"""Reductions over the replicas of one process, with the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.internals.tensorflow import (
    Mirrored,
    PerReplica,
    SyncOnReadVariable,
    cross_device_utils,
    distribute_utils,
    get_devices_from,
    save_context,
    simple_broadcast,
    values_util,
)
from tfdist.ops.local.copy_to_devices import as_tensors, copy_to_devices
from tfdist.ops.local.local_reduce import DTYPES, local_reduce


class LocalAllReduce(tf.distribute.CrossDeviceOps):
    """Sums whole lists of tensors over the replicas of one process, in one pass over memory.

    Replicas on logical CPU devices share memory, so the sum exists once for all of them.

    Args:
      device: the CPU device that reduces; TensorFlow copies tensors of other devices.
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
        """Reads a variable that has its own value on each replica.

        Uses TensorFlow's own ops, so that a function that reads the variable may be saved. In a
        saved model the values of all replicas are the first one's, which keeps a mean correct.
        (TensorFlow refuses to save functions that read sums.)
        """
        with tf.device(self._device):
            value = tf.add_n([tf.convert_to_tensor(component) for component in variable.values])
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
    """Raises if a function is being saved: a saved model runs on one replica, without our ops."""
    if save_context.in_save_context() and tf.inside_function():
        raise ValueError(
            "a function that reduces over the replicas of a strategy cannot be saved: save a "
            "function that computes on a single replica"
        )
    values_util.mark_as_unsaveable()  # in case this trace of the function is saved later


def completed_pairs(
    value_destination_pairs: Sequence[tuple], devices: Sequence[str]
) -> list[tuple]:
    """Completes the arguments of a reduction over the replicas on `devices`.

    If all replicas hold the same tensor object, TensorFlow passes it once, as if there were one
    replica, and returns it as the "sum". It also refuses a destination without a device, such as an
    argument of a tf.function; here that means the first device.
    """
    pairs = []
    for value, destination in value_destination_pairs:
        if len(devices) > 1 and not isinstance(value, tf.distribute.DistributedValues):
            value = PerReplica([value] * len(devices))
        pairs.append((value, resolved_destination(destination, devices)))
    return pairs


def resolved_destination(destination: tf.Tensor | str, devices: Sequence[str]) -> tf.Tensor | str:
    """Returns the destination, or the first of `devices` if it has an empty device."""
    device = destination if isinstance(destination, str) else getattr(destination, "device", None)
    return devices[0] if device == "" else destination


def mirror(values: Sequence, devices: Sequence[str]) -> list:
    """Copies all values, tensors or `tf.IndexedSlices`, to every device in one step."""
    tensors = tf.nest.flatten(values, expand_composites=True)
    copies = [
        tf.nest.pack_sequence_as(values, copy, expand_composites=True)
        for copy in copy_to_devices(tensors, devices)
    ]
    return [distribute_utils.regroup(v, wrap_class=Mirrored) for v in zip(*copies, strict=True)]


def reduce_replicas(
    reduce_op: tf.distribute.ReduceOp, values: Sequence[Sequence]
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces each of `values` over the replicas, on the current device.

    Args:
      reduce_op: SUM or MEAN, a `tf.distribute.ReduceOp`. The mean of integers is a float64, as in
        `tf.distribute`.
      values: for each value one tensor per replica, of equal shapes and dtypes; or
        `tf.IndexedSlices`, whose rows of equal indices are summed.

    Returns:
      For each value its sum or mean.
    """
    sums: list = [None] * len(values)
    fused: dict[int, list[tf.Tensor]] = {}
    for i, replicas in enumerate(values):
        if any(isinstance(value, tf.IndexedSlices) for value in replicas):
            sums[i] = unique_slices(
                cross_device_utils.aggregate_tensors_or_indexed_slices(replicas)
            )
            continue
        tensors = as_tensors(replicas)
        if tensors[0].dtype in DTYPES:
            fused[i] = tensors
        else:
            sums[i] = tf.add_n(tensors)
    if fused:
        by_replica = list(zip(*fused.values(), strict=True))
        for i, value in zip(fused, local_reduce(by_replica), strict=True):
            sums[i] = value
    if reduce_op == tf.distribute.ReduceOp.SUM:
        return sums
    divide = cross_device_utils.divide_by_n_tensors_or_indexed_slices
    return [divide(total, len(each)) for total, each in zip(sums, values, strict=True)]


def unique_slices(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows that have equal indices.

    Optimizers that square a gradient, such as Adam and Adagrad, would otherwise sum the squares.
    """
    unique, position = tf.unique(slices.indices)
    shape = slices.dense_shape
    return tf.IndexedSlices(
        values=tf.math.unsorted_segment_sum(slices.values, position, tf.size(unique)),
        indices=unique,
        # Gradients have a tensor; callers may pass a tuple, which TensorFlow cannot nest.
        dense_shape=None if shape is None else tf.convert_to_tensor(shape),
    )
