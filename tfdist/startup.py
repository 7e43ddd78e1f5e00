"""`tfdist.init`: the start of a script without a strategy."""

from __future__ import annotations

from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.job.start import start
from tfdist.keras import keep_ops_from_xla
from tfdist.tracebacks import ends_at_caller


@ends_at_caller
def init(cluster: Cluster | None = None, *, checkpoint_dir: str | None = None) -> Cluster:
    """Serves until the job has ended in a `ps` or data task; returns at once in every other task.

    Afterwards `tfdist.rank()`, `tfdist.size()` and collectives without a communicator know the
    job. This call connects to no other task; the first collective connects to the other ranks.

    In an elastic job (`TFDIST_ELASTIC`) this call forms the job together with the other ranks. If
    the job runs already, this process is a newcomer: it is rank 0 of 1 until the members take it
    in, see `tfdist.elastic.run`.

    A script that makes a strategy does not need this call. Without it, the `ps` tasks of a
    `ParameterServerStrategy` run the lines above the strategy, such as reading data that they do
    not need.

    Args:
      cluster: the job, by default the job that `TF_CONFIG` or the launcher describes
        (`Cluster.from_environment`).
      checkpoint_dir: the snapshot directory of a `ps` task, by default `TFDIST_CHECKPOINT_DIR`;
        without either it keeps none. It must be the strategy's, which a `ps` task that serves here
        never makes.

    Returns:
      The cluster, in a task that trains or evaluates.

    Raises:
      SystemExit: in a `ps` or data task, once it has served.
      tfdist.errors.ClusterConfigError: a bad `TF_CONFIG`; this task's certificate cannot be used;
        or an elastic job has other tasks than workers. A job with `ps` tasks begins with its
        strategy.
      tfdist.errors.AddressInUseError: the port of this `ps` or data task is taken.
      tfdist.errors.RendezvousTimeoutError: founders of an elastic job were missing at the deadline.

    Example:

    ```python
    cluster = tfdist.init()
    print(cluster.task_name, "of", cluster.world_size)
    ```
    """
    cluster = start(cluster, checkpoint_dir, keep_ops_from_xla)
    elastic = process.current.elastic(cluster)
    if elastic is not None:
        from tfdist.elastic.start import join  # imports TensorFlow

        join(cluster, elastic)
    return cluster
