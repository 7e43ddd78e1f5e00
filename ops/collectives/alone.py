"""Work that one worker does while the others do something else.

A collective in it would wait for ranks that never start it, until its timeout. So it is refused
where it is made. A function that was traced before is not made again, and waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


@contextlib.contextmanager
def alone(communicator: object, who: str) -> Iterator[None]:
    """Within it this thread may not make collectives of a communicator.

    Args:
      communicator: the ranks that take no part; `None` if they communicate in another way.
      who: does the work, and the callback or function that does it; for messages.
    """
    before = _works()
    _thread.works = (*before, (communicator, who))
    try:
        yield
    finally:
        _thread.works = before


def is_alone() -> bool:
    """Whether this thread does such work."""
    return bool(_works())


def expect_all(communicator: object, call: str) -> None:
    """Refuses a call of all workers in the work of one.

    Args:
      communicator: the ranks that the call needs; `None` if they communicate in another way.
      call: in words, for messages.

    Raises:
      ValueError: this thread works alone; names the work and the call.
    """
    for without, who in _works():
        if without is communicator:
            raise ValueError(f"{who}: {call} needs all workers")


def _works() -> tuple[tuple[object, str], ...]:
    return getattr(_thread, "works", ())
