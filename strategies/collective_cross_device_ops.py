"""Carries the reductions that TensorFlow asks of a multi-worker strategy to our collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, cross_device_utils, distribute_utils
from tensorflow.python.distribute.values import Mirrored

from tfdist import ops
from tfdist.compression import Compression, Compressor, NoCompression
from tfdist.strategies.communication_options import is_variable
from tfdist.strategies.fused_all_reduce import mirror, reduce_replicas, sum_rows


class CollectiveReplicaLauncher(cross_device_utils.CollectiveReplicaLauncher):
    """Launches collectives of one worker; the tensors of a pack travel as one."""

    def __init__(self, device: str, options, communicator: ops.Communicator) -> None:
        self._device = device
        self._options = options
        self._communicator = communicator
        self._group_size = communicator.size
        self._label: str | None = None
        self._compressors: dict[Compression, Compressor] = {}
        self._variables: dict[int, tf.Variable] = {}

    def can_order_nccl(self) -> bool:
        return False

    def all_reduce(self, input_tensor, control_input=None, options=None) -> tf.Tensor:
        return self.batch_all_reduce([[input_tensor]], options)[0]

    def batch_all_reduce(self, input_tensor_packs, options=None) -> list[tf.Tensor]:
        options = self._options.merge(options)
        reduce = self._compressor(options.compression).all_reduce
        reduced = []
        for pack in input_tensor_packs:
            with self._on_host():
                reduced += reduce(
                    pack,
                    self._communicator,
                    label=self._label or _name(pack),
                    timeout=options.timeout_seconds,
                    variables=[self._variables.get(id(tensor)) for tensor in pack],
                )
        return reduced

    def _compressor(self, compression: Compression | None) -> Compressor:
        method = compression or NoCompression()
        if method not in self._compressors:
            self._compressors[method] = method.compressor()
        return self._compressors[method]

    def _all_gather(self, input_tensor, options) -> tf.Tensor:
        timeout = self._options.merge(options).timeout_seconds
        with self._on_host():
            return ops.all_gather(
                input_tensor,
                self._communicator,
                label=self._label or _name([input_tensor]),
                timeout=timeout,
            )

    def all_gather(self, input_tensor, axis, options=None) -> tf.Tensor:
        if isinstance(axis, int) and axis == 0:
            return self._all_gather(input_tensor, options)
        rank = tf.rank(input_tensor)
        to_front = tf.concat([[axis], tf.range(axis), tf.range(axis + 1, rank)], 0)
        back = tf.concat([tf.range(1, axis + 1), [0], tf.range(axis + 1, rank)], 0)
        gathered = self._all_gather(tf.transpose(input_tensor, to_front), options)
        return tf.transpose(gathered, back)

    def all_reduce_indexed_slices(self, input_slices, options=None) -> tf.IndexedSlices:
        values = self._all_gather(input_slices.values, options)
        indices = self._all_gather(input_slices.indices, options)
        return sum_rows(tf.IndexedSlices(values, indices, input_slices.dense_shape))

    @contextlib.contextmanager
    def labelled(self, label: str | None) -> Iterator[None]:
        """What error messages call the collectives launched meanwhile, instead of a tensor."""
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    @contextlib.contextmanager
    def gradients_of(
        self, tensors: Sequence, variables: Sequence[tf.Variable | None]
    ) -> Iterator[None]:
        """Tells whose gradients the tensors are that are reduced meanwhile."""
        pairs = zip(tensors, variables, strict=True)
        self._variables = {id(t): v for t, v in pairs if v is not None}
        try:
            yield
        finally:
            self._variables = {}

    def _on_host(self):
        # The kernels work on host memory; TensorFlow copies what lies on a GPU.
        device = tf.DeviceSpec.from_string(self._device).replace(device_type="CPU", device_index=0)
        return tf.device(device.to_string())


def _name(tensors: list[tf.Tensor]) -> str:
    """Names what a collective carries, for messages: "Adam/gradient (and 7 more)"."""
    first = tensors[0]
    name = first.name.partition(":")[0] if tf.is_symbolic_tensor(first) else "a tensor"
    return name if len(tensors) == 1 else f"{name} (and {len(tensors) - 1} more)"


class CollectiveAllReduce(cross_device_ops.CollectiveAllReduce):
    """Reduces over the devices of all workers: first within each worker, then between them.

    Args:
      devices: this worker's devices.
      group_size: number of devices of all workers together.
      options: default communication options.
      collective_keys: bookkeeping of the parent class.
      communicator: the workers.
    """

    def __init__(self, devices, group_size, options, collective_keys, communicator) -> None:
        super().__init__(devices, group_size, options, collective_keys)
        self._launchers = [
            CollectiveReplicaLauncher(device, options, communicator) for device in self._devices
        ]

    def labelled(self, label: str | None) -> contextlib.AbstractContextManager[None]:
        """See `CollectiveReplicaLauncher.labelled`."""
        return self._launchers[0].labelled(label)

    def _all_reduce_per_replica_values(
        self, reduce_op, per_replica_values, options, variables=None
    ):
        values = [value.values for value in per_replica_values]
        if len(self._devices) == 1:
            local = [replicas[0] for replicas in values]
        else:
            with tf.device(self._devices[0]):
                local = reduce_replicas(tf.distribute.ReduceOp.SUM, values)
        variables = variables or [None] * len(local)
        with self._lock, self._launchers[0].gradients_of(local, variables):
            reduced = self._all_reduce(reduce_op, local, 0, options)
        return self._mirrored(reduced)

    def batch_reduce_implementation(self, reduce_op, value_destination_pairs, options):
        # Whatever the destinations, they are this worker's devices: one pass for all values.
        values = [value for value, _ in value_destination_pairs]
        variables = [
            destination if is_variable(destination) else None
            for _, destination in value_destination_pairs
        ]
        return self._all_reduce_per_replica_values(reduce_op, values, options, variables)

    def _batch_all_gather(self, per_replica_values, axis, options):
        gathered = []
        with self._lock:
            for value in per_replica_values:
                with tf.device(self._devices[0]):
                    local = tf.concat(value.values, axis)
                gathered.append(self._launchers[0].all_gather(local, axis, options))
        return self._mirrored(gathered)

    def _mirrored(self, values: list) -> list:
        """The values on every device of this worker."""
        if len(self._devices) == 1:
            return [distribute_utils.regroup((v,), wrap_class=Mirrored) for v in values]
        return mirror(values, self._devices)

    def __deepcopy__(self, memo: dict) -> CollectiveAllReduce:
        return self
