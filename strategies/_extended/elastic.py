"""The extended class of strategies in an elastic job, whose workers may change."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.elastic.job import ElasticJob
from tfdist.errors import ClusterConfigError

# The class of variables of which replicas have values of their own, and what the parent uses.
from tfdist.internals.tensorflow import (
    CommunicationImplementation,
    DistributedValues,
    Mirrored,
    MirroredExtended,
    ReduceOp,
    SyncOnReadVariable,
    regroup,
)
from tfdist.job import process
from tfdist.strategies._extended.multi_worker_mirrored import MultiWorkerMirroredExtended
from tfdist.strategies._input.worker_input import share
from tfdist.strategies._local_reduce.local_all_reduce import resolved_destination
from tfdist.strategies._variables.elastic_tables import ElasticTables
from tfdist.strategies._variables.summed_variable import SummedVariable
from tfdist.strategies.communication_options import CommunicationOptions, for_gradients


class ElasticExtended(MultiWorkerMirroredExtended):
    """A strategy that needs other workers for reductions alone.

    Variables are made without the other workers, which bring their values together when `fit`
    begins. A variable of which each replica has its own value is equal on all workers after each
    step, so reading it needs no other worker.

    Args:
      strategy: the strategy.
      cluster: this task, and the addresses where others may be.
      cluster_resolver: the user's, or `None`.
      options: the strategy's communication options.
      elastic: the limits of the number of workers.

    Raises:
      ClusterConfigError: the cluster has other tasks than workers and parameter servers, or the
        implementation is NCCL.
      Exception: as for `ElasticJob`.
    """

    # Whether TensorFlow is distributing what is this worker's share of a dataset already.
    _reads_share = False

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        cluster: Cluster,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None,
        options: CommunicationOptions,
        elastic: Elastic,
    ) -> None:
        others = [role for role in cluster.as_dict() if role not in ("chief", "worker", "ps")]
        if others:
            raise ClusterConfigError(
                f"{type(strategy).__name__}: expected workers and ps tasks alone in the cluster "
                f"of an elastic job, received {', '.join(others)} tasks"
            )
        if options.implementation == CommunicationImplementation.NCCL:
            raise ClusterConfigError(
                f"{type(strategy).__name__}: expected implementation AUTO or RING for an elastic "
                "job, received NCCL, whose collectives are TensorFlow's"
            )
        self._elastic = elastic
        super().__init__(strategy, cluster, cluster_resolver, options)

    def _initialize_strategy(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        devices: Sequence[str] | None,
    ) -> None:
        # For TensorFlow this worker is alone.
        self._initialize_local(cluster_resolver, devices=devices)
        description = {
            "devices of a worker": str(len(self._devices)),
            "clip": self.clip,
        }
        self.elastic_job: ElasticJob = process.current.join_elastic(
            self._cluster,
            lambda: ElasticJob(self._cluster, process.current.settings, self._elastic, description),
        )
        self.communicator = self.elastic_job.communicator
        self._cross_device_ops = self._make_cross_device_ops(self._devices)
        self._host_cross_device_ops = self._make_cross_device_ops((self._worker_device,))

    def attach_tables(
        self, checkpoint_dir: str | None, checkpoint_every: float, durability: str
    ) -> None:
        """Connects to the parameter servers, if the cluster has some.

        Args:
          checkpoint_dir: as for `ElasticTables`.
          checkpoint_every: as for `ElasticTables`.
          durability: as for `ElasticTables`.

        Raises:
          Exception: as for `ElasticTables`.
        """
        if self._cluster.ps:
            self.tables = ElasticTables(
                self._cluster, self.elastic_job, checkpoint_dir, checkpoint_every, durability
            )

    @property
    def _num_replicas_in_sync(self) -> int:
        # Of the beginning, for the strategy's life: scripts compute batch sizes from it.
        workers = 1 if self._reads_share else self.elastic_job.start_workers
        return len(self.worker_devices) * workers

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker is rank 0 now, and has the members' state."""
        return self.elastic_job.rank == 0 and not self.elastic_job.is_newcomer

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker is rank 0 now, and has the members' state."""
        return self.should_checkpoint

    def _create_variable(self, next_creator, **kwargs):
        variable = super()._create_variable(next_creator, **kwargs)
        is_sum = getattr(variable, "aggregation", None) == tf.VariableAggregation.SUM
        if type(variable) is SyncOnReadVariable and is_sum:
            # TensorFlow has no place for a strategy's own class of variables.
            variable.__class__ = SummedVariable
        return variable

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        return MirroredExtended._get_variable_creator_initial_value(
            self, replica_id, device, primary_var, **kwargs
        )

    def _reduce_to(self, reduce_op, value, destinations, options):
        if isinstance(value, SyncOnReadVariable):
            return _value_of_all(reduce_op, value)
        destinations = resolved_destination(destinations, self._devices)
        if not isinstance(value, DistributedValues):
            # For TensorFlow a plain value is the same on all replicas of all workers.
            value = regroup((value,) * len(self._devices), always_wrap=True)
        elif isinstance(value, Mirrored) and reduce_op == ReduceOp.MEAN:
            return value
        options = self._communication_options.merge(for_gradients(options, []))
        return self._get_cross_device_ops(value).reduce(
            reduce_op, value, destinations=destinations, options=options
        )

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        self.elastic_job.check_has_state("gradients are reduced")
        return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)

    def _experimental_distribute_dataset(self, dataset, options):
        job = self.elastic_job
        self._reads_share = True
        try:
            return super()._experimental_distribute_dataset(
                share(dataset, job.size, job.rank, split=True), options
            )
        finally:
            self._reads_share = False

    def _own_rows(self, dataset):
        return None  # `share` has cut it

    def _make_input_context(self):
        job, devices = self.elastic_job, len(self.worker_devices)
        if self._reads_share:
            return tf.distribute.InputContext(1, 0, devices)
        return tf.distribute.InputContext(job.size, job.rank, job.size * devices)


def _value_of_all(reduce_op: ReduceOp, variable: SyncOnReadVariable) -> tf.Tensor:
    """The value over all workers, which this worker's replicas have after each step."""
    total = tf.add_n([part.read_value() for part in variable.values])
    if reduce_op == ReduceOp.MEAN:
        total = tf.cast(total / len(variable.values), total.dtype)
    return total
