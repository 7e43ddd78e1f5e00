"""Round 2 of a generation: its members' data addresses come to the leader. Without a lock."""

from __future__ import annotations

from tfdist.elastic.protocol.members import Generation, Member


class AddressRound:
    """The data addresses of a generation that was formed, as far as they have come.

    Args:
      generation: the result of round 1.

    Attributes:
      generation: the same.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._addresses: dict[str, str] = {}

    def add(self, process: str, address: str) -> bool:
        """Records a member's data address; returns whether it is news."""
        is_new = self._addresses.get(process) != address
        self._addresses[process] = address
        return is_new

    @property
    def is_complete(self) -> bool:
        """Whether all members' addresses have come."""
        return len(self._addresses) == len(self.generation.members)

    @property
    def addresses(self) -> list[str]:
        """The data addresses by rank, once all have come."""
        return [self._addresses[member.process] for member in self.generation.members]

    @property
    def missing(self) -> list[Member]:
        """The members whose addresses have not come, by rank."""
        return [m for m in self.generation.members if m.process not in self._addresses]
