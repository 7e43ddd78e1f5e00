"""How long tests wait: a deadline only ends a failure, so it is far above what a test takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# Factor of deadlines, for machines and releases of TensorFlow that are slower.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))


def wait_until(condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
    """Polls a condition that nothing announces.

    Args:
      condition: is called every few milliseconds.
      what: the condition in words.
      timeout: seconds to wait, times TEST_PATIENCE.

    Raises:
      AssertionError: it is not true in time.
    """
    deadline = time.monotonic() + timeout * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.005)
