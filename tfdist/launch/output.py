"""The output of a launched job's tasks, on its way to the terminal and to the logs.

A `TaskOutput` reads a process's bytes. `TaskLines` cuts them into lines with a prefix, which wait
in an `OutputStream`; there is one for each file that the launcher writes to. While a stream is full
the launcher stops reading, the pipes fill, and the tasks wait: memory stays bounded for any amount
of output and any speed of the reader.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from tfdist.launch.banners import Banners

# Bytes; a longer line is shown in pieces.
MAX_LINE = 64 * 1024
_TAIL_WIDTH = 1000  # characters of each of a task's last lines
_QUEUE_LIMIT = 256 * 1024
_MAX_HELD = 1000  # lines
# A pipe that poll() reports as writable takes PIPE_BUF bytes without blocking; a file takes more.
_WRITE_SIZE = 4096
_FILE_WRITE_SIZE = 64 * 1024
_COLOURS = (36, 33, 32, 35, 34, 31)
_CLEAR_LINE = b"\r\x1b[K"


class LineAssembler:
    """Cuts a stream of bytes into lines as a terminal would finally show them.

    A carriage return moves the cursor to the beginning, so "10%\\r20%\\r30%\\n" gives "30%".

    Attributes:
      partial: the incomplete last line.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Takes more bytes; returns the lines that they complete, without line ends."""
        *complete, rest = (self._buffer + data).split(b"\n")
        lines = [_visible(line) for line in complete]
        # Without the text that a carriage return has overwritten.
        rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]
        while len(rest) > MAX_LINE:
            cut = MAX_LINE
            # Not between the bytes of one UTF-8 character.
            while cut > MAX_LINE - 4 and rest[cut] & 0xC0 == 0x80:
                cut -= 1
            lines.append(rest[:cut])
            rest = rest[cut:]
        self._buffer = rest
        return lines

    def finish(self) -> list[bytes]:
        """Ends the stream; returns the incomplete last line, if there is one."""
        rest, self._buffer = self._buffer, b""
        return [_visible(rest)] if rest else []

    @property
    def partial(self) -> bytes:
        return _visible(self._buffer)


def _visible(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class OutputStream:
    """A bounded queue of lines in front of one of the launcher's own file descriptors.

    Args:
      descriptor: stdout or stderr; other programs share it, so it stays a blocking one.

    Attributes:
      keep: also takes each line, even if the descriptor's reader is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self.keep: Callable[[bytes], None] = lambda text: None
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
        """Whether there is something to write."""
        return bool(self._queue) or (self._live != self._live_shown and not self._closed)

    @property
    def full(self) -> bool:
        """Whether the queue has reached its limit, so that tasks must not be read."""
        return len(self._queue) >= _QUEUE_LIMIT

    def line(self, text: bytes) -> None:
        """Queues one line, above the live one."""
        self.keep(text)
        if self._closed:
            return
        if self._live_shown:
            self._queue += _CLEAR_LINE
            self._live_shown = b""
        self._queue += text + b"\n"

    def live(self, text: bytes) -> None:
        """Sets the last line of a terminal, which is redrawn when it changes."""
        if self.is_terminal:
            self._live = text

    def flush_some(self) -> None:
        """Writes without blocking; call it when the descriptor is writable."""
        if not self._queue and self._live != self._live_shown:
            self._queue += _CLEAR_LINE + self._live
            self._live_shown = self._live
        try:
            written = os.write(self.descriptor, self._queue[: self._write_size])
            del self._queue[:written]
        except OSError:
            # The reader of the output is gone; the job continues.
            self._queue.clear()
            self._closed = True


class LineStream(Protocol):
    """Takes whole lines, and maybe the incomplete last one; `OutputStream` is one."""

    @property
    def is_terminal(self) -> bool:
        """Whether the lines may have colours."""

    @property
    def full(self) -> bool:
        """Whether the source must wait."""

    def line(self, text: bytes) -> None:
        """Takes a line."""

    def live(self, text: bytes) -> None:
        """Sets the incomplete last line."""


class LastLines(Protocol):
    """Keeps the last lines of a task."""

    def append(self, line: str, /) -> None:
        """Takes the next line."""


class HeldLines:
    """Holds lines back until it is known whether an error quotes them: a `LineStream`.

    Args:
      stream: receives the lines once they are released, and from then on all lines at once.
    """

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self.is_terminal = stream.is_terminal
        self._held: deque[bytes] | None = deque(maxlen=_MAX_HELD)

    @property
    def full(self) -> bool:
        return self._stream.full

    def line(self, text: bytes) -> None:
        if self._held is None:
            self._stream.line(text)
        else:
            self._held.append(text)

    def live(self, text: bytes) -> None:
        self._stream.live(text)

    def drop(self, count: int) -> None:
        """Forgets the last lines, as far as they are held back."""
        for _ in range(min(count, len(self._held or ()))):
            assert self._held is not None
            self._held.pop()

    def release(self) -> None:
        """Passes the lines on."""
        held, self._held = self._held, None
        for text in held or ():
            self._stream.line(text)


class Sink(Protocol):
    """Takes the bytes of one stream of a task."""

    @property
    def full(self) -> bool:
        """Whether the source must wait."""

    def take(self, data: bytes) -> None:
        """Takes more bytes."""

    def end(self) -> None:
        """Notes that no more bytes come."""


class TaskOutput:
    """Reads one stream (stdout or stderr) of one process.

    Args:
      source: the descriptor to read from; made non-blocking.
      sink: takes the bytes.
    """

    def __init__(self, source: int, sink: Sink) -> None:
        self.source = source
        self._sink = sink
        self._closed = False
        os.set_blocking(source, False)

    @property
    def full(self) -> bool:
        """Whether it must not be read now, so that memory stays bounded."""
        return self._sink.full

    def read_some(self) -> bool:
        """Reads up to `MAX_LINE` bytes; returns False at the end of the output."""
        if self._closed:
            return False
        try:
            data = os.read(self.source, MAX_LINE)
        except BlockingIOError:
            return True
        except OSError:
            # A terminal's master reports this when no process has the other side open.
            data = b""
        if not data:
            self.close()
            return False
        self._sink.take(data)
        return True

    def drain(self) -> None:
        """Reads the rest of the pipe, then closes it."""
        limit = 1024
        while not self._closed and limit:
            limit -= 1
            try:
                data = os.read(self.source, MAX_LINE)
            except OSError:
                break
            if not data:
                break
            self._sink.take(data)
        self.close()

    def close(self) -> None:
        """Ends the sink and closes the descriptor."""
        if not self._closed:
            self._closed = True
            self._sink.end()
            os.close(self.source)


class TaskLines:
    """Shows one stream (stdout or stderr) of one task as lines with a prefix: a `Sink`.

    Args:
      name: the task's name, for the prefix.
      index: the task's index, for the prefix's colour.
      stream: receives the lines.
      tail: receives the task's last lines.
      log: receives the bytes unchanged, or None.
      live: also show the incomplete last line on a terminal (progress bars).
      banners: recognises lines that are not shown; None shows all.
    """

    def __init__(
        self,
        name: str,
        index: int,
        stream: LineStream,
        tail: LastLines,
        log: LogFile | None,
        live: bool,
        banners: Banners | None = None,
    ) -> None:
        self._stream = stream
        self._banners = banners
        self.prefix = prefix(name, index, stream.is_terminal)
        self._lines = LineAssembler()
        self._tail = tail
        self._log = log
        self._live = live and stream.is_terminal

    @property
    def full(self) -> bool:
        return self._stream.full

    def take(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        self._show(self._lines.feed(data))

    def end(self) -> None:
        """Shows the incomplete last line."""
        self._show(self._lines.finish())

    def _show(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.replace(b"\b", b"").decode("utf-8", "replace")
            self._tail.append(text[:_TAIL_WIDTH])
            if self._banners is None or not self._banners.has(text):
                self._stream.line(self.prefix + text.encode())
        if self._live:
            partial = self._lines.partial.replace(b"\b", b"").decode("utf-8", "replace")
            self._stream.live(self.prefix + partial.encode() if partial else b"")


class LogFile:
    """A task's whole output, unchanged. A full disk ends the log, not the job.

    A new file has mode 0600; the file is never written through a link.

    Args:
      path: the file.
      append: keep the content of an existing file.
    """

    def __init__(self, path: Path, append: bool = False) -> None:
        self.path = path
        self.error: OSError | None = None

        def private(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW, 0o600)

        mode = "ab" if append else "wb"
        self._file: IO[bytes] = open(path, mode, buffering=0, opener=private)

    def write(self, data: bytes) -> None:
        """Appends data; after an error it does nothing."""
        left = memoryview(data)
        while left and self.error is None:
            try:
                # A disk with little space takes a part, and fails at the next one.
                left = left[self._file.write(left) :]
            except OSError as error:
                self.error = error

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):
            self._file.close()


def prefix(name: str, index: int, colour: bool) -> bytes:
    """Returns the prefix of a task's lines: "[worker 1] ", in a colour of the task's index."""
    text = f"[{name}] ".encode()
    if not colour:
        return text
    return b"\x1b[%dm%b\x1b[0m" % (_COLOURS[index % len(_COLOURS)], text)


def output_streams() -> tuple[OutputStream, OutputStream]:
    """Returns the launcher's stdout and stderr; the same object if they are the same file."""
    out = OutputStream(1)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(1), os.fstat(2)):
            return out, out
    return out, OutputStream(2)


def terminal_size(name: str) -> tuple[int, int]:
    """Returns the rows and columns of our terminal that a task has beside its prefix."""
    try:
        size = os.get_terminal_size(1)
    except OSError:
        size = os.terminal_size((80, 24))
    return size.lines, max(20, size.columns - len(f"[{name}] "))
