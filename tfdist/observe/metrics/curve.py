"""Numbers of this process's training over its steps, as curves of a bounded number of points."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping

from tfdist._types import TensorLike

_log = logging.getLogger("tfdist.observe.metrics")
MAX_POINTS = 256
MAX_CURVES = 64
# Seconds between two points, at first.
_INTERVAL = 0.25


class Curve:
    """Values over time, evenly spaced, and the newest one.

    When there are `MAX_POINTS`, every second one is dropped and the interval doubles: the curve
    shows the whole training at any time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: list[tuple[int, TensorLike]] = []
        self._interval = _INTERVAL
        self._last_at = -math.inf
        self._newest: tuple[int, TensorLike] | None = None

    def note(self, step: int, value: TensorLike) -> None:
        """Notes the value after a step; the curve takes some of them.

        Args:
          step: the number of the step, no less than at the last call.
          value: float[]; it is read when the curve is asked for, so that nothing waits for a
            device.
        """
        now = time.monotonic()
        self._newest = step, value
        if now - self._last_at < self._interval:
            return
        with self._lock:
            self._last_at = now
            self._points.append((step, value))
            if len(self._points) >= MAX_POINTS:
                self._points = self._points[::2]
                self._interval *= 2

    def points(self) -> list[tuple[int, float | None]]:
        """Returns the step and the value of each point; `None`: not finite."""
        with self._lock:
            # Values of tensors are read once.
            self._points = [(step, _read(value)) for step, value in self._points]
            points = list(self._points)
        newest = self._newest
        if newest is not None:
            # A value at the end of an epoch replaces the value of its last step.
            points = [point for point in points if point[0] < newest[0]] + [newest]
        return [(step, _finite(_read(value))) for step, value in points]


class Curves:
    """The curves of all numbers that `fit` logs, by their names."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}
        self._ignored: set[str] = set()

    def note(self, step: int, logs: Mapping[str, TensorLike], prefix: str = "") -> None:
        """Notes the logs after a step.

        Args:
          step: the number of the step.
          logs: numbers by their names; other values have no curve.
          prefix: begins the names of the curves, also where the logs have names without it.
        """
        for name, value in logs.items():
            name = prefix + name.removeprefix(prefix)
            curve = self._curves.get(name)
            if curve is None:
                if name in self._ignored or not self._begins(name, value):
                    continue
                curve = self._curves[name] = Curve()
            curve.note(step, value)

    def _begins(self, name: str, value: object) -> bool:
        """Whether a new name gets a curve."""
        is_number = isinstance(value, int | float) or getattr(value, "shape", None) == ()
        if is_number and len(self._curves) < MAX_CURVES:
            return True
        self._ignored.add(name)
        reason = f"there are {MAX_CURVES} curves" if is_number else "it is no single number"
        _log.info("the dashboard shows no curve of %r, which fit logs: %s", name, reason)
        return False

    def points(self) -> dict[str, list[tuple[int, float | None]]]:
        """Returns the points of each curve, by its name."""
        return {name: curve.points() for name, curve in list(self._curves.items())}


def _read(value: TensorLike) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return (
            math.nan
        )  # a metric of the user's may return a number at first, and then another value


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
