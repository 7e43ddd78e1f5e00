"""What a script that all tasks run may call first."""

from __future__ import annotations

from tfdist.config.cluster import Cluster
from tfdist.job import process
from tfdist.keras import keep_ops_from_xla


def init(cluster: Cluster | None = None, *, checkpoint_dir: str | None = None) -> Cluster:
    """Lets a `ps` task serve here until the job has ended; returns in every other task.

    From then on `tfdist.rank()`, `tfdist.size()` and collectives without a communicator know the
    job. The first collective meets the other ranks; this call meets nobody.

    A script that makes a strategy needs no such call. Without it the `ps` tasks of a
    `ParameterServerStrategy` run what comes before the strategy, such as reading data that they
    do not need.

    Args:
      cluster: the job, by default that of `TF_CONFIG`.
      checkpoint_dir: where a `ps` task keeps its snapshots, by default in `TFDIST_CHECKPOINT_DIR`,
        or nowhere; the same as the strategy's, which a `ps` task that serves here never reaches.

    Returns:
      The cluster, in a task that trains or evaluates.

    Raises:
      SystemExit: in a `ps` task, once it has served.
      tfdist.errors.ClusterConfigError: a bad `TF_CONFIG`.
      tfdist.errors.AddressInUseError: the port of this `ps` task is taken.

    Example:

    ```python
    cluster = tfdist.init()
    print(cluster.task_name, "of", cluster.world_size)
    ```
    """
    cluster = Cluster.from_environment() if cluster is None else cluster
    if cluster.task_type == "ps":
        # Not above: this imports TensorFlow.
        from tfdist.ps import membership

        membership.serve(cluster, checkpoint_dir)
    process.enter(cluster)
    keep_ops_from_xla()
    return cluster
