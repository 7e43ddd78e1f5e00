"""The loss of this process's training, as a curve of a bounded number of points."""

from __future__ import annotations

import math
import threading
import time

from tfdist._types import TensorLike

MAX_POINTS = 256
# Seconds between two points, at first.
_INTERVAL = 0.25


class Curve:
    """Values over time, evenly spaced.

    When there are `MAX_POINTS`, every second one is dropped and the interval doubles: the curve
    shows the whole training at any time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[tuple[int, TensorLike]] = []
        self._interval = _INTERVAL
        self._last_at = -math.inf
        self._noted = 0

    def note(self, value: TensorLike) -> None:
        """Notes the value after a step; the curve takes some of them.

        Args:
          value: float[]; it is read when the curve is asked for, so that nothing waits for a
            device.
        """
        self._noted += 1
        now = time.monotonic()
        if now - self._last_at < self._interval:
            return
        with self._lock:
            self._last_at = now
            self._points.append((self._noted, value))
            if len(self._points) >= MAX_POINTS:
                self._points = self._points[::2]
                self._interval *= 2

    def points(self) -> list[tuple[int, float | None]]:
        """Returns the number of noted values and the value of each point; `None`: not finite."""
        with self._lock:
            points = list(self._points)
        return [(number, _finite(value)) for number, value in points]


def _finite(value: TensorLike) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


# Of this process, by `fit`.
loss = Curve()
