"""Processes that wait at this one, each as long as it continues calling. Without a lock.

Any process can say that it is at some address. So a process that has not proven that it is of
the job is only asked for there (`Generations`), and counts when its own answer has come: then it is
*confirmed*. The others are few, and the oldest of them makes room for the next one.
"""

from __future__ import annotations

import dataclasses
import math
import time

from tfdist.config.elastic import MAX_WORKERS
from tfdist.control.held_calls import ClientContext
from tfdist.elastic.protocol.members import Member

# A process that receives "waiting" calls again at once; without a call for so long (s) it is gone.
_LEASE = 5.0
_MAX_UNCONFIRMED = 64
# The members, and as many that wait beside them.
_MAX_CONFIRMED = 2 * MAX_WORKERS


@dataclasses.dataclass(eq=False)
class Arrival:
    """A process that wants to be in the next generation.

    Attributes:
      member: the process.
      holds_state: whether it has the job's state.
      is_confirmed: whether it is the process that it says it is.
      description: as in its last call; None for a founder, and for this process itself.
      context: the connection of that call.
      highest: the largest generation number that it has seen.
      call: the number of the call in which it waits; see `tfdist.elastic.calls`.
      expires: monotonic time at which it is gone; infinite while its call is held.
    """

    member: Member
    holds_state: bool
    is_confirmed: bool = False
    description: dict[str, str] | None = None
    context: ClientContext | None = None
    highest: int = 0
    call: int = 0
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

    def add(self, arrival: Arrival) -> Arrival | None:
        """Records that a process has come, or has called again: it stays confirmed.

        Returns:
          The process that has made room for it, or None.
        """
        former = self.get(arrival.member.process)
        if former is not None and former.member == arrival.member:
            arrival.is_confirmed |= former.is_confirmed
        evicted = self._make_room() if former is None and not arrival.is_confirmed else None
        self[arrival.member.process] = arrival
        return evicted

    def confirm(self, process: str) -> bool:
        """Records that a process is at its address, where no other one is; whether it is news."""
        arrival = self[process]
        if arrival.is_confirmed or len(self.confirmed) >= _MAX_CONFIRMED:
            return False
        for other in self.at(arrival.member.address):
            if other != process:
                del self[other]
        arrival.is_confirmed = True
        return True

    def has(self, process: str) -> bool:
        """Whether a process has come and is confirmed."""
        return process in self and self[process].is_confirmed

    @property
    def confirmed(self) -> list[Arrival]:
        """The processes that count, in the order of their coming."""
        return [arrival for arrival in self.values() if arrival.is_confirmed]

    def at(self, address: str) -> list[str]:
        """Returns the processes that say that they have an address."""
        return [process for process, arrival in self.items() if arrival.member.address == address]

    def expire(self) -> None:
        """Forgets processes that have not called again in time."""
        now = time.monotonic()
        for process in [p for p, arrival in self.items() if arrival.expires < now]:
            del self[process]

    def _make_room(self) -> Arrival | None:
        self.expire()
        strangers = [process for process, arrival in self.items() if not arrival.is_confirmed]
        return self.pop(strangers[0]) if len(strangers) >= _MAX_UNCONFIRMED else None
