"""The start of a task: `tfdist.init` and the strategies for several tasks begin here."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.config.cluster import Cluster
from tfdist.errors import ClusterConfigError
from tfdist.job import process
from tfdist.job.encryption import check_certificate, check_names, encrypt


def start(
    cluster: Cluster | None, checkpoint_dir: str | None, adapt_keras: Callable[[], None]
) -> Cluster:
    """Reads the cluster, serves in a `ps` or data task, enters the job, and adapts Keras.

    Args:
      cluster: the job, by default the cluster of `Cluster.from_environment`.
      checkpoint_dir: as for `tfdist.init`.
      adapt_keras: changes Keras where the caller needs it.

    Returns:
      The cluster, in a task that trains or evaluates.

    Raises:
      Exception: as for `tfdist.init`, and what `adapt_keras` raises.
    """
    if cluster is None:
        cluster = Cluster.from_environment()
    serve(cluster, checkpoint_dir)
    process.current.enter(cluster)
    process.current.serve_metrics(cluster)
    adapt_keras()
    return cluster


def serve(cluster: Cluster, checkpoint_dir: str | None = None) -> None:
    """Serves until the job has ended in a `ps` or data task; returns at once in every other task.

    Args:
      cluster: the job.
      checkpoint_dir: as for `tfdist.init`.

    Raises:
      Exception: as for `tfdist.init`.
    """
    settings = process.current.settings
    if settings.tls is not None and cluster.data_workers:
        raise ClusterConfigError(
            f"{cluster.task_name}: expected no data workers in a job with encrypted connections "
            f"(TFDIST_TLS), received {len(cluster.data_workers)}: TensorFlow's data service has "
            "no encryption"
        )
    # A task that trains connects later, deep inside a step.
    if not cluster.is_local:
        check_certificate(settings)
        check_names(cluster, settings)
    process.current.record(cluster)
    if cluster.task_type == "ps":
        from tfdist.ps.server import serve as serve_variables  # imports TensorFlow

        encrypt(settings, cluster.task_name)
        serve_variables(cluster, settings, checkpoint_dir)
    if cluster.is_data_task:
        from tfdist.data.server import serve as serve_data  # imports TensorFlow

        serve_data(cluster, settings)
