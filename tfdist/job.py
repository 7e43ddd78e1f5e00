"""This process's membership in a job: it meets the other ranks once and stays to its end."""

from __future__ import annotations

import atexit
import os
import sys

from tfdist import world
from tfdist.cluster import Cluster, Settings
from tfdist.control import ControlPlane
from tfdist.errors import ClusterConfigError, NotInitializedError
from tfdist.ops import Communicator
from tfdist.ps import membership


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
        self._groups: list[Communicator] = []
        self.control = ControlPlane(cluster, settings)
        try:
            self.communicator = Communicator(cluster.rank, cluster.world_size, settings.data_port)
            try:
                self._connect(settings)
            except BaseException:
                self.communicator.close()
                raise
        except BaseException:
            self.control.close()
            raise

    def _connect(self, settings: Settings) -> None:
        host = self.cluster.address.rpartition(":")[0]
        membership = self.control.rendezvous(f"{host}:{self.communicator.port}")
        self.communicator.connect(
            membership.token,
            membership.generation,
            membership.addresses,
            settings.rendezvous_timeout,
        )

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
            world.enter(cluster)
            self._watch_for_exceptions()
            atexit.register(self.leave)
        return self._job

    def communicator(self, asked: str) -> Communicator:
        if self._job is not None:
            return self._job.communicator
        cluster = world.cluster(asked)
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


def adopt(group: Communicator) -> None:
    """Lets a group of some of the job's ranks end with the job."""
    _membership.adopt(group)


def leave() -> None:
    """Ends this process's membership, as the end of the program does."""
    _membership.leave()
