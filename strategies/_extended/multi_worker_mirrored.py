"""The extended class of `MultiWorkerMirroredStrategy`, which TensorFlow calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.resolver import ClusterResolver
from tfdist.config.sharding import Sharding
from tfdist.data.cut.plan import has_full_batches
from tfdist.data.cut.share import own_rows
from tfdist.data.order import splits_batches, tell_of_files, tell_of_unseeded
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
from tfdist.ops.collectives.fused import DEFAULT_BYTES_PER_PACK
from tfdist.ops.ps.prefetched import before_asking
from tfdist.ps.config import CLIPS
from tfdist.ps.variable_scopes import Role, current_path, current_role
from tfdist.strategies._collective_cross_device_ops import CollectiveAllReduce
from tfdist.strategies._devices import is_cpu
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._input.single_device_input import SingleDeviceInput
from tfdist.strategies._local_reduce.local_all_reduce import (
    LocalAllReduce,
    completed_pairs,
    resolved_destination,
)
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._sharding.gathered_variable import GatheredVariable
from tfdist.strategies._sharding.part_variable import PartVariable
from tfdist.strategies._sharding.shards import Shards
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


def _is_weight(arguments: dict) -> bool:
    """Whether the variable that is about to be made is a trainable one of a layer of Keras 3."""
    if current_path() is None or current_role() is not None or not arguments.get("trainable"):
        return False
    dtype = arguments.get("dtype")
    return dtype is not None and tf.as_dtype(dtype).is_floating


class MultiWorkerMirroredExtended(
    NotedUpdates, SingleDeviceInput, BackgroundRelease, tf_strategy.CollectiveAllReduceExtended
):
    """The strategy's variables, reductions and gathers."""

    # A dead peer breaks its data connection; TensorFlow's health check would need its servers.
    _enable_check_health = False

    communicator: ops.Communicator | None = None
    tables: RemoteTables | None = None
    shards: Shards | None = None

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
        options: CommunicationOptions,
        sharding: Sharding | None = None,
    ) -> None:
        self._cluster = cluster
        self._sharding = sharding
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
        if self._sharding is not None:
            self.shards = self._shards(self._sharding, self.communicator, local_devices)
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

    def _check_workers_agree(self, device_count: int) -> None:
        """Raises ClusterConfigError if the workers were configured differently."""
        own = {
            "devices": device_count,
            "clip": CLIPS.index(self.clip),
            "sharding": 0 if self._sharding is None else self._sharding.stage,
        }
        with eager_mode():
            gathered = ops.all_gather(
                [tf.constant([value]) for value in own.values()],
                self.communicator,
                label="the options of each worker's strategy",
                timeout=self._communication_options.timeout_seconds,
            )
            of_all = dict(zip(own, (values.numpy() for values in gathered), strict=True))
        self._expect_equal("as many devices", of_all["devices"], str)
        self._expect_equal("the same clip", of_all["clip"], lambda index: repr(CLIPS[index]))
        self._expect_equal(
            "the same sharding",
            of_all["sharding"],
            lambda stage: f"stage {stage}" if stage else "none",
        )

    def _expect_equal(
        self, expected: str, values: Sequence[int], show: Callable[[int], str]
    ) -> None:
        if len(set(values)) > 1:
            found = ", ".join(
                f"{self._cluster.name_of_rank(rank)} has {show(value)}"
                for rank, value in enumerate(values)
            )
            raise ClusterConfigError(
                f"MultiWorkerMirroredStrategy: expected {expected} on every worker, but {found}"
            )

    def _shards(
        self, sharding: Sharding, communicator: ops.Communicator, devices: Sequence[str]
    ) -> Shards:
        if len(devices) > 1 or not is_cpu(devices[0]):
            raise ClusterConfigError(
                "MultiWorkerMirroredStrategy: expected one CPU device on each worker with "
                f"{sharding}, received {', '.join(devices)}"
            )
        options = self._communication_options
        return Shards(
            sharding,
            communicator,
            options.bytes_per_pack or DEFAULT_BYTES_PER_PACK,
            options.timeout_seconds,
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
            return self._distribute_datasets_from_function(lambda _: own, options)
        own = self._own_rows(dataset)
        if own is None:
            return super()._experimental_distribute_dataset(dataset, options)
        distributed = self._distribute_datasets_from_function(lambda _: own, options)
        if tf.executing_eagerly() and has_full_batches(dataset):
            # All workers have as many batches: none needs to ask whether others have another one.
            distributed._enable_get_next_as_optional = False
        return distributed

    def _own_rows(self, dataset: tf.data.Dataset) -> tf.data.Dataset | None:
        """Returns this worker's rows of a dataset; `None` where TensorFlow is to cut it."""
        if self.communicator is None or hasattr(dataset, "unprefetched"):
            return None
        assert self._cluster.rank is not None  # of a worker
        if not splits_batches(dataset):
            tell_of_files(dataset, self._cluster.rank)
            return None
        tell_of_unseeded(dataset, self._cluster.rank)
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
        if current_role() is Role.PART:
            return self._create_part(kwargs)
        if self.shards is not None and self.shards.units is not None and _is_weight(kwargs):
            return self._create_gathered(self.shards, kwargs)
        if isinstance(kwargs.get("colocate_with"), TableVariable):
            del kwargs["colocate_with"]  # a slot, of no rows
        return unlist_components(super()._create_variable(next_creator, **kwargs))

    def _create_part(self, arguments: dict) -> PartVariable:
        assert self.shards is not None
        with tf.device(self._devices[0]):
            return PartVariable(
                self._container_strategy(),
                self.shards,
                arguments["initial_value"],
                arguments["dtype"],
                arguments["name"],
            )

    def _create_gathered(self, shards: Shards, arguments: dict) -> GatheredVariable:
        path = current_path()
        assert path is not None
        device = self._devices[0]
        initial_value = self._get_variable_creator_initial_value(0, device, None, **arguments)
        with tf.device(device):
            return GatheredVariable(
                self._container_strategy(),
                shards,
                path,
                initial_value,
                arguments["dtype"],
                arguments["name"],
            )

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, TableVariable | PartVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _call_for_each_replica(self, fn, args, kwargs):
        with self.tables.step() if self.tables is not None else contextlib.nullcontext():
            return super()._call_for_each_replica(fn, args, kwargs)

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        if replica_id > 0 or self.communicator is None:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )

        is_known = current_role() is Role.CONSTANT

        def initial_value_of_rank_0() -> tf.Tensor:
            with tf.device(device):
                value = kwargs["initial_value"]
                value = value() if callable(value) else value
                if isinstance(value, CheckpointInitialValue):
                    value = value.wrapped_value
                value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
                if is_known:
                    return value
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
        if self._sharding is not None:
            raise ValueError(
                f"{type(self._container_strategy()).__name__}: expected training by Keras 3 with "
                f"{self._sharding}, received a session, as Estimators make"
            )
        if session_config is not None:
            session_config.CopyFrom(self._update_config_proto(session_config))

    def _update_config_proto(self, config_proto):
        # Sessions are local: no group leader and no device filters.
        updated = type(config_proto)()
        updated.CopyFrom(config_proto)
        return updated
