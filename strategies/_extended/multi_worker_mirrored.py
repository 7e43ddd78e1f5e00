"""The extended class of `MultiWorkerMirroredStrategy`, which TensorFlow calls."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.resolver import ClusterResolver
from tfdist.data.cut.share import own_rows
from tfdist.data.order import splits_batches
from tfdist.data.pipeline import feed_of, tracked
from tfdist.errors import ClusterConfigError
from tfdist.internals.tensorflow import (
    CheckpointInitialValue,
    CollectiveKeys,
    ReduceOp,
    SingleDevice,
    SyncOnReadVariable,
    device_util,
    eager_mode,
    multi_worker_util,
)

# TensorFlow offers no public way to implement a strategy: these are the classes that Keras and
# Estimator test for, and the hooks that they call.
from tfdist.internals.tensorflow import collective_all_reduce_strategy as tf_strategy
from tfdist.job import process
from tfdist.ops.ps.prefetched import before_asking
from tfdist.strategies._collective_cross_device_ops import CollectiveAllReduce
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._input.single_device_input import SingleDeviceInput
from tfdist.strategies._local_reduce.local_all_reduce import (
    LocalAllReduce,
    completed_pairs,
    resolved_destination,
)
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._variables.graphs import unlist_components
from tfdist.strategies._variables.remote_tables import RemoteTables
from tfdist.strategies._variables.roles import is_table
from tfdist.strategies._variables.table_variable import TableVariable
from tfdist.strategies.communication_options import CommunicationOptions, for_gradients

_HAS_DATA = "whether a worker has another batch"


def _label(reduce_op: ReduceOp, value: tf.Tensor) -> str | None:
    """A reduction's label in error messages, if the tensor's name would not explain it."""
    if isinstance(value, SyncOnReadVariable):
        name = value.name.partition(":")[0]
        return f"variable {name}, read outside a step: needs every worker"
    return _HAS_DATA if is_end_of_data_check(reduce_op, value) else None


def is_end_of_data_check(reduce_op: ReduceOp, value: tf.Tensor) -> bool:
    """Whether TensorFlow's distributed datasets ask if any worker has more data."""
    return (
        reduce_op == ReduceOp.SUM
        and tf.is_tensor(value)
        and value.dtype == tf.int64
        and value.shape == (1, 1)
    )


class MultiWorkerMirroredExtended(
    NotedUpdates, SingleDeviceInput, BackgroundRelease, tf_strategy.CollectiveAllReduceExtended
):
    """The strategy's variables, reductions and gathers."""

    # A dead peer breaks its data connection; TensorFlow's health check would need its servers.
    _enable_check_health = False

    communicator: ops.Communicator | None = None
    tables: RemoteTables | None = None

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
        options: CommunicationOptions,
    ) -> None:
        self._cluster = cluster
        resolver = cluster_resolver or ClusterResolver(self._cluster)
        super().__init__(strategy, resolver, options)
        if self.communicator is None and self._local_device_type == "CPU":
            # As in MirroredStrategy. TensorFlow asserts its own class first.
            self._cross_device_ops = LocalAllReduce(self._devices[0])

    @property
    def clip(self) -> str:
        """The gradients that optimizers clip: "sum" or "replica"."""
        return self._communication_options.clip

    def _initialize_strategy(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        devices: Sequence[str] | None,
    ) -> None:
        if self._cluster.rank is None or self._cluster.world_size == 1:
            self._initialize_local(cluster_resolver, devices=devices)
        else:
            self._initialize_multi_worker(cluster_resolver)

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        devices, device_type = super()._initialize_local_devices(cluster_resolver, worker_device)
        if device_type == "CPU":
            logical = tf.config.list_logical_devices("CPU")
            devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(len(logical)))
        return devices, device_type

    def _initialize_multi_worker(
        self, cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver
    ) -> None:
        cluster = self._cluster
        local_devices, self._local_device_type = self._initialize_local_devices(
            cluster_resolver, worker_device=""
        )
        self.communicator = process.current.join(cluster).communicator
        self._check_workers_agree(len(local_devices))
        self._cluster_spec = multi_worker_util.normalize_cluster_spec(cluster.as_dict())
        self._task_type = cluster.task_type
        self._task_id = cluster.task_index
        self._id_in_cluster = cluster.rank
        self._num_workers = cluster.world_size
        self._is_chief = cluster.is_chief
        # Each worker has its own TensorFlow runtime, so its devices are local.
        self._worker_device = device_util.canonicalize("/device:CPU:0")
        self._host_input_device = SingleDevice(self._worker_device)
        self._num_devices_per_worker = len(local_devices)
        self._rpc_layer = cluster_resolver.rpc_layer
        self._collective_keys = CollectiveKeys(group_key_start=1 + self._collective_key_base)
        self._cross_device_ops = self._make_cross_device_ops(local_devices)
        self._host_cross_device_ops = self._make_cross_device_ops((self._worker_device,))
        self._initialize_single_worker(local_devices)

    def _check_workers_agree(self, count: int) -> None:
        with eager_mode():
            counts, by_replica = ops.all_gather(
                [tf.constant([count]), tf.constant([self.clip == "replica"], tf.int32)],
                self.communicator,
                label="the devices and the clipping of each worker",
                timeout=self._communication_options.timeout_seconds,
            )
            counts, by_replica = counts.numpy(), by_replica.numpy()
        if len(set(counts)) > 1:
            found = ", ".join(
                f"{self._cluster.name_of_rank(rank)} has {n}" for rank, n in enumerate(counts)
            )
            raise ClusterConfigError(
                "MultiWorkerMirroredStrategy: expected as many devices on every worker, but "
                f"{found}"
            )
        if len(set(by_replica)) > 1:
            found = ", ".join(
                f"{self._cluster.name_of_rank(rank)} has {'replica' if r else 'sum'!r}"
                for rank, r in enumerate(by_replica)
            )
            raise ClusterConfigError(
                f"MultiWorkerMirroredStrategy: expected the same clip on every worker, but {found}"
            )

    def _make_cross_device_ops(self, devices: tuple[str, ...]) -> CollectiveAllReduce:
        return CollectiveAllReduce(
            devices,
            self._num_workers * len(devices),
            self._communication_options,
            self._collective_keys,
            self.communicator,
        )

    def _experimental_distribute_dataset(self, dataset, options):
        if feed_of(dataset) is not None:
            # Each worker has records of its own; TensorFlow would cut its batches.
            own = before_asking(dataset, tracked)
        else:
            own = self._own_rows(dataset)
        if own is None:
            return super()._experimental_distribute_dataset(dataset, options)
        return self._distribute_datasets_from_function(lambda _: own, options)

    def _own_rows(self, dataset: tf.data.Dataset) -> tf.data.Dataset | None:
        """Returns this worker's rows of a dataset; `None` where TensorFlow is to cut it."""
        is_whole = self.communicator is None or hasattr(dataset, "unprefetched")
        if is_whole or not splits_batches(dataset):
            return None
        assert self._cluster.rank is not None  # of a worker
        return own_rows(dataset, self._num_workers, self._cluster.rank, len(self._devices))

    def _make_input_fn_iterator(self, input_fn, *args, **kwargs):
        def tracked_input(context):
            data = input_fn(context)
            is_dataset = isinstance(data, tf.data.Dataset)
            return before_asking(data, tracked) if is_dataset else data

        return super()._make_input_fn_iterator(tracked_input, *args, **kwargs)

    def _create_variable(self, next_creator, **kwargs):
        if self.tables is not None and is_table():
            return self.tables.create(next_creator, kwargs)
        if isinstance(kwargs.get("colocate_with"), TableVariable):
            del kwargs["colocate_with"]  # a slot, of no rows
        return unlist_components(super()._create_variable(next_creator, **kwargs))

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, TableVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _call_for_each_replica(self, fn, args, kwargs):
        with self.tables.step() if self.tables is not None else contextlib.nullcontext():
            return super()._call_for_each_replica(fn, args, kwargs)

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        if replica_id > 0 or self.communicator is None:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )

        def initial_value_of_rank_0() -> tf.Tensor:
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                if isinstance(value, CheckpointInitialValue):
                    value = value.wrapped_value
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
                return ops.broadcast(
                    value,
                    self.communicator,
                    label=f"initial value of {kwargs.get('name') or 'a variable'}",
                    timeout=self._communication_options.timeout_seconds,
                )

        return initial_value_of_rank_0

    def _reduce_to(self, reduce_op, value, destinations, options):
        destinations = resolved_destination(destinations, self._devices)
        if self.communicator is None:
            return super()._reduce_to(reduce_op, value, destinations, options)
        with self._get_cross_device_ops(value).labelled(_label(reduce_op, value)):
            return super()._reduce_to(reduce_op, value, destinations, for_gradients(options, []))

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        pairs = completed_pairs(value_destination_pairs, self._devices)
        options = for_gradients(options, [destination for _, destination in pairs])
        return super()._batch_reduce_to(reduce_op, pairs, options)

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        if len(self._devices) == 1:
            return super()._replica_ctx_all_reduce(reduce_op, value, options)
        # TensorFlow launches one collective per replica; here the replicas merge into one.
        return super(tf_strategy.CollectiveAllReduceExtended, self)._replica_ctx_all_reduce(
            reduce_op, value, options
        )

    def _configure(self, session_config=None, cluster_spec=None, task_type=None, task_id=None):
        if session_config is not None:
            session_config.CopyFrom(self._update_config_proto(session_config))

    def _update_config_proto(self, config_proto):
        # Sessions are local: no group leader and no device filters.
        updated = type(config_proto)()
        updated.CopyFrom(config_proto)
        return updated
