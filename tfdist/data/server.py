"""The data tasks of a job: the dispatcher and the workers of TensorFlow's data service.

    training tasks  --registers a dataset-->  data_dispatcher  --task-->  data workers
          ^------------------------------ elements ----------------------------/

The servers are TensorFlow's own. This module starts them at the addresses of the cluster, keeps
them from the network where it can, and ends them with the job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import tensorflow as tf

from tfdist import _providers
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control.interfaces import host_of, is_loopback_name
from tfdist.control.waiting import Wait
from tfdist.errors import AddressInUseError, ClusterConfigError, RendezvousTimeoutError, TfdistError

_log = logging.getLogger("tfdist.data")
_PROTOCOL = "grpc"
_CONNECT_TIMEOUT = 2.0  # s
_PAUSE = 0.1  # s between attempts to reach a task that has not started
# Seconds between two looks at whether the job still runs.
_WATCH_INTERVAL = 1.0
# Seconds after a signal in which training may still take elements: it saves before it ends.
_SIGNAL_GRACE = 25.0
# A worker that is silent for this long is lost, and training stops asking it. TensorFlow's own
# values are 30 s and a minute.
_HEARTBEAT_MS, _WORKER_TIMEOUT_MS = 1000, 10_000


class DataTask:
    """The dispatcher or a worker of the data service, from its start to the job's end.

    Args:
      cluster: the job; this process is its `data_dispatcher` or a `data_worker`.
      settings: timeouts, and the directory of the dispatcher's journal.

    Raises:
      ClusterConfigError: this process is no data task.
      AddressInUseError: this task's port is taken.
      RendezvousTimeoutError: a worker could not reach the dispatcher in time.
      TfdistError: TensorFlow's server does not start.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        if not cluster.is_data_task:
            raise ClusterConfigError(
                f"expected a data_dispatcher or data_worker, received {cluster.task_name}"
            )
        assert cluster.address is not None
        self._cluster = cluster
        self._timeout = settings.rendezvous_timeout
        host, port = host_of(cluster.address), int(cluster.address.rpartition(":")[2])
        if cluster.task_type == "data_worker":
            # Before it listens, so that it does so only just before `_confine_to_loopback`.
            wait_for("data_dispatcher", cluster, self._timeout)
        _check_free(cluster.task_name, port)
        try:
            self._server = self._start(port, settings.data_service_dir)
        except RuntimeError as error:  # of TensorFlow's server, for any reason
            raise TfdistError(f"{cluster.task_name} at {cluster.address}: {error}") from error
        if not (is_loopback_name(host) and _confine_to_loopback(port)):
            _warn_of_open_port(cluster.task_name, port)

    def _start(
        self, port: int, work_dir: str | None
    ) -> tf.data.experimental.service.DispatchServer | tf.data.experimental.service.WorkerServer:
        service = tf.data.experimental.service
        if self._cluster.task_type == "data_dispatcher":
            return service.DispatchServer(
                service.DispatcherConfig(
                    port=port,
                    protocol=_PROTOCOL,
                    work_dir=work_dir,
                    fault_tolerant_mode=work_dir is not None,
                    worker_timeout_ms=_WORKER_TIMEOUT_MS,
                )
            )
        return service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=self._cluster.data_dispatcher[0],
                worker_address=self._cluster.address,
                port=port,
                protocol=_PROTOCOL,
                heartbeat_interval_ms=_HEARTBEAT_MS,
                dispatcher_timeout_ms=int(1000 * self._timeout),
            )
        )

    def serve(self) -> int:
        """Serves until the job has ended.

        Returns:
          The process's exit code: 0 after the job's end; 1 if rank 0 never came; 128 + the signal's
          number after SIGTERM or SIGINT.
        """
        received: list[int] = []
        wake = threading.Event()

        def stop(number: int, frame: object) -> None:
            received.append(number)
            wake.set()

        # Python lets only the main thread handle signals.
        in_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if in_main else ()
        previous = {n: signal.signal(n, stop) for n in numbers}
        try:
            code = self._wait_for_end(received, wake)
            return 128 + received[0] if received else code
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._server.stop()

    def _wait_for_end(self, received: list[int], wake: threading.Event) -> int:
        """Watches a task that listens as long as the job runs; a data service knows no end."""
        cluster = self._cluster
        watched = cluster.ps[0] if cluster.ps else cluster.training_addresses[0]
        name = "ps 0" if cluster.ps else cluster.name_of_rank(0)
        seen, last_seen, signalled_at = False, time.monotonic(), None
        while True:
            now = time.monotonic()
            if _accepts(watched):
                seen, last_seen = True, now
            elif received:
                return 0
            elif now - last_seen > self._timeout:
                if seen:
                    _log.info("%s: %s at %s has ended", cluster.task_name, name, watched)
                    return 0
                _log.error(
                    "%s: %s at %s never came: expected it within %g s",
                    cluster.task_name,
                    name,
                    watched,
                    self._timeout,
                )
                return 1
            if received:
                signalled_at = now if signalled_at is None else signalled_at
                if now - signalled_at > _SIGNAL_GRACE:
                    return 0
                time.sleep(_PAUSE)
            else:
                # A short job must not come and go unseen.
                wake.wait(_WATCH_INTERVAL if seen else _PAUSE)


def serve(cluster: Cluster, settings: Settings) -> NoReturn:
    """Serves as a data task until the job has ended, then ends this process.

    Args:
      cluster: the job.
      settings: as for `DataTask`.

    Raises:
      SystemExit: always; see `DataTask.serve` for its code.
    """
    task = DataTask(cluster, settings)
    with contextlib.ExitStack() as stack:
        if settings.metrics_port is not None:
            serve_metrics = _providers.provider("serve_metrics")
            exporter = serve_metrics(cluster, settings)
            if exporter is not None:
                stack.enter_context(contextlib.closing(exporter))
        raise SystemExit(task.serve())


def wait_for(role: str, cluster: Cluster, timeout: float) -> None:
    """Waits until all data tasks of a role listen. TensorFlow itself would wait without a word.

    Args:
      role: "data_dispatcher" or "data_worker".
      cluster: the job.
      timeout: seconds to wait.

    Raises:
      RendezvousTimeoutError: one does not listen at the deadline.
    """
    wait = Wait(timeout, pause=_PAUSE)
    for index, address in enumerate(cluster.as_dict()[role]):
        name = dataclasses.replace(cluster, task_type=role, task_index=index).task_name
        while not _accepts(address):
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{cluster.task_name}: expected {name} at {address} to listen within "
                    f"{timeout:g} s: check that task, or raise TFDIST_RENDEZVOUS_TIMEOUT"
                )
            if wait.is_log_due():
                _log.warning("%s: waiting for %s at %s", cluster.task_name, name, address)
            wait.pause()


def _accepts(address: str) -> bool:
    """Whether a task listens at "host:port"."""
    try:
        with socket.create_connection(
            (host_of(address), int(address.rpartition(":")[2])), _CONNECT_TIMEOUT
        ):
            return True
    except OSError:
        return False


def _check_free(name: str, port: int) -> None:
    """Raises AddressInUseError if another process listens on `port`; gRPC would share it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise AddressInUseError(
                error.errno,
                f"{name}: cannot listen on port {port}: {error.strerror}; expected it to be free, "
                "since the cluster gives it to this task",
            ) from None


def _confine_to_loopback(port: int) -> bool:
    """Makes this process's listeners on `port` ignore other machines; returns whether it could.

    TensorFlow's servers listen on all addresses, also where the cluster names one. Linux 5.7 and
    newer lets a process bind its sockets to a network device, also while they listen.
    """
    try:
        descriptors = list(_listeners(port))
        for descriptor in descriptors:
            with socket.socket(fileno=os.dup(descriptor)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError:
        return False
    return bool(descriptors)


def _listeners(port: int) -> Iterator[int]:
    """Yields the descriptors of this process that listen on TCP `port`."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            next(lines)
            for fields in map(str.split, lines):
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") in inodes:
                yield int(name)
        except FileNotFoundError:  # the descriptor of the listing itself
            continue


def _warn_of_open_port(name: str, port: int) -> None:
    _log.warning(
        "%s\n  %s: TensorFlow's data service listens on port %d of all addresses, and knows no"
        "\n  secret: any process that reaches it can read the data, and read and write files as"
        "\n  this user. Let only the tasks of this job reach it; see docs/operate/security.md.\n%s",
        "*" * 80,
        name,
        port,
        "*" * 80,
    )
