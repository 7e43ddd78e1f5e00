"""Log lines of a process that waits for others."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

_log = logging.getLogger("tfdist.elastic")


@contextlib.contextmanager
def waiting(text: str, every: float = 10.0) -> Iterator[None]:
    """Says that this process waits: at once as INFO, and again and again as a WARNING.

    Args:
      text: who waits, and for what.
      every: seconds between two warnings.
    """
    began = time.monotonic()
    over = threading.Event()

    def warn() -> None:
        while not over.wait(every):
            _log.warning("%s, for %.0f s by now", text, time.monotonic() - began)

    _log.info("%s", text)
    thread = threading.Thread(target=warn, name="tfdist-elastic-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
