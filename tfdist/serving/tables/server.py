"""A server of tables: it answers lookups in the rows of a snapshot, and follows later snapshots."""

from __future__ import annotations

import logging
import signal
import threading
import time

import tensorflow as tf

from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.control.held_calls import ClientContext
from tfdist.control.server import ControlServer
from tfdist.control.signing import data_key
from tfdist.errors import CheckpointError, ClusterConfigError
from tfdist.job.encryption import check_names, encrypt
from tfdist.ps.stats.rates import Reading
from tfdist.serving.tables import publication
from tfdist.serving.tables.messages import DESCRIBE, DescribeRequest
from tfdist.serving.tables.partitions import Partitions
from tfdist.serving.tables.server_group import ServerGroup

_log = logging.getLogger("tfdist.serving")
_EVENT_WAIT = 0.2


class TableServer:
    """One server of the tables of a snapshot.

    Args:
      root: the folder of the snapshot.
      group: all servers; this process is one of them.
      replicas: the number of servers that hold each row.
      settings: secret, TLS, data port, interface and memory.
      follow: seconds between two looks for a later snapshot; `None` serves the first one only.

    Raises:
      ClusterConfigError: there are fewer servers than replicas, or a certificate cannot be used.
      AddressInUseError: this server's port is taken.
      tf.errors.UnavailableError: a data port cannot be bound.
    """

    def __init__(
        self,
        root: str,
        group: ServerGroup,
        replicas: int,
        settings: Settings,
        follow: float | None = None,
    ) -> None:
        servers = len(group.workers)
        if not 1 <= replicas <= servers:
            raise ClusterConfigError(
                f"{group.task_name}: expected 1 to {servers} replicas, the number of servers, "
                f"received {replicas}"
            )
        check_names(group, settings)
        encrypt(settings, group.task_name)
        self._root = root
        self._group = group
        self._replicas = replicas
        self._settings = settings
        self._follow = follow
        self._stop = threading.Event()
        self._is_ready = threading.Event()
        self._refused: tuple[int, str] | None = None
        interface, self._host = interfaces.data_interface(group, settings)
        self._partitions = Partitions(
            group.task_index,
            servers,
            replicas,
            interface=interface,
            peer_memory=settings.peer_memory,
            memory=settings.ps_memory,
            port=settings.data_port,
        )
        try:
            self._control = ControlServer(
                group,
                settings.secret,
                {DESCRIBE: self._describe},
                interface=settings.interface,
                role="a server of tables",
                tls=settings.tls,
            )
        except BaseException:
            self._partitions.close()
            raise

    def serve(self) -> int:
        """Serves until SIGTERM or SIGINT, or `stop`.

        Returns:
          0 after `stop`, else 128 + the signal's number.

        Raises:
          CheckpointError: the folder has no usable snapshot.
          tf.errors.ResourceExhaustedError: the rows do not fit in memory.
        """
        received: list[int] = []

        def end(number: int, frame: object) -> None:
            received.append(number)
            self._stop.set()

        in_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        previous = {number: signal.signal(number, end) for number in numbers}
        try:
            self._load()
            if self._follow is not None:
                threading.Thread(target=self._keep_up, args=(self._follow,), daemon=True).start()
            while not self._stop.is_set():
                for event in self._partitions.events(_EVENT_WAIT):
                    level = logging.WARNING if event.kind == "log" else logging.DEBUG
                    _log.log(level, "%s: %s", self._group.task_name, event.text or event.kind)
            return 128 + received[0] if received else 0
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.close()

    def stop(self) -> None:
        """Ends `serve`, which another thread runs."""
        self._stop.set()

    def close(self) -> None:
        """Stops answering and frees the rows. May be called again."""
        self._stop.set()
        self._control.close()
        self._partitions.close()

    @property
    def number(self) -> int | None:
        """The number of the snapshot that is served; `None` before the first."""
        served = self._partitions.publication
        return None if served is None or not self._is_ready.is_set() else served.number

    def reading(self) -> Reading | None:
        """Returns the statistics of its rows and lookups; `None` before they are read."""
        return self._partitions.reading() if self._is_ready.is_set() else None

    @property
    def latest_snapshot(self) -> tuple[int, float] | None:
        """The number of the snapshot that is served, and the time of its writing."""
        served = self._partitions.publication
        if served is None or not self._is_ready.is_set():
            return None
        return served.number, served.written

    @property
    def task_master(self) -> None:
        """Deals out no data tasks."""

    def _load(self) -> None:
        began = time.monotonic()
        found = publication.latest(self._root)
        self._partitions.load(found)
        secret = self._settings.secret
        self._partitions.start(
            {
                partition: data_key(secret, "served table", str(partition), at.salt)
                for partition, at in self._partitions.addresses.items()
            }
        )
        self._is_ready.set()
        _log.warning(
            "%s at %s: serves %d rows of snapshot %d in %s, read in %.1f s",
            self._group.task_name,
            self._group.address,
            self._partitions.rows(),
            found.number,
            self._root,
            time.monotonic() - began,
        )

    def _keep_up(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self._look()
            except (CheckpointError, tf.errors.OpError, OSError) as error:
                if not self._stop.is_set():
                    self._refuse(error)

    def _look(self) -> None:
        served = self._partitions.publication
        found = publication.latest(self._root)
        if served is None:
            return
        if not found.is_after(served):
            if found.written > served.written:
                self._partitions.publication = found  # nothing has changed until then
            return
        began = time.monotonic()
        count = self._partitions.update(found)
        self._refused = None
        _log.warning(
            "%s: serves snapshot %d after %d, %d rows read in %.2f s",
            self._group.task_name,
            found.number,
            served.number,
            count,
            time.monotonic() - began,
        )

    def _refuse(self, error: Exception) -> None:
        """Logs an update that is refused, once for each reason."""
        told = (self.number or 0, str(error))
        if told != self._refused:
            self._refused = told
            _log.error(
                "%s: still serves snapshot %s, and refuses a later one: %s",
                self._group.task_name,
                told[0],
                error,
            )

    def _describe(self, request: DescribeRequest, context: ClientContext) -> dict[str, object]:
        if request.fingerprint != self._group.fingerprint:
            return {
                "status": "refused",
                "reason": f"expected the addresses of all {len(self._group.workers)} servers, in "
                "their order, received others",
            }
        if not self._is_ready.is_set():
            return {"status": "loading"}
        return {
            "status": "serving",
            "replicas": self._replicas,
            "snapshot": self.number,
            "root": self._root,
            "host": self._host,
            "tables": self._partitions.widths,
            "partitions": {
                str(partition): {
                    "port": at.port,
                    "salt": at.salt,
                    "incarnation": str(at.incarnation),
                }
                for partition, at in self._partitions.addresses.items()
            },
        }
