"""The records that one iteration of a dataset has read and trained. Without TensorFlow.

A pipeline keeps the order of its records, but reads ahead: behind the last record that was trained
there are batches that wait, and a batch that is being filled. Two counts give the trained records:

    read from tasks    | task 7: records 0-9  | task 2: records 4-9 | task 5: ...
    batches of 4        [0..3] [4..7] [8..11] [12..15] ...
                               ^ two steps are done: 8 records, so task 7 is trained up to 8

Which records a batch has follows from its size, or the end of the pipeline tells it. The training
tells how many batches it has used. Where the pushes of steps commit, each batch is told to them as
soon as it is made.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Container, Mapping

# For each task in a batch: its lease, its first record in the batch, and the one behind the last.
Records = list[tuple[int, int, int]]


@dataclasses.dataclass
class _Range:
    """Records of one task, at a place of the stream."""

    lease: int
    start: int
    first: int
    count: int


@dataclasses.dataclass(frozen=True)
class Batching:
    """How the records of an iteration form batches.

    Args:
      size: how many records a batch has.
      drops_rest: whether the last records of an iteration, if they are fewer, are dropped.
    """

    size: int
    drops_rest: bool = False


class Stream:
    """The records of one iteration, in the order in which they are read; for several threads.

    Args:
      batching: how they form batches; `None`: `batch` tells it.
      again: the last epoch, of which it reads what has come back; `None`: it reads what is next.
      before: batches of earlier passes that are trained first.

    Attributes:
      again: as in the arguments.
      ended: the last epoch that it has read to its end.
      is_over: whether its training has ended, with or without all that was read.
    """

    def __init__(
        self, batching: Batching | None = None, again: int | None = None, before: int = 0
    ) -> None:
        self._before = before
        self.again = again
        self.ended: int | None = None
        self.is_over = False
        self._batching = batching
        self._waiting = 0  # records that are in no batch yet
        self._lock = threading.Lock()
        self._ranges: deque[_Range] = deque()
        self._batches: deque[tuple[int, Records]] = deque()
        self._unbatched: deque[tuple[int, int, int]] = deque()  # as in `Records`
        self._tell: Callable[[Records], None] | None = None
        self._is_pushed = False
        self._read = 0
        self._trained = 0

    def read(self, lease: int, first: int, size: int) -> None:
        """Notes that the records `first` to `size` of a task come next."""
        with self._lock:
            self._ranges.append(_Range(lease, self._read, first, size - first))
            self._unbatched.append((lease, first, size))
            self._read += size - first
            self._waiting += size - first
            while self._batching is not None and self._waiting >= self._batching.size:
                self._add_batch(self._batching.size)

    def finish(self) -> None:
        """Notes that nothing more comes."""
        with self._lock:
            rest = self._batching is not None and not self._batching.drops_rest
            if rest and self._waiting:
                self._add_batch(self._waiting)

    def batch(self, records: int) -> None:
        """Notes that the next records form a batch."""
        with self._lock:
            self._add_batch(records)

    def _add_batch(self, records: int) -> None:
        batch = self._next_records(records)
        self._waiting -= records
        self._batches.append((records, batch))
        if self._tell is not None:
            self._tell(batch)

    def _next_records(self, count: int) -> Records:
        batch = []
        while count > 0 and self._unbatched:
            lease, first, end = self._unbatched.popleft()
            upto = min(end, first + count)
            batch.append((lease, first, upto))
            count -= upto - first
            if upto < end:
                self._unbatched.appendleft((lease, upto, end))
        return batch

    @property
    def is_pushed(self) -> bool:
        """Whether the pushes of steps commit its batches: `tell` was called."""
        return self._is_pushed

    def tell(self, tell: Callable[[Records], None]) -> None:
        """Calls `tell` with each batch that is not trained yet, and with each later one."""
        with self._lock:
            self._tell, self._is_pushed = tell, True
            for _, batch in self._batches:
                tell(batch)

    def end(self) -> None:
        """Another iteration has begun: nothing more of this one is told."""
        with self._lock:
            self._tell = None

    def train(self, batches: int) -> int:
        """Notes that the next batches are trained.

        Args:
          batches: how many; fewer are left at the end of an iteration only.

        Returns:
          The number of their records.
        """
        with self._lock:
            records = 0
            earlier = min(batches, self._before)
            self._before -= earlier
            for _ in range(min(batches - earlier, len(self._batches))):
                records += self._batches.popleft()[0]
            self._trained += records
            return records

    @property
    def trained(self) -> int:
        """How many records are trained."""
        return self._trained

    @property
    def has_batches(self) -> bool:
        """Whether there are batches that are not trained."""
        return self.waiting > 0

    @property
    def waiting(self) -> int:
        """How many batches are not trained, with the batches of earlier passes."""
        return self._before + len(self._batches)

    @property
    def is_behind(self) -> bool:
        """Whether records are read that are not trained."""
        return self._trained < self._read

    def positions(self) -> dict[int, int]:
        """Returns, for each lease, up to which of its task's records this iteration has trained."""
        with self._lock:
            return {
                r.lease: r.first + min(max(self._trained - r.start, 0), r.count)
                for r in self._ranges
            }

    def forget(self, reported: Mapping[int, int], lost: Container[int]) -> None:
        """Forgets the leases that have ended.

        Args:
          reported: as from `positions`, what the master knows now.
          lost: the leases that it has given to another worker.
        """
        with self._lock:
            self._ranges = deque(
                r
                for r in self._ranges
                if r.lease not in lost and reported.get(r.lease, 0) < r.first + r.count
            )
