"""The founding of an elastic job, from a full starting number and no living member.

All founders come to the task of the first address, and wait. When as many have come as the job
starts with (`start_size`), that task forms generation 1 of itself and the founders that came first:

    founder 2       founder 0 (start = 3)      founder 1        founder 3
        |--- Found ----->|                         |                |
        |                |<------- Found ----------|                |
        |          comes itself: 3 of 3            |                |
        |<-- complete ---|------- complete ------->|                |
        |                |<---------------- Found ------------------|
        |                |---------------- newcomer --------------->|

Ranks follow the order of the addresses, so that a job that is started again has the same ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tfdist.control.held_calls import ClientContext
from tfdist.elastic.protocol.arrivals import Arrival, Arrivals
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.elastic.protocol.start_size import StartClock, StartSize


class Founders:
    """The founders that have come to this process. It has no lock: its owner holds one.

    Args:
      me: this process.
      addresses: of the training tasks that this process knows, in the order of their ranks.
      start: the number of founders, on which all of them agree.
    """

    def __init__(self, me: Member, addresses: Sequence[str], start: StartSize) -> None:
        self._me = me
        self._addresses = tuple(addresses)
        self._start = start
        self._clock = StartClock(start)
        self._come = Arrivals()

    def reason_to_refuse(self, start: StartSize) -> tuple[str, str] | None:
        """Returns why no founder of a job that starts so can come here, or None.

        Returns:
          The reason, and the same without values of this process's job.
        """
        if self._me.address != self._addresses[0]:
            return (
                f"this is {self._me}, but founders meet at the first training address, "
                f"{self._addresses[0]}",
                "founders meet at the first training address, which is another task's",
            )
        if start != self._start:
            expected = f"{start.number} founders{start.alternative}"
            caller = f"the caller expects a job of {expected}, this task "
            return f"{caller}one of {self._start}", f"{caller}another number"
        return None

    def add(
        self, member: Member, context: ClientContext | None = None
    ) -> tuple[Arrival, Arrival | None]:
        """Records that a founder has come; returns it, and the founder that made room for it."""
        own = member == self._me
        arrival = Arrival(member, holds_state=True, is_confirmed=own, context=context)
        evicted = self._come.add(arrival)
        self._come.expire()
        return arrival, evicted

    def at(self, address: str) -> list[str]:
        """Returns the processes that have come and say that they have an address."""
        return self._come.at(address)

    def confirm(self, process: str) -> bool:
        """Records that a founder is at its address, where no other one is; whether it is news."""
        return self._come.confirm(process)

    def __contains__(self, process: object) -> bool:
        return process in self._come

    def remove(self, arrival: Arrival) -> None:
        """Records that a founder has gone, unless it has come again since."""
        if self._come.get(arrival.member.process) is arrival:
            del self._come[arrival.member.process]

    def forget(self, process: str) -> None:
        """Records that a process is dead."""
        self._come.pop(process, None)

    def missing(self) -> list[int]:
        """Returns the ranks of the known addresses from which no founder has come."""
        self._come.expire()
        come = {arrival.member.address for arrival in self._come.confirmed}
        return [rank for rank, address in enumerate(self._addresses) if address not in come]

    def are_complete(self) -> bool:
        """Whether enough have come to form a job now, this process among them."""
        self._come.expire()
        has_me = self._come.has(self._me.process)
        return self._clock.is_due(len(self._come.confirmed) if has_me else 0)

    def first_generation(self) -> Generation:
        """Returns generation 1: this process and the founders that have come first."""
        rank_of = {address: rank for rank, address in enumerate(self._addresses)}
        others = [a.member for a in self._come.confirmed if a.member != self._me]
        members = [self._me, *others[: self._start.number - 1]]
        members.sort(key=lambda member: rank_of.get(member.address, len(rank_of)))
        self._come.clear()
        self._clock.clear()
        return Generation(
            number=1,
            members=tuple(members),
            newcomers=frozenset(),
            job=secrets.token_hex(16),
            salt=secrets.token_hex(16),
        )
