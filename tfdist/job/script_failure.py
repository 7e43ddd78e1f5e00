"""Whether the script has failed: functions of `atexit` receive no reason."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable


class ScriptFailure:
    """Records whether the script fails.

    Attributes:
      exception: type and text of an unhandled exception, or None.
      has_failed: it ended with an unhandled exception or a non-zero exit code.
      has_exited: it has called `sys.exit`.

    Args:
      noted: called with an unhandled exception, before it is printed.
    """

    def __init__(self, noted: Callable[[BaseException], None]) -> None:
        self.exception: str | None = None
        self.has_failed = self.has_exited = False
        excepthook, leave = sys.excepthook, sys.exit

        def note_exception(kind, error, trace):
            self.exception = f"{kind.__name__}: {error}"
            self.has_failed = True
            noted(error)
            excepthook(kind, error, trace)

        def note_exit(status=None, /):
            if threading.current_thread() is threading.main_thread():
                self.has_failed = status not in (None, 0)
                self.has_exited = True
            leave(status)

        sys.excepthook, sys.exit = note_exception, note_exit
