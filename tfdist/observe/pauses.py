"""The time in which this task keeps others waiting for a known reason: it begins, or saves.

The straggler report does not call such a task late.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class Pauses:
    """The sum of the pauses of this process, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = 0.0
        self._depth = 0
        self._began = 0.0

    @property
    def seconds(self) -> float:
        """The sum since the program has begun, with a pause that has not ended."""
        with self._lock:
            return self._ended + (time.monotonic() - self._began if self._depth else 0.0)

    def begin(self) -> None:
        """Begins a pause; one within another counts once."""
        with self._lock:
            if not self._depth:
                self._began = time.monotonic()
            self._depth += 1

    def end(self) -> None:
        """Ends the pause that was begun last."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._ended += time.monotonic() - self._began

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes the duration of a `with` block."""
        self.begin()
        try:
            yield
        finally:
            self.end()


pauses = Pauses()
