"""Implements TensorFlow's cross-device ops of a multi-worker strategy by tfdist's collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist._types import Gradient, Nested
from tfdist.compression import Compression, Compressor, NoCompression
from tfdist.internals.tensorflow import (
    CollectiveKeys,
    Mirrored,
    cross_device_ops,
    cross_device_utils,
    distribute_utils,
)
from tfdist.ops.collectives.fused import DEFAULT_BYTES_PER_PACK
from tfdist.ops.collectives.naming import name_of
from tfdist.ops.collectives.world import world
from tfdist.strategies._local_reduce.local_all_reduce import mirror, reduce_replicas
from tfdist.strategies.communication_options import CommunicationOptions, is_variable


class CollectiveAllReduce(cross_device_ops.CollectiveAllReduce):
    """Reduces over the devices of all workers: first within each worker, then between them.

    Args:
      devices: this worker's devices.
      group_size: number of devices of all workers together.
      options: default communication options.
      collective_keys: used by the parent class.
      communicator: the workers.
    """

    def __init__(
        self,
        devices: Sequence[str],
        group_size: int,
        options: CommunicationOptions,
        collective_keys: CollectiveKeys,
        communicator: ops.Communicator | None,
    ) -> None:
        super().__init__(devices, group_size, options, collective_keys)
        self._launchers = ()  # no TensorFlow collectives
        self._communicator = communicator
        self._label: str | None = None
        self._compressors: dict[Compression, Compressor] = {}

    @property
    def _num_between_graph_workers(self) -> float:
        # With one worker TensorFlow would not ask for a reduction: there may be more later.
        is_resizable = self._communicator is not None and self._communicator.resizable
        return 2 if is_resizable else super()._num_between_graph_workers

    @contextlib.contextmanager
    def labelled(self, label: str | None) -> Iterator[None]:
        """Sets the label of collectives launched within, instead of a tensor's name."""
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        # All destinations are this worker's devices, so one pass reduces all values.
        values = [value for value, _ in value_destination_pairs]
        variables = [
            destination if is_variable(destination) else None
            for _, destination in value_destination_pairs
        ]
        return self._all_reduce_per_replica_values(reduce_op, values, options, variables)

    def _all_reduce_per_replica_values(
        self, reduce_op, per_replica_values, options, variables=None
    ):
        values = [value.values for value in per_replica_values]
        if len(self._devices) == 1:
            local = [replicas[0] for replicas in values]
        else:
            with tf.device(self._devices[0]):
                local = reduce_replicas(tf.distribute.ReduceOp.SUM, values)
        with self._lock:
            reduced = self._all_reduce(reduce_op, local, 0, options, variables)
        return self._mirrored(reduced)

    def _all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp,
        value: Nested,
        replica_id: int,
        options: CommunicationOptions,
        variables: Sequence[tf.Variable | None] | None = None,
    ) -> Nested:
        options = self._options.merge(options)
        with self._on_host():
            reduced = ops.fused_all_reduce(
                tf.nest.flatten(value),
                self._communicator,
                bytes_per_pack=options.bytes_per_pack or DEFAULT_BYTES_PER_PACK,
                label=self._label,
                timeout=options.timeout_seconds,
                compressor=self._compressor(options.compression),
                variables=variables,
            )
        if reduce_op == tf.distribute.ReduceOp.MEAN:
            # The collective sums, because in `tf.distribute` the mean of integers is a float64.
            with tf.device(self._devices[replica_id]):
                reduced = [self._divided(v) for v in reduced]
        return tf.nest.pack_sequence_as(value, reduced)

    def _divided(self, value: Gradient) -> Gradient:
        """A sum over all replicas, divided by their number."""
        if self._communicator is None or not self._communicator.resizable:
            return cross_device_utils.divide_by_n_tensors_or_indexed_slices(value, self._group_size)
        _, size = world(self._communicator)
        replicas = size * len(self._devices)
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self._divided(value.values), value.indices, value.dense_shape)
        dtype = tf.float64 if value.dtype.is_integer else value.dtype
        return tf.cast(value, dtype) / tf.cast(replicas, dtype)

    def _compressor(self, compression: Compression | None) -> Compressor | None:
        if isinstance(compression, NoCompression | None):
            return None
        if compression not in self._compressors:
            self._compressors[compression] = compression.compressor()
        return self._compressors[compression]

    def _batch_all_gather(self, per_replica_values, axis, options):
        gathered = []
        with self._lock:
            for value in per_replica_values:
                with tf.device(self._devices[0]):
                    local = tf.concat(value.values, axis)
                with self._on_host():
                    gathered.append(self._all_gather(local, axis, options))
        return self._mirrored(gathered)

    def _all_gather(
        self, value: tf.Tensor, axis: int | tf.Tensor, options: CommunicationOptions
    ) -> tf.Tensor:
        if isinstance(axis, int) and axis == 0:
            return ops.all_gather(
                value,
                self._communicator,
                label=self._label or name_of([value]),
                timeout=self._options.merge(options).timeout_seconds,
            )
        rank = tf.rank(value)
        to_front = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, rank)], 0)
        back = tf.concat([tf.range(1, axis + 1), [0], tf.range(axis + 1, rank)], 0)
        gathered = self._all_gather(tf.transpose(value, to_front), 0, options)
        return tf.transpose(gathered, back)

    def _on_host(self):
        # The kernels work on host memory; TensorFlow copies tensors from and to a GPU.
        device = tf.DeviceSpec.from_string(self._devices[0])
        return tf.device(device.replace(device_type="CPU", device_index=0).to_string())

    def _mirrored(self, values: list) -> list:
        """Copies the values to every device of this worker."""
        if len(self._devices) == 1:
            return [distribute_utils.regroup((v,), wrap_class=Mirrored) for v in values]
        return mirror(values, self._devices)

    def __deepcopy__(self, memo: dict) -> CollectiveAllReduce:
        return self
