"""The server of metrics: its answers to Prometheus, and to strangers."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import time

import pytest

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.control.signing import metrics_token
from tfdist.errors import AddressInUseError, ClusterConfigError, OpLibraryError
from tfdist.launch.ports import free_range
from tfdist.observe.live.records import ReportedState
from tfdist.observe.metrics import http_server
from tfdist.observe.metrics.exporter import Exporter, serve
from tfdist.observe.metrics.last_state import leave, path_of

SECRET = b"a secret of sixteen"
PORT = 5


class Text:
    """In place of an `Exposition`."""

    def __init__(self, text=b"tfdist_steps_total 3\n"):
        self._text = text

    def text(self):
        if self._text is None:
            raise RuntimeError("of the test")
        return self._text


@contextlib.contextmanager
def serving(text=b"tfdist_steps_total 3\n", token=None):
    server = Exporter(Text(text), "127.0.0.1", 0, token)
    try:
        yield server
    finally:
        server.close()


def ask(server, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_prometheus_gets_text():
    with serving() as server:
        status, text, headers = ask(server)
        assert (status, text) == (200, "tfdist_steps_total 3\n")
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert headers["Server"] == "tfdist"
        # As Prometheus's `params` ask.
        assert ask(server, "/metrics?name=x")[0] == 200


@pytest.mark.parametrize("path", ["/", "/metrics/", "/other", "http://127.0.0.1/metrics"])
def test_nothing_else_is_served(path):
    with serving() as server:
        assert ask(server, path)[0] == 404


def raw(server, *lines):
    """Sends a request as it stands; returns all of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        answer = b""
        while part := connection.recv(4096):
            answer += part
    return answer.decode()


def test_names_that_were_led_here_are_refused():
    """A page of rebound.example, whose name now leads to this machine, must not read metrics."""
    token = metrics_token(SECRET)
    hosts = ("rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example")
    others = (*hosts, "10.0.0.7", "127.0.0.1@rebound.example", "[::1", "[::1x", "")
    server = serve(cluster_at("127.0.0.1"), Settings(metrics_port=0, secret=SECRET))
    try:
        for host in ("localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]"):
            for name in (host, f"{host}:{server.port}"):
                answer = raw(server, "GET /metrics HTTP/1.1", f"Host: {name}")
                assert "200 OK" in answer and "tfdist_world_size" in answer, name
        for name in others:
            request = ("GET /metrics HTTP/1.1", f"Host: {name}")
            answer = raw(server, *request)
            assert "403 Forbidden" in answer and "tfdist_" not in answer, name
            # A page of another site has no token.
            assert "200 OK" in raw(server, *request, f"Authorization: Bearer {token}"), name
        assert "403 Forbidden" in raw(server, "GET /metrics HTTP/1.0")
        for path in ("/", "/other", "/state"):
            answer = raw(server, f"GET {path} HTTP/1.1", "Host: rebound.example")
            assert "403 Forbidden" in answer or "401 Unauthorized" in answer
    finally:
        server.close()


def test_other_sites_are_refused():
    request = ("GET /metrics HTTP/1.1", "Host: 127.0.0.1")
    with serving() as server:
        for site in ("none", "same-origin", "same-site"):
            answer = raw(server, *request, f"Sec-Fetch-Site: {site}")
            assert "200 OK" in answer, site
            # Read, run or embedded by a page of another port of this machine.
            assert "Cross-Origin-Resource-Policy: same-origin" in answer
            assert "X-Content-Type-Options: nosniff" in answer
            assert "Access-Control" not in answer
        assert "403 Forbidden" in raw(server, *request, "Sec-Fetch-Site: cross-site")


def test_the_tasks_own_name_is_accepted():
    server = Exporter(Text(), "127.0.0.1", 0, None, host="Node-7")
    try:
        for host, status in (("node-7", "200 OK"), ("node-7:9400", "200 OK"), ("node-77", "403")):
            assert status in raw(server, "GET /metrics HTTP/1.1", f"Host: {host}"), host
    finally:
        server.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get(method):
    with serving() as server:
        assert ask(server, method=method)[0] == 501


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic {}", "{}", "Bearer {}x", "Bearer \xe9"],
)
def test_the_token_is_needed(authorization):
    token = metrics_token(SECRET)
    headers = {} if authorization is None else {"Authorization": authorization.format(token)}
    with serving(token=token) as server:
        for path in ("/metrics", "/"):
            status, text, answered = ask(server, path, **headers)
            assert status == 401 and "tfdist_steps" not in text
            assert answered["WWW-Authenticate"] == "Bearer"
        assert ask(server, Authorization=f"Bearer {token}")[0] == 200
    assert SECRET.decode() not in token and token != metrics_token(SECRET + b"!")


def test_what_cannot_be_read_is_an_error(caplog):
    with serving(text=None) as server:
        assert ask(server)[0] == 500
    assert "RuntimeError: of the test" in caplog.text


def is_closed(connection):
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_strangers_are_dropped(monkeypatch):
    monkeypatch.setattr(http_server, "_TIMEOUT", 1.0)
    with serving() as server, contextlib.ExitStack() as stack:

        def connect(text=b""):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), 20)
            )
            connection.sendall(text)
            return connection

        # A request without an end, one byte at a time.
        slow, began = connect(b"GET /metrics HTTP/1.1\r\n"), time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < began + 60:
                slow.sendall(b"x")
                slow.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
        assert 0.9 < time.monotonic() - began < 50
        # A request that is too long.
        long, began = connect(), time.monotonic()
        with contextlib.suppress(ConnectionError):
            long.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        assert is_closed(long) and time.monotonic() - began < 50
        # Garbage.
        assert b"400" in connect(b"\xff\xfe\r\n\r\n").recv(4096)
        # Too many at once; the first ones end soon, and then there is room again.
        idle = [connect() for _ in range(http_server._MAX_CONNECTIONS)]
        assert is_closed(connect(b"GET /metrics HTTP/1.1\r\n\r\n"))
        assert all(is_closed(connection) for connection in idle)
        assert ask(server)[0] == 200


def cluster_at(host):
    return Cluster(workers=(f"{host}:{PORT}", f"{host}:{PORT + 1}"), task_index=1)


def test_a_taken_port_is_an_error():
    with serving() as server:
        port = server.port
        # This task's place is 1.
        settings = Settings(metrics_port=port - 1)
        with pytest.raises(AddressInUseError, match=rf"worker 1: .* port {port}: .*METRICS_PORT"):
            serve(cluster_at("127.0.0.1"), settings)
    with pytest.raises(ClusterConfigError, match="port of at most 65534, .* received 65535"):
        serve(cluster_at("127.0.0.1"), Settings(metrics_port=65535))


def test_a_port_that_nobody_has_asked_for(tmp_path, caplog):
    """It may be taken, and tells other users of the machine nothing; the last state is left."""
    states = tmp_path / "states"
    settings = Settings(metrics_by_default=True, secret=SECRET, state_dir=str(states))
    with serving() as server:
        settings = dataclasses.replace(settings, metrics_port=server.port - 1)
        assert serve(cluster_at("127.0.0.1"), settings) is None
    (text,) = caplog.messages
    assert text.startswith("worker 1: serves no metrics") and f"port {server.port}, " in text
    settings = dataclasses.replace(settings, metrics_port=free_range(2))
    with contextlib.closing(serve(cluster_at("127.0.0.1"), settings)) as server:
        assert ask(server)[0] == 401
        assert ask(server, Authorization=f"Bearer {metrics_token(SECRET)}")[0] == 200
        assert not states.exists()
        server.end()
        (file,) = states.iterdir()
        assert file == path_of(states, "worker 1") and states.stat().st_mode & 0o777 == 0o700
        assert ReportedState.from_json(json.loads(file.read_text())).task == "worker 1"
        file.unlink()
    # Once.
    assert not list(states.iterdir()) and len(caplog.messages) == 1


def test_a_last_state_that_cannot_be_kept(tmp_path, caplog):
    (tmp_path / "states").write_text("a file")
    settings = Settings(metrics_port=0, secret=SECRET, state_dir=str(tmp_path / "states"))
    serve(cluster_at("127.0.0.1"), settings).close()
    assert "worker 1: its last state cannot be kept for the dashboard" in caplog.text


def test_without_the_op_library_there_is_no_last_state_and_no_second_report(tmp_path, caplog):
    def state():
        raise OpLibraryError("tfdist's op library is missing")

    leave(tmp_path / "states", "worker 1", state)
    assert caplog.messages == [] and list((tmp_path / "states").iterdir()) == []


def test_tasks_with_a_host_each_have_the_same_port():
    """As the pods of a job, whose monitor names one port."""
    port = free_range(1)
    settings = Settings(metrics_port=port, metrics_same_port=True, secret=SECRET)
    evaluator = Cluster(workers=("127.0.0.1:1",), task_type="evaluator", task_index=0)
    for cluster in (cluster_at("127.0.0.1"), evaluator):
        with contextlib.closing(serve(cluster, settings)) as server:
            assert server.port == port
            # An evaluator has no address, and listens on all: the token is needed everywhere.
            assert ask(server)[0] == (401 if cluster is evaluator else 200)
            assert ask(server, Authorization=f"Bearer {metrics_token(SECRET)}")[0] == 200
    with pytest.raises(ClusterConfigError, match="evaluator 0 .* expected a shared secret"):
        serve(evaluator, dataclasses.replace(settings, secret=None))


def test_beyond_loopback_a_secret_is_needed(monkeypatch):
    # As on a host that has this address.
    monkeypatch.setattr(interfaces, "interface", lambda *arguments: interfaces.EVERY)
    with pytest.raises(ClusterConfigError, match="TFDIST_METRICS_PORT: worker 1 .*shared secret"):
        serve(cluster_at("127.0.0.1"), Settings(metrics_port=0))
    server = serve(cluster_at("127.0.0.1"), Settings(metrics_port=0, secret=SECRET))
    try:
        assert ask(server)[0] == 401
        status, text, _ = ask(server, Authorization=f"Bearer {metrics_token(SECRET)}")
        assert status == 200 and 'tfdist_world_size{task="worker 1"} 2.0' in text
    finally:
        server.close()


def test_the_state_always_needs_the_token():
    authorized = {"Authorization": f"Bearer {metrics_token(SECRET)}"}
    server = serve(cluster_at("127.0.0.1"), Settings(metrics_port=0, secret=SECRET))
    try:
        assert ask(server)[0] == 200
        for headers in ({}, {"Authorization": "Bearer x"}):
            status, text, _ = ask(server, "/state?events=10", **headers)
            assert status == 401 and "worker" not in text
        for path in ("/state", "/state?events=10", "/state?events=nan", "/state?events="):
            status, text, headers = ask(server, path, **authorized)
            assert status == 200 and headers["Content-Type"] == "application/json"
            state = ReportedState.from_json(json.loads(text))
            assert (state.task, state.value("tfdist_world_size")) == ("worker 1", 2)
            assert state.memory > 1 << 20 and state.pid == os.getpid()
    finally:
        server.close()
    server = serve(cluster_at("127.0.0.1"), Settings(metrics_port=0))
    try:
        assert ask(server)[0] == 200 and ask(server, "/state", **authorized)[0] == 401
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["alone", "evaluator", "data_worker"])
def test_every_role(kind):
    if kind == "alone":
        cluster = Cluster()
    else:
        addresses = {"workers": ("127.0.0.1:1",), "ps": ("127.0.0.1:2",)}
        if kind == "data_worker":
            addresses |= {"data_dispatcher": ("127.0.0.1:3",), "data_workers": ("127.0.0.1:4",)}
        cluster = Cluster(**addresses, task_type=kind, task_index=0)
    server = serve(cluster, Settings(metrics_port=0, secret=SECRET, restarts=2))
    try:
        status, text, _ = ask(server)
    finally:
        server.close()
    assert status == 200
    assert f'tfdist_restarts_total{{task="{cluster.task_name}"}} 2.0' in text
    assert ("tfdist_steps_total" in text) == (kind == "alone")


def test_places():
    cluster = Cluster(
        chief=("a:1",),
        workers=("a:2", "a:3"),
        ps=("a:4",),
        data_dispatcher=("a:5",),
        data_workers=("a:6", "a:7"),
    )
    roles = ["chief", "worker", "worker", "ps", "data_dispatcher", "data_worker", "data_worker"]
    seen: dict[str, int] = {}
    for place, role in enumerate([*roles, "evaluator"]):
        index = seen[role] = seen.get(role, -1) + 1
        assert dataclasses.replace(cluster, task_type=role, task_index=index).global_index == place
    assert Cluster().global_index == 0
