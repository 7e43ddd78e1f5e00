"""Free ports for several tasks that share one machine.

All tasks must know a task's address before it listens there, so the kernel cannot choose the port
at bind time. This module chooses ports outside the kernel's ephemeral range: a connection that is
opened between the choice and the bind never gets one of them. Nor does another job of this user
that has the same directory for temporary files: a process locks what it chooses, one byte of a file
for each port, until it ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import random
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdist.config.job_file import user_directory

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_EPHEMERAL = (32768, 60999)
_LOWEST = 10000
_HIGHEST = 65535


def ephemeral_range(path: Path = _EPHEMERAL_RANGE) -> tuple[int, int]:
    """Returns the first and last port that the kernel may give to an outgoing connection.

    Args:
      path: the file with the two numbers.

    Returns:
      (first, last); Linux's default if the file is missing or unreadable.
    """
    try:
        first, last = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return _DEFAULT_EPHEMERAL
    return first, last


def free_ports(count: int, candidates: Iterable[int] | None = None) -> list[int]:
    """Chooses `count` different unused ports.

    All of them are bound at the same time, so they are free together. They are released on return.
    Until this process ends, no other one of this user chooses them, where the two have the same
    directory for temporary files. Processes of other users may.

    Args:
      count: the number of ports, 0 or more.
      candidates: ports to try, in this order; by default ports outside the ephemeral range,
        shuffled.

    Returns:
      `count` distinct port numbers.

    Raises:
      OSError: fewer than `count` of the candidates are free.

    Example:
      >>> len(set(free_ports(3)))
      3
    """
    if candidates is None:
        first, last = ephemeral_range()
        outside = [*range(_LOWEST, first), *range(last + 1, _HIGHEST + 1)]
        # If all ports are ephemeral, there is no better choice.
        candidates = _shuffled(outside if len(outside) >= count else range(_LOWEST, _HIGHEST + 1))
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in candidates:
            if len(ports) == count:
                break
            try:
                _lock(port)  # first: a task may be about to bind it
                held.enter_context(_bound(port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise OSError(f"expected {count} free ports, found only {len(ports)}")
    return ports


def free_range(count: int, firsts: Iterable[int] | None = None) -> int:
    """Chooses `count` unused ports that follow each other.

    They are released on return, like the ports of `free_ports`.

    Args:
      count: the number of ports, 1 or more.
      firsts: candidates for the first port, in this order; by default the candidates of
        `free_ports`.

    Returns:
      The first port.

    Raises:
      OSError: there are no such candidates.
    """
    if firsts is None:
        first, last = ephemeral_range()
        outside = [
            port
            for low, high in ((_LOWEST, first - 1), (last + 1, _HIGHEST))
            for port in range(low, high - count + 2)
        ]
        firsts = _shuffled(outside or range(_LOWEST, _HIGHEST - count + 2))
    for candidate in firsts:
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(candidate, candidate + count):
                _lock(port)
                held.enter_context(_bound(port))
            return candidate
    raise OSError(f"expected {count} free ports that follow each other, found none")


def _shuffled(ports: Iterable[int]) -> Iterator[int]:
    """Yields the ports in random order, which it determines one by one: few are ever taken."""
    left = list(ports)
    generator = random.SystemRandom()  # processes that were forked share the state of others
    while left:
        chosen = generator.randrange(len(left))
        left[chosen], left[-1] = left[-1], left[chosen]
        yield left.pop()


def _lock(port: int) -> None:
    """Locks a port until this process ends, where the file system has locks.

    Raises:
      OSError: another process has locked it.
    """
    descriptor = _locks()
    if descriptor is None:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise


@functools.cache
def _locks() -> int | None:
    """Opens the file of the locks; `None` where this user's processes cannot share one."""
    try:
        directory = user_directory()
        if directory is None:
            return None
        return os.open(directory / "ports", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None


def _bound(port: int) -> socket.socket:
    """Returns a socket that is bound to `port` on every interface, for IPv4 and, if any, IPv6."""
    dualstack = socket.has_dualstack_ipv6()
    family, host = (socket.AF_INET6, "::") if dualstack else (socket.AF_INET, "")
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        if dualstack:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((host, port))
    except OSError:
        holder.close()
        raise
    return holder
