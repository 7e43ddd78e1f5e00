"""The ports at which the tasks of a launched job serve their metrics.

A user asks for metrics by `TFDIST_METRICS_PORT`. Without it the tasks of a job on this machine
serve them all the same, on loopback addresses, so that `tfdist top` and `tfdist dashboard` can look
at any job. Such a port is a default: no job fails because of it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.errors import ClusterConfigError
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.ports import free_range
from tfdist.launch.task import TaskSpec


@dataclasses.dataclass(frozen=True)
class MetricsPorts:
    """The ports of a job's metrics.

    Attributes:
      first: the port of the first task; None if the tasks serve no metrics.
      by_default: whether the user has not asked for it.
      addresses: "host:port" of each task, by its name.
    """

    first: int | None = None
    by_default: bool = False
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def set_variables(self, environment: dict[str, str]) -> None:
        """Sets the variables of the job's tasks.

        Args:
          environment: of the launcher, which may be a task of another job with metrics itself.
        """
        for name in ("TFDIST_METRICS_PORT", "TFDIST_METRICS_BY_DEFAULT"):
            environment.pop(name, None)
        if self.first is not None:
            environment["TFDIST_METRICS_PORT"] = str(self.first)
        if self.by_default:
            environment["TFDIST_METRICS_BY_DEFAULT"] = "1"
            # It is about a port that the user asks for.
            environment.pop("TFDIST_METRICS_SAME_PORT", None)


def choose(tasks: Sequence[TaskSpec], settings: Settings, is_here: bool) -> MetricsPorts:
    """Chooses the ports of a job whose tasks may serve metrics.

    Args:
      tasks: of the job.
      settings: of the launcher.
      is_here: whether all tasks are on loopback addresses of this machine.

    Raises:
      ClusterConfigError: the ports that the user has asked for do not exist, or would not be used.
      OSError: the user has asked for free ports, and there are too few.
    """
    if settings.metrics_port is not None and not settings.metrics_by_default:
        port = settings.metrics_port or free_range(len(tasks))
        addresses = _addresses(tasks, port, settings.metrics_same_port)
        return MetricsPorts(port, by_default=False, addresses=addresses)
    if not is_here:
        return MetricsPorts()
    try:
        port = free_range(len(tasks))
    except OSError as error:
        print(f"tfdist run: the tasks serve no metrics: {error}", file=sys.stderr)
        return MetricsPorts()
    return MetricsPorts(port, by_default=True, addresses=_addresses(tasks, port, is_same=False))


def _addresses(tasks: Sequence[TaskSpec], port: int, is_same: bool) -> dict[str, str]:
    """Returns where each task serves its metrics.

    Args:
      tasks: of the job.
      port: the first task's port.
      is_same: whether all tasks would listen at that port.

    Raises:
      ClusterConfigError: there are not as many ports above it, or they would not be used.
    """
    if is_same:
        raise ClusterConfigError(
            "TFDIST_METRICS_SAME_PORT: expected 0 with tfdist run, which gives each task a port of "
            "its own, received 1"
        )
    indices = {task.name: Cluster.from_tf_config(task.tf_config).global_index for task in tasks}
    if port + max(indices.values()) > 65535:
        raise ClusterConfigError(
            f"TFDIST_METRICS_PORT: expected {len(tasks)} ports from {port} on, one for each task, "
            "but the last port is 65535"
        )
    hosts = {task.name: task.host for task in tasks}
    return {
        name: Host(hosts[name] or "127.0.0.1").listens_at(port + index)
        for name, index in indices.items()
    }
