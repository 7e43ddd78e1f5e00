"""An HTTP server that strangers can do little to: the base of the metrics' and the dashboard's.

A client gets one request of a few kilobytes and a few seconds, and there is a maximum of
connections.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import ipaddress
import logging
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from tfdist.config.tls import Tls

if TYPE_CHECKING:
    from tfdist.control.tls.credentials import Credentials

_log = logging.getLogger("tfdist.observe.metrics")
_MAX_CONNECTIONS = 32
_MAX_REQUEST = 16 * 1024  # bytes
# Seconds from the connection to the end of the request, and from there to the end of the answer.
_TIMEOUT = 5.0
# Such as a browser shows: a plain request to a server with TLS.
_WANTS_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n"
    b"This task encrypts its connections (TFDIST_TLS): expected https, received plain http.\n"
)
# No page of another site gets an answer to read, to run or to embed.
_HEADERS = {
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class BoundedServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves each connection in a thread of its own, up to a maximum of them.

    Args:
      interface: the numeric address to listen on.
      port: the port, or 0 for a free one.
      handler: answers a request.
      on_all: whether the address stands for all addresses of this host.
      tls: the origin of its certificate; None serves plain HTTP.

    Attributes:
      max_connections: others are closed at once.
      wants_certificates: whether clients need a certificate of the same authority.

    Raises:
      OSError: the port cannot be used.
      ClusterConfigError: the certificate cannot be used.
    """

    max_connections = _MAX_CONNECTIONS
    wants_certificates = False
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(
        self,
        interface: str,
        port: int,
        handler: type[http.server.BaseHTTPRequestHandler],
        on_all: bool = False,
        tls: Tls | None = None,
    ) -> None:
        self._credentials: Credentials | None = None
        if tls is not None:
            from tfdist.control.tls.credentials import credentials_of  # needs an extra

            self._credentials = credentials_of(tls)
        self._free = threading.BoundedSemaphore(self.max_connections)
        # Sockets for IPv6 also take connections by IPv4 where a task listens on all addresses.
        dual = on_all and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual or ":" in interface else socket.AF_INET
        self._dual = dual
        super().__init__((interface, port), handler)

    def server_bind(self) -> None:
        if self._dual:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if not self.has_room():
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def has_room(self) -> bool:
        """Takes the place of a connection; returns whether there is one."""
        return self._free.acquire(blocking=False)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        if self._credentials is None:
            super().finish_request(request, client_address)
            return
        assert isinstance(request, socket.socket)
        # The whole handshake has this time.
        request.settimeout(_TIMEOUT)
        context = self._credentials.context(server=True)
        if self.wants_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
        with context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        ) as encrypted:
            try:
                encrypted.do_handshake()
            except ssl.SSLError as error:
                _log.info("a connection without TLS 1.3: %s", error.reason)
                if error.reason == "HTTP_REQUEST":
                    with socket.socket(fileno=encrypted.detach()) as plain:
                        plain.sendall(_WANTS_TLS)
                        # With unread bytes the kernel would drop the answer.
                        plain.shutdown(socket.SHUT_WR)
                        plain.recv(_MAX_REQUEST)
                return
            super().finish_request(encrypted, client_address)
            # The end of the answer, which cannot be forged.
            with contextlib.suppress(OSError):
                encrypted.unwrap()

    def handle_error(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        # Of a connection that breaks; the request's own errors are answered and logged.
        _log.debug("a connection has failed", exc_info=True)


class BoundedHandler(http.server.BaseHTTPRequestHandler):
    """Reads one request, and answers it; subclasses have `do_GET`."""

    def setup(self) -> None:
        super().setup()
        # Read here, where the whole request has a deadline, and not each read of it.
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(_head(self.connection)))
        # A maximum for the whole answer.
        self.connection.settimeout(_TIMEOUT)

    def answer(
        self,
        status: HTTPStatus,
        body: bytes,
        kind: str = "text/plain",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends an answer.

        Args:
          status: its status.
          body: its body.
          kind: the body's media type.
          headers: further headers.
        """
        self.send_response(status)
        for name, value in {**_HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @property
    def asked_host(self) -> str:
        """The host that the request names, without its port; empty if there is none."""
        return re.sub(r":[0-9]*$", "", self.headers.get("Host", "")).lower()

    @property
    def is_of_another_site(self) -> bool:
        """Whether a browser says that a page of another site asks."""
        return self.headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site"

    def version_string(self) -> str:
        return "tfdist"

    def log_message(self, format: str, *args: object) -> None:
        """Is silent: programs ask every few seconds."""


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address that a host in a request is; `None` for a name.

    A name may lead anywhere: a page of its owner's can make it lead to this server after the
    browser has loaded the page ("DNS rebinding"). An address, and "localhost", lead to one place.
    """
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        return ipaddress.ip_address(re.sub(r"^\[(.*)\]$", r"\1", host))
    except ValueError:
        return None


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
