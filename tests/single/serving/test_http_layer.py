"""HTTP itself: errors in JSON, limits, silent clients, and requests in progress at the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import pytest

from support.patience import wait_until
from support.serving.clients import TIMEOUT, rest, serving
from support.serving.saved_models import write_affine
from tfdist.serving.model_server import http_server
from tfdist.serving.model_server.server import Listening

PATH = "/v1/models/affine:predict"
BODY = json.dumps({"instances": [[1, 2, 3]]}).encode()
POST = f"POST {PATH} HTTP/1.1\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "affine"
    write_affine(folder, 7)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with serving({"affine": folder, "a b": folder}, Listening(max_json_bytes=1 << 20)) as server:
        yield server


def connected(server):
    return socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT)


def exchanged(server, sent):
    """The status, the headers and the body of the answer to bytes; the server closes then."""
    with connected(server) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        body = answer.read()
        assert connection.recv(1) == b""
        return answer.status, answer.headers, body


@pytest.mark.parametrize(
    ("sent", "status", "text"),
    [
        (b"PUT /v1/models/affine HTTP/1.1\r\nConnection: close\r\n\r\n", 400, "Malformed request"),
        (f"DELETE {PATH} HTTP/1.0\r\n\r\n".encode(), 400, "Malformed request: DELETE"),
        (b"PATCH /other HTTP/1.0\r\n\r\n", 404, "Not Found: PATCH /other"),
        (b"BREW /v1/models/affine HTTP/1.1\r\n\r\n", 501, "Unsupported method"),
        (b"GET /v1/models/affine HTTP/7.1\r\n\r\n", 505, "Invalid HTTP version"),
        (b"GET /v1/models/affine HTTP/x\r\n\r\n", 400, "Bad request version"),
        (b"nonsense\r\n\r\n", 400, "Bad request syntax"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400, "Bad request"),
        (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n", 414, "Request-URI Too Long"),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 70000 + b"\r\n\r\n", 431, "Line too long"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431, "Too many headers"),
        (f"POST {PATH} HTTP/1.1\r\n\r\n".encode() + BODY, 411, "Content-Length"),
        (
            POST.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n") + BODY,
            411,
            "one header Content-Length",
        ),
        (
            POST.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + BODY,
            400,
            "chunks in a request of HTTP/1.1 without Content-Length",
        ),
    ],
)
def test_errors_of_http_are_json(server, sent, status, text):
    received, headers, body = exchanged(server, sent)
    assert (received, headers["Content-Type"]) == (status, "application/json")
    assert text in json.loads(body)["error"]


def test_a_body_that_is_too_large_is_refused_in_json(server):
    """All of it is sent before the answer is read, as many clients do."""
    size = 8 << 20
    sent = f"POST {PATH} HTTP/1.1\r\nContent-Length: {size}\r\n\r\n".encode() + b" " * size
    status, _, body = exchanged(server, sent)
    assert status == 413
    assert json.loads(body)["error"] == (
        "expected a body of at most 1048576 bytes, received 8388608 bytes"
    )


def test_a_body_of_a_get_is_no_further_request(server):
    status, _, body = exchanged(
        server,
        b"GET /healthz HTTP/1.1\r\nContent-Length: 31\r\n\r\nGET /v1/models/x HTTP/1.1\r\n\r\n\r\n",
    )
    assert (status, body) == (200, b"ok\n")


def test_head_has_no_body(server):
    with connected(server) as connection:
        connection.sendall(b"HEAD /readyz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    first, second = received.split(b"\r\n\r\n", 1)
    assert first.startswith(b"HTTP/1.1 200 OK") and b"Content-Length: 6" in first
    assert second.startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "path", ["/V1/Models/affine:Predict", f"http://example.com{PATH}", f"{PATH}?x=1"]
)
def test_paths_of_tensorflow_serving(server, path):
    sent = POST.replace(PATH.encode(), path.encode()).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert exchanged(server, sent + BODY)[0] == 200


def test_a_name_of_a_model_may_be_escaped(server):
    assert rest(server, "/v1/models/a%20b:predict", {"instances": [[1, 2, 3]]})[0] == 200
    assert "model c/d" in rest(server, "/v1/models/c%2Fd")[1]["error"]


def ask(connection):
    connection.request("POST", PATH, BODY)
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read()


@pytest.mark.long(
    covered_by="single/control/test_control_strangers.py::test_strangers_do_not_take_the_last_descriptor"
)
def test_the_connection_that_is_silent_longest_gives_way(folder, monkeypatch):
    monkeypatch.setattr(http_server._Server, "max_connections", 4)
    monkeypatch.setattr(http_server, "_SILENT", 0.2)
    with serving({"affine": folder}) as server, contextlib.ExitStack() as stack:
        half = [
            stack.enter_context(connected(server))
            for _ in range(3)  # of these one has sent nothing, one half a head, one half a body
        ]
        kept = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=TIMEOUT)
        stack.callback(kept.close)
        half[1].sendall(b"GET /he")
        half[2].sendall(POST)
        for _ in range(3):
            wait_until(lambda: _longest(server) > 0.2, "a silence")
            ask(kept)  # its silence is the shortest
            assert rest(server, PATH, {"instances": [[1, 2, 3]]})[0] == 200
        for connection in half:
            assert connection.recv(1) == b""
        ask(kept)


def _longest(server):
    since = list(server._http._server.silent._since.values())
    return time.monotonic() - min(since, default=time.monotonic())


def test_busy_connections_do_not_give_way(folder, monkeypatch):
    monkeypatch.setattr(http_server._Server, "max_connections", 2)
    monkeypatch.setattr(http_server, "_SILENT", 3600.0)
    with serving({"affine": folder}) as server, contextlib.ExitStack() as stack:
        both = [http.client.HTTPConnection("127.0.0.1", server.rest_port) for _ in range(2)]
        for one in both:
            stack.callback(one.close)
            ask(one)
        with connected(server) as third:
            assert third.recv(1) == b""
        for one in both:
            ask(one)


def test_requests_that_have_begun_are_answered_at_the_end(folder):
    """Also requests of which a part arrives later; clients are told to connect elsewhere."""
    answers = []

    def complete():
        wait_until(lambda: in_progress.is_ending, "the end")
        for connection, part in zip(connections, (POST[1:] + BODY, BODY, BODY[5:]), strict=True):
            connection.sendall(part)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            predictions = json.loads(answer.read())["predictions"]
            answers.append((answer.status, answer.headers["Connection"], predictions[0]["y"]))
            connection.close()

    with serving({"affine": folder}) as server:
        in_progress = server._http._server.in_progress
        connections = [connected(server) for _ in range(3)]
        for connection, part in zip(connections, (b"P", POST, POST + BODY[:5]), strict=True):
            connection.sendall(part)
        wait_until(lambda: in_progress.requests == 3, "the requests")
        completing = threading.Thread(target=complete)
        completing.start()
    completing.join(TIMEOUT)
    assert answers == [(200, "close", [9.0, 11.0, 13.0])] * 3
