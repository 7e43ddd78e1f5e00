"""The requests that are being answered when a server ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class InProgress:
    """Counts requests; may be used by several threads.

    Attributes:
      is_ending: whether new requests are to be refused.
      requests: the number of requests now.
    """

    def __init__(self) -> None:
        self.is_ending = False
        self._changed = threading.Condition()
        self.requests = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[bool]:
        """Counts a request; gives whether it may be answered, or came after the end began."""
        with self._changed:
            may_be_answered = not self.is_ending
            self.requests += may_be_answered
        try:
            yield may_be_answered
        finally:
            with self._changed:
                self.requests -= may_be_answered
                self._changed.notify_all()

    def end(self, timeout: float) -> None:
        """Lets new requests be refused, and waits until the others are answered.

        Args:
          timeout: the longest time (s) for that.
        """
        with self._changed:
            self.is_ending = True
            self._changed.wait_for(lambda: not self.requests, timeout)
