"""Synchronous training on several workers, each with a full copy of the model."""

from __future__ import annotations

import tensorflow as tf

from tfdist import keras, ops
from tfdist.compression import NoCompression
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.sharding import Sharding
from tfdist.elastic.job import ElasticJob
from tfdist.errors import ClusterConfigError

# TensorFlow offers no public way to implement a strategy: these are the classes that Keras and
# Estimator test for, and the hooks that they call.
from tfdist.internals.tensorflow import CommunicationImplementation, distribute_lib
from tfdist.job import process
from tfdist.job.start import start
from tfdist.ops.collectives.tuned_buckets import AUTO
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._extended.multi_worker_mirrored import MultiWorkerMirroredExtended
from tfdist.strategies._variables.remote_tables import RemoteTables
from tfdist.strategies.communication_options import CommunicationOptions
from tfdist.tracebacks import ends_at_caller


class MultiWorkerMirroredStrategy(StrategyBase, tf.distribute.MultiWorkerMirroredStrategy):
    """Trains one model on several workers at once.

    A drop-in for `tf.distribute.MultiWorkerMirroredStrategy`.

    Every worker runs the same script with its own `TF_CONFIG`, computes gradients on its share of
    each batch, and applies their sum. Gradients are reduced by tfdist's collective ops; no
    TensorFlow server runs in any worker. Creating the strategy waits for all workers
    (`TFDIST_RENDEZVOUS_TIMEOUT`, 5 minutes) and applies tfdist's repairs of Keras.

    A cluster may have `ps` tasks, for the tables of `tfdist.layers.Embedding`. In such a task
    creating the strategy serves until the job has ended, and then ends the process. In a cluster
    without `ps` tasks each worker holds its share of the rows, and serves the others.

    A worker uses all its GPUs, else all its logical CPU devices: one, unless
    `tf.config.set_logical_device_configuration` makes more. The gradients of a worker's devices are
    summed before they are sent. All workers must have the same number of devices.

    Args:
      cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`; `None` reads
        `TF_CONFIG` or the launcher's variables. Without a cluster the strategy trains alone.
      communication_options: a `tfdist.CommunicationOptions`. `bytes_per_pack` splits the gradients
        into buckets that are sent while others are still computed (0: buckets of 4 MB);
        `timeout_seconds` bounds each collective (`None`: 600 s, 0: no bound); `implementation` AUTO
        and RING mean tfdist's collectives, NCCL means TensorFlow's own, unchanged; `compression`
        compresses gradients; `clip` selects the gradients that optimizers with `clipnorm` and the
        like clip.
      checkpoint_dir: where the processes that hold embedding tables keep snapshots of them; `None`
        keeps none.
      checkpoint_every: seconds between such snapshots.
      durability: as in `tfdist.ParameterServerStrategy`, for these tables.
      elastic: a `tfdist.Elastic`: workers may die, join and leave during `fit`; `None` reads
        `TFDIST_ELASTIC`. See docs/guides/elastic.md.
      sharding: a `tfdist.Sharding`: divides the optimizer's state over the workers; `None`: each
        worker has a copy. See docs/guides/large_models.md.

    Raises:
      tfdist.errors.ClusterConfigError: an invalid cluster, or the workers have different numbers of
        devices, or another sharding.
      ValueError: `sharding` together with an option that it does not know.
      tfdist.errors.RendezvousTimeoutError: workers were missing at the deadline.
      tfdist.errors.AuthenticationError: the tasks do not hold the same secret.
      tfdist.errors.AddressInUseError: this worker's port is taken.

    Example:

    ```python
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("sgd", "mse")
    model.fit(dataset)
    ```
    """

    @ends_at_caller
    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        checkpoint_dir: str | None = None,
        checkpoint_every: float = 600.0,
        durability: str = "warn",
        elastic: Elastic | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        cluster = None if cluster_resolver is None else Cluster.from_resolver(cluster_resolver)
        cluster = start(cluster, checkpoint_dir, keras.apply_repairs)
        options = CommunicationOptions.of(communication_options)
        elastic = process.current.elastic(cluster, elastic)
        if sharding is not None:
            _check_sharding(sharding, options, elastic)
        if elastic is not None:
            from tfdist.strategies._extended.elastic import ElasticExtended  # is built on this one

            extended = ElasticExtended(self, cluster, cluster_resolver, options, elastic)
            distribute_lib.Strategy.__init__(self, extended)
            extended.attach_tables(checkpoint_dir, checkpoint_every, durability)
            return
        if options.implementation == CommunicationImplementation.NCCL:
            if cluster.data_dispatcher:
                raise ClusterConfigError(
                    "MultiWorkerMirroredStrategy: expected no data_dispatcher and data_worker in "
                    "the cluster of implementation NCCL, which is TensorFlow's and refuses them"
                )
            super().__init__(cluster_resolver, options)
            return
        # Skips the parent's constructor, which would start a TensorFlow server and its collectives.
        distribute_lib.Strategy.__init__(
            self, MultiWorkerMirroredExtended(self, cluster, cluster_resolver, options, sharding)
        )
        if cluster.rank is not None:
            self.extended.tables = RemoteTables(
                cluster, checkpoint_dir, checkpoint_every, durability
            )

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes the checkpoints and summaries: rank 0.

        In an elastic job another worker becomes rank 0 when this one is lost.
        """
        return self.extended.should_checkpoint

    @property
    def elastic_job(self) -> ElasticJob | None:
        """The members of an elastic job; `None` of any other job."""
        return getattr(self.extended, "elastic_job", None)

    @property
    def communicator(self) -> ops.Communicator | None:
        """The workers, for `tfdist.ops`; `None` when there is one worker, or with NCCL."""
        return getattr(self.extended, "communicator", None)

    def communication_stats(self) -> ops.CommunicationStats:
        """Counters of this worker's communication so far; all zero without other workers."""
        if self.communicator is None:
            return ops.CommunicationStats()
        return self.communicator.stats()

    def __deepcopy__(self, memo: dict) -> MultiWorkerMirroredStrategy:
        # Estimator's RunConfig copies itself; connections to the other workers cannot be copied.
        return self


def _check_sharding(
    sharding: Sharding, options: CommunicationOptions, elastic: Elastic | None
) -> None:
    """Raises ValueError if other options do not go with sharding."""
    if not isinstance(sharding, Sharding):
        raise TypeError(
            f"MultiWorkerMirroredStrategy: expected a tfdist.Sharding, received {sharding!r}"
        )
    received = None
    if elastic is not None:
        received = "an elastic job: a lost worker's part of the optimizer's state is lost"
    elif options.implementation == CommunicationImplementation.NCCL:
        received = "implementation NCCL, whose collectives are TensorFlow's"
    elif options.bytes_per_pack == AUTO:
        received = "bytes_per_pack 'auto', which tunes an all-reduce"
    elif not isinstance(options.compression, NoCompression | None):
        received = f"{options.compression}, which compresses an all-reduce"
    if received is not None:
        raise ValueError(
            "MultiWorkerMirroredStrategy: expected implementation AUTO or RING, a size as "
            "bytes_per_pack, no compression and a fixed number of workers with "
            f"{sharding}, received {received}"
        )
