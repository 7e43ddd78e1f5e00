"""Records everything that passes over the network of a job, which has a network of its own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
IS_PERMITTED = os.geteuid() == 0
# Names the namespace's file to the processes that begin with ENTER.
VARIABLE = "TEST_NAMESPACE"
ENTER = f"""
import ctypes, os, sys
if ctypes.CDLL(None).setns(os.open(os.environ["{VARIABLE}"], os.O_RDONLY), {NEW_NETWORK}) != 0:
    sys.exit("cannot enter the network namespace")
"""

_BUFFER_BYTES = 128 << 20
_FRAME_BYTES = 256 << 10
_HEADER_BYTES = {b"\x08\x00": 20, b"\x86\xdd": 40}  # of IP, without options, by the frame's type
_SET_FLAGS, _UP = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP and IFF_RUNNING
_ALL_FRAMES, _OUTGOING = 0x0003, 4  # ETH_P_ALL, PACKET_OUTGOING
_FORCE_BUFFER, _PACKET_LEVEL, _STATISTICS = 33, 263, 6


class Capture:
    """A network namespace with a loopback device, all of whose frames are recorded.

    A context manager; the frames are complete behind it. A process enters the namespace with
    `ENTER`, which needs `variables`. Only root can make one.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._ends, self._begun = threading.Event(), threading.Event()
        self._namespace = -1
        self._lost = 0
        # A thread has a network namespace of its own, if it asks for one.
        self._thread = threading.Thread(target=self._record, name="capture", daemon=True)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a process that begins with `ENTER`."""
        return {VARIABLE: f"/proc/{os.getpid()}/fd/{self._namespace}"}

    def __enter__(self) -> Capture:
        self._thread.start()
        assert self._begun.wait(10)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(10)
        os.close(self._namespace)
        assert self._lost == 0, f"{self._lost} frames were not recorded"

    def _record(self) -> None:
        if ctypes.CDLL(None).unshare(NEW_NETWORK) != 0:
            raise PermissionError("cannot make a network namespace")
        thread = threading.get_native_id()
        self._namespace = os.open(f"/proc/self/task/{thread}/ns/net", os.O_RDONLY)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_FRAMES)) as device:
            device.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, _BUFFER_BYTES)
            device.settimeout(0.1)
            fcntl.ioctl(device, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
            self._begun.set()
            while not self._ends.is_set():
                self._receive(device)
            seen = device.getsockopt(_PACKET_LEVEL, _STATISTICS, 8)
            self._lost = struct.unpack("II", seen)[1]

    def _receive(self, device: socket.socket) -> None:
        try:
            frame, (_, _, kind, *_) = device.recvfrom(_FRAME_BYTES)
        except TimeoutError:
            return
        if kind == _OUTGOING:  # each comes in, too
            self._frames.append(frame)

    def streams(self) -> dict[Any, bytes]:
        """The bytes of each direction of each TCP connection, and of all other frames together."""
        segments: dict[Any, dict[int, bytes]] = {}
        others = bytearray()
        for frame in self._frames:
            found = list(_segments(frame))
            for direction, sequence, payload in found:
                known = segments.setdefault(direction, {})
                known[sequence] = max(known.get(sequence, b""), payload, key=len)
            if not found:
                others += frame
        return {**{key: _joined(parts) for key, parts in segments.items()}, None: bytes(others)}


def _segments(frame: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """The direction, first number and bytes of the TCP segment in an Ethernet frame, if any."""
    kind, packet = frame[12:14], frame[14:]
    if kind not in _HEADER_BYTES:
        return
    is_old = kind == b"\x08\x00"
    if packet[9 if is_old else 6] != socket.IPPROTO_TCP:
        return
    addresses = packet[12:20] if is_old else packet[8:40]
    segment = packet[4 * (packet[0] & 15) if is_old else 40 :]
    ports, sequence, header = segment[:4], segment[4:8], 4 * (segment[12] >> 4)
    begins = segment[13] & 2  # SYN, which counts as a byte
    first = int.from_bytes(sequence, "big") + begins // 2
    yield addresses + ports, first, segment[header:]


def _joined(parts: dict[int, bytes]) -> bytes:
    """The bytes of a stream from its segments, some of which may have been sent twice."""
    start = next(iter(parts))
    stream = bytearray()
    for sequence, payload in parts.items():
        if not payload:  # an end has a number, but no byte
            continue
        offset = (sequence - start) % 2**32
        stream.extend(bytes(max(0, offset + len(payload) - len(stream))))
        stream[offset : offset + len(payload)] = payload
    return bytes(stream)
