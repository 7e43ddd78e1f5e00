"""Positions in data tasks that move with the pushes of workers."""

from __future__ import annotations

from tfdist.ops.ps.server import ParameterServer


class ServerPositions:
    """The positions that one parameter server keeps, as `data.queue.positions.TaskPositions`.

    Args:
      store: the server.
      is_saved: whether snapshots have the positions; else they last as long as their leases.
    """

    def __init__(self, store: ParameterServer, is_saved: bool) -> None:
        self._store = store
        self._is_saved = is_saved

    def open(self, lease: int, task: str, trained: int) -> int:
        """As `TaskPositions.open`; from now on pushes may name the lease."""
        return self._store.open_task(lease, task, trained)

    def advance(self, lease: int, trained: int = 0) -> int:
        """As `TaskPositions.advance`."""
        return self._store.advance_task(lease, trained)

    def close(self, lease: int) -> int:
        """As `TaskPositions.close`; later pushes that name the lease are refused."""
        return self._store.close_task(lease, forgets=not self._is_saved)

    def forget(self, first: str, last: str) -> None:
        """As `TaskPositions.forget`."""
        self._store.forget_tasks(first, last)
