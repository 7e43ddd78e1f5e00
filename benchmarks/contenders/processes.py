"""Contenders in processes of their own, whose parent says when it is whose turn."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

# TensorFlow takes seconds to import: that happens once, in a process that is forked for each.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tensorflow", "keras"])
PATIENCE = 180.0  # seconds, for large tensors over slow links
REQUEST_BYTES = 64


class Remote:
    """An object in a process of its own.

    Args:
      make: makes the object, there.
      *arguments: its own.
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
        """Returns what the method that was begun has returned."""
        if not self._connection.poll(PATIENCE):
            raise TimeoutError(f"{self._name}: no answer within {PATIENCE:g} s")
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError(f"{self._name}: its process has ended") from None

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method and returns what it returns."""
        self.begin(method, *arguments)
        return self.end()

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def call(ranks: Sequence[Any], *what: Any) -> list[Any]:
    """Calls the same method, in each process, at the same time."""
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
    """A connection to a process that sends as many bytes as it is asked for.

    Args:
      most: bytes.
    """

    def __init__(self, most: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._socket = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        for end in (self._socket, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._process = PROCESSES.Process(target=_answer, args=(theirs, most))
        self._process.start()
        theirs.close()
        self._memory = memoryview(bytearray(most))

    def pull(self, size: int, count: int) -> float:
        """Mean seconds from a request to the last of `size` bytes, of `count` times."""
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
        """Raises unless the bytes that come are those that are sent."""
        self._memory[:size] = bytes(size)
        self.pull(size, 1)
        if self._memory[:size] != _pattern(size):
            raise AssertionError(f"bare socket: wrong bytes, of {size}")

    def stop(self) -> None:
        """Ends the process."""
        self._socket.close()
        self._process.kill()
        self._process.join()


def _answer(connection: socket.socket, most: int) -> None:
    values = memoryview(_pattern(most))
    while request := connection.recv(REQUEST_BYTES, socket.MSG_WAITALL):
        connection.sendall(values[: int.from_bytes(request, "little")])


def _pattern(size: int) -> bytes:
    return (bytes(range(1, 252)) * (size // 251 + 1))[:size]
