"""Processes that wait at this one, each as long as it goes on calling. Without a lock."""

from __future__ import annotations

import dataclasses
import math
import time

from tfdist.control import messages
from tfdist.control.members import Member

# A process that receives "waiting" calls again at once; without a call for so long (s) it is gone.
_LEASE = 5.0


@dataclasses.dataclass(eq=False)
class Arrival:
    """A process that wants to be in the next generation.

    Attributes:
      member: the process.
      holds_state: whether it has the job's state.
      request: its last call; None for a founder, and for this process itself.
      expires: monotonic time at which it is gone; infinite while its call is held.
    """

    member: Member
    holds_state: bool
    request: messages.ElasticForm | None = None
    expires: float = math.inf

    @property
    def is_held(self) -> bool:
        """Whether its call is held just now: it lives."""
        return self.expires == math.inf

    def await_next_call(self) -> None:
        """Lets it be gone unless it calls again soon: its call has been answered."""
        self.expires = time.monotonic() + _LEASE


class Arrivals(dict[str, Arrival]):
    """The processes that have come, by their ids, in the order of their coming."""

    def expire(self) -> None:
        """Forgets those that have not called again in time."""
        now = time.monotonic()
        for process in [p for p, arrival in self.items() if arrival.expires < now]:
            del self[process]
