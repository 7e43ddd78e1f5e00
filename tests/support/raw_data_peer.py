"""A data connection in Python: frames, and the handshake of ops/core/net/authenticate.h.

Written from the protocol's description, not with the core's code.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from typing import Any, NamedTuple

from tfdist.config.cluster import Cluster
from tfdist.control.client import ControlClient
from tfdist.control.signing import data_key
from tfdist.ps import messages
from tfdist.ps.config import PsConfig, fingerprint

MAGIC = 0x44465402
HELLO, CHALLENGE, PROOF, WELCOME = 1, 2, 3, 4
HEADER_BYTES, HELLO_BYTES, NONCE_BYTES, PROOF_BYTES = 48, 32, 16, 32


def frame(kind: int, length: int, payload: bytes = b"", magic: int = MAGIC) -> bytes:
    """Returns a frame of the data connections: 48 bytes of header, then the meta."""
    return struct.pack("<IBBHIIQQQQ", magic, kind, 0, 0, length, 0, 0, 0, 0, 0) + payload


def hello(generation: int, rank: int, to: int = 0, nonce: bytes | None = None) -> bytes:
    """Returns the payload of a HELLO."""
    return struct.pack("<QII", generation, rank, to) + (nonce or os.urandom(NONCE_BYTES))


def proof(side: str, key: bytes, said: bytes, nonce: bytes) -> bytes:
    """Returns the proof of the key by the "dialler" or the "acceptor"."""
    text = b"tfdist data connection, " + side.encode() + b"\0" + said + nonce
    return hmac.new(key, text, hashlib.sha256).digest()


def receive(connection: socket.socket, size: int) -> bytes:
    """Reads exactly `size` bytes; EOFError if the connection ends before."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise EOFError(f"closed after {len(content)} of {size} bytes")
        content += part
    return content


def introduce(connection: socket.socket, key: bytes, said: bytes) -> bytes:
    """Sends a HELLO, answers the challenge; returns the acceptor's nonce and proof."""
    connection.sendall(frame(HELLO, HELLO_BYTES, said))
    header = receive(connection, HEADER_BYTES)
    assert header[4] == CHALLENGE, header
    answer = receive(connection, NONCE_BYTES + PROOF_BYTES)
    proven = proof("dialler", key, said, answer[:NONCE_BYTES])
    connection.sendall(frame(PROOF, PROOF_BYTES, proven))
    return answer


class Door(NamedTuple):
    """A server's port, key and incarnation, which a worker needs to connect."""

    port: int
    key: bytes
    incarnation: int


def find_door(ranks: Any) -> Door:
    """Requests them from ps 0 of a two-worker job without a secret, as worker 0 beside a chief."""
    cluster = Cluster.from_tf_config(ranks[1].assignment.environment["TF_CONFIG"])
    config = PsConfig.make(2, epoch_timeout=0.0)  # as in the attacked jobs
    return ask_for_door(cluster, None, 0, 1, config)


def ask_for_door(
    cluster: Cluster, secret: bytes | None, server: int, rank: int, config: PsConfig
) -> Door:
    """Requests them from a server, as the worker `rank` of a job."""
    control = ControlClient(cluster, secret, cluster.ps[server], f"ps {server}")
    request = messages.AttachRequest(
        rank,
        cluster.world_size,
        fingerprint(cluster),
        "stranger",
        config.text(),
        10.0,
    )
    try:
        answer = control.call(messages.ATTACH, request, 10.0, patient=True)
    finally:
        control.close()
    key = data_key(secret, "ps", str(server), answer["salt"])
    return Door(answer["port"], key, int(answer["incarnation"]))
