"""HTTP/2 by hand (RFC 9113, RFC 7541): bytes that no gRPC client would send."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
# The largest content of a frame, and the credit of a connection, before either side says more.
MAX_CONTENT, WINDOW = 16384, 65535


def frame(kind: int, stream: int = 0, content: bytes = b"", flags: int = 0) -> bytes:
    """Returns a frame."""
    size = len(content).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


# The first bytes of a client: that it speaks HTTP/2, and its settings.
MAGIC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREFACE = MAGIC + frame(SETTINGS)
# So that nothing may be sent to it.
DEAF_PREFACE = MAGIC + frame(SETTINGS, 0, b"\0\4\0\0\0\0")


def field(name: bytes, value: bytes) -> bytes:
    """Returns a header field of at most 126 and 16,510 bytes."""
    size = len(value)
    length = (
        bytes([size]) if size < 127 else bytes([127, (size - 127) % 128 + 128, (size - 127) >> 7])
    )
    return b"\0" + bytes([len(name)]) + name + length + value


def call(path: str, stream: int, more: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Returns the frame that begins a gRPC call, whose body is to follow."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]
    return frame(HEADERS, stream, b"".join(field(*pair) for pair in fields), END_HEADERS)


def complete_call(path: str, stream: int, body: bytes) -> bytes:
    """Returns a call with its body, of at most 16,379 bytes."""
    message = b"\0" + len(body).to_bytes(4, "big") + body
    return call(path, stream) + frame(DATA, stream, message, END_STREAM)


class HalfCalls:
    """A connection with calls whose bodies never end; it sends as much as it gets credit for.

    Args:
      address: "host:port".
      path: the method that is called.
      streams: number of calls.
      size: bytes of each body that are announced; one fewer is sent.
    """

    def __init__(self, address: str, path: str, streams: int, size: int) -> None:
        begin = PREFACE + b"".join(call(path, 2 * i + 1) for i in range(streams))
        self.socket = connect(address, begin)
        self._received = b""
        self._credit = dict.fromkeys(range(1, 2 * streams, 2), WINDOW)
        self._credit[0] = WINDOW
        body = b"\0" + size.to_bytes(4, "big") + bytes(size - 1)
        self._first_credit = WINDOW  # of each stream
        self._left = {stream: body for stream in self._credit if stream}

    def proceed(self) -> bool:
        """Reads what has come and sends what it may; returns whether the connection is open."""
        if self.socket is None:
            return False
        try:
            while True:
                received = self.socket.recv(1 << 16)
                if not received:
                    return False
                self._received += received
        except BlockingIOError:
            pass
        except OSError:
            return False
        self._read()
        try:
            for stream in list(self._left):
                self._send(stream)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        while len(self._received) >= 9:
            size, kind = int.from_bytes(self._received[:3], "big"), self._received[3]
            if len(self._received) < 9 + size:
                return
            stream = int.from_bytes(self._received[5:9], "big")
            content = self._received[9 : 9 + size]
            self._received = self._received[9 + size :]
            if kind == WINDOW_UPDATE and stream in self._credit:
                self._credit[stream] += int.from_bytes(content, "big")
            elif kind == RST_STREAM or (kind == HEADERS and self._left.get(stream)):
                self._left.pop(stream, None)
            elif kind == SETTINGS:
                for at in range(0, size, 6):
                    if content[at : at + 2] == b"\0\4":  # the first credit of each stream
                        change = (
                            int.from_bytes(content[at + 2 : at + 6], "big") - self._first_credit
                        )
                        self._first_credit += change
                        for each in self._left:
                            self._credit[each] += change

    def _send(self, stream: int) -> None:
        assert self.socket is not None
        while True:
            size = min(self._credit[0], self._credit[stream], MAX_CONTENT, len(self._left[stream]))
            if size <= 0:
                return
            self.socket.settimeout(5)  # a whole frame, or the rest would be garbage
            self.socket.sendall(frame(DATA, stream, self._left[stream][:size]))
            self.socket.setblocking(False)
            self._left[stream] = self._left[stream][size:]
            self._credit[0] -= size
            self._credit[stream] -= size


def connect(address: str, content: bytes, source: str = "127.0.0.1") -> socket.socket | None:
    """Returns a connection on which as much of `content` was sent as the other side takes at once.

    Returns None if the other side does not accept one.

    Args:
      address: "host:port".
      content: is sent first.
      source: the address of this side.
    """
    host, _, port = address.rpartition(":")
    try:
        stranger = socket.create_connection((host, int(port)), 5, (source, 0))
    except OSError:
        return None
    stranger.setblocking(False)
    with contextlib.suppress(OSError):
        stranger.send(content)
    return stranger


def is_open(stranger: socket.socket) -> bool:
    """Whether the other side has not closed the connection; reads what it has sent."""
    stranger.setblocking(False)
    try:
        while stranger.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
