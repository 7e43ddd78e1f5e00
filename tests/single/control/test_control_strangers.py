"""Strangers at a control port: bounded memory and connections; the log shows the job's tasks."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from support import raw_http2
from support.elastic.control_tasks import Background, LogWatch, clusters, data_address, planes
from support.tiers import rounds
from tfdist.config.cluster import Cluster
from tfdist.control import callers, connections, encoding, refusals
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.pieces import MAX_LONG_BYTES, PIECE, PIECE_BYTES, PieceRequest
from tfdist.control.server import ControlServer
from tfdist.control.service import CHALLENGE
from tfdist.data.queue.messages import TASK_OPEN
from tfdist.errors import AuthenticationError
from tfdist.job import messages
from tfdist.launch.ports import free_ports
from tfdist.observe.clock import CLOCK, ClockRequest

SECRET = b"correct horse battery staple"
MOST = 256
TIMEOUT = 20.0
# Shorter than gRPC's own limit for a connection without a call.
SOON = 10.0
# A server in a process of its own, whose memory can be read.
SERVER = """
import resource
import sys
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.data.queue.master import TaskMaster
from tfdist.job.plane import ControlPlane
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(int(sys.argv[1]), hard), hard))
cluster = Cluster(workers=tuple(sys.argv[2:]))
with ControlPlane(cluster, Settings.from_environment(), TaskMaster(cluster).handlers):
    print("listening", flush=True)
    sys.stdin.read()
"""


class Task:
    """Rank 0 of two, in a process of its own."""

    def __init__(self, process: subprocess.Popen, cluster: Cluster, secret: bytes | None) -> None:
        self._process = process
        self._secret = secret
        self.cluster = cluster
        assert cluster.address is not None
        self.address = cluster.address

    def megabytes(self) -> float:
        """Returns the largest memory that the process has had."""
        with open(f"/proc/{self._process.pid}/status") as file:
            found = next(line for line in file if line.startswith("VmHWM"))
        return int(found.split()[1]) / 1024

    def answers(self) -> None:
        """Returns once an honest caller has an answer; it may be thrown out, or wait in between."""
        deadline = time.monotonic() + 3 * TIMEOUT
        client = ControlClient(self.cluster, self._secret, self.address, "worker 0")
        request = ClockRequest(TIMEOUT)
        with contextlib.closing(client):
            while True:
                try:
                    client.call(CLOCK, request, TIMEOUT, patient=True)
                    return
                except UnreachableError:
                    if time.monotonic() > deadline:
                        raise


@contextlib.contextmanager
def task(secret: bytes | None, descriptors: int = 4096) -> Iterator[Task]:
    """Runs rank 0 of two, with a limit of descriptors."""
    cluster = clusters(2)[0]
    environ = {name: text for name, text in os.environ.items() if name != "TFDIST_SECRET"}
    if secret is not None:
        environ["TFDIST_SECRET"] = secret.decode()
    command = [sys.executable, "-c", SERVER, str(descriptors), *cluster.training_addresses]
    process = subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield Task(process, cluster, secret)
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    """Lets this process have more than a thousand connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Returns once a condition holds."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def count_open(strangers: list[socket.socket | None]) -> int:
    return sum(stranger is not None and raw_http2.is_open(stranger) for stranger in strangers)


@contextlib.contextmanager
def closing_all() -> Iterator[list[socket.socket | None]]:
    """Yields a list of connections that are closed at the end."""
    opened: list[socket.socket | None] = []
    try:
        yield opened
    finally:
        for connection in opened:
            if connection is not None:
                connection.close()


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "open"])
def test_half_calls_cost_little_memory(secret):
    """Each of 150 connections costs less than 0.6 MB; it was 3 MB."""
    with task(secret) as rank_0, closing_all() as strangers:
        rank_0.answers()
        before = rank_0.megabytes()
        calls = [
            raw_http2.HalfCalls(rank_0.address, messages.JOIN.path, streams=64, size=65_000)
            for _ in range(150)
        ]
        strangers += [call.socket for call in calls]
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for call in calls:
                call.proceed()
        rank_0.answers()
        assert rank_0.megabytes() - before < 90


def test_header_fields_without_an_end_cost_little_memory():
    """gRPC keeps header fields until the last has come, here 16 MB of each connection."""
    with task(SECRET) as rank_0, closing_all() as strangers:
        rank_0.answers()
        before = rank_0.megabytes()
        for _ in range(20):
            stranger = raw_http2.connect(rank_0.address, raw_http2.PREFACE)
            strangers.append(stranger)
            assert stranger is not None
            stranger.settimeout(10)
            begin = raw_http2.frame(raw_http2.HEADERS, 1, raw_http2.field(b":method", b"POST"))
            more = raw_http2.field(b"x", bytes(16_000))
            with contextlib.suppress(OSError):  # thrown out
                stranger.sendall(begin)
                for _ in range(1000):
                    stranger.sendall(raw_http2.frame(raw_http2.CONTINUATION, 1, more))
        rank_0.answers()
        assert rank_0.megabytes() - before < 150
        wait_until(lambda: count_open(strangers) == 0, "the strangers' end")


def test_many_that_send_header_fields_at_once_cost_little_memory():
    """All that they send between two looks is kept; they come again as soon as they are reset."""
    begin = raw_http2.frame(raw_http2.HEADERS, 1, raw_http2.field(b":method", b"POST"))
    more = raw_http2.frame(raw_http2.CONTINUATION, 1, raw_http2.field(b"x", bytes(16_000)))
    with task(SECRET) as rank_0, closing_all() as strangers:
        rank_0.answers()
        before, end = rank_0.megabytes(), time.monotonic() + rounds(4, long=60)
        left: dict[socket.socket, memoryview] = {}
        while time.monotonic() < end:
            while len(left) < 60:
                stranger = raw_http2.connect(rank_0.address, raw_http2.PREFACE + begin)
                if stranger is not None:
                    stranger.setblocking(False)
                    left[stranger] = memoryview(more * 60)
            for stranger, content in list(left.items()):
                try:
                    left[stranger] = content[stranger.send(content) :] or memoryview(more * 60)
                except BlockingIOError:
                    continue
                except OSError:  # thrown out
                    stranger.close()
                    del left[stranger]
        strangers += left
        rank_0.answers()
        assert rank_0.megabytes() - before < 300


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secret", "open"])
def test_connections_of_strangers_are_bounded(secret):
    members = clusters(2)
    with planes(members, [secret] * 2) as (zero, one), closing_all() as strangers:
        address = members[0].address
        # Another host has few connections, and keeps them.
        silent = raw_http2.connect(address, raw_http2.PREFACE, source="127.0.0.3")
        strangers.append(silent)
        calls = [Background(p.rendezvous, data_address(i)) for i, p in enumerate((zero, one))]
        assert [len(call.result().addresses) for call in calls] == [2, 2]
        barrier = Background(one.exit_barrier)  # a proven caller's call, which is held meanwhile
        for _ in range(MOST + 150):
            strangers.append(raw_http2.connect(address, raw_http2.PREFACE))
        wait_until(lambda: count_open(strangers) <= MOST, "the end of the others")
        assert silent is not None and raw_http2.is_open(silent)
        assert zero.exit_barrier() and barrier.result()


def test_strangers_do_not_take_the_last_descriptor():
    with task(SECRET, descriptors=100) as rank_0, closing_all() as strangers:
        for _ in range(300):
            strangers.append(raw_http2.connect(rank_0.address, raw_http2.PREFACE))
        wait_until(lambda: count_open(strangers) <= 50, "the end of the others")
        rank_0.answers()


def test_a_job_begins_while_strangers_come_and_stay():
    members = clusters(2)
    ended = threading.Event()
    with planes(members, [SECRET] * 2) as (zero, one), closing_all() as strangers:

        def come() -> None:
            while not ended.is_set():
                half = raw_http2.PREFACE + raw_http2.call(messages.JOIN.path, 1)
                strangers.append(raw_http2.connect(members[0].address, half))
                for old in strangers[:-600]:
                    if old is not None:
                        old.close()
                ended.wait(0.001)

        attack = Background(come)
        try:
            wait_until(lambda: len(strangers) > MOST, "the strangers")
            calls = [Background(p.rendezvous, data_address(i)) for i, p in enumerate((zero, one))]
            assert len({call.result().key for call in calls}) == 1
        finally:
            ended.set()
            attack.result()


def test_the_tasks_of_a_large_job_may_come_all_at_once():
    addresses = (clusters(1)[0].address, *(f"127.0.0.1:{port}" for port in range(2, 301)))
    cluster = Cluster(workers=addresses, task_index=0)
    with contextlib.closing(ControlServer(cluster, None, {})), closing_all() as strangers:
        for _ in range(2 * MOST + 40):
            strangers.append(raw_http2.connect(cluster.address, raw_http2.PREFACE))
        looks = Background(time.sleep, 0.5)
        looks.result()
        assert count_open(strangers) == 2 * MOST + 40


def test_connections_of_other_listeners_are_left_alone():
    """A job's data port may have the control port's number, at another address."""
    with contextlib.ExitStack() as opened:
        (port,) = free_ports(1)
        other = opened.enter_context(socket.create_server(("127.0.0.2", port)))
        own = opened.enter_context(socket.create_server(("127.0.0.1", port)))
        known = connections.Connections("127.0.0.1", port, tasks=2)
        asks = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        asks.bind(("127.0.0.1", port))
        asks.connect(("127.0.0.1", 9))
        ends = []
        for listener in (other, own):
            sender = opened.enter_context(socket.create_connection(listener.getsockname()))
            ends.append((sender, opened.enter_context(listener.accept()[0])))
        assert known.limit() == 0
        assert set(known._unproven) == {ends[1][0].getsockname()}
        for sender, receiver in ends:
            for _ in range(5):
                sender.sendall(bytes(60_000))
                receiver.recv(60_000, socket.MSG_WAITALL)
        assert known.limit() == 1
        ends[0][0].sendall(b"more")
        assert ends[0][1].recv(4, socket.MSG_WAITALL) == b"more"
        with pytest.raises(ConnectionError):
            ends[1][0].recv(1)


def attacks() -> list[bytes]:
    """Returns what strangers say to a control port, of all kinds."""
    path, frame = messages.JOIN.path, raw_http2.frame
    fields = raw_http2.field(b":method", b"POST")
    streams = range(1, 400, 2)
    given_up = [
        raw_http2.call(path, i) + frame(raw_http2.RST_STREAM, i, b"\0\0\0\x08") for i in streams
    ]
    large = [(b"x%d" % i, b"x" * 7000) for i in range(2)]
    more = frame(raw_http2.CONTINUATION, 1, raw_http2.field(b"x", b"x" * 16_000))
    question = [raw_http2.complete_call(CHALLENGE, i, b"") for i in streams[:8]]
    return [
        b"",
        raw_http2.PREFACE,
        raw_http2.PREFACE + frame(raw_http2.HEADERS, 1, fields),
        raw_http2.PREFACE + frame(raw_http2.HEADERS, 1, fields) + more * 200,
        raw_http2.PREFACE + b"".join(raw_http2.call(path, i, large) for i in streams[:8]),
        raw_http2.PREFACE + b"".join(raw_http2.call(path, i) for i in streams),
        raw_http2.PREFACE + b"".join(given_up),
        raw_http2.PREFACE + frame(raw_http2.SETTINGS) * 20_000,
        raw_http2.PREFACE + frame(raw_http2.PING, 0, bytes(8)) * 10_000,
        raw_http2.DEAF_PREFACE + b"".join(question),
        bytes.fromhex("1603010200010001fc0303") + bytes(500),  # TLS
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 10,
    ]


@pytest.mark.timeout(600)
def test_attacks_of_all_kinds():
    """All kinds of strangers come for seconds: the task's memory stays bounded, and it answers."""
    said = attacks()
    with task(SECRET) as rank_0, closing_all() as strangers:
        rank_0.answers()
        before, end = rank_0.megabytes(), time.monotonic() + rounds(3, long=120)
        while time.monotonic() < end:
            for content in said:
                strangers += [raw_http2.connect(rank_0.address, content) for _ in range(5)]
            for old in strangers[:-1500]:
                if old is not None:
                    old.close()
            del strangers[:-1500]
            rank_0.answers()
        assert rank_0.megabytes() - before < 300


def refused_body(number: int) -> bytes:
    """A request that is refused in words of its own."""
    return json.dumps({"rank": f"stranger {number}"}).encode()


def calls_of_strangers(address: str, count: int, source: str = "127.0.0.2") -> None:
    """Makes calls that are refused, each for another reason."""
    for begin in range(0, count, 8):
        content = raw_http2.PREFACE + b"".join(
            raw_http2.complete_call(messages.JOIN.path, 2 * i + 1, refused_body(begin + i))
            for i in range(8)
        )
        stranger = raw_http2.connect(address, content, source)
        assert stranger is not None
        stranger.settimeout(TIMEOUT)
        received = b""
        while received.count(b"stranger") < 8:  # in the reasons
            more = stranger.recv(1 << 16)
            assert more, received
            received += more
        stranger.close()


def test_refusals_of_strangers_do_not_hide_those_of_ranks(monkeypatch):
    # Long enough for all calls, on a machine with other work.
    monkeypatch.setattr(refusals, "_PERIOD", 4.0, raising=False)
    members = clusters(2)
    with planes(members[:1]) as (zero,), LogWatch() as log:
        calls_of_strangers(members[0].address, 160)
        with planes(members[1:], [SECRET]) as (one,), pytest.raises(AuthenticationError):
            one.rendezvous(data_address(1))
        log.wait_for("refused worker 1, calling from 127.0.0.1: the caller has a shared secret")
        log.wait_for(r"and 1\d\d other refused calls within 4 s, from 1 host: 127.0.0.2")
        assert sum("stranger" in line for line in log.messages) <= 40
        calls_of_strangers(members[0].address, 8)
        assert zero._server is not None
        assert "worker 1" in (zero._server.last_refusal or "")


def test_answers_that_nobody_takes_fill_no_log(monkeypatch):
    """gRPC logged a traceback for each call whose caller left before its answer."""
    left_out = []
    keeps = refusals.QuietBrokenCalls.filter

    def count(self, record):
        kept = keeps(self, record)
        left_out.append(record) if not kept else None
        return kept

    monkeypatch.setattr(refusals.QuietBrokenCalls, "filter", count)
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", seen.append)
    logger = logging.getLogger("grpc._cython.cygrpc")
    logger.addHandler(handler)
    cluster = clusters(2)[0]
    try:
        with contextlib.closing(ControlServer(cluster, SECRET, {})):
            content = raw_http2.DEAF_PREFACE + raw_http2.complete_call(CHALLENGE, 1, b"")
            strangers = [raw_http2.connect(cluster.address, content) for _ in range(5)]
            wait_until(lambda: all(map(has_answered, strangers)), "the servers' settings")
            for stranger in strangers:
                stranger.close()
            wait_until(lambda: len(left_out) == 5, "five broken calls")
    finally:
        logger.removeHandler(handler)
    assert not seen


def has_answered(stranger: socket.socket) -> bool:
    """Whether header fields have come, which precede an answer's body."""
    with contextlib.suppress(BlockingIOError):
        return b"application/grpc" in stranger.recv(1 << 16, socket.MSG_PEEK)
    return False


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:10.0.0.7:51234", ("10.0.0.7", 51234)),
        ("ipv6:[::1]:51234", ("::1", 51234)),
        ("ipv6:%5B::1%5D:51234", ("::1", 51234)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:51234", ("10.0.0.7", 51234)),
        ("ipv6:%5Bfe80::1%25eth0%5D:51234", ("fe80::1", 51234)),
        ("unix:", ("unix:", 0)),
    ],
)
def test_callers_as_grpc_names_them(text, peer):
    assert connections.peer_of(text) == peer


def long_request(address: str, fingerprint: str, length: int, number: int) -> Iterator[str]:
    """Sends pieces of a request of lists on a connection of its own; yields their statuses."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        send = channel.unary_unary(PIECE.path)
        first, content = b'{"a":[', b"[],{}," * (PIECE_BYTES // 6)
        for offset in range(0, length, len(content)):
            part, path = content[: min(len(content), length - offset)], TASK_OPEN.path
            part = part if offset else first + part[len(first) :]
            piece = PieceRequest(fingerprint, str(number), path, offset, MAX_LONG_BYTES, part)
            try:
                yield json.loads(send(encoding.encode(piece), timeout=TIMEOUT))["status"]
            except grpc.RpcError as error:
                yield error.code().name


@pytest.mark.long(covered_by="test_long_requests_of_strangers_cost_nothing")
def test_long_requests_cost_a_bounded_memory() -> None:
    """Of callers that know all addresses: incomplete ones, and many small values."""
    with task(None) as rank_0:
        rank_0.answers()
        before = rank_0.megabytes()
        known = callers.fingerprint(rank_0.cluster.training_addresses)
        attacks = [
            long_request(rank_0.address, known, MAX_LONG_BYTES - 1, number) for number in range(20)
        ]
        told: set[str] = set()
        for attack in attacks:
            for status in attack:
                told.add(status)
                if status != "received":
                    break
        assert told == {"received", "refused"}
        assert rank_0.megabytes() < before + 48 + 2 * 12 + 40  # the attackers have 240
        rank_0.answers()
    with task(None) as rank_0:
        rank_0.answers()
        before = rank_0.megabytes()
        known = callers.fingerprint(rank_0.cluster.training_addresses)
        for number in range(4):
            *_, last = long_request(rank_0.address, known, MAX_LONG_BYTES, number)
            assert last == "INVALID_ARGUMENT"
        assert rank_0.megabytes() < before + 100
        rank_0.answers()


def test_long_requests_of_strangers_cost_nothing() -> None:
    with task(None) as rank_0:
        rank_0.answers()
        before = rank_0.megabytes()
        for number in range(50):
            told = set(long_request(rank_0.address, "f" * 16, 1 << 20, number))
            assert told == {"refused"}
        assert rank_0.megabytes() < before + 20
        rank_0.answers()
