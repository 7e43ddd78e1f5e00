"""The processes that train together, as one of them sees them.

There are three: the ranks of a job of fixed size (`tfdist.job.job`), the members of an elastic job
(`tfdist.elastic.job`), and a process alone.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tfdist.ops import Communicator


class PeerGroup(Protocol):
    """This process and the processes that train with it."""

    @property
    def communicator(self) -> Communicator:
        """The connections to the other ranks."""

    @property
    def is_elastic(self) -> bool:
        """Whether ranks may come and go."""

    @property
    def rank(self) -> int:
        """This process's rank now."""

    @property
    def size(self) -> int:
        """The number of ranks now."""

    @property
    def generation(self) -> int:
        """The number of the set of ranks: 1 for the first; 0 before this process is in one."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the ranks; none of a process alone."""

    @property
    def is_leader(self) -> bool:
        """Whether this process is rank 0 now."""

    def leave(self, failure: str | None = None) -> None:
        """Leaves the job; `failure` says why this process ends before its work is done."""


class Alone:
    """A process that trains alone."""

    is_elastic = False
    rank = 0
    size = 1
    generation = 0
    addresses: tuple[str, ...] = ()
    is_leader = True

    @functools.cached_property
    def communicator(self) -> Communicator:
        """A communicator of one rank."""
        from tfdist.ops import Communicator  # imports TensorFlow

        return Communicator(0, 1)

    def leave(self, failure: str | None = None) -> None:
        """Does nothing: no other process waits for this one."""
