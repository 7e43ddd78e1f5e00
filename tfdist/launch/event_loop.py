"""The events of a launcher: output of tasks and hosts, input of others, and signals.

There is one thread. Every event wakes the same `poll`.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from tfdist.launch.hosts.connection import HostConnection
from tfdist.launch.output import OutputStream, TaskOutput

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EventLoop:
    """Waits for events, and reads and writes what can be read and written.

    Args:
      streams: the launcher's own stdout and stderr.

    Attributes:
      readers: further descriptors to read from, each with the handler of its input.
      signals: the user's signals that are not handled yet.
    """

    def __init__(self, streams: tuple[OutputStream, OutputStream]) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.signals: list[int] = []
        self._streams = streams
        self._connections: list[HostConnection] = []
        self._reading: list[TaskOutput | HostConnection] = []
        # Readable after each signal.
        self._wake = -1

    def watch(self, connection: HostConnection) -> None:
        """Reads and writes a host's connection from now on."""
        self._connections.append(connection)
        self._reading.extend([connection, connection.words])

    def add(self, outputs: Sequence[TaskOutput]) -> None:
        """Reads a task's output from now on."""
        self._reading.extend(outputs)

    def remove(self, outputs: Sequence[TaskOutput]) -> None:
        """Reads a task's output no more."""
        self._reading = [output for output in self._reading if output not in outputs]

    @property
    def next_beats(self) -> list[float]:
        """When each host is to be told that the launcher lives."""
        return [found.next_beat for found in self._connections if not found.is_lost]

    def beat(self) -> None:
        """Tells the hosts that the launcher lives, if it is time."""
        for connection in self._connections:
            connection.beat()

    def wait(self, until: float | None) -> None:
        """Sleeps until it can read or write something, or until a time, and does so."""
        ready = select.poll()
        ready.register(self._wake, select.POLLIN)
        # A task whose stream is full must wait, so that memory does not grow.
        reading = {out.source: out for out in self._reading if not out.full}
        to_hosts = (found.out for found in self._connections if not found.is_lost)
        writing = {out.descriptor: out for out in (*self._streams, *to_hosts) if out.pending}
        for descriptor in (*reading, *self.readers):
            ready.register(descriptor, select.POLLIN)
        for descriptor in writing:
            ready.register(descriptor, select.POLLOUT)
        left = None if until is None else max(0.0, until - time.monotonic())
        # Rounded up, so that it does not end just before the time.
        for descriptor, _ in ready.poll(None if left is None else math.ceil(left * 1000)):
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            elif descriptor in writing:
                writing[descriptor].flush_some()
            elif descriptor in self.readers:
                self.readers[descriptor]()
            elif descriptor in reading and not reading[descriptor].read_some():
                self._reading.remove(reading[descriptor])

    def flush(self) -> None:
        """Writes the rest of the output; waits for a slow reader until a signal comes."""
        while any(stream.pending for stream in self._streams) and not self.signals:
            self.wait(None)

    @contextlib.contextmanager
    def signals_handled(
        self, child_ended: Callable[[], None], resized: Callable[[], None]
    ) -> Iterator[None]:
        """Handles signals while the job runs; each wakes `wait`.

        Args:
          child_ended: called at once in the handler of SIGCHLD: the order of the ends matters.
          resized: called when the terminal has another size.
        """

        def note(number: int, frame: object) -> None:
            if number == signal.SIGCHLD:
                child_ended()
            elif number == signal.SIGWINCH:
                resized()
            else:
                self.signals.append(number)

        self._wake, writable = os.pipe()
        for descriptor in (self._wake, writable):
            os.set_blocking(descriptor, False)
        wakeup = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        before = {}
        for number in (signal.SIGCHLD, signal.SIGWINCH, *_STOP_SIGNALS):
            # nohup and background jobs ignore some signals on purpose.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            os.close(self._wake)
            os.close(writable)
