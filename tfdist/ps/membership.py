"""A worker's membership in a parameter-server job, and a `ps` task's."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import threading
import time
from typing import NoReturn

import tensorflow as tf

from tfdist import ops
from tfdist.cluster import Cluster, Settings
from tfdist.control import wire
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.errors import CheckpointError, ClusterConfigError, RendezvousTimeoutError, TfdistError
from tfdist.ps import snapshot
from tfdist.ps.config import PsConfig
from tfdist.ps.serving import ServerTask, fingerprint

_log = logging.getLogger("tfdist.ps")
_LONG_POLL = 5.0
_RETRY_PAUSE = 0.2
_LOG_INTERVAL = 10.0


class Member:
    """One worker's connections to all parameter servers of its job.

    Args:
      cluster: the job; this process must be a chief or a worker.
      config: what all workers must agree on.
      settings: secret and timeouts.

    Raises:
      RendezvousTimeoutError: a server did not answer in time.
      ClusterConfigError: a server was given another cluster or configuration.
      AuthenticationError: the tasks do not hold the same secret.
    """

    def __init__(self, cluster: Cluster, config: PsConfig, settings: Settings) -> None:
        self.cluster = cluster
        self.config = config
        self._settings = settings
        self.closed = threading.Event()
        self._leaving = threading.Event()
        self.process = os.getpid()
        self._identity = secrets.randbits(63)
        self._control = [
            ControlClient(cluster, settings.secret, address, self._name(server))
            for server, address in enumerate(cluster.ps)
        ]
        self.client = ops.ParameterClient(
            cluster.rank,
            cluster.world_size,
            self._identity,
            len(cluster.ps),
            lend=settings.peer_memory,
        )
        try:
            for server in range(len(cluster.ps)):
                self._attach(server)
        except BaseException:
            self.close()
            raise
        self._keeper = threading.Thread(target=self._keep, name="tfdist-ps-keeper", daemon=True)
        self._keeper.start()

    def checkpoint(self) -> str:
        """Lets all servers write a snapshot, and records that they have.

        Returns:
          The manifest's path.

        Raises:
          ClusterConfigError: the job has no `checkpoint_dir`, or this is not the chief.
          CheckpointError: a server could not write; names it and the reason.
        """
        root = self.config.checkpoint_dir
        if root is None or not self.cluster.is_chief:
            raise ClusterConfigError(
                "checkpoint: expected the chief of a job with a checkpoint_dir, received "
                f"{self.cluster.task_name} with checkpoint_dir={root!r}"
            )
        self.client.flush(self._settings.rendezvous_timeout)
        number = snapshot.next_number(root, len(self.cluster.ps))
        # All begin before one is waited for. No threads: the interpreter may be about to end.
        for server in range(len(self.cluster.ps)):
            self._ask_to_save(server, number, wait=0.0)
        files = [self._save(server, number) for server in range(len(self.cluster.ps))]
        return snapshot.write_manifest(root, number, files)

    def leave(self, failure: bool = False) -> None:
        """Ends the membership.

        Args:
          failure: this process ends before its work is done, so that a new one may take its place.
        """
        if self.closed.is_set():
            return
        self._leaving.set()  # servers may be gone as soon as the last worker has left
        if not failure:
            self.client.leave(self._settings.exit_timeout)
        self.close()

    def close(self) -> None:
        """Closes all connections; may be called again."""
        self.closed.set()
        self.client.close()
        for control in self._control:
            control.close()

    def _attach(self, server: int) -> None:
        """Finds out a server's data address and connects; the server may still have to start."""
        timeout = self._settings.rendezvous_timeout
        name = self._name(server)
        deadline, next_log = time.monotonic() + timeout, time.monotonic() + _LOG_INTERVAL
        problem = "no answer yet"
        while not self.closed.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                raise RendezvousTimeoutError(
                    f"{self.cluster.task_name}: {name} was not there within {timeout:g} s: "
                    f"{problem}"
                )
            if time.monotonic() >= next_log:
                _log.warning("%s: waiting for %s (%s)", self.cluster.task_name, name, problem)
                next_log += _LOG_INTERVAL
            wait = min(_LONG_POLL, left)
            try:
                answer = self._control[server].call(
                    wire.ATTACH, self._request(wait), wait, patient=True
                )
                if answer["status"] == "attached":
                    return self._connect(server, answer, max(1.0, left))
                problem = "it reads its snapshot"
            except (UnreachableError, tf.errors.OpError) as error:
                problem = str(error)
                self.closed.wait(_RETRY_PAUSE)
        raise TfdistError(f"{self.cluster.task_name}: closed while it waited for {name}")

    def _request(self, wait: float) -> wire.Attach:
        return wire.Attach(
            protocol=wire.PROTOCOL,
            rank=self.cluster.rank,
            world_size=self.cluster.world_size,
            fingerprint=fingerprint(self.cluster),
            process=str(self._identity),
            config=self.config.text(),
            wait=wait,
        )

    def _connect(self, server: int, answer: dict, timeout: float) -> None:
        host = self.cluster.ps[server].rpartition(":")[0]
        token = bytes.fromhex(answer["token"])
        address = f"{host}:{answer['port']}"
        self.client.connect(server, address, token, int(answer["incarnation"]), timeout)

    def _save(self, server: int, number: int) -> dict[str, object]:
        deadline = time.monotonic() + self._settings.rendezvous_timeout
        while time.monotonic() < deadline:
            answer = self._ask_to_save(server, number, _LONG_POLL)
            if answer["status"] == "written":
                return {"file": answer["file"], "bytes": answer["bytes"]}
        raise CheckpointError(f"{self._name(server)} did not finish its snapshot in time")

    def _ask_to_save(self, server: int, number: int, wait: float) -> dict[str, object]:
        request = wire.Checkpoint(fingerprint(self.cluster), number, wait)
        try:
            answer = self._control[server].call(wire.CHECKPOINT, request, wait, patient=True)
        except UnreachableError as error:
            reason = str(error)
        else:
            if answer["status"] in ("written", "waiting"):
                return answer
            reason = answer["reason"]
        raise CheckpointError(f"{self._name(server)} did not write its snapshot: {reason}")

    def _name(self, server: int) -> str:
        return f"ps {server} at {self.cluster.ps[server]}"

    def _keep(self) -> None:
        """Connects again to servers whose connection broke, until this member leaves."""
        while not self.closed.is_set():
            server = self.client.wait_for_lost(1.0)
            if server is None or self._leaving.is_set() or self.closed.is_set():
                continue
            threading.Thread(target=self._return_to, args=(server,), daemon=True).start()

    def _return_to(self, server: int) -> None:
        name = self._name(server)
        _log.warning("%s: lost %s; connecting again", self.cluster.task_name, name)
        try:
            self._attach(server)
        except TfdistError as error:
            if not self.closed.is_set():
                self.client.give_up(server, str(error))
        else:
            _log.warning("%s: connected to %s again", self.cluster.task_name, name)


class LocalMember:
    """The only worker of a process that trains without a cluster, with a server of its own."""

    def __init__(self, cluster: Cluster, config: PsConfig) -> None:
        if config.checkpoint_dir is not None:
            raise ClusterConfigError(
                "ParameterServerStrategy: expected no checkpoint_dir without a cluster, received "
                f"{config.checkpoint_dir!r}: there is no ps task to write there"
            )
        self.cluster = cluster
        self.config = config
        self.closed = threading.Event()
        self.process = os.getpid()
        token = secrets.token_bytes(16)
        self._store = ops.ParameterServer(0, config)
        self._store.start(token)
        self.client = ops.ParameterClient(0, 1, secrets.randbits(63), servers=1)
        address = f"127.0.0.1:{self._store.port}"
        self.client.connect(0, address, token, self._store.incarnation, _LONG_POLL)

    def leave(self, failure: bool = False) -> None:
        """Closes the connection and the server."""
        self.closed.set()
        self.client.close()
        self._store.close()


class _Membership:
    """The job of this process, if it has joined one: a process is one task."""

    def __init__(self) -> None:
        self._member: Member | LocalMember | None = None
        self._failed = False

    def join(
        self, cluster: Cluster, config: PsConfig, checkpoint_every: float
    ) -> Member | LocalMember:
        if self._member is not None:
            if (self._member.cluster, self._member.config) != (cluster, config):
                raise ClusterConfigError(
                    f"this process has joined a job as {self._member.cluster.task_name} with "
                    f"{self._member.config} and cannot join another as {cluster.task_name} with "
                    f"{config}"
                )
            return self._member
        if cluster.is_local:
            self._member = LocalMember(cluster, config)
        else:
            self._member = Member(cluster, config, Settings.from_environment())
        self._watch_for_exceptions()
        atexit.register(self.leave)
        if cluster.is_chief and config.checkpoint_dir is not None:
            threading.Thread(
                target=self._checkpoint_every, args=(checkpoint_every,), daemon=True
            ).start()
        return self._member

    @property
    def cluster(self) -> Cluster | None:
        return None if self._member is None else self._member.cluster

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

    def _checkpoint(self, member: Member) -> None:
        try:
            member.checkpoint()
        except Exception as error:  # training goes on, and the snapshots before this one exist
            _log.error("%s: %s", member.cluster.task_name, error)

    def _watch_for_exceptions(self) -> None:
        previous = sys.excepthook

        def note_failure(kind, error, trace):
            self._failed = True
            previous(kind, error, trace)

        sys.excepthook = note_failure


_membership = _Membership()


def join(cluster: Cluster, config: PsConfig, checkpoint_every: float) -> Member | LocalMember:
    """Attaches to the parameter servers, or returns the membership that this process has.

    Raises:
      ClusterConfigError: this process belongs to another job, or asks for another strategy.
      Exception: as `Member`.
    """
    return _membership.join(cluster, config, checkpoint_every)


def joined() -> Cluster | None:
    """Returns the job that this process has joined as a worker, if it has."""
    return _membership.cluster


def leave() -> None:
    """Ends this process's membership, as the end of the program does."""
    _membership.leave()


def serve(cluster: Cluster) -> NoReturn:
    """Serves as a `ps` task until the job has ended, then ends this process.

    Raises:
      SystemExit: always; see `ServerTask.serve` for its code.
    """
    raise SystemExit(ServerTask(cluster, Settings.from_environment()).serve())
