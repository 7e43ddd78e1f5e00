"""Bodies of HTTP in chunks: read as bodies with a length, within the same limits."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import socket

import pytest

from support.serving.clients import TIMEOUT, rest, serving
from support.serving.saved_models import write_affine
from tfdist.serving.model_server import http_server
from tfdist.serving.model_server.chunked import BodyTooLarge, ChunkError, read_chunks
from tfdist.serving.model_server.server import Listening

PATH = "/v1/models/affine:predict"
BODY = json.dumps({"instances": [[1, 2, 3]]}).encode()
ANSWER = {"predictions": [{"y": [9.0, 11.0, 13.0], "total": 33.0}]}
MAXIMUM = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "affine"
    write_affine(folder, 7)
    with serving({"affine": folder}, Listening(max_json_bytes=MAXIMUM)) as server:
        yield server


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]


def in_chunks(body: bytes, size: int) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut(body, size))
    return chunks + b"0\r\n\r\n"


def answered(connection, body, size, **headers):
    """The answer to a body that the client sends in chunks, as Go's and curl's do."""
    connection.request("POST", PATH, iter(cut(body, size)), headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def refused(server, sent: bytes, head: str = "Transfer-Encoding: chunked", version: str = "1.1"):
    """The status and the error of an answer, after which the server ends the connection."""
    with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
        connection.sendall(f"POST {PATH} HTTP/{version}\r\n{head}\r\n\r\n".encode() + sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        error = json.loads(answer.read())["error"]
        assert connection.recv(1) == b""
        return answer.status, error


def test_requests_in_chunks_on_one_connection(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=TIMEOUT)
    try:
        for size in (1, 7, 1 << 16):
            assert answered(connection, BODY, size) == (200, ANSWER)
        compressed = gzip.compress(BODY)
        assert answered(connection, compressed, 9, **{"Content-Encoding": "gzip"}) == (200, ANSWER)
        # A body that is no JSON: the next request begins where it ends.
        assert answered(connection, b"{", 1)[0] == 400
        assert answered(connection, BODY, 5) == (200, ANSWER)
    finally:
        connection.close()


def test_the_maximum_holds_for_all_chunks_together(server):
    padded = BODY + b" " * (MAXIMUM - len(BODY))
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=TIMEOUT)
    try:
        assert answered(connection, padded, 1 << 15) == (200, ANSWER)
    finally:
        connection.close()
    error = "expected a body of at most 1048576 bytes, received more in chunks"
    assert refused(server, in_chunks(padded + b" ", 1 << 15)) == (413, error)
    # The size alone.
    assert refused(server, b"ffffffffffffffff\r\n") == (413, error)
    compressed = gzip.compress(b" " * (2 * MAXIMUM))
    head = "Transfer-Encoding: chunked\r\nContent-Encoding: gzip"
    with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
        sent = f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n".encode() + in_chunks(compressed, 100)
        connection.sendall(sent)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"x\r\n", "size of a chunk in hexadecimal, received b'x"),
        (b"\r\n", "size of a chunk in hexadecimal"),
        (b"-1\r\n", "size of a chunk in hexadecimal"),
        (b"0x5\r\n", "size of a chunk in hexadecimal"),
        (b"+5\r\n", "size of a chunk in hexadecimal"),
        (b"5_0\r\n", "size of a chunk in hexadecimal"),
        (b"00000000000000005\r\n", "size of a chunk in hexadecimal"),
        (b"5\nhello\r\n", "expected a line of at most 1024 bytes"),
        (b"5;" + b"e" * 2000 + b"\r\n", "expected a line of at most 1024 bytes"),
        (b"5\r\nhello!!", "expected the end of a line after a chunk, received b'!!'"),
        (b"0\r\n" + b"a: b\r\n" * 33, "expected at most 32 lines after the last chunk"),
        (b"1\r\n \r\n" * 5000, "expected chunks of 512 bytes on average"),
    ],
)
def test_other_bytes_are_refused(server, sent, text):
    status, error = refused(server, sent)
    assert status == 400 and text in error
    assert rest(server, PATH, {"instances": [[1, 2, 3]]}) == (200, ANSWER)


@pytest.mark.parametrize(
    ("head", "version", "status"),
    [
        ("Transfer-Encoding: gzip, chunked", "1.1", 501),
        ("Transfer-Encoding: identity", "1.1", 501),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "1.1", 501),
        ("Transfer-Encoding: chunked\r\nContent-Length: 3", "1.1", 400),
        ("Content-Length: 3\r\nTransfer-Encoding: chunked", "1.1", 400),
        ("Transfer-Encoding: chunked", "1.0", 400),
    ],
)
def test_a_length_that_two_readers_may_take_for_another_is_refused(server, head, version, status):
    assert refused(server, in_chunks(BODY, 8), head, version)[0] == status


def test_half_a_body_in_chunks_ends(server, monkeypatch):
    monkeypatch.setattr(http_server, "_HEAD", 0.2)
    for half in (b"", b"5", b"5\r\n", b"5\r\nhel", b"5\r\nhello\r\n", b"0\r\n", b"0\r\na: b\r\n"):
        with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
            head = f"POST {PATH} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head.encode() + half)
            assert connection.recv(4096) == b""


@pytest.mark.parametrize(
    ("head", "sent"),
    [("Transfer-Encoding: chunked", in_chunks(BODY, 8)), (f"Content-Length: {len(BODY)}", BODY)],
    ids=["chunks", "length"],
)
def test_a_client_that_waits_for_the_permission_to_send(server, head, sent):
    with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
        head += "\r\nExpect: 100-continue\r\nConnection: close"
        connection.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(sent)
        assert b"".join(iter(lambda: connection.recv(4096), b"")).startswith(b"HTTP/1.1 200 ")


def read(sent: bytes, maximum: int = MAXIMUM) -> tuple[bytes, bytes, list[int]]:
    """The body, the bytes after it, and the announced sizes."""
    file, sizes = io.BytesIO(sent), []
    return read_chunks(file, maximum, sizes.append), file.read(), sizes


def test_sizes_extensions_and_trailers():
    sent = b'A;name="v"\r\n0123456789\r\n00a \t\r\nabcdefghij\r\n000\r\nName: value\r\n\r\nGET'
    assert read(sent) == (b"0123456789abcdefghij", b"GET", [10, 10])
    assert read(b"0\r\n\r\n") == (b"", b"", [])
    assert read(in_chunks(b"abc", 3), 3)[0] == b"abc"
    with pytest.raises(BodyTooLarge):
        read(in_chunks(b"abc", 1), 2)


def test_small_chunks_are_free_up_to_a_number():
    body = bytes(range(256)) * 16
    assert read(in_chunks(body, 1))[0] == body
    large = body * 64
    assert read(in_chunks(large, 512))[0] == large
    with pytest.raises(ChunkError, match="received 4105 of 4105 bytes in all"):
        read(in_chunks(body * 2, 1))


def test_every_prefix_is_incomplete():
    sent = in_chunks(b"hello", 3)
    for end in range(len(sent)):
        with pytest.raises(EOFError):
            read(sent[:end])
