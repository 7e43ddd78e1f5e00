"""Metrics as scalars: counters become rates between two readings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tfdist.observe.metrics.collector import Family


class Rates:
    """Turns families of metrics into scalars."""

    def __init__(self) -> None:
        self._at = 0.0
        self._before: dict[str, float] = {}

    def scalars(self, families: Iterable[Family]) -> Iterator[tuple[str, float]]:
        """Yields names and numbers: gauges as they are, counters per second since the last call.

        A counter of seconds gives a share of time. At the first call there are gauges alone.

        Args:
          families: the metrics, read now.
        """
        now, before = time.monotonic(), self._before
        seconds, self._before = now - self._at, {}
        for family in families:
            # A constant value makes no curve.
            if family.name == "tfdist_info":
                continue
            for labels, number in family.samples:
                name = "/".join((_name(family), *labels))
                if not family.is_counter:
                    yield name, number
                    continue
                self._before[name] = number
                if name in before:
                    yield name, (number - before[name]) / seconds if seconds > 0 else 0.0
        self._at = now


def _name(family: Family) -> str:
    name = family.name.replace("tfdist_", "tfdist/", 1)
    if not family.is_counter:
        return name
    if name.endswith("_seconds"):
        return name.removesuffix("_seconds") + "_share"
    return f"{name}_per_second"
