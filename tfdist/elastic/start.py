"""Joining an elastic job without a strategy."""

from __future__ import annotations

from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.elastic.job import ElasticJob
from tfdist.errors import ClusterConfigError
from tfdist.job import process


def join(cluster: Cluster, elastic: Elastic) -> ElasticJob:
    """Makes this process a member of an elastic job, or a newcomer; later calls return the same.

    Args:
      cluster: this process's task, and the addresses where others may be.
      elastic: the limits of the number of members.

    Raises:
      ClusterConfigError: the cluster has other tasks than workers.
      Exception: as for `ElasticJob`.
    """
    others = [role for role in cluster.as_dict() if role not in ("chief", "worker")]
    if others:
        raise ClusterConfigError(
            "tfdist.init: expected workers alone in the cluster of an elastic job, received "
            f"{', '.join(others)} tasks"
        )
    return process.current.join_elastic(
        cluster, lambda: ElasticJob(cluster, process.current.settings, elastic, {})
    )
