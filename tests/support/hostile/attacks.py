"""Attacks on a parameter server, by strangers and by a member that knows the secret.

Each is a function of a `Target` and a source of random choices, which makes one attempt and returns
its outcome. Outcomes are "refused" (thrown out, or answered by an error), "answered" (a well-formed
request of a member about its own values), or "left" (it has left, or holds on).

A member is allowed to change the job. Legitimate changes are left out, so that the job's result
stays known: a push that the server accepts, since it is a contribution to a step; a write to a
variable, table or reduction that is not the member's own; an OPEN or an Attach in the rank of a
task that trains; a notice of preemption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import random
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

import grpc

from support import raw_http2
from support.every_method import METHODS, made_up
from support.hostile import raw_ps_member as ps
from support.raw_data_peer import (
    CHALLENGE,
    HEADER_BYTES,
    HELLO,
    HELLO_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROOF,
    PROOF_BYTES,
    WELCOME,
    Door,
    frame,
    hello,
    proof,
    receive,
)
from tfdist.config.cluster import Cluster
from tfdist.control import callers, encoding, pieces, service
from tfdist.control.client import ControlClient, RefusedError, UnreachableError
from tfdist.data.queue.messages import TASK_OPEN, TASK_STATUS
from tfdist.observe.clock import CLOCK
from tfdist.ps.stats.messages import STATS

REFUSED, ANSWERED, LEFT = "refused", "answered", "left"
# The ranks of the hostile members: the second one replaces tables under the first one's requests.
MEMBER, ACCOMPLICE = 2, 3
# Tables in the snapshot with which the job begins: rows without slots.
TABLES, TABLE_WIDTH, TABLE_ROWS = 200, 8, 64
# Bounds of the attackers' connections and calls at once, per server.
CONNECTIONS, DRIPS, HALF_CALLS, IDLE_MEMBERS = 300, 40, 300, 32
STREAMS = 64  # of half calls on a connection
SCANS = 200  # scans with unread answers
_PIECES = 20  # of a long request
_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)
# A server has no time for a stranger among thousands.
_BUSY = (
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
)
_ONES = struct.pack("<8f", *[1.0] * 8)


@dataclasses.dataclass
class Target:
    """A parameter server, and what its attackers know and hold.

    Args:
      cluster: the job.
      secret: its secret, or None.
      server: the server's index.
      door: of its data port.
      metrics: its port for metrics.
    """

    cluster: Cluster
    secret: bytes | None
    server: int
    door: Door
    metrics: int

    def __post_init__(self) -> None:
        self.held: dict[str, deque[socket.socket]] = {}
        self.half_calls: list[raw_http2.HalfCalls] = []
        self.next_table = 0
        self.process = random.Random(self.server).getrandbits(60)
        self.control_port = int(self.cluster.ps[self.server].rpartition(":")[2])
        self.channel = grpc.insecure_channel(
            f"127.0.0.1:{self.control_port}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.client = ControlClient(
            self.cluster, self.secret, self.cluster.ps[self.server], f"ps {self.server}"
        )

    def hold(self, kind: str, connection: socket.socket, limit: int) -> None:
        """Keeps a connection open until `most` later ones have come."""
        held = self.held.setdefault(kind, deque())
        held.append(connection)
        while len(held) > limit:
            held.popleft().close()

    def close(self) -> None:
        """Lets go of all connections."""
        for held in self.held.values():
            for connection in held:
                connection.close()
        for calls in self.half_calls:
            calls.socket.close()
        self.channel.close()
        self.client.close()


def connect(port: int, timeout: float = 20.0) -> socket.socket:
    """Connects; the end of the connection leaves nothing behind in the kernel."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return connection


@contextlib.contextmanager
def perhaps_thrown_out() -> Iterator[None]:
    """Ends early if the other side closes the connection meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            raise


def until_thrown_out(connection: socket.socket) -> str:
    """Reads until the other side closes; fails if it sends a WELCOME."""
    received = b""
    with perhaps_thrown_out():
        while part := connection.recv(1 << 16):
            received += part
            assert len(received) < 1 << 20, "an endless answer"
    assert frame(WELCOME, 0) not in received, "a stranger was let in"
    return REFUSED


# ---- By strangers, at the data port.


def _intrusion(source: random.Random, door: Door) -> bytes:
    said = hello(door.incarnation, source.randrange(4))
    content = [
        lambda: source.randbytes(source.randrange(1, 500)),
        # No proof that fits; another generation; another rank.
        lambda: frame(HELLO, HELLO_BYTES, said) + frame(PROOF, PROOF_BYTES, source.randbytes(32)),
        lambda: frame(HELLO, HELLO_BYTES, hello(source.getrandbits(64), 1)),
        lambda: frame(HELLO, HELLO_BYTES, hello(door.incarnation, 4 + source.getrandbits(31))),
        # A length that must not be believed; another type; another version; a request at once.
        lambda: frame(HELLO, source.getrandbits(32)) + source.randbytes(60),
        lambda: frame(source.randrange(2, 20), 30) + source.randbytes(30),
        lambda: frame(HELLO, HELLO_BYTES, said, magic=MAGIC + source.randrange(1, 256)),
        lambda: ps.message(source.randrange(32, 66), source.randbytes(20)),
        lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    return source.choice(content)()


def intrude(target: Target, source: random.Random) -> str:
    """Says something that must not be let in, or a part of it, and leaves or waits."""
    content = _intrusion(source, target.door)
    if source.randrange(2):
        content = content[: source.randrange(len(content))]
    with connect(target.door.port) as connection:
        with perhaps_thrown_out():
            connection.sendall(content)
            if source.randrange(2):
                return LEFT
            connection.shutdown(socket.SHUT_WR)
        return until_thrown_out(connection)


def hold_half_a_handshake(target: Target, source: random.Random) -> str:
    """Says a part of HELLO, and stays."""
    connection = connect(target.door.port)
    said = frame(HELLO, HELLO_BYTES, hello(target.door.incarnation, 0))
    with perhaps_thrown_out():
        connection.sendall(said[: source.randrange(len(said) + 1)])
    target.hold("half handshakes", connection, CONNECTIONS)
    return LEFT


def replay(target: Target, source: random.Random) -> str:
    """Repeats the two frames with which a member has just been let in."""
    said = frame(HELLO, HELLO_BYTES, hello(target.door.incarnation, MEMBER))
    with connect(target.door.port) as member:
        member.sendall(said)
        assert receive(member, HEADER_BYTES)[4] == CHALLENGE
        nonce = receive(member, NONCE_BYTES + PROOF_BYTES)[:NONCE_BYTES]
        proven = proof("dialler", target.door.key, said[HEADER_BYTES:], nonce)
        proven = frame(PROOF, PROOF_BYTES, proven)
        member.sendall(proven)
        assert receive(member, HEADER_BYTES)[4] == WELCOME
    with connect(target.door.port) as stranger:
        with perhaps_thrown_out():
            stranger.sendall(said + proven)
        return until_thrown_out(stranger)


# ---- By strangers, at the control port and the one for metrics.


def begin_half_calls(target: Target, source: random.Random) -> str:
    """Begins calls whose bodies lack the last byte, continues with earlier ones, and stays."""
    path = source.choice([method.path for method in METHODS])
    size = pieces.MAX_REQUEST_BYTES - 1
    calls = raw_http2.HalfCalls(f"127.0.0.1:{target.control_port}", path, STREAMS, size)
    if calls.socket is None:
        return REFUSED
    target.half_calls.append(calls)
    open_ones = [each for each in target.half_calls if each.proceed()]
    for each in set(target.half_calls) - set(open_ones[-HALF_CALLS:]):
        each.socket.close()
    target.half_calls = open_ones[-HALF_CALLS:]
    return LEFT if calls in target.half_calls else REFUSED


def send_garbage_to_control(target: Target, source: random.Random) -> str:
    """Sends bytes and frames that are no call, or calls with bodies that are none."""
    path = source.choice([*(m.path for m in METHODS), service.CHALLENGE, "/x/y"])
    of_call = raw_http2.PREFACE + raw_http2.call(path, 1)
    contents = [
        lambda: source.randbytes(source.randrange(1, 500)),
        lambda: raw_http2.PREFACE + source.randbytes(source.randrange(1, 500)),
        lambda: of_call + raw_http2.frame(raw_http2.DATA, 1, b"\0" + source.randbytes(100)),
        lambda: raw_http2.PREFACE + raw_http2.complete_call(path, 1, source.randbytes(100)),
        lambda: raw_http2.DEAF_PREFACE + raw_http2.complete_call(path, 1, b"{}"),
        lambda: raw_http2.PREFACE + raw_http2.complete_call(path, 2, b"{}"),
        lambda: (
            raw_http2.PREFACE
            + raw_http2.frame(source.randrange(10), source.randrange(9), source.randbytes(40))
        ),
        lambda: of_call + raw_http2.frame(raw_http2.RST_STREAM, 1, bytes(4)),
    ]
    content = source.choice(contents)()
    with connect(target.control_port) as connection:
        with perhaps_thrown_out():
            connection.sendall(content[: source.randrange(1, len(content) + 1)])
            if source.randrange(2):
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1 << 16)
    return LEFT


def call_as_a_stranger(target: Target, source: random.Random) -> str:
    """Makes whole calls without a proof, with made-up content of the right types."""
    values = {
        int: lambda: source.choice([0, 1, 3, -1, 10**9, 10**300]),
        float: lambda: source.choice([0.0, 0.1, -1.0, 1e308, math.nan, 10**400]),
        str: lambda: source.choice(["", "x" * 40, "\ud800", "[[[[", "{}", "9" * 5000]),
        bool: lambda: source.choice([True, False]),
        bytes: lambda: source.randbytes(source.randrange(40)),
    }
    called = source.choice(METHODS)
    request = encoding.encode(made_up(called.request, lambda kind: values[kind]()))
    method = called.path
    if called in (CLOCK, STATS, TASK_STATUS):  # any process may ask for these, and is answered
        method = method.replace(".1/", ".2/")
    body = source.choice([request, request[:-1], b"["])
    try:
        answer = target.channel.unary_unary(method)(body, timeout=10)
    except grpc.RpcError as error:
        if error.code() in _REFUSALS:
            return REFUSED
        assert error.code() in _BUSY, (method, body[:200], error)
        return LEFT
    assert target.secret is None, (method, body[:200], answer)
    status = json.loads(answer)["status"]
    assert status == "refused", (method, body[:200], answer)
    return REFUSED


def drip_to_metrics(target: Target, source: random.Random) -> str:
    """Sends another byte of a request on each of many connections, or garbage."""
    if not source.randrange(4):
        with connect(target.metrics) as connection:
            with perhaps_thrown_out():
                connection.sendall(source.randbytes(source.randrange(1, 20_000)))
        return LEFT
    target.hold("drips", connect(target.metrics), DRIPS)
    for connection in target.held["drips"]:
        with contextlib.suppress(OSError):
            connection.sendall(b"G")
    return LEFT


# ---- By a member, which knows the secret.


def _request(source: random.Random) -> bytes:
    """A request that is malformed, or about what does not exist."""
    bits, some = source.getrandbits, source.randbytes
    unknown = 10**6 + bits(20)
    table = source.randrange(TABLES)
    numbers = source.randrange(1, 100)
    quads = struct.pack("<Q", 0)
    of_shard = ps.listed([struct.pack("<I", unknown)])
    content = [
        lambda: ps.message(source.randrange(33, 48), some(source.randrange(1, 200))),
        lambda: ps.message(source.randrange(48, 256), some(20)),
        lambda: ps.message(ps.OPEN, bytes(16)),
        # Updates of missing variables, and of other shapes: a push that is refused.
        lambda: ps.message(ps.PUSH, ps.push(unknown, 1, 0, 0), some(numbers)),
        lambda: ps.message(ps.PUSH, ps.push(unknown, 5, 1, 4), bytes(24)),
        lambda: ps.message(ps.PUSH, ps.push(table, 5, 1, TABLE_WIDTH + 1), bytes(8 + 36)),
        lambda: ps.message(ps.PUSH, ps.push(table, 5, bits(64), 8), bytes(40)),
        lambda: ps.message(ps.PUSH, ps.push(table, 5, 1, 8, steps=0), bytes(40)),
        lambda: ps.message(ps.SET, of_shard, some(numbers)),
        lambda: ps.message(ps.EXCHANGE, quads + struct.pack("<d", 0.5) + of_shard, some(numbers)),
        lambda: ps.message(ps.EXCHANGE, quads + struct.pack("<d", math.nan) + ps.listed([])),
        lambda: ps.message(ps.PULL, b"\0" + ps.listed([struct.pack("<IQ", unknown, 0)])),
        lambda: ps.message(
            ps.REDUCE, quads + quads + ps.listed([struct.pack("<BQ", ps.BYTES, 8)]), some(8)
        ),
        lambda: ps.message(
            ps.REDUCE, quads * 2 + ps.listed([struct.pack("<BQ", ps.FLOAT32, bits(62))]), some(8)
        ),
        lambda: ps.message(ps.CREATE, ps.create("hostile", 1 << 62), some(8)),
        lambda: ps.message(ps.CREATE, ps.create("hostile" * 200, 2), some(8)),
        lambda: ps.message(ps.CREATE, ps.create("hostile", 3), some(8)),
        lambda: ps.message(ps.TABLE, ps.listed([ps.table("hostile", 0, ps.SGD)])),
        lambda: ps.message(ps.TABLE, ps.listed([ps.table("hostile", bits(32), ps.ADAM)])),
        lambda: ps.message(ps.LOOKUP, ps.lookup(table, bits(64)), some(8)),
        lambda: ps.message(ps.LOOKUP, ps.lookup(unknown, 1), some(8)),
        lambda: ps.message(ps.SCAN_ROWS, ps.scan(unknown, 10)),
        lambda: ps.message(ps.SCAN_ROWS, ps.scan(table, 10, incarnation=bits(64))),
        lambda: ps.message(ps.FIND_ROWS, ps.find(table, bits(64)), some(8)),
        lambda: ps.message(ps.FIND_ROWS, ps.find(unknown, 1), some(8)),
        lambda: ps.message(ps.EDIT_ROWS, ps.edit(table, ps.RESTORE, 1, 25), bytes(16 + 100)),
        lambda: ps.message(ps.EDIT_ROWS, ps.edit(table, ps.UPSERT, bits(62), 8), bytes(40)),
        lambda: ps.message(ps.EDIT_ROWS, ps.edit(unknown, ps.CLEAR, 0, 0)),
        lambda: ps.message(ps.RESOLVE, some(24) + ps.listed([])),
        # Sizes that must not be believed, and memory of another process.
        lambda: ps.message(ps.LOOKUP, some(40), meta_bytes=64 << 20),
        lambda: ps.message(ps.LOOKUP, some(40), meta_bytes=bits(32)),
        lambda: ps.message(ps.FIND_ROWS, ps.find(table, 1 << 32), payload_bytes=1 << 35),
        lambda: ps.message(ps.FIND_ROWS, some(13 + 16), exposed=1, payload_bytes=16),
        lambda: ps.message(ps.FIND_ROWS, some(13 + 16), exposed=bits(32), payload_bytes=bits(36)),
        lambda: ps.message(ps.LEAVE, magic=MAGIC + 1 + bits(7)),
    ]
    return source.choice(content)()


def send_as_a_member(target: Target, source: random.Random) -> str:
    """Sends a request that must be answered with an error, or end the connection."""
    with _session(target, MEMBER) as session:
        with perhaps_thrown_out():
            session.send(_request(source))
            session.socket.shutdown(socket.SHUT_WR)
        return _outcome(session, expected=ps.ERROR)


def use_own_table(target: Target, source: random.Random) -> str:
    """Reads and writes rows of the member's own table and variable, sometimes byte by byte."""
    name, ids = f"own {target.server}", struct.pack("<2q", *[source.randrange(1000)] * 2)
    with _session(target, MEMBER) as session:
        _, meta, _ = session.ask(ps.TABLE, ps.listed([ps.table(name, TABLE_WIDTH, ps.ADAM)]))
        (table,) = struct.unpack("<4xI", meta)
        _expect_ok(session.ask(ps.CREATE, ps.create(name, 2), bytes(8)))
        content = [
            (ps.EDIT_ROWS, ps.edit(table, ps.RESTORE, 2, 24), ids + bytes(16) + _ONES * 6),
            (ps.EDIT_ROWS, ps.edit(table, ps.UPSERT, 2, 8), ids + _ONES * 2),
            (ps.EDIT_ROWS, ps.edit(table, ps.REMOVE, 2, 0), ids),
            (ps.FIND_ROWS, ps.find(table, 2), ids),
            (ps.LOOKUP, ps.lookup(table, 2), ids),
            (ps.SCAN_ROWS, ps.scan(table, 1 + source.getrandbits(63), source.getrandbits(20)), b""),
            (ps.LEAVE, b"", b""),
        ]
        request = ps.message(*source.choice(content))
        pieces = 1 if source.randrange(4) == 0 else len(request)
        for start in range(0, len(request), pieces):
            session.send(request[start : start + pieces])
        _expect_ok(session.answer())
    return ANSWERED


def replace_a_table_under_an_edit(target: Target, source: random.Random) -> str:
    """Sends half of an edit of a table, resets that table's slots, and sends the other half."""
    if target.next_table == TABLES:
        return use_own_table(target, source)
    table, target.next_table = target.next_table, target.next_table + 1
    with _session(target, MEMBER) as session, _session(target, ACCOMPLICE) as other:
        # An edit of another width names the table: ids are in the order of the snapshot.
        kind, meta, _ = session.ask(ps.EDIT_ROWS, ps.edit(table, ps.UPSERT, 0, TABLE_WIDTH + 1))
        name = meta.decode(errors="replace").partition("table '")[2].partition("'")[0]
        assert kind == ps.ERROR and name.startswith("hostile "), (kind, meta)
        ids = struct.pack(f"<{TABLE_ROWS}q", *range(TABLE_ROWS))
        meta = ps.edit(table, ps.RESTORE, TABLE_ROWS, TABLE_WIDTH)
        request = ps.message(ps.EDIT_ROWS, meta, ids + bytes(8 * TABLE_ROWS) + _ONES * TABLE_ROWS)
        session.send(request[:-4])
        # The server has checked the edit by now, or has not: both are wanted.
        time.sleep(source.choice([0.0, 0.05]))
        entry = ps.table(name, TABLE_WIDTH, ps.ADAM, resets_slots=True)
        _expect_ok(other.ask(ps.TABLE, ps.listed([entry])))
        session.send(request[-4:])
        outcome = _outcome(session)
        # No memory but the rows' own.
        _, _, payload = other.ask(ps.SCAN_ROWS, ps.scan(table, 2 * TABLE_ROWS))
        rows = len(payload) // (16 + 12 * TABLE_WIDTH)
        floats = struct.unpack(f"<{rows * 3 * TABLE_WIDTH}f", payload[16 * rows :])
        assert set(floats) <= {0.0, 1.0}, f"rows with other values than were written: {floats}"
    return outcome


def read_no_answers(target: Target, source: random.Random) -> str:
    """Asks for many rows, again and again, and reads nothing."""
    name = f"large {target.server}"
    with _session(target, MEMBER) as session:
        _, meta, _ = session.ask(ps.TABLE, ps.listed([ps.table(name, TABLE_WIDTH, ps.SGD)]))
        (table,) = struct.unpack("<4xI", meta)
        first = source.randrange(10) * 1000
        ids = struct.pack("<1000q", *range(first, first + 1000))
        meta = ps.edit(table, ps.UPSERT, 1000, TABLE_WIDTH)
        _expect_ok(session.ask(ps.EDIT_ROWS, meta, ids + _ONES * 1000))
        session.socket.settimeout(2.0)
        with contextlib.suppress(TimeoutError):
            session.send(ps.message(ps.SCAN_ROWS, ps.scan(table, 10_000)) * SCANS)
        time.sleep(source.random())
    return LEFT


def wait_alone(target: Target, source: random.Random) -> str:
    """Sends tensors to add up that no other worker has, and leaves."""
    count = source.randrange(1, 2000)
    tensors = ps.listed([struct.pack("<BQ", ps.FLOAT32, count)])
    with _session(target, MEMBER) as session:
        for _ in range(20):
            meta = struct.pack("<QQ", source.getrandbits(64) | 1 << 63, source.getrandbits(20))
            session.send(ps.message(ps.REDUCE, meta + tensors, bytes(4 * count)))
    return LEFT


def come_in_another_s_rank(target: Target, source: random.Random) -> str:
    """Connects in the rank of a task that trains, and sends requests without OPEN, or nothing."""
    session = ps.Session(target.door, source.randrange(2), None)
    if source.randrange(2):
        target.hold("idle members", session.socket, IDLE_MEMBERS)
        return LEFT
    with session:
        kind = source.choice([ps.PULL, ps.PUSH, ps.SET, ps.LEAVE, ps.TABLE, ps.EDIT_ROWS])
        with perhaps_thrown_out():
            session.send(ps.message(kind, source.randbytes(source.randrange(50))))
        return _outcome(session)


def begin_long_requests(target: Target, source: random.Random) -> str:
    """Sends the first pieces of the description of a queue of data tasks, and never the last."""
    content = b"x" * pieces.PIECE_BYTES
    request = pieces.PieceRequest(
        fingerprint=callers.fingerprint(target.cluster.training_addresses),
        id=f"hostile {source.getrandbits(60)}",
        path=TASK_OPEN.path,
        offset=0,
        size=(_PIECES + 1) * len(content),
        content=content,
    )
    for number in range(_PIECES):
        request = dataclasses.replace(request, offset=number * len(content))
        try:
            answer = target.client.call(pieces.PIECE, request, 0.0, patient=False)
        except RefusedError:
            return REFUSED
        except UnreachableError:  # half calls keep it busy
            return LEFT
        if answer["status"] == "again":  # on a new connection
            return LEFT
        assert answer["status"] == "received", answer
    return ANSWERED


def _session(target: Target, rank: int) -> ps.Session:
    return ps.Session(target.door, rank, target.process + rank)


def _expect_ok(answer: tuple[int, bytes, bytes]) -> None:
    assert answer[0] == ps.OK, answer[:2]


def _outcome(session: ps.Session, expected: int | None = None) -> str:
    """Reads the answer, which is of the `expected` kind unless the server ends the connection."""
    kind = None
    with perhaps_thrown_out(), contextlib.suppress(EOFError):
        kind, meta, _ = session.answer()
        assert expected in (None, kind), (kind, meta)
    return ANSWERED if kind == ps.OK else REFUSED


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of attack.

    Args:
      attempt: makes one.
      rate: attempts a second, at each server.
      memory: MB that all attempts together may cost a task.
      by_member: whether a member makes it. Members make one attempt after the other, because a rank
        has one connection.
      may_be_answered: whether an attempt may be what a member is allowed to do.
    """

    attempt: Callable[[Target, random.Random], str]
    rate: float
    memory: int
    by_member: bool = False
    may_be_answered: bool = False


# A blocked connection costs a buffer; 256 of strangers are kept. Larger costs:
#   - half calls: 256 connections of 0.14 MB, and what malloc keeps of them
#   - unread answers: 64 of 10,000 rows at most, and then no more requests are read
#   - pieces of long requests: 12 MB of each connection, 48 MB and 12 MB for each rank of all
KINDS = {
    "intrusions": Kind(intrude, 60, 2),
    "half handshakes": Kind(hold_half_a_handshake, 20, 2),
    "replays": Kind(replay, 5, 1),
    "half calls": Kind(begin_half_calls, 10, 64),
    "garbage to control ports": Kind(send_garbage_to_control, 20, 8),
    "calls of strangers": Kind(call_as_a_stranger, 20, 8),
    "dripping requests for metrics": Kind(drip_to_metrics, 10, 8),
    "wrong requests": Kind(send_as_a_member, 30, 16, by_member=True),
    "own rows": Kind(use_own_table, 10, 16, by_member=True, may_be_answered=True),
    "tables replaced under edits": Kind(
        replace_a_table_under_an_edit, 0.5, 16, by_member=True, may_be_answered=True
    ),
    "unread answers": Kind(read_no_answers, 0.2, 64, by_member=True),
    "reductions alone": Kind(wait_alone, 2, 8, by_member=True),
    "in another's rank": Kind(come_in_another_s_rank, 5, 8, by_member=True),
    "pieces of long requests": Kind(
        begin_long_requests, 5, 48, by_member=True, may_be_answered=True
    ),
}
