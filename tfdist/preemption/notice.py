"""SIGTERM as a notice: it is noted, and the training acts on it at the end of a step.

Python calls a signal's handler between two instructions of the main thread, which may be in a step
of TensorFlow for a long time. The kernel's signal also writes a byte to a pipe (`set_wakeup_fd`),
which a thread reads: so the notice is noted at once, and a second signal ends a hanging process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_log = logging.getLogger("tfdist")
# A scheduler and its launcher may both pass a signal on: within these seconds it is one notice.
_SAME_NOTICE = 1.0


class Notice:
    """The preemption notice of this process.

    Attributes:
      at: when it came (`time.monotonic()`); `None` before.
      on_arrival: called once when it comes, in a thread of its own.
    """

    def __init__(self) -> None:
        self.at: float | None = None
        self.on_arrival: Callable[[], None] = lambda: None
        self._depth = 0
        self._installed = False
        self._is_kept = False
        self._pid = 0
        self._previous: Any = signal.SIG_DFL
        self._pipe: int | None = None  # the side that the kernel's signal writes to
        self._is_fork_watched = False

    @contextlib.contextmanager
    def expected(self) -> Iterator[None]:
        """Takes SIGTERM as a notice for the duration of a `with` block.

        Outside of the main thread, and where SIGTERM is ignored, it does nothing. Once a notice has
        come, or after `keep`, it stays so until the process ends.
        """
        if not _in_main_thread():
            yield
            return
        self._depth += 1
        if self._depth == 1:
            self._install()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self.at is None and not self._is_kept:
                self._uninstall()

    def keep(self) -> None:
        """Takes SIGTERM as a notice until the process ends; may be called again."""
        self._is_kept = True
        self._install()

    def _install(self) -> None:
        if self._installed or not _in_main_thread():
            return
        previous = signal.getsignal(signal.SIGTERM)
        # `None`: a handler that Python did not install and cannot call.
        if previous in (signal.SIG_IGN, None):
            return
        self._previous, self._pid = previous, os.getpid()
        self._open_pipe()
        signal.signal(signal.SIGTERM, self._handle)
        self._installed = True
        if not self._is_fork_watched:
            self._is_fork_watched = True
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _uninstall(self) -> None:
        if not self._installed:
            return
        self._installed = False
        # The script may have replaced it since.
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        if self._pipe is not None:
            writable, self._pipe = self._pipe, None
            current = signal.set_wakeup_fd(-1)
            if current != writable:
                signal.set_wakeup_fd(current)
            os.close(writable)  # ends the thread, which closes the other side

    def _open_pipe(self) -> None:
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        other = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        if other != -1:  # of an event loop in this thread: the handler must do
            signal.set_wakeup_fd(other)
            os.close(readable)
            os.close(writable)
            return
        self._pipe = writable
        threading.Thread(
            target=self._read, args=(readable,), name="tfdist-notice", daemon=True
        ).start()

    def _read(self, readable: int) -> None:
        with open(readable, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number == signal.SIGTERM:
                        self._note()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child, in its first moments
            self._leave_to_parent()
            os.kill(os.getpid(), number)
            return
        if callable(self._previous):
            self._previous(number, frame)
        if self._pipe is None:
            self._note()

    def _note(self) -> None:
        now = time.monotonic()
        if self.at is None:
            self.at = now
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                threading.Thread(target=self.on_arrival, name="tfdist-notice", daemon=True).start()
        elif now - self.at > _SAME_NOTICE and not callable(self._previous):
            _log.warning("SIGTERM for the second time: this process ends at once")
            os._exit(128 + signal.SIGTERM)

    def _leave_to_parent(self) -> None:
        """Takes SIGTERM in a forked child as the parent would without this object."""
        if not self._installed or os.getpid() == self._pid:
            return
        self._installed = False
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            # The other side was the thread's, which the child does not have.
            os.close(self._pipe)
            self._pipe = None


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


notice = Notice()
