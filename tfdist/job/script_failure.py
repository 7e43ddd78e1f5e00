"""Whether the script has failed: functions of `atexit` receive no reason."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Protocol

from tfdist import reasons, tracebacks
from tfdist.errors import Preempted


class FailureObserver(Protocol):
    """Is told how the script fails; `Observers` is one."""

    def note_exception(self, error: BaseException) -> None:
        """Records an exception that ends the script, before it is printed."""

    def note_exit(self, code: int, error: BaseException | None) -> None:
        """Records an exit code that is a failure, and the exception that the script handles."""


class ScriptFailure:
    """Records whether the script fails.

    Attributes:
      exception: type and reason of an unhandled exception in one line, or None.
      has_failed: it ended with an unhandled exception or a non-zero exit code.
      has_exited: it has called `sys.exit`.

    Args:
      observer: is told of the failure.
      task_name: names the task in the line that Ctrl-C leaves in place of a traceback.
    """

    def __init__(self, observer: FailureObserver, task_name: Callable[[], str]) -> None:
        self.exception: str | None = None
        self.has_failed = self.has_exited = False
        excepthook, leave = sys.excepthook, sys.exit

        def note_exception(kind, error, trace):
            self.exception = reasons.one_line(error)
            self.has_failed = True
            if isinstance(error, KeyboardInterrupt) and tracebacks.are_filtered():
                print(tracebacks.interruption(error, task_name()), file=sys.stderr)
                return
            observer.note_exception(error)
            tracebacks.hide_own_frames(error)
            excepthook(kind, error, error.__traceback__)

        def note_exit(status=None, /):
            if threading.current_thread() is threading.main_thread():
                self.has_failed = status not in (None, 0)
                self.has_exited = True
                # After a preemption notice the end is none of its own.
                if self.has_failed and status != Preempted.EXIT_CODE:
                    observer.note_exit(_exit_code(status), sys.exc_info()[1])
            leave(status)

        sys.excepthook, sys.exit = note_exception, note_exit


def _exit_code(status: object) -> int:
    """Returns the exit code of `sys.exit(status)`: 1 for a text, which Python prints."""
    return status & 0xFF if isinstance(status, int) else 1
