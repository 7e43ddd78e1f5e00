"""Unix sockets between programs of one user on one machine."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_PEER = struct.Struct("3i")  # pid, uid, gid


def user_of(peer: socket.socket) -> int:
    """Returns the user at the other side of a connection, as the kernel knows it."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(data)[1]
    return uid


@contextlib.contextmanager
def opened(directory: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Opens a directory, but no link to one; yields its descriptor.

    Raises:
      OSError: it cannot be opened.
    """
    descriptor = os.open(directory, flags | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """Yields a short name of a path while its directory is open: a socket's has 107 bytes."""
    with opened(path.parent, os.O_PATH) as directory:
        yield f"/proc/self/fd/{directory}/{path.name}"
