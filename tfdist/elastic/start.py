"""Joining an elastic job without a strategy."""

from __future__ import annotations

from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.elastic.job import ElasticJob
from tfdist.errors import ClusterConfigError
from tfdist.job import process
from tfdist.job.script_end import ScriptFrame


def join(cluster: Cluster, elastic: Elastic) -> ElasticJob:
    """Makes this process a member of an elastic job, or a newcomer; later calls return the same.

    Args:
      cluster: this process's task, and the addresses where others may be.
      elastic: the limits of the number of members.

    Raises:
      ClusterConfigError: the cluster has other tasks than workers; of ps tasks the message says
        who may have them.
      Exception: as for `ElasticJob`.
    """
    others = [role for role in cluster.as_dict() if role not in ("chief", "worker", "ps")]
    if others:
        raise ClusterConfigError(
            f"{cluster.task_name}: tfdist.init: expected workers alone in the cluster of an "
            f"elastic job, received {', '.join(others)} tasks"
        )
    if cluster.ps:
        raise ClusterConfigError(
            f"{cluster.task_name}: tfdist.init: expected no ps tasks in an elastic job that begins "
            f"without a strategy, received {len(cluster.ps)}. They hold embedding tables of "
            "MultiWorkerMirroredStrategy, which enters the job itself: leave tfdist.init() out, "
            "and make the strategy where it was called"
        )
    return process.current.join_elastic(
        cluster, lambda: _joined(ElasticJob(cluster, process.current.settings, elastic, {}))
    )


def _joined(job: ElasticJob) -> ElasticJob:
    """Lets a job be marked as ended at the end of this program, if the script has done its work."""
    current, frame = process.current, ScriptFrame()

    def mark_end(has_failed: bool) -> None:
        # Before this process leaves: a process that finds no member any more sees the mark.
        has_failed |= frame.was_left() and not current.has_exited
        if current.is_at_end and not (has_failed or current.is_preempted):
            job.mark_end()

    process.current.before_leaving(mark_end)
    return job
