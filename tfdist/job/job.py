"""This process's membership in a job: it meets the other ranks once and stays to its end."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading

from tfdist.config.cluster import Cluster, Settings
from tfdist.control import ControlPlane, interfaces
from tfdist.control.signing import data_key
from tfdist.errors import ClusterConfigError, NotInitializedError
from tfdist.job import process
from tfdist.ops import Communicator
from tfdist.ps import membership

_log = logging.getLogger("tfdist")
_LINE_INTERVAL = 10.0  # s


class Job:
    """One process's place among the ranks of a job: its control plane and its communicator.

    Args:
      cluster: the job; this process must be a chief or a worker.
      settings: timeouts, ports and the secret.

    Raises:
      RendezvousTimeoutError: ranks were missing at the deadline.
      AuthenticationError: the tasks do not hold the same secret.
      AddressInUseError: this task's port is taken.
      tf.errors.OpError: the data connections could not be made.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self.cluster = cluster
        self._process = os.getpid()
        self._open = True
        self._closing = threading.Event()
        self._groups: list[Communicator] = []
        self._interface = interfaces.interface(cluster, settings.secret)
        self._shared_memory = settings.peer_memory
        self.control = ControlPlane(cluster, settings)
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
        threading.Thread(
            target=self._tell_who_is_waited_for, name="tfdist-waiting", daemon=True
        ).start()

    def _connect(self, settings: Settings) -> None:
        host = self.cluster.address.rpartition(":")[0]
        membership = self.control.rendezvous(f"{host}:{self.communicator.port}")
        self._key = membership.key
        self.communicator.connect(
            membership.key,
            membership.generation,
            membership.addresses,
            settings.rendezvous_timeout,
        )

    def _tell_who_is_waited_for(self) -> None:
        while not self._closing.wait(_LINE_INTERVAL):
            for communicator in (self.communicator, *self._groups):
                line = communicator.waiting(_LINE_INTERVAL)
                if line is not None:
                    _log.warning("%s", line)

    def new_communicator(self, rank: int, size: int) -> Communicator:
        """Makes a communicator that listens where this task's own does."""
        return Communicator(
            rank, size, interface=self._interface, shared_memory=self._shared_memory
        )

    def key_of_group(self, salt: str) -> bytes:
        """Returns the key of a group's connections, which only ranks of this job can derive."""
        return data_key(self._key, "group", salt)

    def adopt(self, group: Communicator) -> None:
        """Lets a group of some of the ranks end with the job."""
        self._groups = [*(known for known in self._groups if not known.closed), group]

    def leave(self, failure: str | None = None) -> None:
        """Ends the membership; called again, it does nothing.

        Args:
          failure: why this process ends before its work is done. The other ranks are told at once.
            Without one it waits until all have come to their end, so that an early finisher does
            not break the others.
        """
        if not self._open or os.getpid() != self._process:
            return
        self._open = False
        self._closing.set()
        communicators = [self.communicator, *self._groups]
        if failure is not None:
            for communicator in communicators:
                communicator.abort(failure)
        else:
            for communicator in communicators:
                communicator.leave()
            self.control.exit_barrier(still_alive=lambda: not self.communicator.failed())
        for communicator in communicators:
            communicator.close()
        self.control.close()


class _Membership:
    """The job of this process, if it has joined one: a process is one task."""

    def __init__(self) -> None:
        self._job: Job | None = None
        self._alone: Communicator | None = None
        self._failure: str | None = None

    def join(self, cluster: Cluster) -> Job:
        if self._job is not None and self._job.cluster != cluster:
            raise ClusterConfigError(
                f"this process has joined a job as {self._job.cluster.task_name} of "
                f"{self._job.cluster.as_dict()} and cannot join another as {cluster.task_name} of "
                f"{cluster.as_dict()}"
            )
        if self._job is None:
            self._job = Job(cluster, Settings.from_environment())
            process.enter(cluster)
            self._watch_for_exceptions()
            atexit.register(self.leave)
        return self._job

    def communicator(self, asked: str) -> Communicator:
        if self._job is not None:
            return self._job.communicator
        cluster = process.cluster(asked)
        if cluster.rank is None:
            raise NotInitializedError(
                f"{asked}: {cluster.task_name} does not train and takes part in no collective"
            )
        if cluster.world_size == 1:
            if self._alone is None:
                self._alone = Communicator(0, 1)
            return self._alone
        if membership.has_variables():
            raise NotInitializedError(
                f"{asked}: the workers of a ParameterServerStrategy are not connected to each other"
            )
        return self.join(cluster).communicator

    def new_communicator(self, rank: int, size: int) -> Communicator:
        return (
            Communicator(rank, size)
            if self._job is None
            else self._job.new_communicator(rank, size)
        )

    def key_of_group(self, salt: str) -> bytes:
        if self._job is None:
            raise NotInitializedError("a process that trains alone has no groups of several ranks")
        return self._job.key_of_group(salt)

    def adopt(self, group: Communicator) -> None:
        if self._job is not None:
            self._job.adopt(group)

    def leave(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.leave(self._failure)

    def _watch_for_exceptions(self) -> None:
        previous = sys.excepthook

        def note_failure(kind, error, trace):
            rank = self._job.cluster.rank if self._job is not None else "?"
            self._failure = f"rank {rank} ended with {kind.__name__}: {error}"[:400]
            previous(kind, error, trace)

        sys.excepthook = note_failure


_membership = _Membership()


def join(cluster: Cluster) -> Job:
    """Joins `cluster`'s job, or returns the membership this process has in it already.

    Raises:
      ClusterConfigError: this process belongs to another job.
      Exception: as `Job`.
    """
    return _membership.join(cluster)


def communicator(asked: str) -> Communicator:
    """Returns the ranks of this process's job, which it joins if it has not yet.

    Args:
      asked: what needs them, for messages.

    Raises:
      NotInitializedError: neither `tfdist.init()` nor a strategy has named a job, or this process
        does not train in it, or trains with parameter servers.
      Exception: as `Job`.
    """
    return _membership.communicator(asked)


def new_communicator(rank: int, size: int) -> Communicator:
    """Makes a communicator that listens where this process's own does."""
    return _membership.new_communicator(rank, size)


def key_of_group(salt: str) -> bytes:
    """Returns the key of a group's connections, which only ranks of the job can derive."""
    return _membership.key_of_group(salt)


def adopt(group: Communicator) -> None:
    """Lets a group of some of the job's ranks end with the job."""
    _membership.adopt(group)


def leave() -> None:
    """Ends this process's membership, as the end of the program does."""
    _membership.leave()
