"""The snapshots of a running training, asked for from outside."""

from __future__ import annotations

import time
from pathlib import Path

from tfdist.control.waiting import Wait
from tfdist.errors import CheckpointError, ClusterConfigError
from tfdist.observe.observer import Access, Observer, cluster_of
from tfdist.ps import messages
from tfdist.ps.checkpoint import layout, snapshot
from tfdist.ps.config import fingerprint
from tfdist.serving.tables import publication
from tfdist.serving.tables.publication import Publication, PublishedPart

_ASK_WAIT = 5.0
# Seconds within which all servers write a snapshot.
_WRITE_TIMEOUT = 600.0


class Training:
    """A running training whose parameter servers write snapshots when asked.

    Args:
      command: the name of the command that asks.
      job: a job file; `None`: the cluster of `tf_config`, the rest is the environment's.
      tf_config: a TF_CONFIG of the job.
      root: its `checkpoint_dir`, as this process sees it; `None`: where the servers say.

    Raises:
      ClusterConfigError: there is no `ps` task, or the file or the text cannot be used; or the job
        has no secret, and `root` is `None`: then anybody could name a folder.
    """

    def __init__(
        self, command: str, job: Path | None, tf_config: str | None, root: str | None
    ) -> None:
        access = Access.to(job)
        cluster = cluster_of(access.cluster or tf_config or "", "--job" if job else "--cluster")
        if not cluster.ps:
            raise ClusterConfigError(
                f"{command}: expected a job with ps tasks, which hold its tables, received "
                f"{', '.join(cluster.training_addresses) or 'none'} alone; tables on workers are "
                "followed by the snapshots that the workers write: give their folder as "
                "--checkpoint-dir, without --job and --cluster"
            )
        if root is None and access.secret is None:
            raise ClusterConfigError(
                f"{command}: expected --checkpoint-dir, since the job has no secret that would "
                "prove its servers' word, received none"
            )
        self._root = root
        self._fingerprint = fingerprint(cluster)
        observer = Observer(command, training_addresses=cluster.training_addresses)
        self._controls = [
            observer.client(access, address, f"ps {server} at {address}")
            for server, address in enumerate(cluster.ps)
        ]

    def snapshot(self) -> Publication:
        """Makes all servers write a snapshot, and waits for it.

        Raises:
          CheckpointError: a server could not write, or its file cannot be read here.
          UnreachableError: a server does not answer.
          ClusterConfigError: the job has no `checkpoint_dir`, or refuses this process.
          AuthenticationError: this process does not have the job's secret.
        """
        asked_at = time.time()
        told = [self._ask(server, 0, 0.0) for server in range(len(self._controls))]
        number = max(int(answer["next"]) for answer in told)
        root = self._root or str(told[0]["root"])
        for server in range(len(self._controls)):  # all begin before this waits for one
            self._ask(server, number, 0.0)
        for server in range(len(self._controls)):
            self._wait_for(server, number)
        self._root = root
        return _parts_of(root, number, len(self._controls), asked_at)

    def last(self) -> Publication:
        """Returns the last snapshot of servers that have ended; `snapshot` was called before.

        Raises:
          CheckpointError: it cannot be read here.
        """
        assert self._root is not None
        return publication.latest(self._root)

    def close(self) -> None:
        """Closes the connections."""
        for control in self._controls:
            control.close()

    def _wait_for(self, server: int, number: int) -> None:
        wait = Wait(_WRITE_TIMEOUT)
        while not wait.is_over:
            if self._ask(server, number, wait.poll())["status"] == "written":
                return
        raise CheckpointError(f"ps {server} did not finish snapshot {number} in time")

    def _ask(self, server: int, number: int, wait: float) -> dict:
        request = messages.SnapshotRequest(self._fingerprint, number, wait)
        answer = self._controls[server].call(
            messages.SNAPSHOT, request, max(wait, _ASK_WAIT), patient=False
        )
        if answer["status"] == "failed":
            raise CheckpointError(f"ps {server} wrote no snapshot: {answer['reason']}")
        return answer


class SnapshotFolder:
    """The `checkpoint_dir` of a training that writes snapshots at its own times.

    Args:
      root: the folder.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def snapshot(self) -> Publication:
        """Returns the latest complete snapshot.

        Raises:
          CheckpointError: there is none.
        """
        return publication.latest(self._root)

    last = snapshot

    def close(self) -> None:
        """Does nothing."""


def _parts_of(root: str, number: int, servers: int, as_of: float) -> Publication:
    parts = []
    for server in range(servers):
        folder = layout.directory(root, server, servers)
        about = snapshot.description(layout.path(folder, number, "npz"))
        if about.get("rows") is None:
            raise CheckpointError(f"{folder}: snapshot {number} has no embedding tables")
        parts.append(PublishedPart(folder, number, int(about["rows"])))
    return Publication(root, number, tuple(parts), as_of)
