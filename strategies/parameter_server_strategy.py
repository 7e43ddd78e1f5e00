"""Training on several workers that share their variables through parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import tensorflow as tf

# See multi_worker_mirrored_strategy.py for why TensorFlow's internals are needed.
from tfdist import keras
from tfdist.config.cluster import Cluster
from tfdist.errors import ClusterConfigError
from tfdist.job import process
from tfdist.job.start import start
from tfdist.ops.ps.client import ParameterClientStats
from tfdist.ps.config import PsConfig
from tfdist.strategies._base import StrategyBase
from tfdist.strategies._extended.parameter_server import ParameterServerExtended
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.placement import Placement
from tfdist.strategies.communication_options import check_clip
from tfdist.tracebacks import ends_at_caller

_OPTIMIZERS = ("auto", "server", "worker")


class ParameterServerStrategy(StrategyBase):
    """Trains one model on several workers; parameter servers hold its variables.

    Every worker runs the same script with its own `TF_CONFIG`. Its variables are a cache: each step
    begins by pulling changed values and ends by pushing gradients, which the servers apply, and the
    deltas of other variables. In a `ps` task, creating the strategy serves until the job has ended
    and then ends the process; without a cluster, and in an evaluator, the process serves itself.
    Creating the strategy applies tfdist's repairs of Keras.

    Modes:
      - "async": a push is applied at once (Dean et al. 2012). Each worker has its own batches.
      - "sync": the gradients of all workers make one step; the workers share its batch.
      - "ssp": as async, but no worker is more than `staleness` steps ahead of the slowest (Ho et
        al. 2013).

    Args:
      cluster_resolver: a `tf.distribute.cluster_resolver.ClusterResolver`; `None` reads
        `TF_CONFIG` or the launcher's variables.
      variable_partitioner: a `tf.distribute.experimental.partitioners.Partitioner` that returns the
        number of parts into which a variable's rows are split; `None` splits by `max_shard_bytes`.
      mode: "async", "sync" or "ssp".
      staleness: with "ssp", a number of steps. 0 is "sync", `math.inf` is "async".
      num_aggregate: with "sync", the number of workers whose gradients make a step; gradients of
        slower workers are dropped and counted (Chen et al. 2016). `None` means all.
      compensation: delay compensation in "async" and "ssp": "dc-asgd" corrects gradients to first
        order (Zheng et al. 2017), "adadelay" lowers the learning rate by the delay (Sra et al.
        2016), "adaptive-revision" revises Adagrad's steps when later gradients show that its
        learning rate was too large (McMahan and Streeter 2014; only for Adagrad on the servers).
      compensation_lambda: the strength of "dc-asgd".
      hogwild: servers update without locks (Niu et al. 2011).
      n_push: with "async", a worker pushes after every `n_push` steps: the sum of their gradients,
        or the change that its optimizer made (Downpour SGD, Dean et al. 2012).
      n_fetch: with "async", a worker fetches the variables before every `n_fetch`-th step, a
        multiple of `n_push`.
      ps_optimizer: where optimizers run: "server", "worker", or "auto", which is the server for
        optimizers that it supports.
      max_shard_bytes: larger variables are split by rows over the servers.
      worker_timeout: seconds that workers wait for an unresponsive worker.
      epoch_timeout: seconds that workers wait for each other at the end of an epoch of `fit`, to
        sum their metrics and to stop together; with 0 they do not wait, and sum the metrics of the
        workers that have arrived.
      checkpoint_dir: directory of the servers' snapshots, from which a restarted server continues;
        a path that `tf.io.gfile` supports. `None` disables snapshots.
      checkpoint_every: seconds between snapshots.
      durability: the reaction of servers while changes of rows cannot be logged, for example
        because the disk of `checkpoint_dir` is full: "warn" logs a warning and continues, "refuse"
        refuses pushes. Then a worker never trains on values that a restart would lose.
      clip: with "sync", the gradients that an optimizer of Keras 3 with `clipnorm`,
        `global_clipnorm` or `clipvalue` clips: "sum", the sum over all workers, or "replica", each
        worker's gradients before they are summed. For "sum" the workers run the optimizer, and each
        gets the sum.

    Raises:
      tfdist.errors.ClusterConfigError: an invalid cluster or argument, or an argument that differs
        from the other workers'.
      tfdist.errors.RendezvousTimeoutError: a parameter server did not answer in time.
      tfdist.errors.AuthenticationError: the tasks do not hold the same secret.
      ValueError: an unknown `clip`.

    Example:

    ```python
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("adam", "mse")
    model.fit(dataset)
    ```
    """

    @property
    def _cluster_coordinator(self) -> NoReturn:
        """`tf.distribute.coordinator.ClusterCoordinator` reads this attribute of a strategy."""
        raise ClusterConfigError(
            "ClusterCoordinator: expected TensorFlow's own ParameterServerStrategy, received "
            "tfdist's, which has no coordinator: every worker runs the script, and strategy.run or "
            "fit trains. docs/guides/parameter_server.md ports a loop of schedule and join"
        )

    @ends_at_caller
    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        variable_partitioner: Callable | None = None,
        *,
        mode: str = "async",
        staleness: float | None = None,
        num_aggregate: int | None = None,
        compensation: str | None = None,
        compensation_lambda: float = 0.04,
        hogwild: bool = False,
        n_push: int = 1,
        n_fetch: int = 1,
        ps_optimizer: str = "auto",
        max_shard_bytes: int = 32 * 2**20,
        worker_timeout: float = 60.0,
        epoch_timeout: float = 60.0,
        checkpoint_dir: str | None = None,
        checkpoint_every: float = 600.0,
        durability: str = "warn",
        clip: str = "sum",
    ) -> None:
        cluster = None if cluster_resolver is None else Cluster.from_resolver(cluster_resolver)
        cluster = start(cluster, checkpoint_dir, keras.apply_repairs)
        if cluster.task_type == "evaluator":
            # It evaluates checkpoints, without the cluster.
            cluster, num_aggregate = Cluster.local(), None
            checkpoint_dir, durability = None, "warn"
        if not (cluster.ps or cluster.is_local):
            raise ClusterConfigError(
                "ParameterServerStrategy: expected a task of a cluster with at least one ps, "
                f"received {cluster.task_name} of {cluster.as_dict()}"
            )
        if ps_optimizer not in _OPTIMIZERS:
            raise ClusterConfigError(
                f"ParameterServerStrategy: expected ps_optimizer to be one of "
                f"{', '.join(_OPTIMIZERS)}, received {ps_optimizer!r}"
            )
        clip = check_clip("ParameterServerStrategy", clip)
        config = PsConfig.make(
            cluster.world_size,
            mode,
            staleness,
            num_aggregate,
            compensation=compensation,
            compensation_lambda=compensation_lambda,
            hogwild=hogwild,
            n_push=n_push,
            n_fetch=n_fetch,
            worker_timeout=worker_timeout,
            epoch_timeout=epoch_timeout,
            checkpoint_dir=checkpoint_dir,
            durability=durability,
            clip=clip,
        )
        worker = process.current.attach(cluster, config, checkpoint_every)
        placement = Placement(max(1, len(cluster.ps)), max_shard_bytes)
        parameters = Parameters(
            worker.client,
            placement,
            cluster.is_chief,
            partitioner=variable_partitioner,
            trainings=worker.trainings,
        )
        super().__init__(ParameterServerExtended(self, cluster, config, parameters, ps_optimizer))
        self.extended.clip = clip

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes checkpoints and summaries: rank 0."""
        return self.extended.should_checkpoint

    def wait_for_workers(self) -> None:
        """Waits until all workers have called this, and the servers have applied all their pushes.

        All workers must call it equally often, not within `fit`. It waits for `epoch_timeout`.

        Raises:
          TfdistError: a worker has not come, or is gone; names it.
          tf.errors.OpError: a server answered with an error.

        Example:

        ```python
        for part in tfdist.data.cyclades(ids, batch=256, workers=tfdist.size(), seed=1):
            for update in part.parts[tfdist.rank()]:
                strategy.run(step, args=(ids[update],))
            strategy.wait_for_workers()
        ```
        """
        worker = process.current.ps_worker
        assert worker is not None  # the constructor has attached it
        worker.wait_for_workers()

    def communication_stats(self) -> ParameterClientStats:
        """Counters of this worker's pulls and pushes so far."""
        return self.extended.parameters.client.stats()

    def __deepcopy__(self, memo: dict) -> ParameterServerStrategy:
        # Estimator's RunConfig copies itself; connections to the servers cannot be copied.
        return self
