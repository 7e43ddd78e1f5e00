"""The connections of one process to the other ranks of its job."""

from __future__ import annotations

import logging
import os
import threading

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.control.signing import data_key
from tfdist.data.queue.master import TaskMaster
from tfdist.job.plane import ControlPlane
from tfdist.ops import Communicator
from tfdist.ops.trace import events

_log = logging.getLogger("tfdist")
_LOG_INTERVAL = 10.0  # s


class Job:
    """One rank of a job: its control plane and its communicators, from the rendezvous to the end.

    Args:
      cluster: the job; this process must be a chief or a worker.
      settings: timeouts, ports and the secret.

    Attributes:
      rank, size, addresses, is_leader, generation, communicator: as in `PeerGroup`.

    Raises:
      RendezvousTimeoutError: ranks were missing at the deadline.
      AuthenticationError: the tasks do not hold the same secret.
      AddressInUseError: this task's port is taken.
      tf.errors.OpError: the data connections could not be made.
    """

    is_elastic = False

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        assert cluster.rank is not None
        self.cluster = cluster
        self._pid = os.getpid()
        self.rank, self.size = cluster.rank, cluster.world_size
        self.addresses = cluster.training_addresses
        self.is_leader = self.rank == 0
        self._open = True
        self._closing = threading.Event()
        self._groups: list[Communicator] = []
        self._interface, self.data_host = interfaces.data_interface(cluster, settings)
        self._shared_memory = settings.peer_memory
        # Rank 0 deals out the job's data tasks.
        self.task_master = TaskMaster(cluster) if cluster.rank == 0 else None
        handlers = self.task_master.handlers if self.task_master is not None else {}
        self.control = ControlPlane(cluster, settings, handlers)
        try:
            self.communicator = Communicator(
                cluster.rank,
                cluster.world_size,
                settings.data_port,
                interface=self._interface,
                shared_memory=self._shared_memory,
            )
            try:
                self._connect(settings)
            except BaseException:
                self.communicator.close()
                raise
        except BaseException:
            self.control.close()
            raise
        threading.Thread(target=self._log_missing_ranks, name="tfdist-waiting", daemon=True).start()
        # Knows the last step of a job that is told to end; `None` without other ranks.
        self.stop_watch = None
        if cluster.world_size > 1:
            self.stop_watch = self.control.stop_watch(self.communicator.failed)

    def _connect(self, settings: Settings) -> None:
        with events.span("rendezvous", self.cluster.task_name):
            result = self.control.rendezvous(f"{self.data_host}:{self.communicator.port}")
            self._key = result.key
            self.communicator.connect(
                result.key,
                result.generation,
                result.addresses,
                settings.rendezvous_timeout,
                [self.cluster.name_of_rank(rank) for rank in range(self.cluster.world_size)],
            )
        self.generation = result.generation

    def _log_missing_ranks(self) -> None:
        while not self._closing.wait(_LOG_INTERVAL):
            for communicator in (self.communicator, *self._groups):
                line = communicator.waiting(_LOG_INTERVAL)
                if line is not None:
                    _log.warning("%s", line)

    def new_communicator(self, rank: int, size: int) -> Communicator:
        """Makes a communicator that listens on the same interface as this task's own."""
        return Communicator(
            rank, size, interface=self._interface, shared_memory=self._shared_memory
        )

    def key_of_group(self, salt: str) -> bytes:
        """Returns the key of a group's connections, which only ranks of this job can derive."""
        return data_key(self._key, "group", salt)

    def adopt(self, group: Communicator) -> None:
        """Makes a group of some of the ranks end with the job."""
        self._groups = [*(known for known in self._groups if not known.closed), group]

    def leave(self, failure: str | None = None) -> None:
        """Leaves the job; later calls, and calls in a forked child process, do nothing.

        Args:
          failure: the reason why this process ends before its work is done, which the other ranks
            receive at once. Without one this call waits for all ranks to finish, so that an early
            finisher does not break the others' last steps.
        """
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        self._closing.set()
        communicators = [self.communicator, *self._groups]
        if failure is not None:
            reason = f"rank {self.cluster.rank} ended with {failure}"[:400]
            for communicator in communicators:
                communicator.abort(reason)
        else:
            for communicator in communicators:
                communicator.leave()
            self.control.exit_barrier(still_alive=lambda: not self.communicator.failed())
            for sentence in self.task_master.unfinished() if self.task_master is not None else ():
                _log.warning("%s", sentence)
        for communicator in communicators:
            communicator.close()
        if self.stop_watch is not None:
            self.stop_watch.close()
        self.control.close()
