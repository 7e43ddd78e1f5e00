"""Signals that a process under test sends to itself."""

from __future__ import annotations

import os
import time


def signal_self(number: int) -> None:
    """Sends a signal; if this process continues, returns once it has taken it for a notice.

    A thread takes it, which may come after the next steps of a small model.
    """
    from tfdist.preemption.notice import notice

    os.kill(os.getpid(), number)
    while notice.at is None:
        time.sleep(0.001)
