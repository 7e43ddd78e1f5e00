"""Embedding tables without `ps` tasks: every worker also serves a share of the rows.

Each worker of the job runs a parameter server in its process, and is connected to the servers of
all workers, as to `ps` tasks. The server of worker r owns the rows whose ids hash to r, with their
slots and their optimizer. A step of two workers:

    worker 0                         worker 1
       |-- ids of its batch, each once --> owner: worker 0, worker 1     (all-to-all)
       |<------------- rows ------------- owner
       |   forward, backward, sum of the gradients of each id
       |------ ids and gradients -------> owner                          (all-to-all)
                                          adds the workers' sums, then one step of the optimizer

A worker sends and receives the rows of its own batch alone. With u distinct ids of width d a step
moves u (16 + 8 d) bytes, of which (N - 1) / N between workers: this is the hybrid parallelism of
Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation
Systems".

The rows of a worker that dies are lost with it, so the other workers' steps fail at once.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable

from tfdist import _providers
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.waiting import Wait
from tfdist.ops import Communicator
from tfdist.ps.config import PsConfig
from tfdist.ps.server import ServerTask
from tfdist.ps.worker import PsWorker

# Seconds in which the reason of a worker's end, or a server's last snapshot, is waited for.
_REASON_WAIT, _END_WAIT = 1.0, 600.0
# Seconds between two looks.
_PAUSE = 0.02


class HostingPsWorker(PsWorker):
    """A worker, and the server of its share of the rows.

    All workers make it at the same time.

    Args:
      cluster: the job, without `ps` tasks; this process must be a chief or a worker.
      config: the configuration that all workers must agree on.
      settings: secret and timeouts. The server listens on ports of its own.
      communicator: the workers; `None` for a job of one.
      exchange: sends a text to all workers, and returns the texts of all, by rank.

    Raises:
      Exception: as for `PsWorker` and `ServerTask`.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: PsConfig,
        settings: Settings,
        communicator: Communicator | None,
        exchange: Callable[[str], list[str]],
    ) -> None:
        assert cluster.rank is not None and cluster.address is not None
        self._communicator = communicator
        self._saves = True
        (port,) = _providers.provider("free_ports")(1)
        host = cluster.address.rpartition(":")[0]
        served = dataclasses.replace(cluster, ps=tuple(exchange(f"{host}:{port}")))
        own = dataclasses.replace(served, task_type="ps", task_index=cluster.rank)
        self._task = ServerTask(
            own, dataclasses.replace(settings, data_port=0), config.checkpoint_dir
        )
        self._serving = threading.Thread(
            target=self._task.serve, name="tfdist-ps-serve", daemon=True
        )
        self._serving.start()
        try:
            super().__init__(served, config, settings)
            exchange("connected")  # a server does not end before all workers have come
        except BaseException:
            self._task.stop(saves=False)
            raise

    def leave(self, failure: bool = False) -> None:
        """As `PsWorker.leave`; the server continues until `end`.

        Args:
          failure: as in `PsWorker.leave`. The server will write no snapshot.
        """
        self._saves = self._saves and not failure
        super().leave(failure)

    def end(self) -> None:
        """Ends the server: the other workers have also left, or have failed."""
        if os.getpid() == self._pid:
            self._task.stop(self._saves)
            self._serving.join(_END_WAIT)

    def _return_to(self, server: int) -> None:
        """Fails all pending and later requests: the rows of a lost worker do not come back."""
        why = f"{self._name(server)} is lost, and with it its rows of the embedding tables"
        reason = self._reason()
        for each in range(self.client.servers):
            self.client.give_up(each, why + reason)

    def _reason(self) -> str:
        """Returns the reason that the lost worker has given to the others; empty without one."""
        if self._communicator is None:
            return ""
        wait = Wait(_REASON_WAIT, self.closed, pause=_PAUSE)
        while not (self._communicator.failed() or wait.is_over or wait.is_closed):
            wait.pause()
        failure = self._communicator.describe()["failure"]
        return "" if failure is None else f": {failure}"

    def _name(self, server: int) -> str:
        return f"the server in {self.cluster.describe_rank(server)}"
