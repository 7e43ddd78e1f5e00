"""The extended class of `ParameterServerStrategy`, which TensorFlow calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import tensorflow as tf

from tfdist._types import KerasOptimizer
from tfdist.config.cluster import Cluster

# See multi_worker_mirrored_strategy.py for why TensorFlow's internals are needed.
from tfdist.internals.tensorflow import CheckpointInitialValue, OneDeviceExtended
from tfdist.ps.config import PsConfig
from tfdist.strategies._input.background_release import BackgroundRelease
from tfdist.strategies._input.single_device_input import SingleDeviceInput
from tfdist.strategies._input.worker_input import SharedInput
from tfdist.strategies._noted_updates import NotedUpdates
from tfdist.strategies._variables.graphs import in_graph_of_tensorflow_1
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.roles import full_name, is_shared, is_table
from tfdist.strategies._variables.server_variable import ServerVariable
from tfdist.strategies._variables.table_variable import TableVariable


class ParameterServerExtended(
    NotedUpdates, SharedInput, SingleDeviceInput, BackgroundRelease, OneDeviceExtended
):
    """The strategy's variables, steps, reductions and datasets.

    Variables are on the CPU, which receives values and sends gradients. Steps run on the first GPU
    if there is one.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster,
        config: PsConfig,
        parameters: Parameters,
        ps_optimizer: str,
    ) -> None:
        gpus = tf.config.list_logical_devices("GPU")
        super().__init__(strategy, "/device:GPU:0" if gpus else "/device:CPU:0")
        self.parameters = parameters
        self.config = config
        self.ps_optimizer = ps_optimizer
        # By id, each optimizer seen so far, and whether the servers run it.
        self.optimizer_places: dict[int, tuple[KerasOptimizer, bool]] = {}
        self._cluster = cluster

    def _create_variable(self, next_creator, **kwargs):
        like = kwargs.pop("colocate_with", None)
        name = full_name(kwargs.get("name"))
        with tf.device("/device:CPU:0"):
            if not is_shared(name, kwargs):
                return next_creator(**kwargs)
            return self._create_shared(next_creator, name, like, kwargs)

    def _create_shared(
        self,
        next_creator: Callable[..., tf.Variable],
        name: str,
        like: tf.Variable | None,
        kwargs: dict,
    ) -> tf.Variable:
        eager = tf.compat.v1.executing_eagerly_outside_functions()
        graph = None if eager else tf.compat.v1.get_default_graph()
        name = self.parameters.unique_name(name, graph)
        parameter = None

        def initial_value() -> tf.Tensor:
            nonlocal parameter
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            if parameter is None:
                parameter = self.parameters.add(name, value.shape, value.dtype, like)
            return self.parameters.initial_value(parameter, value)

        if eager and not tf.executing_eagerly() and callable(kwargs["initial_value"]):
            # In a function that is being traced. Its initializers run later, but an optimizer's
            # slots are needed now. The initial value of a slot depends on none of the function's
            # tensors; for other variables this fails.
            with contextlib.suppress(TypeError, ValueError), tf.init_scope():
                initial_value()
        variable = next_creator(**{**kwargs, "initial_value": initial_value, "use_resource": True})
        assert parameter is not None  # the creator has called `initial_value`
        return self.parameters.adopt(
            variable, parameter, TableVariable if is_table() else ServerVariable
        )

    def _call_for_each_replica(self, fn, args, kwargs):
        context = tf.distribute.ReplicaContext(self._container_strategy(), self._replica_id)
        with tf.device(self._device), context:
            # Nested calls, such as LossScaleOptimizer's, belong to the outer step.
            if in_graph_of_tensorflow_1() and not self.parameters.in_step:
                return self.parameters.step_of_graph(lambda: fn(*args, **kwargs))
            with self.parameters.step():
                return fn(*args, **kwargs)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        """Implements `ReplicaContext.all_reduce`, with which optimizers sum gradients.

        It reduces over the workers of a synchronous job; in other modes each worker is alone.
        """
        values = [value for value, _ in value_destination_pairs]
        if self._num_replicas_in_sync == 1:
            return values
        self._expect_all_workers("all_reduce")
        mean = reduce_op == tf.distribute.ReduceOp.MEAN
        return self.parameters.all_reduce(values, self._num_replicas_in_sync if mean else None)

    def _gather_to_implementation(self, value, destinations, axis, options):
        """Implements `Strategy.gather` and `ReplicaContext.all_gather`, over all workers."""
        workers, rank = self._num_replicas_in_sync, self._replica_id
        if workers == 1:
            return value
        self._expect_all_workers("all_gather")
        # Each worker pads its value with zeros at the other workers' rows; the sum is the gather.
        size = tf.shape(value, tf.int64)[axis]
        sizes = self.parameters.all_reduce(tf.one_hot(rank, workers, dtype=tf.int64) * size, None)
        around = tf.stack([tf.reduce_sum(sizes[:rank]), tf.reduce_sum(sizes[rank + 1 :])])
        paddings = tf.one_hot(axis, tf.rank(value), dtype=tf.int64)[:, tf.newaxis] * around
        gathered = self.parameters.all_reduce(tf.pad(value, paddings), None)
        if isinstance(axis, int):
            shape = value.shape.as_list()
            shape[axis] = None
            gathered = tf.ensure_shape(gathered, shape)
        return gathered

    def _expect_all_workers(self, call: str) -> None:
        if self.config.num_aggregate < self.config.workers:
            raise ValueError(
                f"ParameterServerStrategy: {call} needs all workers, but num_aggregate="
                f"{self.config.num_aggregate} continues without some. Use an optimizer that the "
                "servers run (see ps_optimizer); with clipnorm, global_clipnorm or clipvalue they "
                "do with clip='replica'."
            )

    @property
    def is_alone(self) -> bool:
        """Whether this process serves itself."""
        return self._cluster.is_local

    @property
    def _replica_id(self) -> int:
        return self.rank if self._num_replicas_in_sync > 1 else 0

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.config.workers if self.config.mode == "sync" else 1

    def _get_local_replica_id(self, replica_id_in_sync_group):
        return 0

    @property
    def parameter_devices(self):
        return ("/device:CPU:0",)

    @property
    def experimental_between_graph(self):
        return True

    @property
    def experimental_should_init(self):
        return True

    @property
    def should_checkpoint(self):
        return self._cluster.is_chief

    @property
    def should_save_summary(self):
        return self._cluster.is_chief

    @property
    def _global_batch_size(self):
        return True
