"""A `Cluster` in the form of a `tf.distribute.cluster_resolver.ClusterResolver`."""

from __future__ import annotations

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.tracebacks import ends_at_caller


class ClusterResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """Presents a `Cluster` to TensorFlow code that takes a resolver.

    Args:
      cluster: the job's tasks and this process's own; None means the cluster of
        `Cluster.from_environment`.
      num_accelerators: accelerators of this process by device type, such as {"GPU": 1}; None asks
        TensorFlow for the devices of this process, which initialises them.

    Example:
      >>> resolver = ClusterResolver(Cluster(workers=("a:1", "b:1"), task_index=1))
      >>> resolver.task_type, resolver.task_id, resolver.master("worker", 0)
      ('worker', 1, 'a:1')
    """

    @ends_at_caller
    def __init__(
        self, cluster: Cluster | None = None, num_accelerators: dict[str, int] | None = None
    ) -> None:
        if cluster is None:
            cluster = Cluster.from_environment()
        self.cluster = cluster
        self._num_accelerators = num_accelerators
        # In TensorFlow's convention a process without a cluster has no task type.
        self._task_type = None if cluster.is_local else cluster.task_type
        self._task_id = None if cluster.is_local else cluster.task_index
        # No TensorFlow server listens on these addresses, hence no protocol.
        self._rpc_layer = ""

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns all tasks that have an address; empty when local."""
        return tf.train.ClusterSpec(self.cluster.as_dict())

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the address of a task; without a task, this process's.

        Args:
          task_type: the type of the task, given with `task_id`.
          task_id: the task's index.
          rpc_layer: protocol to write in front of the address, such as "grpc".

        Returns:
          "" for this process, else "host:port" or "grpc://host:port".
        """
        if task_type is None or task_id is None or self.cluster.is_local:
            return ""
        address = self.cluster_spec().task_address(task_type, task_id)
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer else address

    @property
    def rpc_layer(self) -> str:
        """The protocol of addresses; empty, since no TensorFlow server runs on them."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str) -> None:
        self._rpc_layer = rpc_layer

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: tf.compat.v1.ConfigProto | None = None,
    ) -> dict[str, int]:
        """Returns how many accelerators of each type this process has.

        TensorFlow may name a task; the tasks of one job are assumed to be equal.
        """
        del task_type, task_id, config_proto
        if self._num_accelerators is not None:
            return dict(self._num_accelerators)
        # Without a task: this process's devices have the name of a local job.
        return dict(super().num_accelerators())
