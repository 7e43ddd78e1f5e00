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
from tfdist.config.tls import Tls
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

    def client(self, access: Access, address: str, name: str) -> ControlClient:
        """Returns a client of the task at an address, which errors call `name`."""
        return ControlClient(self, access.secret, address, name, access.tls)


@dataclasses.dataclass(frozen=True)
class Access:
    """The secret and the certificate of a command that calls the tasks of a job.

    Args:
      cluster: the job's TF_CONFIG, or None.
      secret: its secret, or None.
      tls: the origin of the command's certificate; None if the job does not encrypt.
    """

    cluster: str | None = None
    secret: bytes | None = dataclasses.field(default=None, repr=False)
    tls: Tls | None = None

    @classmethod
    def to(cls, job: Path | None) -> Access:
        """Returns the access to a job.

        Args:
          job: a job file; without one there is no cluster, and the rest is the environment's.

        Raises:
          ClusterConfigError: the file or the environment's values cannot be used.
        """
        if job is None:
            settings = Settings.from_environment()
            return cls(None, settings.secret, settings.tls)
        file = JobFile.read(job)
        return cls(file.cluster, file.secret_bytes, file.encryption)


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
