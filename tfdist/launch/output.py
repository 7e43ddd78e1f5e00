"""What the tasks of a launched job print, on its way to the terminal and to the logs.

A task's bytes pass through a `LineAssembler` and leave a `TaskOutput` as whole lines with a prefix.
They wait in an `Outlet`, of which there is one for each file the launcher writes to. An outlet that
is full makes the launcher stop reading, the pipes fill, and the tasks wait: memory stays bounded
however much they print and however slowly it is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from pathlib import Path
from typing import BinaryIO

# A line longer than this is shown in pieces.
LONGEST_LINE = 64 * 1024
# Lines kept of each task for the report of a failure, and how much of each.
TAIL_LINES = 20
_TAIL_WIDTH = 1000
_OUTLET_LIMIT = 256 * 1024
# A pipe that poll() calls writable takes at least PIPE_BUF without blocking; a file takes anything.
_WRITE_SIZE = 4096
_FILE_WRITE_SIZE = 64 * 1024
_COLOURS = (36, 33, 32, 35, 34, 31)
_CLEAR_LINE = b"\r\x1b[K"


class LineAssembler:
    """Cuts a stream of bytes into lines as a terminal would show them at last.

    A carriage return takes the cursor back, so of "10%\\r20%\\r30%\\n" the line "30%" stays.

    Attributes:
      partial: the line that is not yet complete.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes more bytes; returns the lines they completed, without their ends."""
        *complete, rest = (self._buffer + data).split(b"\n")
        lines = [_visible(line) for line in complete]
        # What a carriage return has overwritten is not needed any more.
        rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        while len(rest) > LONGEST_LINE:
            cut = LONGEST_LINE
            # Not between the bytes of one UTF-8 character.
            while cut > LONGEST_LINE - 4 and rest[cut] & 0xC0 == 0x80:
                cut -= 1
            lines.append(rest[:cut])
            rest = rest[cut:]
        self._buffer = rest
        return lines

    def finish(self) -> list[bytes]:
        """The stream has ended: returns what was left without a line end, if anything."""
        rest, self._buffer = self._buffer, b""
        return [_visible(rest)] if rest else []

    @property
    def partial(self) -> bytes:
        return _visible(self._buffer)


def _visible(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Outlet:
    """A file descriptor of the launcher's own with a bounded queue before it.

    Args:
      descriptor: stdout or stderr; shared with other programs, hence never made non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self._closed = False
        self._write_size = _WRITE_SIZE
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                self._write_size = _FILE_WRITE_SIZE
        except OSError:
            self._closed = True
        self._queue = bytearray()
        self._live = b""
        self._live_shown = b""

    @property
    def pending(self) -> bool:
        """There is something to write."""
        return bool(self._queue) or (self._live != self._live_shown and not self._closed)

    @property
    def full(self) -> bool:
        """The queue has reached its limit: nothing more should be read from the tasks."""
        return len(self._queue) >= _OUTLET_LIMIT

    def line(self, text: bytes) -> None:
        """Queues one line, above the live one."""
        if self._closed:
            return
        if self._live_shown:
            self._queue += _CLEAR_LINE
            self._live_shown = b""
        self._queue += text + b"\n"

    def live(self, text: bytes) -> None:
        """Sets the line that stays last on a terminal and is drawn anew when it changes."""
        if self.is_terminal:
            self._live = text

    def flush_some(self) -> None:
        """Writes as much as cannot block; call it when the descriptor is writable."""
        if not self._queue and self._live != self._live_shown:
            self._queue += _CLEAR_LINE + self._live
            self._live_shown = self._live
        try:
            written = os.write(self.descriptor, self._queue[: self._write_size])
            del self._queue[:written]
        except OSError:
            # Whoever read the output has gone; the job goes on.
            self._queue.clear()
            self._closed = True


class TaskOutput:
    """One stream (stdout or stderr) of one task.

    Args:
      name: the task's name, for the prefix.
      number: the task's number, for the prefix's colour.
      source: descriptor the task's bytes come from; made non-blocking.
      outlet: where its lines go.
      tail: receives the task's last lines.
      log: receives the bytes unchanged, or None.
      live: show the incomplete last line on a terminal as well (progress bars).
    """

    def __init__(
        self,
        name: str,
        number: int,
        source: int,
        outlet: Outlet,
        tail: deque[str],
        log: LogFile | None,
        live: bool,
    ) -> None:
        self.source = source
        self.outlet = outlet
        self.prefix = prefix(name, number, outlet.is_terminal)
        self._lines = LineAssembler()
        self._tail = tail
        self._log = log
        self._live = live and outlet.is_terminal
        self._closed = False
        os.set_blocking(source, False)

    def read_some(self) -> bool:
        """Takes what is there, within limits; returns False at the stream's end."""
        if self._closed:
            return False
        try:
            data = os.read(self.source, LONGEST_LINE)
        except BlockingIOError:
            return True
        except OSError:
            # A terminal's master says so when nobody holds the other side any more.
            data = b""
        if not data:
            self.close()
            return False
        if self._log is not None:
            self._log.write(data)
        self._show(self._lines.feed(data))
        return True

    def drain(self) -> None:
        """Takes all that is in the pipe now, then closes it."""
        limit = 1024
        while not self._closed and limit:
            limit -= 1
            try:
                data = os.read(self.source, LONGEST_LINE)
            except OSError:
                break
            if not data:
                break
            if self._log is not None:
                self._log.write(data)
            self._show(self._lines.feed(data))
        self.close()

    def close(self) -> None:
        """Shows what was left without a line end; reads nothing more."""
        if not self._closed:
            self._closed = True
            self._show(self._lines.finish())
            os.close(self.source)

    def _show(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.replace(b"\b", b"").decode("utf-8", "replace")
            self._tail.append(text[:_TAIL_WIDTH])
            self.outlet.line(self.prefix + text.encode())
        if self._live:
            partial = self._lines.partial.replace(b"\b", b"").decode("utf-8", "replace")
            self.outlet.live(self.prefix + partial.encode() if partial else b"")


class LogFile:
    """A task's whole output, unchanged. A full disk ends the log, not the job.

    It is for this user alone, if it does not exist yet, and never written through a link.

    Args:
      path: where.
      append: keep what the file has.
    """

    def __init__(self, path: Path, append: bool = False) -> None:
        self.path = path
        self.error: OSError | None = None

        def private(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW, 0o600)

        mode = "ab" if append else "wb"
        self._file: BinaryIO = open(path, mode, buffering=0, opener=private)

    def write(self, data: bytes) -> None:
        """Appends; after an error it does nothing."""
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            self._file.close()


def prefix(name: str, number: int, colour: bool) -> bytes:
    """The bytes before each line of a task: "[worker 1] ", coloured by the task's number."""
    text = f"[{name}] ".encode()
    if not colour:
        return text
    return b"\x1b[%dm%b\x1b[0m" % (_COLOURS[number % len(_COLOURS)], text)


def outlets() -> tuple[Outlet, Outlet]:
    """The launcher's stdout and stderr; one and the same outlet where they are the same file."""
    out = Outlet(1)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(1), os.fstat(2)):
            return out, out
    return out, Outlet(2)


def terminal_size(name: str) -> tuple[int, int]:
    """Rows and columns that a task has for itself on our terminal beside its prefix."""
    try:
        size = os.get_terminal_size(1)
    except OSError:
        size = os.terminal_size((80, 24))
    return size.lines, max(20, size.columns - len(f"[{name}] "))
