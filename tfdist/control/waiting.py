"""Waits for other processes: the deadline, the length of calls, the pauses, and the log lines."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator

# Seconds between two log lines of a process that waits.
LOG_INTERVAL = 10.0
# Seconds for which a call is held: a caller whose machine vanished occupies its peer that long.
_LONG_POLL = 5.0
# Seconds between two attempts that fail at once.
RETRY_PAUSE = 0.2


class Wait:
    """One wait for other processes, as its loop sees it. Starts at once.

        wait = Wait(timeout, closed)
        while not wait.is_over:
            if wait.is_log_due():
                _log.warning("waiting for %s", other)
            if call(wait.poll()) == "complete":
                return
            wait.pause()
        raise RendezvousTimeoutError(...)

    Args:
      timeout: seconds until the deadline; infinity for none.
      closed: set when this process leaves, which ends every pause.
      poll: seconds for which a call may be held.
      pause: seconds of the first pause.
      longest_pause: each pause is twice as long as the one before, up to these seconds; `pause` if
        None.
      log_interval: seconds between two log lines, `LOG_INTERVAL` if None; the first is due after
        one interval.

    Attributes:
      timeout: as in the arguments.
    """

    def __init__(
        self,
        timeout: float = math.inf,
        closed: threading.Event | None = None,
        *,
        poll: float = _LONG_POLL,
        pause: float = RETRY_PAUSE,
        longest_pause: float | None = None,
        log_interval: float | None = None,
    ) -> None:
        self.timeout = timeout
        self._closed = threading.Event() if closed is None else closed
        self._poll = poll
        self._first_pause = self._next_pause = pause
        self._longest_pause = pause if longest_pause is None else longest_pause
        self._log_interval = LOG_INTERVAL if log_interval is None else log_interval
        self._began = time.monotonic()
        self._deadline = self._began + timeout
        self._next_log = self._began + self._log_interval

    @property
    def elapsed(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._began

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._deadline

    @property
    def is_closed(self) -> bool:
        """Whether this process leaves."""
        return self._closed.is_set()

    def poll(self) -> float:
        """Returns the seconds for which the next call may be held.

        The call ends at the deadline, and in time for the next log line.
        """
        until_log = self._next_log - time.monotonic()
        # A loop that logs nothing lets this time pass.
        return min(self._poll, self.remaining, until_log if until_log > 0 else math.inf)

    def pause(self) -> None:
        """Sleeps; not beyond the deadline, and no longer when this process leaves."""
        self._closed.wait(min(self._next_pause, self.remaining))
        self._next_pause = min(2 * self._next_pause, self._longest_pause)

    def is_log_due(self) -> bool:
        """Returns True once in each log interval."""
        now = time.monotonic()
        if now < self._next_log:
            return False
        self._next_log = now + self._log_interval
        return True

    def heard(self) -> None:
        """Begins anew, since the other process has answered: its deadline, and its pauses."""
        self._deadline = time.monotonic() + self.timeout
        self._next_pause = self._first_pause


@contextlib.contextmanager
def logged(log: logging.Logger, text: str, every: float = LOG_INTERVAL) -> Iterator[None]:
    """Logs a wait that a blocking call does: at once as INFO, and repeatedly as a WARNING.

    Args:
      log: the logger.
      text: the sentence: which process waits, and for which others.
      every: seconds between two warnings.
    """
    began = time.monotonic()
    over = threading.Event()

    def warn() -> None:
        while not over.wait(every):
            log.warning("%s, for %.0f s by now", text, time.monotonic() - began)

    log.info("%s", text)
    thread = threading.Thread(target=warn, name="tfdist-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
