"""Which of a job's workers are connected, as a parameter server sees them."""

from __future__ import annotations

import math
from collections.abc import Callable

from tfdist.config.cluster import Cluster
from tfdist.ops.ps.server_records import ServerEvent

_LOG_INTERVAL = 10.0  # s
# Seconds between two lines about a worker that connects and disconnects repeatedly.
_MIN_LOG_INTERVAL = 1.0


class Liveness:
    """Tracks the workers' connections, and decides whether the job has ended.

    Args:
      cluster: the job.
      timeout: seconds for the workers to connect, and for a lost worker to reconnect.
      now: the time, in seconds.
      is_elastic: whether the job is elastic. Such a job has no chief: it lasts as long as a worker
        is connected, and is done when the last one has left.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeout: float,
        now: float,
        is_elastic: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = cluster
        self._is_elastic = is_elastic
        self._last_kind = ""
        self._timeout = timeout
        self._next_line = now + _LOG_INTERVAL
        self._last_line = -math.inf
        self._connected: set[int] = set()
        self._left: set[int] = set()
        self._come: set[int] = set()  # at any time
        # The time at which a lost worker counts as gone for good. A worker that has never connected
        # counts as lost: the chief of a short job may have left before a slow worker comes.
        self._lost = dict.fromkeys(range(cluster.world_size), now + timeout)

    @property
    def is_anyone_connected(self) -> bool:
        """Whether a worker is connected now."""
        return bool(self._connected)

    def record(self, event: ServerEvent, now: float) -> None:
        """Records that a worker came, left or was lost."""
        for workers in (self._connected, self._left):
            workers.discard(event.worker)
        self._lost.pop(event.worker, None)
        self._come.add(event.worker)
        if self._is_elastic() and not self._last_kind:
            self._lost.clear()
        self._last_kind = event.kind
        if event.kind == "lost":
            self._lost[event.worker] = now + self._timeout
            self._next_line = min(self._next_line, max(now, self._last_line + _MIN_LOG_INTERVAL))
        else:
            (self._connected if event.kind == "came" else self._left).add(event.worker)

    def give_up(self, worker: int) -> None:
        """Does not wait for a worker that was refused, unless it had connected before.

        The job needs the chief.
        """
        if worker and worker not in self._come:
            self._lost.pop(worker, None)

    def line(self, now: float) -> str | None:
        """Returns a log line with the lost workers, when one is lost and every ten seconds."""
        if now < self._next_line:
            return None
        self._next_line, self._last_line = now + _LOG_INTERVAL, now
        if self._is_elastic() and self._connected:
            return None  # the others continue without them
        waited = [
            f"{self._cluster.describe_rank(rank)} (gone for good in {deadline - now:.0f} s)"
            for rank, deadline in sorted(self._lost.items())
            if deadline > now
        ]
        return f"waiting for {', '.join(waited)}" if waited else None

    def verdict(self, now: float) -> str | None:
        """Returns `None` while the job runs, "" when it is done, else the reason of its failure."""
        if self._is_elastic() and self._last_kind:
            return self._elastic_verdict(now)
        if 0 in self._left:
            return None if self._connected or any(d > now for d in self._lost.values()) else ""
        if self._lost.get(0, now + 1) > now:
            return None
        return (
            f"{self._cluster.describe_rank(0)} is gone, or never came: expected it within "
            f"{self._timeout:g} s"
        )

    def _elastic_verdict(self, now: float) -> str | None:
        if self._connected or any(deadline > now for deadline in self._lost.values()):
            return None
        if self._last_kind == "left":
            return ""
        return f"all workers are gone: expected one within {self._timeout:g} s"
