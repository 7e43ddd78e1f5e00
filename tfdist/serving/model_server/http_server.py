"""The HTTP server: REST, health and metrics, with many requests on a connection.

Each connection has a thread. A client that is silent, or that sends or reads too slowly, is
disconnected, so that it cannot hold its thread.
"""

from __future__ import annotations

import http.server
import io
import logging
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable
from http import HTTPStatus

from tfdist.config.tls import Tls
from tfdist.errors import AddressInUseError
from tfdist.observe.metrics.http_server import BoundedServer
from tfdist.serving.model_server.call_error import ENDING
from tfdist.serving.model_server.in_progress import InProgress
from tfdist.serving.model_server.meters import CONTENT_TYPE
from tfdist.serving.model_server.rest import Reply, Rest, error_reply

_log = logging.getLogger("tfdist.serving")
# Seconds between two requests of a connection, for the head of one, and for the whole answer.
_IDLE, _HEAD, _ANSWER = 60.0, 10.0, 30.0
# A body may take as long as a head, and a second for each of so many bytes.
_SLOWEST = 1 << 20
_METRICS = ("/monitoring/prometheus/metrics", "/metrics")


class HttpServer:
    """Serves until closed.

    Args:
      rest: answers the paths of REST.
      is_ready: whether the server can answer requests.
      metrics: returns the metrics in Prometheus's format.
      host: the numeric address to listen on.
      port: the port, or 0 for a free one.
      max_bytes: of a request's body, also once it is uncompressed.
      tls: the origin of its certificate; None serves plain HTTP.
      wants_certificates: whether clients need a certificate of the same authority.

    Attributes:
      port: the port.

    Raises:
      AddressInUseError: the address cannot be used.
      ClusterConfigError: the certificate cannot be used.
    """

    def __init__(
        self,
        rest: Rest,
        is_ready: Callable[[], bool],
        metrics: Callable[[], bytes],
        host: str,
        port: int,
        *,
        max_bytes: int,
        tls: Tls | None = None,
        wants_certificates: bool = False,
    ) -> None:
        try:
            self._server = _Server(host, port, rest, is_ready, metrics, max_bytes, tls)
        except OSError as error:
            raise AddressInUseError(
                error.errno, f"cannot listen on {host}:{port} for HTTP: {error.strerror}"
            ) from None
        self._server.wants_certificates = wants_certificates
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="tfdist-http", daemon=True
        )
        self._thread.start()

    def close(self, grace: float) -> None:
        """Refuses new requests, and ends when all others are answered.

        Args:
          grace: the longest time (s) for that.
        """
        self._server.in_progress.end(grace)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(BoundedServer):
    max_connections = 256
    request_queue_size = 256

    def __init__(
        self,
        host: str,
        port: int,
        rest: Rest,
        is_ready: Callable[[], bool],
        metrics: Callable[[], bytes],
        max_bytes: int,
        tls: Tls | None,
    ) -> None:
        self.rest = rest
        self.is_ready = is_ready
        self.metrics = metrics
        self.max_bytes = max_bytes
        self.in_progress = InProgress()
        super().__init__(host, port, _Handler, False, tls)


class _Timed(io.RawIOBase):
    """Reads from a socket, and fails when the time for a part of the request is over."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ends = 0.0

    def allow(self, seconds: float) -> None:
        """Sets the time for all reads that follow."""
        self._ends = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request is incomplete")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"  # many requests on a connection
    wbufsize = 1 << 16  # the head and a small body of an answer are one packet

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._timed = _Timed(self.connection)
        self.rfile.close()
        self.rfile = self._buffered = io.BufferedReader(self._timed, 1 << 16)

    def handle_one_request(self) -> None:
        try:
            self._timed.allow(_IDLE)
            if not self._buffered.peek(1):
                self.close_connection = True
                return
            self._timed.allow(_HEAD)
            super().handle_one_request()
        except TimeoutError:
            self.close_connection = True

    def do_GET(self) -> None:
        """Answers health, metrics and REST."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._send(Reply(HTTPStatus.OK, b"ok\n", "text/plain"))
        elif path == "/readyz":
            ready = self.server.is_ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(Reply(status, b"ready\n" if ready else b"not ready\n", "text/plain"))
        elif path in _METRICS:
            self._send(Reply(HTTPStatus.OK, self.server.metrics(), CONTENT_TYPE))
        else:
            self._answer("GET", path, b"")

    def do_POST(self) -> None:
        """Answers REST."""
        body = self._body()
        if isinstance(body, Reply):
            # The rest of the request stays unread.
            self.close_connection = True
            self._send(body)
        else:
            self._answer("POST", self.path.partition("?")[0], body)

    def handle_expect_100(self) -> bool:
        """Lets a client send its body, unless that is too large."""
        refusal = self._refusal()
        if refusal is None:
            return super().handle_expect_100()
        self.close_connection = True
        self._send(refusal)
        return False

    def _answer(self, method: str, path: str, body: bytes) -> None:
        if not path.startswith("/v1/"):
            self._send(error_reply(HTTPStatus.NOT_FOUND, f"Not Found: {method} {path}"))
            return
        if self.server.in_progress.is_ending:
            self._send(error_reply(HTTPStatus.SERVICE_UNAVAILABLE, ENDING))
            return
        with self.server.in_progress:
            try:
                reply = self.server.rest.reply(method, path, body)
            except Exception:
                _log.exception("a request has failed: %s", path)
                reply = error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "see the server's log")
            self._send(reply)

    def _refusal(self) -> Reply | None:
        """Returns the reply to a request whose body cannot be read."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,18}", length):
            return error_reply(
                HTTPStatus.LENGTH_REQUIRED, "expected a body with the header Content-Length"
            )
        if int(length) > self.server.max_bytes:
            return self._too_large(f"{int(length)} bytes")
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "gzip"):
            return error_reply(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"expected the Content-Encoding identity or gzip, received {encoding!r}",
            )
        return None

    def _body(self) -> bytes | Reply:
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        length = int(self.headers["Content-Length"])
        self._timed.allow(_HEAD + length / _SLOWEST)
        body = self.rfile.read(length)
        if len(body) < length:
            raise TimeoutError("the client has left")
        if self.headers.get("Content-Encoding") != "gzip":
            return body
        return self._uncompressed(body)

    def _uncompressed(self, body: bytes) -> bytes | Reply:
        reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            whole = reader.decompress(body, self.server.max_bytes + 1)
        except zlib.error as error:
            return error_reply(HTTPStatus.BAD_REQUEST, f"expected a body in gzip: {error}")
        if len(whole) > self.server.max_bytes:
            return self._too_large("more when it is uncompressed")
        if not reader.eof:
            return error_reply(HTTPStatus.BAD_REQUEST, "expected a complete body in gzip")
        return whole

    def _too_large(self, received: str) -> Reply:
        return error_reply(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected a body of at most {self.server.max_bytes} bytes, received {received}",
        )

    def _send(self, reply: Reply) -> None:
        if self.server.in_progress.is_ending:
            self.close_connection = True
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.connection.settimeout(_ANSWER)
        self.end_headers()
        self.wfile.write(reply.body)
        self.wfile.flush()

    def version_string(self) -> str:
        return "tfdist"

    def log_message(self, format: str, *args: object) -> None:
        """Is silent: there may be thousands of requests a second."""
