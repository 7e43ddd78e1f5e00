"""Serves this task's metrics over HTTP: `GET /metrics`, in Prometheus's text format.

The server listens on the task's own address. Other hosts can reach it unless that is a loopback
address; requests must then carry the job's token, see `signing.metrics_token`. A stranger gets one
request of a few kilobytes and a few seconds, and there is a maximum of connections.
"""

from __future__ import annotations

import hmac
import http.server
import io
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from typing import Any

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.control.signing import metrics_token
from tfdist.errors import AddressInUseError, ClusterConfigError
from tfdist.metrics.collector import Server
from tfdist.metrics.exposition import CONTENT_TYPE, Exposition, TaskCollector

_log = logging.getLogger("tfdist.metrics")
_MAX_CONNECTIONS = 32
_MAX_REQUEST = 16 * 1024  # bytes
# Seconds from the connection to the end of the request, and from there to the end of the answer.
_TIMEOUT = 5.0
_LOOPBACK = "127.0.0.1"


class Exporter:
    """An HTTP server for metrics, with threads of its own.

    Args:
      exposition: writes them.
      interface: the numeric address to listen on; "" for all of them.
      port: the port, or 0 for a free one.
      token: what requests must prove, or `None`.

    Attributes:
      port: the port.

    Raises:
      OSError: the port cannot be used.
    """

    def __init__(
        self, exposition: Exposition, interface: str, port: int, token: str | None
    ) -> None:
        self._server = _HttpServer(interface, port, exposition, token)
        self.port: int = self._server.server_address[1]
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tfdist-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving; may be called again."""
        if self._closed:
            return
        self._closed = True
        # Wakes the thread, which then cannot accept.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()

    def _run(self) -> None:
        # Unlike `serve_forever` it does not wake up between connections.
        while not self._closed:
            self._server.handle_request()


def serve(cluster: Cluster, settings: Settings, server: Server | None = None) -> Exporter:
    """Serves the metrics of this process's task.

    Args:
      cluster: the job.
      settings: with a `metrics_port`.
      server: of a `ps` task.

    Raises:
      ClusterConfigError: other hosts could reach the metrics, and there is no secret; or the task's
        port would be above 65535.
      AddressInUseError: the port is taken.
    """
    assert settings.metrics_port is not None
    name = cluster.task_name
    interface = _interface(cluster, settings)
    token = None
    if interface == interfaces.EVERY or not ipaddress.ip_address(interface).is_loopback:
        if settings.secret is None:
            raise ClusterConfigError(
                f"TFDIST_METRICS_PORT: {name} at {cluster.address} would show its metrics to every "
                "host that reaches it; expected a shared secret (TFDIST_SECRET_FILE), from which "
                "'tfdist metrics token' derives what Prometheus sends, received none"
            )
        token = metrics_token(settings.secret)
    port = settings.metrics_port and settings.metrics_port + cluster.place
    if port > 65535:
        raise ClusterConfigError(
            f"TFDIST_METRICS_PORT: expected a port of at most {65535 - cluster.place}, because "
            f"{name} listens {cluster.place} above it, received {settings.metrics_port}"
        )
    exposition = Exposition(TaskCollector(cluster, settings, server))
    try:
        exporter = Exporter(exposition, interface, port, token)
    except OSError as error:
        raise AddressInUseError(
            error.errno,
            f"{name}: cannot serve metrics on port {port}: {error.strerror}; expected "
            f"TFDIST_METRICS_PORT (received {settings.metrics_port}) and the ports after it, one "
            "for each task of the job, to be free",
        ) from None
    host = _LOOPBACK if cluster.address is None else cluster.address.rpartition(":")[0]
    # A port that the kernel has chosen is told nowhere else.
    level = logging.INFO if port else logging.WARNING
    _log.log(level, "%s: metrics at http://%s:%d/metrics", name, host, exporter.port)
    return exporter


def _interface(cluster: Cluster, settings: Settings) -> str:
    """Returns the numeric address to listen on: that of the task."""
    # A process alone, and an evaluator, need no address.
    if cluster.address is None:
        return _LOOPBACK
    return interfaces.interface(cluster, settings.secret, settings.interface)


class _HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(
        self, interface: str, port: int, exposition: Exposition, token: str | None
    ) -> None:
        self.exposition = exposition
        self.token = token
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        # Sockets for IPv6 take connections by IPv4, too, where a task listens on all addresses.
        on_all = interface == interfaces.EVERY
        dual = on_all and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual or ":" in interface else socket.AF_INET
        self._dual = dual
        super().__init__((interface, port), _Handler)

    def server_bind(self) -> None:
        if self._dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Of a connection that breaks; the request's own errors are answered and logged.
        _log.debug("a connection for metrics has failed", exc_info=True)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _HttpServer

    def setup(self) -> None:
        super().setup()
        # Read here, where the whole request has a deadline, and not each read of it.
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(_head(self.connection)))
        # A maximum for the whole answer.
        self.connection.settimeout(_TIMEOUT)

    def do_GET(self) -> None:
        if not self._is_authorized():
            self._answer(HTTPStatus.UNAUTHORIZED, b"expected the job's token\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, b"expected /metrics\n")
        else:
            try:
                text = self.server.exposition.text()
            except Exception:  # training goes on after any error
                _log.exception("the metrics of this task cannot be read")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log of the task\n")
            else:
                self._answer(HTTPStatus.OK, text, CONTENT_TYPE)

    def _is_authorized(self) -> bool:
        if self.server.token is None:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        # Bytes, because compare_digest refuses text that is not ASCII.
        same = hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self.server.token.encode()
        )
        return same and scheme.lower() == "bearer"

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "tfdist"

    def log_message(self, format: str, *args: Any) -> None:
        """Is silent: Prometheus asks every few seconds."""


def _head(connection: socket.socket) -> bytes:
    """Receives a request up to its empty line.

    Raises:
      TimeoutError: it is not complete in time.
      OSError: the connection breaks, or the request is too long.
    """
    deadline = time.monotonic() + _TIMEOUT
    received = b""
    while b"\r\n\r\n" not in received and b"\n\n" not in received:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request is incomplete")
        connection.settimeout(left)
        part = connection.recv(4096)
        received += part
        if not part or len(received) > _MAX_REQUEST:
            raise ConnectionError("the request is incomplete, or too long")
    return received
