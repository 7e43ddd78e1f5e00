"""Implementations in their own processes, which the parent runs in turn."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Importing TensorFlow takes seconds: one process imports it and is forked for each.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tensorflow", "keras"])
PATIENCE = 180.0  # seconds, for large tensors over slow links
REQUEST_BYTES = 64


class Remote:
    """An object in its own process.

    Args:
      make: makes the object, in that process.
      *arguments: of `make`.
    """

    def __init__(self, make: Callable, *arguments: Any) -> None:
        self._name = make.__name__
        self._connection, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_hold, args=(theirs, make, arguments))
        self._process.start()
        theirs.close()

    def begin(self, method: str, *arguments: Any) -> None:
        """Calls a method of the object."""
        self._connection.send((method, arguments))

    def end(self) -> Any:
        """Returns the result of the method that `begin` called."""
        if not self._connection.poll(PATIENCE):
            raise TimeoutError(f"{self._name}: no answer within {PATIENCE:g} s")
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self._name}: its process has ended") from None

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method and returns its result."""
        self.begin(method, *arguments)
        return self.end()

    def processor_seconds(self) -> float:
        """How long its process has used a processor so far, with all threads."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def with_variables(variables: Mapping[str, str], make: Callable, *arguments: Any) -> Any:
    """Sets variables of this process's environment and makes an object."""
    os.environ.update(variables)
    return make(*arguments)


def call(ranks: Sequence[Any], *what: Any) -> list[Any]:
    """Calls the same method in all processes at the same time."""
    for rank in ranks:
        rank.begin(*what)
    return [rank.end() for rank in ranks]


def _hold(connection: Connection, make: Callable, arguments: Sequence) -> None:
    held = make(*arguments)
    with contextlib.suppress(EOFError):  # the parent has ended
        while True:
            method, arguments = connection.recv()
            connection.send(getattr(held, method)(*arguments))


class BareSocket:
    """A connection to a process that sends the requested number of bytes.

    Args:
      max_bytes: of a request.
    """

    def __init__(self, max_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._socket = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        for end in (self._socket, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._process = PROCESSES.Process(target=_answer, args=(theirs, max_bytes))
        self._process.start()
        theirs.close()
        self._memory = memoryview(bytearray(max_bytes))

    def pull(self, size: int, count: int) -> float:
        """Mean seconds from a request to the last of `size` bytes, over `count` requests."""
        start = time.perf_counter()
        for _ in range(count):
            self._socket.sendall(size.to_bytes(REQUEST_BYTES, "little"))
            received = 0
            while received < size:
                part = self._socket.recv_into(self._memory[received:size])
                if part == 0:
                    raise RuntimeError("bare socket: its process has ended")
                received += part
        return (time.perf_counter() - start) / count

    def verify(self, size: int) -> None:
        """Raises unless the received bytes are correct."""
        self._memory[:size] = bytes(size)
        self.pull(size, 1)
        if self._memory[:size] != _pattern(size):
            raise AssertionError(f"bare socket: wrong bytes, of {size}")

    def stop(self) -> None:
        """Ends the process."""
        self._socket.close()
        self._process.kill()
        self._process.join()


def _answer(connection: socket.socket, max_bytes: int) -> None:
    values = memoryview(_pattern(max_bytes))
    while request := connection.recv(REQUEST_BYTES, socket.MSG_WAITALL):
        connection.sendall(values[: int.from_bytes(request, "little")])


def _pattern(size: int) -> bytes:
    return (bytes(range(1, 252)) * (size // 251 + 1))[:size]
