"""Several hosts on one machine: network namespaces behind a switch, with links of one speed.

    host 0        host 1        host 2        host 3
    10.77.0.1     10.77.0.2     10.77.0.3     10.77.0.4
      eth0          eth0          eth0          eth0
        |             |             |             |      a veth pair each, tbf at both its ends
      port0         port1         port2         port3
        +-------------+-- switch ---+-------------+      a bridge in its own namespace

The token bucket at a link's end limits the outgoing traffic: a host sends and receives at the
link's speed at the same time, as over full-duplex Ethernet. It counts whole Ethernet frames,
including each frame of a large segment. After a pause it passes BURST at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("/run/netns")
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
# A smaller burst would split the kernel's segments of 64 KB, which costs processor time.
BURST = "128kb"
QUEUE = "20ms"
PORT = 7000  # the first port; no other process uses these namespaces
# TCP payload (with time stamps) and the frame around it, at 1500 bytes of IP.
PAYLOAD, FRAME = 1448, 1514
BLOCK = 1 << 20
NOT_PERMITTED = 77  # the exit code


class NotPermitted(Exception):
    """Network namespaces cannot be made here."""


class Network:
    """Hosts as network namespaces, which `close` removes.

    Args:
      hosts: their number.
      gigabits: per second, of each link in each direction.

    Raises:
      NotPermitted: with the missing command or permission.
    """

    def __init__(self, hosts: int, gigabits: float) -> None:
        run = f"tfdist-{os.getpid()}-{secrets.token_hex(3)}"
        self.hosts = [f"{run}-host{i}" for i in range(hosts)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(hosts)]
        self.bytes_per_second = gigabits * 1e9 / 8
        self._switch = f"{run}-switch"
        self._made: list[str] = []
        try:
            self._make(f"{round(gigabits * 1e6)}kbit")
        except BaseException:
            self.close()
            raise

    def _make(self, rate: str) -> None:
        for name in (self._switch, *self.hosts):
            self._made.append(name)
            _run("ip", "netns", "add", name)
        _run("ip", "-n", self._switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "switch", "up")
        for i, host in enumerate(self.hosts):
            ends = ((host, "eth0"), (self._switch, f"port{i}"))
            _run(
                *("ip", "link", "add", "eth0", "netns", host, "type", "veth"),
                *("peer", "name", f"port{i}", "netns", self._switch),
            )
            _run("ip", "-n", self._switch, "link", "set", f"port{i}", "master", "switch")
            _run("ip", "-n", host, "address", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            _run("ip", "-n", host, "link", "set", "lo", "up")
            for namespace, device in ends:
                _run("ip", "-n", namespace, "link", "set", device, "up")
                _run(
                    *("tc", "-n", namespace, "qdisc", "add", "dev", device, "root"),
                    *("tbf", "rate", rate, "burst", BURST, "latency", QUEUE),
                )

    def sent(self, host: int) -> int:
        """Bytes of frames that a host has sent so far, counted by its link's token bucket."""
        shown = _run("tc", "-n", self.hosts[host], "-s", "-j", "qdisc", "show", "dev", "eth0")
        return json.loads(shown)[0]["bytes"]

    def set_link(self, host: int, state: str) -> None:
        """Disconnects ("down") or connects ("up") a host's link at the switch."""
        _run("ip", "-n", self._switch, "link", "set", f"port{host}", state)

    def set_rate(self, host: int, gigabits: float) -> None:
        """Changes the speed of a host's link, in both directions."""
        rate = f"{round(gigabits * 1e6)}kbit"
        for namespace, device in ((self.hosts[host], "eth0"), (self._switch, f"port{host}")):
            _run(
                *("tc", "-n", namespace, "qdisc", "change", "dev", device, "root"),
                *("tbf", "rate", rate, "burst", BURST, "latency", QUEUE),
            )

    def close(self) -> None:
        """Removes the namespaces. Processes inside must have ended."""
        while self._made:
            with contextlib.suppress(NotPermitted):
                _run("ip", "netns", "del", self._made.pop())


@contextlib.contextmanager
def network(hosts: int, gigabits: float) -> Iterator[Network]:
    """A `Network`, removed at the end; exits the program if it cannot be made."""
    try:
        made = Network(hosts, gigabits)
    except NotPermitted as error:
        print(f"network namespaces cannot be made here: {error}", file=sys.stderr)
        print("run as root, with the package iproute2", file=sys.stderr)
        sys.exit(NOT_PERMITTED)
    with contextlib.closing(made):
        yield made


def _run(*command: str) -> str:
    try:
        finished = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NotPermitted(f"there is no command '{command[0]}': package iproute2") from None
    if finished.returncode != 0:
        raise NotPermitted(f"{' '.join(command)}: {finished.stderr.strip()}")
    return finished.stdout


def inside(namespace: str, make: Callable, *arguments: Any) -> Any:
    """Moves this process into a namespace and makes an object there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(FOLDER / namespace) as file:
        if libc.setns(file.fileno(), NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    return make(*arguments)


class Stream:
    """One end of bare TCP connections for measuring throughput.

    Args:
      address: of this end.
    """

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, PORT))

    def ready(self) -> None:
        """Returns when this end listens, which is true after its creation."""

    def send(self, address: str, size: int) -> None:
        """Sends `size` bytes to the stream at an address."""
        with socket.create_connection((address, PORT)) as connection:
            block = bytes(BLOCK)
            for _ in range(size // BLOCK):
                connection.sendall(block)

    def receive(self, size: int) -> float:
        """Receives `size` bytes; returns the bytes per second, from the first to the last."""
        connection, _ = self._listener.accept()
        memory = bytearray(BLOCK)
        with connection:
            first = received = connection.recv_into(memory)
            start = time.perf_counter()
            while received < size:
                part = connection.recv_into(memory)
                if part == 0:
                    raise RuntimeError(f"{received} of {size} bytes came")
                received += part
            return (received - first) / (time.perf_counter() - start)

    def exchange(self, address: str, size: int) -> float:
        """Sends and receives at the same time; returns the bytes received per second."""
        sender = threading.Thread(target=self.send, args=(address, size))
        sender.start()
        rate = self.receive(size)
        sender.join()
        return rate
