"""The connections of a control port: a bound for callers that have proven nothing.

gRPC shows its server the caller of a call, but no connection without one. Only its newer versions
have a limit, and a stranger who holds all places of it keeps the others out. The sockets are
descriptors of this process, however. If one is reset, gRPC sees a caller that has left.

```
    connect ---> unproven, at most 256 ---- a call of the job ----> proven, not counted
                      |
                      +--> too many: the host with most of them loses those that
                      |    have been silent for longest
                      +--> too many bytes that are no complete call: gRPC keeps
                           the header fields of a call until the last has come
```

With TLS, gRPC tells nothing of a handshake that fails either. A connection that is noted when its
handshake begins, and ends without a call, is one: it is reported.

So a host with few connections keeps them while another one makes thousands, and a caller on the
same host as a stranger needs the time of two short calls.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import ipaddress
import math
import os
import resource
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping

# Unproven connections. The tasks of a larger job may come all at once, each with two of them.
_MAX_CONNECTIONS = 256
_CONNECTIONS_PER_TASK = 2
# Bytes that an unproven connection may send without a complete call; a request has 64 KiB at most.
_MAX_BYTES = 256 * 1024

# Bytes that the kernel keeps of a connection for gRPC, which it has to read even after the end.
_RECEIVE_BUFFER = 64 * 1024

# The functions keep the interpreter's lock: none of them waits, but each would to get it again.
_libc = ctypes.PyDLL(None)
_Address = ctypes.c_char * 28  # struct sockaddr_in6
# struct tcp_info (linux/tcp.h) up to tcpi_bytes_received, and where that begins.
_TcpInfo = ctypes.c_char * 136
_BYTES_RECEIVED = 128

# Handshakes that are noted in a second, since each note looks at all descriptors; and connections
# that are noted at a time.
_NOTES_PER_SECOND, _MAX_NOTED = 50, 1000
# Beginnings of requests in plain HTTP/2, as gRPC's, and HTTP/1.
_PLAIN = (b"PRI ", b"GET ", b"POST", b"HEAD")

Peer = tuple[str, int]


@dataclasses.dataclass
class _Unproven:
    """A connection whose caller has proven nothing.

    Attributes:
      since: the time of its last complete call, or of the first look at it.
      received: bytes that had come on it by then; None until the next look.
    """

    since: float
    received: int | None


@dataclasses.dataclass(frozen=True)
class FailedHandshake:
    """A connection that has ended before its first call.

    Attributes:
      host: of its caller.
      is_plain: whether it began with a request without TLS.
    """

    host: str
    is_plain: bool


class Connections:
    """The connections that this process has accepted at an address.

    Not thread-safe, except `note_handshake`.

    Args:
      host: the numeric address; a wildcard for all of this host's.
      port: the port.
      tasks: the number of the job's tasks.
    """

    def __init__(self, host: str, port: int, tasks: int) -> None:
        # Data connections may have the same port at another address.
        self._host = None if ipaddress.ip_address(host).is_unspecified else _plain(host)
        self._port = port
        # The rest of the descriptors is for the job.
        self._limit = min(
            max(_MAX_CONNECTIONS, _CONNECTIONS_PER_TASK * tasks), _max_descriptors() // 2
        )
        self._unproven: dict[Peer, _Unproven] = {}
        self._proven: set[Peer] = set()
        self._heard: set[Peer] = set()
        self._lock = threading.Lock()
        self._handshakes: dict[Peer, bool] = {}  # whether each began without TLS
        self._notes = 0  # in the second that began then
        self._second_began = -math.inf
        self._failed: list[FailedHandshake] = []
        self._shrink_buffers()

    def heard(self, peer: Peer, *, proven: bool) -> None:
        """Records a complete call; `proven` says that a task of the job has made it."""
        self._heard.add(peer)
        if proven:
            self._unproven.pop(peer, None)
            self._proven.add(peer)
        elif peer not in self._proven:
            self._unproven[peer] = _Unproven(time.monotonic(), None)

    def note_handshake(self) -> None:
        """Notes new connections; to be called when a handshake begins, by any thread."""
        now = time.monotonic()
        with self._lock:
            if now > self._second_began + 1:
                self._second_began, self._notes = now, 0
            if self._notes >= _NOTES_PER_SECOND or len(self._handshakes) >= _MAX_NOTED:
                return
            self._notes += 1
            for peer, descriptor in self._accepted().items():
                if peer not in self._heard and not self._handshakes.get(peer):
                    self._handshakes[peer] = _is_plain(descriptor)

    def take_failed(self) -> list[FailedHandshake]:
        """Returns the failed handshakes that `limit` has found since the last call."""
        failed, self._failed = self._failed, []
        # A caller that finds no plain server there looks whether it encrypts: that is the same one.
        plain = {one.host for one in failed if one.is_plain}
        return [one for one in failed if one.is_plain or one.host not in plain]

    def limit(self) -> int:
        """Closes connections of strangers; returns how many. Call it often."""
        now = time.monotonic()
        accepted = self._accepted()
        self._find_failed(accepted)
        self._proven &= accepted.keys()
        self._unproven = {
            peer: self._unproven.get(peer) or _Unproven(now, 0)
            for peer in accepted.keys() - self._proven
        }
        closed = [peer for peer in self._unproven if self._is_too_loud(peer, accepted[peer])]
        for peer in closed:
            del self._unproven[peer]
        closed += self._in_order_of_rights()[self._limit :]
        for peer in closed:
            self._unproven.pop(peer, None)
            _reset(accepted[peer], peer)
        return len(closed)

    def _find_failed(self, accepted: Mapping[Peer, int]) -> None:
        with self._lock:
            for peer in [p for p in self._handshakes if p in self._heard or p not in accepted]:
                is_plain = self._handshakes.pop(peer)
                if peer not in self._heard:
                    self._failed.append(FailedHandshake(peer[0], is_plain))
        self._heard &= accepted.keys()

    def _is_too_loud(self, peer: Peer, descriptor: int) -> bool:
        received = _bytes_received(descriptor)
        known = self._unproven[peer]
        if known.received is None:
            known.received = received
        return received - known.received > _MAX_BYTES

    def _shrink_buffers(self) -> None:
        """Makes the listening sockets accept connections with small buffers."""
        size = ctypes.c_int(_RECEIVE_BUFFER)
        for descriptor in self._sockets():
            if _address(_libc.getpeername, descriptor) is None:
                _libc.setsockopt(
                    descriptor,
                    socket.SOL_SOCKET,
                    socket.SO_RCVBUF,
                    ctypes.byref(size),
                    ctypes.sizeof(size),
                )

    def _in_order_of_rights(self) -> list[Peer]:
        """Returns the first of each host, the second of each, and so on; the latest one first."""
        latest_first = sorted(
            self._unproven, key=lambda peer: self._unproven[peer].since, reverse=True
        )
        counts: collections.Counter[str] = collections.Counter()
        ordinals = {}
        for peer in latest_first:
            ordinals[peer] = counts[peer[0]]
            counts[peer[0]] += 1
        return sorted(latest_first, key=ordinals.__getitem__)

    def _accepted(self) -> dict[Peer, int]:
        """Returns the descriptors of the connections."""
        found = {}
        for descriptor in self._sockets():
            peer = _address(_libc.getpeername, descriptor)
            if peer is not None:  # else it listens, or was closed meanwhile
                found[peer] = descriptor
        return found

    def _sockets(self) -> Iterator[int]:
        for descriptor in _descriptors():
            own = _address(_libc.getsockname, descriptor)
            if own is None or own[1] != self._port or self._host not in (None, own[0]):
                continue
            if _is_tcp(descriptor):  # a question to a name server has a port of the other kind
                yield descriptor


def peer_of(text: str) -> Peer:
    """Returns the host and port of a caller as gRPC describes it.

    Example:
      >>> peer_of("ipv4:10.0.0.7:51234"), peer_of("ipv6:%5B::1%5D:51234")
      (('10.0.0.7', 51234), ('::1', 51234))
    """
    host, _, port = urllib.parse.unquote(text).partition(":")[2].rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if port.isdecimal() else (text, 0)


def _max_descriptors() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 65536 if soft == resource.RLIM_INFINITY else min(soft, 65536)


def _descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:  # there is none left for the directory: this is the time to look
        return range(_max_descriptors())


def _address(function: Callable, descriptor: int) -> Peer | None:
    # Python's own socket object would change a blocking socket if the script has set a default
    # timeout.
    content, size = _Address(), ctypes.c_uint32(ctypes.sizeof(_Address))
    if function(descriptor, content, ctypes.byref(size)) != 0:
        return None
    raw = content.raw
    family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, raw[4:8]), port
    if family == socket.AF_INET6:
        return _plain(socket.inet_ntop(socket.AF_INET6, raw[8:24])), port
    return None


def _is_tcp(descriptor: int) -> bool:
    kind, size = ctypes.c_int(), ctypes.c_uint32(ctypes.sizeof(ctypes.c_int))
    failed = _libc.getsockopt(
        descriptor, socket.SOL_SOCKET, socket.SO_TYPE, ctypes.byref(kind), ctypes.byref(size)
    )
    return not failed and kind.value == socket.SOCK_STREAM


def _is_plain(descriptor: int) -> bool:
    """Whether the first bytes, if they have come, are a request without TLS."""
    content = ctypes.create_string_buffer(len(_PLAIN[0]))
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    read = _libc.recv(descriptor, content, ctypes.sizeof(content), flags)
    return read == len(content.raw) and content.raw in _PLAIN


def _bytes_received(descriptor: int) -> int:
    content, size = _TcpInfo(), ctypes.c_uint32(ctypes.sizeof(_TcpInfo))
    if _libc.getsockopt(
        descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, content, ctypes.byref(size)
    ):
        return 0  # closed meanwhile
    return int.from_bytes(content.raw[_BYTES_RECEIVED:], sys.byteorder)


def _plain(host: str) -> str:
    """Returns the IPv4 address that a socket for both kinds shows as IPv6; others as they are."""
    try:
        mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    except ValueError:
        return host
    return str(mapped) if mapped else host.partition("%")[0]


def _reset(descriptor: int, peer: Peer) -> None:
    # gRPC may close it at any time, and another thread get its number: a copy stays what it is.
    try:
        copy = os.dup(descriptor)
    except OSError:  # it was closed, or no descriptor is left
        copy = descriptor
    if _address(_libc.getpeername, copy) == peer:
        # Unlike a shutdown it drops what has come already, which gRPC would still read.
        _libc.connect(copy, _Address(), ctypes.sizeof(_Address))  # AF_UNSPEC
    if copy != descriptor:
        os.close(copy)
