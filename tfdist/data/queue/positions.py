"""How many records of each data task are trained.

A position is final once its lease is closed: nothing that trains records for that lease counts any
more, and the task's next owner continues from there. Under all-reduce, and where workers report
what they have trained, the master keeps the positions itself (`LeasePositions`). With parameter
servers the server does that applies the pushes, because a push and its records count together or
not at all (`tfdist.ps.task_positions`).
"""

from __future__ import annotations

from typing import Protocol


class TaskPositions(Protocol):
    """The positions of tasks, as a queue needs them."""

    def open(self, lease: int, task: str, trained: int) -> int:
        """Begins a lease.

        Args:
          lease: unique.
          task: the task's name, which outlives its leases.
          trained: the queue knows of so many trained records of it.

        Returns:
          The number of trained records; it may be larger after a restart.
        """

    def advance(self, lease: int, trained: int = 0) -> int:
        """Returns the number of trained records, which becomes at least `trained`."""

    def close(self, lease: int) -> int:
        """Ends a lease; returns the final number of trained records."""

    def forget(self, first: str, last: str) -> None:
        """Forgets the tasks whose names are from `first` to `last`, without `last`."""


class LeasePositions:
    """Positions that workers report, for as long as their leases. The queue knows the others."""

    def __init__(self) -> None:
        self._trained: dict[int, int] = {}

    def open(self, lease: int, task: str, trained: int) -> int:
        """As `TaskPositions.open`."""
        self._trained[lease] = trained
        return trained

    def advance(self, lease: int, trained: int = 0) -> int:
        """As `TaskPositions.advance`."""
        self._trained[lease] = max(self._trained[lease], trained)
        return self._trained[lease]

    def close(self, lease: int) -> int:
        """As `TaskPositions.close`."""
        return self._trained.pop(lease)

    def forget(self, first: str, last: str) -> None:
        """Does nothing: there are none without a lease."""
