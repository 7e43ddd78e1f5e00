"""Free ports for several tasks that share one machine.

A task's address has to be known to everybody before the task listens on it, so the kernel cannot
choose the port at bind time. Ports are therefore chosen here, outside the kernel's ephemeral range:
a connection that is opened between the choice and the bind can never be given one of them.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterable
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_EPHEMERAL = (32768, 60999)
_LOWEST = 10000
_HIGHEST = 65535


def ephemeral_range(path: Path = _EPHEMERAL_RANGE) -> tuple[int, int]:
    """The first and last port that the kernel may give to an outgoing connection.

    Args:
      path: the file in which Linux publishes the two numbers.

    Returns:
      (first, last), Linux's default where the file is missing or unreadable.
    """
    try:
        first, last = (int(word) for word in path.read_text().split())
    except (OSError, ValueError):
        return _DEFAULT_EPHEMERAL
    return first, last


def free_ports(count: int, candidates: Iterable[int] | None = None) -> list[int]:
    """Chooses `count` different ports on which nobody listens.

    All of them are bound at once before any is returned, so they are free together. They are
    released on returning: only another process that chooses the same port at random can take one.

    Args:
      count: how many ports, 0 or more.
      candidates: ports to try, in this order; by default those outside the ephemeral range,
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
        # Where everything is ephemeral there is no better choice than a port from inside it.
        candidates = outside if len(outside) >= count else list(range(_LOWEST, _HIGHEST + 1))
        random.SystemRandom().shuffle(candidates)
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in candidates:
            if len(ports) == count:
                break
            try:
                held.enter_context(_bound(port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise OSError(f"expected {count} free ports, found only {len(ports)}")
    return ports


def _bound(port: int) -> socket.socket:
    """A socket that holds `port` on every interface, for IPv4 and, where there is any, IPv6."""
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
