"""Calls of unauthenticated clients to a control port, and its answers."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import time
from concurrent import futures

import grpc
import pytest

from support.elastic.control_tasks import (
    Background,
    LogWatch,
    clusters,
    data_address,
    meet,
    planes,
    settings,
)
from tfdist.control import callers, encoding, held_calls, pieces, signing
from tfdist.control import server as control_server
from tfdist.control.client import ControlClient
from tfdist.control.held_calls import ClientContext
from tfdist.control.service import CHALLENGE
from tfdist.control.signing import Signer
from tfdist.errors import AuthenticationError, ClusterConfigError, RendezvousTimeoutError
from tfdist.job import rendezvous
from tfdist.job.messages import EXIT, JOIN, JoinRequest
from tfdist.job.plane import ControlPlane
from tfdist.ps.messages import ATTACH
from tfdist.ps.stats.messages import STATS, StatsRequest

SECRET = b"correct horse battery staple"


def call(address: str, path: str, body: bytes, metadata=()) -> bytes:
    """Calls a control server as an unauthenticated client."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        return channel.unary_unary(path)(body, timeout=10, metadata=metadata)


def join_body(cluster, **changes) -> bytes:
    """A Join as worker 1 of a cluster of two would send it, except `changes`."""
    fields = {
        "rank": 1,
        "world_size": 2,
        "fingerprint": callers.fingerprint(cluster.training_addresses),
        "data_address": "6.6.6.6:666",
        "process": "p",
        "attempt": "a",
        "wait": 0.0,
        "final": False,
    }
    return json.dumps(fields | changes).encode()


def attach_body(**changes) -> bytes:
    """An Attach, as a worker sends to a parameter server."""
    fields = {
        "rank": 0,
        "world_size": 2,
        "fingerprint": "",
        "process": "p",
        "config": "{}",
        "wait": 0.0,
    }
    return json.dumps(fields | changes).encode()


@contextlib.contextmanager
def undisturbed(secret: bytes | None = None):
    """Yields the cluster of a rank 0 that is waiting, and then lets the true worker 1 join it."""
    members = clusters(2)
    with planes(members, [secret] * 2) as (zero, one):
        first = Background(zero.rendezvous, data_address(0))
        yield members[0]
        assert not first.done()
        result = one.rendezvous(data_address(1))
        assert result == first.result()
        assert result.addresses == (data_address(0), data_address(1))


def test_the_same_secret_meets():
    with planes(clusters(3), [SECRET] * 3) as members:
        assert len({result.key for result in meet(members)}) == 1
        calls = [Background(member.exit_barrier) for member in members]
        assert [c.result() for c in calls] == [True] * 3


@pytest.mark.parametrize(
    ("chiefs", "workers", "reason"),
    [
        (SECRET, b"wrong", "the two tasks have different shared secrets"),
        (SECRET, None, "this task has a shared secret, the caller sent no proof of one"),
        (None, SECRET, "the caller has a shared secret, this task has none"),
    ],
)
def test_another_secret_is_refused_at_once_and_both_tasks_are_named(chiefs, workers, reason):
    members = clusters(3, chief=True)
    with planes(members[:2], [chiefs, workers]) as (chief, worker), LogWatch() as log:
        first = Background(chief.rendezvous, data_address(0))
        with pytest.raises(AuthenticationError) as caught:
            worker.rendezvous(data_address(1))
        log.wait_for(f"chief at {members[0].address}: refused worker 0, calling from 127.*{reason}")
        assert str(caught.value).startswith(
            f"worker 0 at {members[1].address} called chief at {members[0].address}: {reason}"
        )
        worker.close()
        others = [
            ControlPlane(members[1], settings(chiefs)),
            ControlPlane(members[2], settings(chiefs)),
        ]
        calls = [Background(o.rendezvous, data_address(i + 1)) for i, o in enumerate(others)]
        assert len({c.result().key for c in (first, *calls)}) == 1
        for other in others:
            other.close()


def test_the_timeout_repeats_who_was_refused():
    members = clusters(2, chief=True)
    with planes(members, [SECRET, b"wrong"]) as (chief, worker):
        waiting = Background(lambda: chief.rendezvous(data_address(0), timeout=1.0))
        with pytest.raises(AuthenticationError):
            worker.rendezvous(data_address(1))
        with pytest.raises(RendezvousTimeoutError, match="refused worker 0.*different shared secr"):
            waiting.result()


def challenge_of(cluster) -> str:
    return json.loads(call(cluster.address, CHALLENGE, b""))["challenge"]


def refused(cluster, method: str, body: bytes, metadata) -> str:
    """Returns the refusal of a request."""
    with pytest.raises(grpc.RpcError) as caught:
        call(cluster.address, method, body, metadata)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    return caught.value.details()


def test_no_answer_without_the_secret():
    with undisturbed(SECRET) as cluster:
        for signer in (Signer(None), Signer(b"a guess that fails")):
            for method in (JOIN.path, EXIT.path):
                body = join_body(cluster)
                refused(
                    cluster, method, body, signer.sign_request(method, challenge_of(cluster), body)
                )


def test_a_signature_does_not_fit_another_body_method_challenge_or_nonce():
    with undisturbed(SECRET) as cluster:
        body = join_body(cluster)
        challenge = challenge_of(cluster)
        metadata = Signer(SECRET).sign_request(JOIN.path, challenge, body)
        values = dict(metadata)
        forged = [
            (JOIN.path, join_body(cluster, data_address="6.6.6.6:667"), metadata),
            (EXIT.path, body, metadata),
            *(
                (JOIN.path, body, tuple((values | changed).items()))
                for changed in (
                    {"tfdist-nonce": "0" * 32},
                    {"tfdist-nonce": "x"},
                    {"tfdist-challenge": challenge_of(cluster)},
                    {"tfdist-challenge": "x"},
                    {"tfdist-signature": "0" * 64},
                )
            ),
            *(
                (JOIN.path, body, tuple(pair for pair in metadata if pair[0] != left_out))
                for left_out in values
            ),
        ]
        for method, text, pairs in forged:
            refused(cluster, method, text, pairs)


def test_a_recorded_request_is_worth_nothing():
    """Sent again, to the same task or to one of another job, it is refused."""
    with undisturbed(SECRET) as cluster, undisturbed(SECRET) as another:
        body = json.dumps({"wait": 0.0}).encode()
        metadata = Signer(SECRET).sign_request(STATS.path, challenge_of(cluster), body)
        assert json.loads(call(cluster.address, STATS.path, body, metadata))["status"] == "refused"
        for where, why in ((cluster, "another call, or more than"), (another, "another task, or")):
            assert why in refused(where, STATS.path, body, metadata)


def test_challenges_expire(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(signing.time, "monotonic", lambda: now)
    challenges = signing.Challenges()
    early, late = challenges.new(), challenges.new()
    assert early != late and challenges.use(early) and not challenges.use(early)
    now += signing.CHALLENGE_LIFETIME + 1
    assert not challenges.use(early) and not challenges.use(late)
    assert challenges.use(challenges.new())
    assert len(challenges._used) == 1  # expired challenges are forgotten
    assert not signing.Challenges().use(challenges.new())
    for odd in ("", ".", "..", "x" * 100, challenges.new() + "0"):
        assert not challenges.use(odd)


@pytest.mark.timeout(30)
def test_many_challenges_expire_at_once(monkeypatch):
    """The time for each does not grow with their number: meanwhile no other caller is heard."""
    now = 1000.0
    monkeypatch.setattr(signing.time, "monotonic", lambda: now)
    challenges = signing.Challenges()
    for number in range(400_000):
        challenges._used[str(number)] = now
    now += signing.CHALLENGE_LIFETIME + 1
    assert challenges.use(challenges.new()) and len(challenges._used) == 1


def test_an_answer_brings_the_next_challenge(monkeypatch):
    with undisturbed(SECRET) as cluster, undisturbed(SECRET) as another:
        client = ControlClient(cluster, SECRET, cluster.address, "chief")
        asked = []
        fetch = client._new_challenge

        def count(send):
            asked.append(1)
            return fetch(send)

        monkeypatch.setattr(client, "_new_challenge", count)

        def talk():
            with pytest.raises(
                ClusterConfigError, match="has no service Statistics; expected a parameter server"
            ):
                client.call(STATS, request, 0.0, patient=False)

        request = StatsRequest(0.0)
        for _ in range(3):
            talk()
        assert len(asked) == 1
        # One of another server, as after a restart: the call is repeated with a fresh one.
        client._signer._kept.clear()
        client._signer._kept.append((time.monotonic(), challenge_of(another)))
        talk()
        assert len(asked) == 2
        client._signer._kept.clear()
        client._signer._kept.append((time.monotonic() - signing.CHALLENGE_LIFETIME, "old"))
        talk()
        assert len(asked) == 3
        client.close()


def test_the_data_key_is_derived():
    key = signing.data_key(SECRET, "job", "1", "salt")
    assert len(key) == 32 and key == signing.data_key(SECRET, "job", "1", "salt")
    others = [
        signing.data_key(None, "job", "1", "salt"),
        signing.data_key(SECRET + b"!", "job", "1", "salt"),
        signing.data_key(SECRET, "job", "2", "salt"),
        signing.data_key(SECRET, "job", "1", "pepper"),
        signing.data_key(SECRET, "job1", "", "salt"),
    ]
    assert len({key, *others}) == 6


def test_an_answer_without_proof_of_the_secret_is_not_believed():
    reply = encoding.encode({"status": "complete"})
    signer = Signer(SECRET)
    request = signer.sign_request(JOIN.path, signer.new_challenge(), b"{}")
    good = signer.sign_answer(JOIN.path, request, reply)
    assert signer.problem_with_answer(JOIN.path, request, good, reply) is None
    assert "no proof" in signer.problem_with_answer(JOIN.path, request, (), reply)
    other = signer.sign_request(JOIN.path, signer.new_challenge(), b"{}")
    for method, said, body in (
        (EXIT.path, request, reply),
        (JOIN.path, other, reply),
        (JOIN.path, request, reply + b" "),
    ):
        assert "different" in signer.problem_with_answer(method, said, good, body)
    # The request's own signature sent back is no answer.
    assert signer.problem_with_answer(JOIN.path, request, request, b"{}") is not None


def test_a_stranger_learns_neither_addresses_nor_names():
    """A stranger that knows host and port alone, of a job without a secret."""
    with undisturbed() as cluster:
        for method, body in (
            (JOIN, join_body(cluster, fingerprint="0" * 16)),
            (ATTACH, attach_body(fingerprint="0" * 16)),
            (STATS, json.dumps({"wait": 0.0}).encode()),
        ):
            answer = call(cluster.address, method.path, body).decode()
            assert json.loads(answer)["status"] == "refused"
            assert "127.0.0.1" not in answer and "worker" not in answer, answer


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "expected a JSON object"),
        (b"\xff\xfe\x00garbage", "expected a JSON object"),
        (b"[" * 60_000, "expected a JSON object"),
        (b"[1]", "expected a JSON object, received list"),
        (b"{}", "Join: expected rank to be int, received None"),
        ({"rank": "1"}, "Join: expected rank to be int, received '1'"),
        ({"rank": True}, "Join: expected rank to be int, received True"),
        ({"wait": None}, "Join: expected wait to be float, received None"),
        ({"final": 1}, "Join: expected final to be bool, received 1"),
        ({"data_address": ["a:1"]}, "Join: expected data_address to be str"),
        ({"wait": float("nan")}, "Join: expected wait to be a finite number, received nan"),
        (
            {"wait": -float("inf")},
            "Join: expected wait to be a finite number, received -inf",
        ),
        ({"wait": 10**400}, "Join: expected wait to be a finite number, received 1000"),
        ({"process": "\ud800"}, "bytes with half of a surrogate pair"),
        ({"another field": {"\udc00": 1}}, "bytes with half of a surrogate pair"),
        (b'{"process": "\xed\xa0\x80"}', "bytes of no JSON"),
        ({"process": {"": 1}}, "expected a JSON object and the bytes that it announces"),
        (b'{"wait": 1.0}\0bytes', "expected a JSON object and the bytes that it announces"),
    ],
)
def test_malformed_messages_are_refused(body, detail):
    with undisturbed() as cluster:
        text = join_body(cluster, **body) if isinstance(body, dict) else body
        with pytest.raises(grpc.RpcError) as caught:
            call(cluster.address, JOIN.path, text)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert detail in caught.value.details()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"world_size": 7}, "the caller counts 7 training tasks, this task counts 2"),
        ({"fingerprint": "x"}, "the caller has another cluster than this task"),
        ({"rank": 2}, r"the caller says rank 2, expected a rank in \[0, 2\)"),
        ({"rank": -1}, "the caller says rank -1"),
        ({"rank": 10**400}, "the caller says rank 1000"),
        ({"data_address": "nowhere"}, "'nowhere': it has no port"),
        ({"data_address": "x" * 50_000}, r"'xxx.*\.\.\.: it has no port"),
        ({"data_address": "x" * 50_000 + ":1"}, r"'xxx.*\.\.\.: it has more than 300 characters"),
        ({"process": "p" * 50_000}, "expected the ids .* to have at most 64 characters"),
        ({"attempt": "a" * 65}, "expected the ids .* to have at most 64 characters"),
    ],
)
def test_well_formed_nonsense_is_refused(changes, reason):
    with undisturbed() as cluster:
        answer = json.loads(call(cluster.address, JOIN.path, join_body(cluster, **changes)))
        assert answer["status"] == "refused" and re.search(reason, answer["reason"])


@pytest.mark.parametrize("body", [b"{}", b"no JSON", None])
def test_a_caller_of_another_version_is_refused_whatever_it_sends(body):
    with undisturbed() as cluster:
        path = JOIN.path.replace(".1/", ".7/")
        answer = json.loads(call(cluster.address, path, body or join_body(cluster)))
        assert answer == {
            "status": "refused",
            "reason": "the caller has version 7 of the service Rendezvous, this task version 1: "
            "expected the same tfdist version on every task",
        }


@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("path", ["/tfdist.Control/Join", "/tfdist.Control/Challenge"])
def test_a_release_before_services_had_versions_is_refused(path, secret):
    with undisturbed(secret) as cluster:
        with pytest.raises(grpc.RpcError) as caught:
            call(cluster.address, path, b"" if "Challenge" in path else join_body(cluster))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == (
            "the caller has version 0 of the service Control, this task version 1: expected the "
            "same tfdist version on every task"
        )


@pytest.mark.parametrize("path", ["/tfdist.Nothing.1/Join", "/tfdist.Rendezvous.1/Nothing"])
def test_a_service_or_method_that_a_task_has_not_is_refused(path):
    with undisturbed() as cluster:
        for fingerprint, who in (
            ("x", "this task has"),
            (
                callers.fingerprint(cluster.training_addresses),
                f"this is worker 0 at {cluster.address}, which has",
            ),
        ):
            body = join_body(cluster, fingerprint=fingerprint)
            answer = json.loads(call(cluster.address, path, body))
            assert answer["status"] == "refused"
            if "Rendezvous" not in path:
                assert answer["reason"].startswith(f"{who} no service ")


@pytest.mark.parametrize(
    "path", ["/x/y", "/tfdist.Rendezvous/Join/x", "/tfdist.Ren-dezvous.1/Join"]
)
def test_other_paths_are_unknown(path):
    with undisturbed() as cluster:
        with pytest.raises(grpc.RpcError) as caught:
            call(cluster.address, path, b"{}")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("wait", [1e300, 10**300, -1.0])
def test_a_caller_cannot_hold_a_call_forever(wait, monkeypatch):
    monkeypatch.setattr(held_calls, "_MAX_WAIT", 0.1)
    cluster = clusters(2)[0]
    join = encoding.decode(JoinRequest, join_body(cluster, wait=wait))
    call = Background(rendezvous.Rendezvous(cluster).join, join, ClientContext())
    assert call.result() == {"status": "waiting", "missing": [0]}


def test_a_message_too_large_is_refused():
    with undisturbed() as cluster:
        with pytest.raises(grpc.RpcError) as caught:
            call(cluster.address, JOIN.path, b" " * (pieces.MAX_REQUEST_BYTES + 1))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def half_open_call(path: str, stream: int) -> bytes:
    """The HTTP/2 frame that begins a gRPC call, whose body is to follow; see RFC 9113 and 7541."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    texts = [text.encode() for field in fields.items() for text in field]
    block = b"".join(
        (b"" if i % 2 else b"\0") + bytes([len(text)]) + text for i, text in enumerate(texts)
    )
    return len(block).to_bytes(3, "big") + b"\x01\x04" + stream.to_bytes(4, "big") + block


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("method", [CHALLENGE, JOIN.path])
def test_calls_that_are_never_completed_do_not_block_others(method, monkeypatch):
    monkeypatch.setattr(control_server, "_BODY_TIMEOUT", 1.0)
    with contextlib.ExitStack() as strangers:
        with undisturbed(SECRET) as cluster:
            host, _, port = cluster.address.rpartition(":")
            for _ in range(10):
                stranger = socket.create_connection((host, int(port)), timeout=5)
                strangers.enter_context(stranger)
                stranger.sendall(PREFACE)
                for stream in range(1, 100, 2):
                    stranger.sendall(half_open_call(method, stream))
            # Its other end gives them up.
            received = b""
            while b"its body did not come" not in received:
                received += stranger.recv(1 << 16)


def test_garbage_bytes_on_the_port_disturb_nothing():
    chance = random.Random(7)
    with undisturbed() as cluster:
        host, _, port = cluster.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for number in range(60):
            start = (b"", preface, b"GET / HTTP/1.1\r\n\r\n")[number % 3]
            with socket.create_connection((host, int(port)), timeout=5) as stranger:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(start + chance.randbytes(chance.randrange(2000)))


def test_a_server_that_is_not_ours_is_recognised():
    class Other(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda body, context: b"<html>")

    members = clusters(2)
    for handlers, detail in (
        ([], "another gRPC server, as tf.distribute.Server is"),
        ([Other()], "6 bytes of no JSON"),
    ):
        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers(handlers)
        server.add_insecure_port(members[0].address)
        server.start()
        with planes([members[1]]) as (one,):
            with pytest.raises(ClusterConfigError, match=f"expected a tfdist control .*{detail}"):
                one.rendezvous(data_address(1))
        server.stop(None).wait(5)
