"""The common part of commands that look at a running job from outside."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Sequence
from pathlib import Path

from tfdist.config.cluster import Cluster
from tfdist.config.job_file import JobFile
from tfdist.config.settings import Settings
from tfdist.control.client import ControlClient
from tfdist.errors import ClusterConfigError


@dataclasses.dataclass(frozen=True)
class Observer:
    """A command, in place of a task of the job in messages.

    Args:
      task_name: the command's name.
    """

    task_name: str
    address: str = socket.gethostname()
    training_addresses: Sequence[str] = ()

    def client(self, secret: bytes | None, address: str, name: str) -> ControlClient:
        """Returns a client of the task at an address, which errors call `name`."""
        return ControlClient(self, secret, address, name)


def cluster_and_secret(job: Path | None) -> tuple[str | None, bytes | None]:
    """Returns a job's TF_CONFIG and its secret.

    Args:
      job: a job file; without one the TF_CONFIG is `None`, and the secret is the environment's.

    Raises:
      ClusterConfigError: the file or the environment's secret cannot be used.
    """
    if job is None:
        return None, Settings.from_environment().secret
    file = JobFile.read(job)
    return file.cluster, None if file.secret is None else file.secret.encode("latin-1")


def cluster_of(tf_config: str, source: str) -> Cluster:
    """Returns the cluster of a TF_CONFIG, which need not say which task it is for.

    Args:
      tf_config: the text.
      source: its name in errors.

    Raises:
      ClusterConfigError: the text is no TF_CONFIG.
    """
    try:
        config = json.loads(tf_config)
        config.setdefault("task", {"type": "evaluator", "index": 0})
    except (ValueError, AttributeError) as error:
        raise ClusterConfigError(f"{source}: expected a TF_CONFIG: {error}") from None
    return Cluster.from_tf_config(json.dumps(config))
