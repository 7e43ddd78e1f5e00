"""Serves this task's metrics over HTTP or HTTPS: `GET /metrics`, in Prometheus's text format.

The server listens on the task's own address. Other hosts can reach it unless that is a loopback
address; requests must then carry the job's token, see `signing.metrics_token`. `GET /state`, for
`tfdist top` and `tfdist dashboard`, always needs the token. A request without it must name a
loopback address or the task's own host: a page in a browser of this host is not to read metrics by
a name of its own that leads here.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
import json
import logging
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.config.tls import Tls
from tfdist.control import interfaces
from tfdist.control.signing import metrics_token
from tfdist.errors import AddressInUseError, ClusterConfigError
from tfdist.observe.metrics import last_state
from tfdist.observe.metrics.collector import Server
from tfdist.observe.metrics.exposition import CONTENT_TYPE, Exposition, TaskCollector
from tfdist.observe.metrics.http_server import BoundedHandler, BoundedServer, address_of
from tfdist.observe.metrics.state import EVENTS_SECONDS, STATE_PATH, task_state

_log = logging.getLogger("tfdist.observe.metrics")
_SECONDS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_LOOPBACK = "127.0.0.1"


class Exporter:
    """An HTTP server for metrics, with threads of its own.

    Args:
      exposition: writes them.
      interface: the numeric address to listen on; "" for all of them.
      port: the port, or 0 for a free one.
      token: the token that requests must prove, or `None`.
      is_local: whether only this host reaches it: metrics then need no token.
      host: the name of the task's own host, which requests without the token may use.
      state: returns the answer to `/state`, with the events of some seconds; `None` has none.
      at_end: called once before it closes, or by `end`.
      tls: the origin of its certificate; None serves plain HTTP.

    Attributes:
      port: the port.

    Raises:
      OSError: the port cannot be used.
    """

    def __init__(
        self,
        exposition: Exposition,
        interface: str,
        port: int,
        token: str | None,
        *,
        is_local: bool = False,
        host: str = "localhost",
        state: Callable[[float], dict] | None = None,
        at_end: Callable[[], None] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._server = _HttpServer(interface, port, exposition, token, is_local, host, state, tls)
        self._at_end = at_end
        self.port: int = self._server.server_address[1]
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tfdist-metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Keeps the last state of a task that is about to leave its job; it still answers."""
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            at_end()

    def close(self) -> None:
        """Stops serving; may be called again."""
        if self._closed:
            return
        self.end()
        self._closed = True
        # Wakes the thread, which then cannot accept.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()

    def _run(self) -> None:
        # Unlike `serve_forever` it does not wake up between connections.
        while not self._closed:
            self._server.handle_request()


def serve(cluster: Cluster, settings: Settings, server: Server | None = None) -> Exporter | None:
    """Serves the metrics of this process's task.

    Args:
      cluster: the job.
      settings: with a `metrics_port`.
      server: of a `ps` task.

    Returns:
      The server; `None` if the port is taken and was chosen by default (`metrics_by_default`).

    Raises:
      ClusterConfigError: other hosts could reach the metrics, and there is no secret; or the task's
        port would be above 65535.
      AddressInUseError: the port is taken.
    """
    assert settings.metrics_port is not None
    name = cluster.task_name
    interface = _interface(cluster, settings)
    is_local = interface != interfaces.EVERY and ipaddress.ip_address(interface).is_loopback
    if not is_local and settings.secret is None:
        raise ClusterConfigError(
            f"TFDIST_METRICS_PORT: {name} at {cluster.address} would show its metrics to every "
            "host that reaches it; expected a shared secret (TFDIST_SECRET_FILE), from which "
            "'tfdist metrics token' derives what Prometheus sends, received none"
        )
    token = None if settings.secret is None else metrics_token(settings.secret)
    port = _port(cluster, settings)
    exposition = Exposition(TaskCollector(cluster, settings, server))
    host = _LOOPBACK if cluster.address is None else cluster.address.rpartition(":")[0]
    state = functools.partial(task_state, cluster, settings, server)
    at_end = None
    if settings.state_dir is not None:
        folder = Path(settings.state_dir)
        at_end = functools.partial(last_state.leave, folder, name, lambda: state(EVENTS_SECONDS))
    try:
        exporter = Exporter(
            exposition,
            interface,
            port,
            token,
            # Unless the user has asked for metrics, other users of this host learn nothing.
            is_local=is_local and not settings.metrics_by_default,
            host=host,
            state=state,
            at_end=at_end,
            tls=settings.tls,
        )
    except OSError as error:
        if settings.metrics_by_default:
            _log.warning(
                "%s: serves no metrics, and is missing in 'tfdist top' and 'tfdist dashboard': "
                "port %d, which tfdist run has chosen: %s",
                *(name, port, error.strerror),
            )
            return None
        further = "" if settings.metrics_same_port else ", and the ports after it for other tasks,"
        raise AddressInUseError(
            error.errno,
            f"{name}: cannot serve metrics on port {port}: {error.strerror}; expected "
            f"TFDIST_METRICS_PORT (received {settings.metrics_port}){further} to be free",
        ) from None
    # A port that the kernel has chosen is told nowhere else.
    level = logging.INFO if port else logging.WARNING
    scheme = "http" if settings.tls is None else "https"
    _log.log(level, "%s: metrics at %s://%s:%d/metrics", name, scheme, host, exporter.port)
    return exporter


def _port(cluster: Cluster, settings: Settings) -> int:
    """Returns the port to listen on; 0 for any free one.

    Raises:
      ClusterConfigError: the task's port would be above 65535.
    """
    first = settings.metrics_port or 0
    if first == 0 or settings.metrics_same_port:
        return first
    if first + cluster.global_index > 65535:
        raise ClusterConfigError(
            f"TFDIST_METRICS_PORT: expected a port of at most {65535 - cluster.global_index}, "
            f"because {cluster.task_name} listens {cluster.global_index} above it, "
            f"received {first}"
        )
    return first + cluster.global_index


def _interface(cluster: Cluster, settings: Settings) -> str:
    """Returns the numeric address to listen on: the task's; EVERY for all addresses."""
    # A process alone, and an evaluator, need no address.
    if cluster.address is None:
        is_reachable = settings.metrics_same_port and not cluster.is_local
        return interfaces.EVERY if is_reachable else _LOOPBACK
    return interfaces.interface(cluster, settings.secret, settings.interface)


class _HttpServer(BoundedServer):
    def __init__(
        self,
        interface: str,
        port: int,
        exposition: Exposition,
        token: str | None,
        is_local: bool,
        host: str,
        state: Callable[[float], dict] | None,
        tls: Tls | None,
    ) -> None:
        self.exposition = exposition
        self.token = token
        self.is_local = is_local
        self.host = host.lower()
        self.state = state
        super().__init__(interface, port, _Handler, interface == interfaces.EVERY, tls)


class _Handler(BoundedHandler):
    server: _HttpServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_authorized(path):
            self.answer(
                HTTPStatus.UNAUTHORIZED,
                b"expected the job's token\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        elif not (self._carries_token() or self._is_from_here()):
            self.answer(
                HTTPStatus.FORBIDDEN,
                b"expected the job's token, or a request of no other site to localhost or a "
                b"loopback address\n",
            )
        elif path == "/metrics":
            self._answer_with(self.server.exposition.text, CONTENT_TYPE)
        elif path == STATE_PATH and self.server.state is not None:
            self._answer_with(lambda: self._state(query), "application/json")
        else:
            self.answer(HTTPStatus.NOT_FOUND, b"expected /metrics\n")

    def _state(self, query: str) -> bytes:
        assert self.server.state is not None
        texts = urllib.parse.parse_qs(query).get("events", [])
        # A text that is no number of seconds asks for no events.
        seconds = float(texts[0]) if texts and _SECONDS.fullmatch(texts[0]) else 0.0
        return json.dumps(self.server.state(seconds)).encode()

    def _answer_with(self, read: Callable[[], bytes], kind: str) -> None:
        try:
            body = read()
        except Exception:  # training continues after any error
            _log.exception("the metrics of this task cannot be read")
            self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log of the task\n")
        else:
            self.answer(HTTPStatus.OK, body, kind)

    def _is_authorized(self, path: str) -> bool:
        if path == STATE_PATH:
            # It has names of the script's and the loss: also other users of this host need a token.
            return self._carries_token()
        return self.server.is_local or self.server.token is None or self._carries_token()

    def _is_from_here(self) -> bool:
        """Whether a browser can have sent the request for no page of another site."""
        address = address_of(self.asked_host)
        is_ours = address is not None and address.is_loopback
        return (is_ours or self.asked_host == self.server.host) and not self.is_of_another_site

    def _carries_token(self) -> bool:
        if self.server.token is None:
            return False
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        # Bytes, because compare_digest refuses text that is not ASCII.
        same = hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self.server.token.encode()
        )
        return same and scheme.lower() == "bearer"
