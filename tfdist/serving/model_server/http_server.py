"""The HTTP server: REST, health and metrics, with many requests on a connection.

Each connection has a thread, and there is a maximum of them. A client that is silent, or that sends
or reads too slowly, is disconnected, so that it cannot hold its thread; at the maximum the
connection that has been silent longest gives way to a new client. All errors are JSON, also errors
of HTTP itself.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import logging
import re
import select
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http import HTTPStatus

from tfdist.config.tls import Tls
from tfdist.errors import AddressInUseError
from tfdist.observe.metrics.http_server import BoundedServer
from tfdist.serving.model_server.call_error import ENDING
from tfdist.serving.model_server.chunked import BodyTooLarge, ChunkError, read_chunks
from tfdist.serving.model_server.in_progress import InProgress
from tfdist.serving.model_server.meters import CONTENT_TYPE
from tfdist.serving.model_server.rest import Reply, Rest, error_reply

_log = logging.getLogger("tfdist.serving")
# Seconds between two requests of a connection, for the head of one, and for the whole answer.
_IDLE, _HEAD, _ANSWER = 60.0, 10.0, 30.0
# A connection that has been silent for so many seconds may give way to a new one, and seconds in
# which it does so. A shorter silence may be the time between two requests.
_SILENT, _GIVES_WAY = 1.0, 1.0
# Seconds in which the rest of a refused request is read: with unread bytes the kernel would drop
# the answer.
_REST = 2.0
# A body may take as long as a head, and a second for each of so many bytes.
_SLOWEST = 1 << 20
_METRICS = ("/monitoring/prometheus/metrics", "/metrics")


class HttpServer:
    """Serves until closed.

    Args:
      rest: answers the paths of REST.
      is_ready: whether the server can answer requests.
      is_ending: whether the server ends soon: clients are to connect elsewhere.
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
        is_ending: Callable[[], bool],
        metrics: Callable[[], bytes],
        host: str,
        port: int,
        *,
        max_bytes: int,
        tls: Tls | None = None,
        wants_certificates: bool = False,
    ) -> None:
        try:
            self._server = _Server(host, port, rest, max_bytes, tls)
        except OSError as error:
            raise AddressInUseError(
                error.errno, f"cannot listen on {host}:{port} for HTTP: {error.strerror}"
            ) from None
        self._server.is_ready = is_ready
        self._server.is_ending = is_ending
        self._server.metrics = metrics
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
    is_ready: Callable[[], bool]
    is_ending: Callable[[], bool]
    metrics: Callable[[], bytes]

    def __init__(self, host: str, port: int, rest: Rest, max_bytes: int, tls: Tls | None) -> None:
        self.rest = rest
        self.max_bytes = max_bytes
        self.in_progress = InProgress()
        self.silent = _Silent()
        super().__init__(host, port, _Handler, False, tls)

    def has_room(self) -> bool:
        """Whether there is room for a further connection, if necessary for a silent one's."""
        if super().has_room():
            return True
        return self.silent.end_longest() and self._free.acquire(timeout=_GIVES_WAY)


class _Silent:
    """The connections whose clients are to send something; may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}

    @contextlib.contextmanager
    def waiting(self, connection: socket.socket) -> Iterator[None]:
        """Notes that a thread waits for a client."""
        with self._lock:
            self._since[connection] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._since.pop(connection, None)

    def end_longest(self) -> bool:
        """Ends the connection that has been silent longest; returns whether there is one."""
        before = time.monotonic() - _SILENT
        with self._lock:
            for connection in sorted(self._since, key=self._since.__getitem__):
                if self._since[connection] > before:
                    return False
                # Its thread may not yet have seen what has just arrived.
                if not _has_bytes(connection):
                    del self._since[connection]
                    with contextlib.suppress(OSError):
                        # Without TLS's own `shutdown`, under which its thread would still read.
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
                    return True
        return False


def _has_bytes(connection: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class _Timed(io.RawIOBase):
    """Reads from a socket, and fails when the time for a part of the request is over."""

    def __init__(self, connection: socket.socket, silent: _Silent) -> None:
        self._connection = connection
        self._silent = silent
        self._ends = 0.0

    def allow(self, seconds: float) -> None:
        """Sets the time for all reads that follow."""
        self._ends = time.monotonic() + seconds

    def allow_more(self, seconds: float) -> None:
        """Adds to the time for all reads that follow."""
        self._ends += seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request is incomplete")
        self._connection.settimeout(left)
        with self._silent.waiting(self._connection):
            return self._connection.recv_into(buffer)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"  # many requests on a connection
    default_request_version = "HTTP/1.0"  # of a damaged line: its error has a head
    _may_be_answered = True  # whether the request came before the end of the server began
    _leaves_rest = False  # whether a part of the request stays unread
    wbufsize = 1 << 16  # the head and a small body of an answer are one packet

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self._timed = _Timed(self.connection, self.server.silent)
        self.rfile.close()
        self.rfile = self._buffered = io.BufferedReader(self._timed, 1 << 16)

    def handle_one_request(self) -> None:
        try:
            self._timed.allow(_IDLE)
            if not self._buffered.peek(1):
                self.close_connection = True
                return
            self._timed.allow(_HEAD)
            with self.server.in_progress.request() as self._may_be_answered:
                super().handle_one_request()
        except TimeoutError:
            self.close_connection = True

    def do_GET(self) -> None:
        """Answers health, metrics and REST."""
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self._leaves_rest = True  # a body, which would be taken for the next request
        path = _path_of(self.path)
        if path == "/healthz":
            self._send(Reply(HTTPStatus.OK, b"ok\n", "text/plain"))
        elif path == "/readyz":
            ready = self.server.is_ready()
            status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(Reply(status, b"ready\n" if ready else b"not ready\n", "text/plain"))
        elif path in _METRICS:
            self._send(Reply(HTTPStatus.OK, self.server.metrics(), CONTENT_TYPE))
        else:
            self._answer(self.command, path, b"")

    # Of REST only GET and POST have a meaning: the others are refused as by TensorFlow Serving.
    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def do_POST(self) -> None:
        """Answers REST."""
        body = self._body()
        if isinstance(body, Reply):
            self._send(body)
        else:
            self._answer("POST", _path_of(self.path), body)

    def handle_expect_100(self) -> bool:
        """Lets a client send its body, unless that is too large."""
        refusal = self._refusal()
        if refusal is None:
            may_continue = super().handle_expect_100()
            self.wfile.flush()  # else the client waits for it
            return may_continue
        self.close_connection = True
        self._send(refusal)
        return False

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers a request that is none of HTTP, in JSON as all others."""
        self._leaves_rest = True
        status = HTTPStatus(code)
        self._send(error_reply(status, message or status.phrase))

    def finish(self) -> None:
        """Ends the connection; the answer to a request with unread bytes still arrives."""
        with contextlib.suppress(OSError):  # the client has left
            self.wfile.flush()
            if self._leaves_rest:
                self._timed.allow(_REST)
                if not isinstance(self.connection, ssl.SSLSocket):
                    self.connection.shutdown(socket.SHUT_WR)
                while self._buffered.read1(1 << 16):
                    pass
        super().finish()

    def _answer(self, method: str, path: str, body: bytes) -> None:
        if not path.lower().startswith("/v1/"):
            self._send(error_reply(HTTPStatus.NOT_FOUND, f"Not Found: {method} {path}"))
            return
        if not self._may_be_answered:
            self._send(error_reply(HTTPStatus.SERVICE_UNAVAILABLE, ENDING))
            return
        try:
            reply = self.server.rest.reply(method, path, body)
        except Exception:
            _log.exception("a request has failed: %s", path)
            reply = error_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "see the server's log")
        self._send(reply)

    def _refusal(self) -> Reply | None:
        """Returns the reply to a request whose body cannot be read."""
        refusal = self._refusal_of_chunks() if self._is_chunked else self._refusal_of_length()
        if refusal is not None:
            return refusal
        encoding = self.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "gzip"):
            return error_reply(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"expected the Content-Encoding identity or gzip, received {encoding!r}",
            )
        return None

    @property
    def _is_chunked(self) -> bool:
        return "Transfer-Encoding" in self.headers

    def _refusal_of_length(self) -> Reply | None:
        lengths = set(self.headers.get_all("Content-Length", []))
        length = lengths.pop() if len(lengths) == 1 else ""
        if not re.fullmatch("[0-9]{1,18}", length):
            return error_reply(
                HTTPStatus.LENGTH_REQUIRED,
                "expected a body with one header Content-Length, or Transfer-Encoding: chunked",
            )
        if int(length) > self.server.max_bytes:
            return self._too_large(f"{int(length)} bytes")
        return None

    def _refusal_of_chunks(self) -> Reply | None:
        encodings = self.headers.get_all("Transfer-Encoding", [])
        if [encoding.strip().lower() for encoding in encodings] != ["chunked"]:
            received = ", ".join(encodings)
            return error_reply(
                HTTPStatus.NOT_IMPLEMENTED,
                f"expected the Transfer-Encoding chunked, received {received[:100]!r}",
            )
        # A proxy could find another end of such a request.
        if "Content-Length" in self.headers or self.request_version == "HTTP/1.0":
            return error_reply(
                HTTPStatus.BAD_REQUEST,
                "expected chunks in a request of HTTP/1.1 without Content-Length",
            )
        return None

    def _body(self) -> bytes | Reply:
        refusal = self._refusal()
        if refusal is not None:
            self._leaves_rest = True
            return refusal
        body = self._chunks() if self._is_chunked else self._counted_bytes()
        if isinstance(body, Reply) or self.headers.get("Content-Encoding") != "gzip":
            return body
        return self._uncompressed(body)

    def _counted_bytes(self) -> bytes:
        length = int(self.headers["Content-Length"])
        self._timed.allow(_HEAD + length / _SLOWEST)
        body = self.rfile.read(length)
        if len(body) < length:
            raise TimeoutError("the client has left")
        return body

    def _chunks(self) -> bytes | Reply:
        self._timed.allow(_HEAD)
        try:
            return read_chunks(
                self._buffered,
                self.server.max_bytes,
                lambda size: self._timed.allow_more(size / _SLOWEST),
            )
        except BodyTooLarge:
            refusal = self._too_large("more in chunks")
        except ChunkError as error:
            refusal = error_reply(HTTPStatus.BAD_REQUEST, str(error))
        except EOFError:
            raise TimeoutError("the client has left") from None
        self._leaves_rest = True
        return refusal

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
        if self._leaves_rest or self.server.is_ending():
            self.close_connection = True
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.connection.settimeout(_ANSWER)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.wfile.flush()

    def version_string(self) -> str:
        return "tfdist"

    def log_message(self, format: str, *args: object) -> None:
        """Is silent: there may be thousands of requests a second."""


def _path_of(target: str) -> str:
    """Returns the path of a request's target, which also names the server if a proxy asks."""
    return re.sub("^https?://[^/?#]*", "", target, flags=re.IGNORECASE).partition("?")[0]
