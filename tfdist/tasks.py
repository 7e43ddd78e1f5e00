"""What a script that all tasks run may call first."""

from __future__ import annotations

from tfdist.cluster import Cluster


def init(cluster: Cluster | None = None) -> Cluster:
    """Lets a `ps` task serve here until the job has ended; returns in every other task.

    A script that makes a `ParameterServerStrategy` needs no such call. Without it the `ps` tasks
    run what comes before the strategy, such as reading data that they do not need.

    Args:
      cluster: the job, by default that of `TF_CONFIG`.

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

        membership.serve(cluster)
    return cluster
