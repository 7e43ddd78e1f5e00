"""Who of a job's workers is there."""

from __future__ import annotations

import math

from tfdist import ops
from tfdist.config.cluster import Cluster

_LINE_INTERVAL = 10.0  # s
# A worker that comes and goes again and again is not to fill the log.
_LEAST_INTERVAL = 1.0


class Liveness:
    """Which workers are there, and whether the job has ended.

    Args:
      cluster: the job.
      timeout: seconds for the chief to come, and for a worker whose connection broke to come back.
      now: the time, in seconds.
    """

    def __init__(self, cluster: Cluster, timeout: float, now: float) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self._next_line = now + _LINE_INTERVAL
        self._last_line = -math.inf
        self._here: set[int] = set()
        self._left: set[int] = set()
        # When those whose connection broke count as gone for good. Without the chief nothing
        # begins, as if it had been lost.
        self._lost = {0: now + timeout}

    def note(self, event: ops.ServerEvent, now: float) -> None:
        """Takes in that a worker came, left or was lost."""
        for place in (self._here, self._left):
            place.discard(event.worker)
        self._lost.pop(event.worker, None)
        if event.kind == "lost":
            self._lost[event.worker] = now + self._timeout
            self._next_line = min(self._next_line, max(now, self._last_line + _LEAST_INTERVAL))
        else:
            (self._here if event.kind == "came" else self._left).add(event.worker)

    def line(self, now: float) -> str | None:
        """Returns a line for the log that names those who are waited for.

        As soon as one of them is lost, and every ten seconds.
        """
        if now < self._next_line:
            return None
        self._next_line, self._last_line = now + _LINE_INTERVAL, now
        waited = [
            f"{self._cluster.describe_rank(rank)} (gone for good in {deadline - now:.0f} s)"
            for rank, deadline in sorted(self._lost.items())
            if deadline > now
        ]
        return f"waiting for {', '.join(waited)}" if waited else None

    def verdict(self, now: float) -> str | None:
        """Returns `None` while the job goes on, "" when it is done, else why it has failed."""
        if 0 in self._left:
            return None if self._here or any(d > now for d in self._lost.values()) else ""
        if self._lost.get(0, now + 1) > now:
            return None
        return (
            f"{self._cluster.describe_rank(0)} is gone, or never came: expected it within "
            f"{self._timeout:g} s"
        )
