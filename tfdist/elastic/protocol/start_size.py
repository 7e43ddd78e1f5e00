"""With how many founders an elastic job begins, and how long it waits for the last of them.

A job of `StartSize(number=3, least=2, patience=30)`:

    founders there     1        2              3
                       |--------|--- < 30 s ---|  begins with 3
                       |--------|------ 30 s ---------|  begins with 2; others join later

The time counts from when the least number is there, and not from the coming of the last one: a
founder that fails and is started again and again would put the beginning off for ever. It begins
anew when there are fewer meanwhile.
"""

from __future__ import annotations

import dataclasses
import time

from tfdist.config.elastic import Elastic


@dataclasses.dataclass(frozen=True)
class StartSize:
    """The numbers that all founders of a job must agree on.

    Args:
      number: of founders with which the job begins at once.
      least: the number with which it begins after `patience`.
      patience: seconds; 0 means that the job begins with `number` founders only.
    """

    number: int
    least: int
    patience: float

    @classmethod
    def of(cls, elastic: Elastic, number: int, patience: float | None) -> StartSize:
        """Returns the size of a job with these limits.

        Args:
          elastic: the limits.
          number: of founders.
          patience: seconds after which fewer are enough; None for ever.
        """
        if patience is None:
            return cls(number, number, 0.0)
        return cls(number, elastic.min_workers, patience)

    @property
    def alternative(self) -> str:
        """The number after `patience`, in words that follow `number`'s."""
        return f", or of {self.least} after {self.patience:g} s" if self.patience else ""

    def __str__(self) -> str:
        return f"{self.number}{self.alternative}"


class StartClock:
    """Decides when a job begins.

    Args:
      size: with how many founders.
    """

    def __init__(self, size: StartSize) -> None:
        self._size = size
        self._enough_since: float | None = None

    def is_due(self, come: int) -> bool:
        """Whether the job begins now.

        Args:
          come: the number of founders that are there.
        """
        size = self._size
        if come < size.least:
            self._enough_since = None
            return False
        now = time.monotonic()
        if self._enough_since is None:
            self._enough_since = now
        return come >= size.number or now - self._enough_since >= size.patience > 0

    def clear(self) -> None:
        """Forgets the founders."""
        self._enough_since = None
