"""Which parameter-server job this process belongs to, as a worker or as a `ps` task."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import NoReturn

from tfdist.config.cluster import Cluster, Settings
from tfdist.errors import ClusterConfigError
from tfdist.ps.config import PsConfig
from tfdist.ps.server import ServerTask
from tfdist.ps.stats.rates import Reading
from tfdist.ps.worker import LocalPsWorker, PsWorker

_log = logging.getLogger("tfdist.ps")


class _Membership:
    """The job of this process, if it has joined one: a process is one task."""

    def __init__(self) -> None:
        self._member: PsWorker | LocalPsWorker | None = None
        self._failed = False
        self.has_variables = False

    def join(
        self, cluster: Cluster, config: PsConfig, checkpoint_every: float
    ) -> PsWorker | LocalPsWorker:
        if self._member is not None:
            if (self._member.cluster, self._member.config) != (cluster, config):
                raise ClusterConfigError(
                    f"this process has joined a job as {self._member.cluster.task_name} with "
                    f"{self._member.config} and cannot join another as {cluster.task_name} with "
                    f"{config}"
                )
            return self._member
        if cluster.is_local:
            self._member = LocalPsWorker(cluster, config)
        else:
            self._member = PsWorker(cluster, config, Settings.from_environment())
        self._watch_for_failures()
        atexit.register(self.leave)
        if cluster.is_chief and config.checkpoint_dir is not None:
            threading.Thread(
                target=self._checkpoint_every, args=(checkpoint_every,), daemon=True
            ).start()
        return self._member

    @property
    def member(self) -> PsWorker | LocalPsWorker | None:
        return self._member

    @property
    def cluster(self) -> Cluster | None:
        return None if self._member is None else self._member.cluster

    def readings(self) -> list[Reading | None]:
        return [] if self._member is None else self._member.readings()

    def leave(self) -> None:
        member, self._member = self._member, None
        if member is None or member.process != os.getpid():
            return
        if member.cluster.is_chief and member.config.checkpoint_dir and not self._failed:
            self._checkpoint(member)
        member.leave(self._failed)

    def _checkpoint_every(self, seconds: float) -> None:
        member = self._member
        while not member.closed.wait(seconds):
            self._checkpoint(member)

    def _checkpoint(self, member: PsWorker) -> None:
        try:
            member.checkpoint()
        except Exception as error:  # training goes on, and the snapshots before this one exist
            _log.error("%s: %s", member.cluster.task_name, error)

    def _watch_for_failures(self) -> None:
        """Records whether the script fails; functions of `atexit` are not told."""
        excepthook, leave = sys.excepthook, sys.exit

        def note_exception(kind, error, trace):
            self._failed = True
            excepthook(kind, error, trace)

        def note_exit(status=None, /):
            if threading.current_thread() is threading.main_thread():
                self._failed = status not in (None, 0)
            leave(status)

        sys.excepthook, sys.exit = note_exception, note_exit


_membership = _Membership()


def join(
    cluster: Cluster, config: PsConfig, checkpoint_every: float, variables: bool = True
) -> PsWorker | LocalPsWorker:
    """Attaches to the parameter servers, or returns the membership that this process has.

    Args:
      cluster: the job.
      config: what all workers must agree on.
      checkpoint_every: seconds between snapshots.
      variables: whether the servers hold the models' variables, or only embeddings' tables.

    Raises:
      ClusterConfigError: this process belongs to another job, or asks for another strategy.
      Exception: as `PsWorker`.
    """
    member = _membership.join(cluster, config, checkpoint_every)
    _membership.has_variables = _membership.has_variables or variables
    return member


def with_others() -> PsWorker | None:
    """Returns this process's membership, if it is one of several workers."""
    member = _membership.member
    several = isinstance(member, PsWorker) and member.config.workers > 1
    return member if several else None


def joined() -> Cluster | None:
    """Returns the job that this process has joined as a worker, if it has."""
    return _membership.cluster


def has_variables() -> bool:
    """Whether servers hold this process's variables, not only embeddings' tables."""
    return _membership.has_variables


def readings() -> list[Reading | None]:
    """Returns what each server of this process's job tells of itself; see `server_stats`."""
    return _membership.readings()


def leave() -> None:
    """Ends this process's membership, as the end of the program does."""
    _membership.leave()


def serve(cluster: Cluster, checkpoint_dir: str | None = None) -> NoReturn:
    """Serves as a `ps` task until the job has ended, then ends this process.

    Args:
      cluster: the job.
      checkpoint_dir: where snapshots go; `None`: to `TFDIST_CHECKPOINT_DIR`, or nowhere.

    Raises:
      SystemExit: always; see `ServerTask.serve` for its code.
    """
    raise SystemExit(ServerTask(cluster, Settings.from_environment(), checkpoint_dir).serve())
