"""A parameter server's worker in Python, for hostile ones: its frames, byte by byte.

Written from the comments of ops/core/ps/protocol/message.h, not with the core's code.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from support.raw_data_peer import HEADER_BYTES, MAGIC, WELCOME, Door, hello, introduce, receive

OPEN, CREATE, BIND, PULL, PUSH, SET, REDUCE, LEAVE = range(32, 40)
TABLE, LOOKUP, SCAN_ROWS, EDIT_ROWS, FIND_ROWS, RESOLVE, COMMIT, EXCHANGE = range(40, 48)
OK, ERROR = 64, 65
RESTORE, REPLACE, UPSERT, REMOVE, CLEAR = range(1, 6)
FLOAT32, INT64, BYTES = 3, 6, 7  # see ops/core/math/dtype.h
SGD, ADAM = 1, 4


def message(
    kind: int, meta: bytes = b"", payload: bytes = b"", *, id: int = 7, **claims: int
) -> bytes:
    """Returns a frame.

    Args:
      kind: of the message.
      meta: its fields.
      payload: its values.
      id: of the request.
      **claims: further fields of the header: `magic`, `meta_bytes`, `exposed`, `payload_bytes`.
    """
    sizes = {"meta_bytes": len(meta), "exposed": 0, "payload_bytes": len(payload)}
    said = {"magic": MAGIC, **sizes, **claims}
    begin = (said["magic"], kind, 0, 0, said["meta_bytes"], said["exposed"], said["payload_bytes"])
    return struct.pack("<IBBHIIQQQQ", *begin, id, 0, 0) + meta + payload


def listed(entries: Iterable[bytes]) -> bytes:
    """Returns a list of encoded entries."""
    parts = list(entries)
    return struct.pack("<I", len(parts)) + b"".join(parts)


def text(content: str) -> bytes:
    """Returns a string."""
    return struct.pack("<H", len(content)) + content.encode()


def table(name: str, width: int, optimizer: int, resets_slots: bool = False) -> bytes:
    """Returns an entry of TABLE: a table of zeros, whose rows have the slots of an optimizer."""
    of_optimizer = struct.pack("<BBBB", optimizer, 0, 0, 0)
    of_optimizer += struct.pack("<14d", 0, 0, 0.9, 0.999, 1e-7, *[0] * 9)
    config = struct.pack("<IB", width, 1) + of_optimizer + struct.pack("<5d", *[0] * 5)
    config += struct.pack("<BddQ", 1, 0, 0, 0)  # the initial value
    config += struct.pack("<IdQBdd", 1, 1, 0, 1, 0, 0)  # admission and eviction
    return text(name) + config + struct.pack("<B", resets_slots)


def edit(table_id: int, kind: int, rows: int, floats: int, sequence: int = 0) -> bytes:
    """Returns the meta of EDIT_ROWS."""
    return struct.pack("<IBQQQ", table_id, kind, rows, floats, sequence)


def scan(table_id: int, rows: int, cursor: int = 0, incarnation: int = 0) -> bytes:
    """Returns the meta of SCAN_ROWS."""
    return struct.pack("<IQQQB", table_id, incarnation, cursor, rows, 1)


def lookup(table_id: int, rows: int) -> bytes:
    """Returns the meta of LOOKUP, as in a training step."""
    return b"\1" + listed([struct.pack("<IQB", table_id, rows, FLOAT32)])


def find(table_id: int, rows: int) -> bytes:
    """Returns the meta of FIND_ROWS, with values."""
    return struct.pack("<IQB", table_id, rows, True)


def create(name: str, elements: int, has_value: bool = True) -> bytes:
    """Returns the meta of CREATE: one variable of float32."""
    return listed([text(name) + struct.pack("<BQB", FLOAT32, elements, has_value)])


def push(shard: int, kind: int, rows: int, width: int, steps: int = 1) -> bytes:
    """Returns the meta of PUSH: one gradient."""
    entry = struct.pack("<IBB", shard, kind, 0)
    if kind in (2, 5):
        entry += struct.pack("<QQ", rows, width)
    if kind == 5:
        entry += struct.pack("<B", FLOAT32)
    of_steps = listed(struct.pack("<dq", 0.1, 1) for _ in range(steps))
    # Neither records of data tasks nor a unit of work.
    return struct.pack("<QQQ", 1, 0, 0) + of_steps + listed([entry]) + bytes(1 + 4 + 24)


class Session:
    """A connection of a worker that has proven that it knows the key.

    Args:
      door: of the server.
      rank: the worker's.
      process: its number, with which it sends OPEN; `None` sends none.
    """

    def __init__(self, door: Door, rank: int, process: int | None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", door.port), timeout=30)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            introduce(self.socket, door.key, hello(door.incarnation, rank))
            kind, _, _ = self.answer()
            assert kind == WELCOME, kind
            if process is not None:
                self.ask(OPEN, struct.pack("<QQ", process, 0))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Breaks the connection."""
        self.socket.close()

    def send(self, content: bytes) -> None:
        """Sends bytes."""
        self.socket.sendall(content)

    def answer(self) -> tuple[int, bytes, bytes]:
        """Receives the kind, meta and payload of the next frame."""
        header = receive(self.socket, HEADER_BYTES)
        kind, meta, payload = struct.unpack("<4xB3xI4xQ24x", header)
        return kind, receive(self.socket, meta), receive(self.socket, payload)

    def ask(self, kind: int, meta: bytes = b"", payload: bytes = b"") -> tuple[int, bytes, bytes]:
        """Sends a request and receives its answer."""
        self.send(message(kind, meta, payload))
        return self.answer()
