"""The requests that are being answered when a server ends."""

from __future__ import annotations

import threading


class InProgress:
    """Counts requests, as a context for each one; may be used by several threads.

    Attributes:
      is_ending: whether new requests are to be refused.
      requests: the number of requests now.
    """

    def __init__(self) -> None:
        self.is_ending = False
        self._changed = threading.Condition()
        self.requests = 0

    def __enter__(self) -> None:
        with self._changed:
            self.requests += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.requests -= 1
            self._changed.notify_all()

    def end(self, timeout: float) -> None:
        """Lets new requests be refused, and waits until the others are answered.

        Args:
          timeout: the longest time (s) for that.
        """
        self.is_ending = True
        with self._changed:
            self._changed.wait_for(lambda: not self.requests, timeout)
