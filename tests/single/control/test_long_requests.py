"""Requests that are too long for one call, from client to server; see `tfdist.control.pieces`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time

import grpc
import pytest

from support.elastic.control_tasks import Background, clusters
from tfdist.config.cluster import Cluster
from tfdist.control import callers, encoding, pieces
from tfdist.control.client import ControlClient, RefusedError, UnreachableError
from tfdist.control.server import ControlServer
from tfdist.control.service import CHALLENGE, Service
from tfdist.control.signing import Signer
from tfdist.errors import AuthenticationError, ClusterConfigError, TfdistError

SECRET = b"correct horse battery staple"
SECRETS = pytest.mark.parametrize("secret", [None, SECRET], ids=["no secret", "secret"])


@dataclasses.dataclass(frozen=True)
class TellRequest:
    rank: int
    text: str
    content: bytes
    wait: float


TELLING = Service("Telling", 3, "a task that is told")
TELL = TELLING.method(TellRequest, is_long=True)


@dataclasses.dataclass(frozen=True)
class WhisperRequest:
    text: str
    wait: float


WHISPER = TELLING.method(WhisperRequest)


@contextlib.contextmanager
def told(secret, port=None):
    """Yields a cluster whose first task takes TELL, and what it was told."""
    cluster, received = clusters(2)[0], []

    def handle(request, context):
        received.append(request)
        return {"status": "told", "bytes": len(request.content)}

    with contextlib.closing(ControlServer(cluster, secret, {TELL: handle, WHISPER: handle})):
        yield cluster, received


@contextlib.contextmanager
def calling(cluster, secret):
    with contextlib.closing(ControlClient(cluster, secret, cluster.address, "worker 0")) as client:
        yield client


def request(size):
    return TellRequest(1, "é\0" * 1000, bytes(range(256)) * (size // 256), 0.0)


@SECRETS
@pytest.mark.parametrize("size", [256, 1 << 16, 300_032, 8 << 20])
def test_a_request_of_any_length_arrives(size, secret):
    with told(secret) as (cluster, received), calling(cluster, secret) as client:
        for patient in (True, False):
            answer = client.call(TELL, request(size), 0.0, patient=patient)
            assert answer == {"status": "told", "bytes": size}
        assert received == [request(size)] * 2


def test_each_piece_is_signed():
    with told(SECRET) as (cluster, received), grpc.insecure_channel(cluster.address) as channel:
        known = callers.fingerprint(cluster.training_addresses)
        first, *_ = pieces.pieces_of(encoding.encode(request(100_096)), TELL.path, known)
        body, path = encoding.encode(first), pieces.PIECE.path
        challenge = json.loads(channel.unary_unary(CHALLENGE)(b"", timeout=10))["challenge"]
        signed = Signer(SECRET).sign_request(path, challenge, body)
        other = encoding.encode(dataclasses.replace(first, path="/tfdist.Other.1/Tell"))
        for sent, metadata in ((body, ()), (other, signed)):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(sent, timeout=10, metadata=metadata)
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert not received
    with told(SECRET) as (cluster, _), calling(cluster, b"another secret") as client:
        with pytest.raises(AuthenticationError):
            client.call(TELL, request(100_096), 0.0, patient=True)


def test_a_stranger_s_pieces_are_not_kept():
    with told(None) as (cluster, received):
        stranger = Cluster(workers=("localhost:1", cluster.address), task_index=0)
        with contextlib.closing(
            ControlClient(stranger, None, cluster.address, "worker 0")
        ) as client:
            with pytest.raises(RefusedError, match="knows all training addresses, or a shared"):
                client.call(TELL, request(100_096), 0.0, patient=True)
        assert not received


def test_pieces_that_were_lost_are_sent_again(monkeypatch):
    """As after a restart of the server, or on another connection."""
    with told(None) as (cluster, received), calling(cluster, None) as client:
        add, forgotten = pieces.LongRequests.add, []

        def forget(self, peer, piece):
            if piece.offset and not forgotten:
                forgotten.append(piece)
                self._incomplete.clear()
            return add(self, peer, piece)

        monkeypatch.setattr(pieces.LongRequests, "add", forget)
        with pytest.raises(UnreachableError, match="lost the earlier pieces"):
            client.call(TELL, request(300_032), 0.0, patient=False)
        forgotten.clear()
        assert client.call(TELL, request(300_032), 1.0, patient=True)["status"] == "told"
        assert len(received) == 1


@pytest.mark.parametrize(
    "path",
    [pieces.PIECE.path, CHALLENGE, "/x/y", "", TELL.path.replace(".3/", ".4/"), WHISPER.path],
)
def test_a_long_request_names_a_method_that_is_here(path):
    with told(None) as (cluster, _), grpc.insecure_channel(cluster.address) as channel:
        known = callers.fingerprint(cluster.training_addresses)
        (piece,) = pieces.pieces_of(b"{}", path, known)
        answer = json.loads(
            channel.unary_unary(pieces.PIECE.path)(encoding.encode(piece), timeout=10)
        )
        assert answer["status"] == "refused"


def test_what_is_joined_is_checked_as_any_request():
    with told(None) as (cluster, received), grpc.insecure_channel(cluster.address) as channel:
        known = callers.fingerprint(cluster.training_addresses)
        body = json.dumps({"rank": "1", "text": "x" * 200_000}).encode()
        send = channel.unary_unary(pieces.PIECE.path)
        *first, last = map(encoding.encode, pieces.pieces_of(body, TELL.path, known))
        for piece in first:
            assert json.loads(send(piece, timeout=10)) == {"status": "received"}
        with pytest.raises(grpc.RpcError) as caught:
            send(last, timeout=10)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "Tell: expected rank to be int, received '1'"
        assert not received


def test_requests_that_are_too_long_are_not_sent():
    with told(None) as (cluster, received), calling(cluster, None) as client:
        for method, sent, limit in (
            (WHISPER, WhisperRequest("x" * 70_000, 0.0), "65,536 bytes, has 70,"),
            (TELL, request(13 << 20), "12,582,912 bytes, has 13,6"),
        ):
            with pytest.raises(TfdistError, match=f"{method.name} request of .* {limit}") as raised:
                client.call(method, sent, 0.0, patient=True)
            assert not isinstance(raised.value, ClusterConfigError)  # of the other task
        assert not received


def test_one_that_has_no_answer_yet_counts_until_its_caller_leaves():
    cluster = clusters(2)[0]
    came, go_on = threading.Event(), threading.Event()

    def handle(request, context):
        context.on_disconnect = go_on.set
        came.set()
        assert go_on.wait(30)
        return {"status": "told"}

    with contextlib.closing(ControlServer(cluster, None, {TELL: handle})) as server:
        with calling(cluster, None) as client:
            call = Background(client.call, TELL, request(300_032), 20.0, patient=False)
            assert came.wait(30)
            assert server._long_requests._answering > 300_000
        with pytest.raises(UnreachableError):
            call.result()
        assert go_on.wait(30)
        until = time.monotonic() + 30
        while server._long_requests._answering and time.monotonic() < until:
            time.sleep(0.01)
        assert server._long_requests._answering == 0
