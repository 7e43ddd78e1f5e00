"""Reports of training processes about their steps, for benchmarks/elastic.py.

The processes of one machine share `time.monotonic`. PyTorch's environment imports this file too, so
it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
      process: the sender's process id, by the kernel.
      worker: its index in the cluster; a restarted worker has the same.
      what: "step" after a step; "forming" and "formed" around a change of the job's members.
      at: monotonic seconds.
      step: the number of completed steps.
      rank: of the worker.
      size: the number of workers.
      loss: of the step.
    """

    process: int
    worker: int
    what: str
    at: float
    step: int = 0
    rank: int = 0
    size: int = 0
    loss: float = 0.0


class Reporter:
    """Sends the reports of a worker.

    Args:
      path: of the inbox.
      worker: this process's index.
    """

    def __init__(self, path: str, worker: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._worker = worker

    def send(self, what: str, **fields: Any) -> None:
        """Sends a report with the present time; raises BrokenPipeError after the inbox's end."""
        report = {"worker": self._worker, "what": what, "at": time.monotonic(), **fields}
        self._socket.sendall(json.dumps(report).encode() + b"\n")


class Inbox:
    """Receives the reports of all processes in a thread, until `close`.

    Args:
      path: of its socket.

    Attributes:
      reports: all so far; it only grows.
      latest: the last report of a step, by worker.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.reports: list[Report] = []
        self.latest: dict[int, Report] = {}
        self._changed = threading.Condition()
        self._closed, self._end = socket.socketpair()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def wait(
        self, what: str, condition: Callable[[], bool], seconds: float, check: Callable[[], None]
    ) -> None:
        """Waits until a condition on the reports holds.

        Args:
          what: for the message.
          condition: looked at after each report.
          seconds: for which it may not hold.
          check: called about once a second; raises if it can hold no more.

        Raises:
          TimeoutError: with the latest steps.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._changed.wait_for(condition, 1.0):
                check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{what}: not within {seconds:g} s; {self.latest}")

    def close(self) -> None:
        """Ends the thread; processes that continue sending fail."""
        self._closed.close()
        self._thread.join()
        self._end.close()

    def _receive(self) -> None:
        unread: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            stack.enter_context(self._listener)
            for readable in (self._listener, self._end):
                selector.register(readable, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is self._end:
                        return
                    if ready is self._listener:
                        connection = stack.enter_context(ready.accept()[0])
                        selector.register(connection, selectors.EVENT_READ, _process_of(connection))
                        unread[connection] = b""
                        continue
                    part = _read(ready)
                    if not part:
                        selector.unregister(ready)
                        continue
                    *lines, unread[ready] = (unread[ready] + part).split(b"\n")
                    self._add([Report(key.data, **json.loads(line)) for line in lines])

    def _add(self, reports: list[Report]) -> None:
        with self._changed:
            for report in reports:
                self.reports.append(report)
                if report.what == "step":
                    self.latest[report.worker] = report
            self._changed.notify_all()


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def _process_of(connection: socket.socket) -> int:
    """The process at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", credentials)[0]
