"""What rank 0 knows: who has joined, who is still missing, who has finished. No networking here.

A *set* of joined ranks is open until it holds every rank. Completing it starts the next
*generation*: all its members get the same number, a fresh salt for the data key and everybody's
data address, and the next set opens. Calls wait inside `join` and `exit`, each no longer than its
caller asked.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.control import messages

# A rank that was told "waiting" asks again at once; one that does not for this long (s) is gone.
_LEASE = 10.0
_LONGEST_WAIT = 30.0
_REMEMBERED_PROCESSES = 64


class Caller:
    """One call that may have to wait for its answer; `gone` once its connection is."""

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] = lambda: None

    def hang_up(self) -> None:
        """Notes that the connection broke."""
        self.gone = True
        self.on_gone()


@dataclasses.dataclass(eq=False)
class _Present:
    """A rank in the open set."""

    join: messages.Join
    expires: float = math.inf  # monotonic; infinite while a call of this rank waits


class Rendezvous:
    """The place where the ranks of a cluster meet and part.

    Args:
      cluster: the cluster as rank 0 knows it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.id = secrets.token_hex(8)
        self._cluster = cluster
        self._fingerprint = messages.fingerprint(cluster.training_addresses)
        self._changed = threading.Condition()
        self._closed = False
        self._open: dict[int, _Present] = {}
        self._process: dict[int, str] = {}
        self._superseded: dict[int, collections.deque[str]] = {}
        self._generation = 0
        self._members: dict[int, str] = {}  # rank -> attempt, of the latest generation
        self._membership: dict[str, Any] = {}
        self._finished: set[int] = set()
        self._abandoned_by: int | None = None
        self._unanswered: set[int] = set()

    def join(self, join: messages.Join, caller: Caller) -> dict[str, Any]:
        """Enters a rank and waits for the others.

        Args:
          join: the request.
          caller: if its connection breaks, its rank is not present any more.

        Returns:
          {"status": "complete", "meeting", "generation", "salt", "addresses"},
          {"status": "waiting", "missing": [ranks]}, {"status": "refused", "reason"} or
          {"status": "closed"}.
        """
        caller.on_gone = self._look_again
        with self._changed:
            reason = self._reason_to_refuse(join)
            if reason:
                return {"status": "refused", "reason": reason}
            if self._members.get(join.rank) == join.attempt:
                return self._answer_member(join.rank)
            present = self._enter(join)
            self._wait(join.wait, lambda: self._open.get(join.rank) is not present or caller.gone)
            if self._members.get(join.rank) == join.attempt:
                return self._answer_member(join.rank)
            if self._closed:
                return {"status": "closed"}
            if self._process[join.rank] != join.process:
                return {"status": "refused", "reason": self._superseded_reason(join)}
            missing = self._missing()
            if self._open.get(join.rank) is present:
                if join.final or caller.gone:
                    del self._open[join.rank]
                else:
                    present.expires = time.monotonic() + _LEASE
            return {"status": "waiting", "missing": missing}

    def exit(self, request: messages.Exit, caller: Caller) -> dict[str, Any]:
        """Records that a rank is done and waits for the others.

        Returns:
          {"status": "complete"}, {"status": "waiting", "missing": [ranks]}, {"status": "abandoned",
          "by": rank}, {"status": "unknown"} (of another generation or meeting) or
          {"status": "closed"}.
        """
        caller.on_gone = self._look_again
        with self._changed:
            if (request.meeting, request.generation) != (self.id, self._generation):
                return {"status": "unknown"}
            if not 0 <= request.rank < self._cluster.world_size:
                return {"status": "refused", "reason": f"there is no rank {request.rank}"}
            if request.abandon:
                self._abandoned_by = request.rank
            else:
                self._finished.add(request.rank)
                if len(self._finished) == self._cluster.world_size:
                    self._unanswered = set(self._finished)
            self._changed.notify_all()
            generation = request.generation

            def decided() -> bool:
                return (
                    len(self._finished) == self._cluster.world_size
                    or self._abandoned_by is not None
                    or self._generation != generation
                    or caller.gone
                )

            self._wait(request.wait, decided)
            if self._generation != generation:
                return {"status": "unknown"}
            if len(self._finished) == self._cluster.world_size:
                self._answered(request.rank)
                return {"status": "complete"}
            if self._abandoned_by is not None:
                return {"status": "abandoned", "by": self._abandoned_by}
            if self._closed:
                return {"status": "closed"}
            missing = sorted(set(range(self._cluster.world_size)) - self._finished)
            return {"status": "waiting", "missing": missing}

    def close(self, linger: float) -> None:
        """Releases all waiting calls.

        Args:
          linger: seconds to stay first until every rank has been told of a completed rendezvous or
            exit barrier; without this the last to hear would find rank 0 gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._unanswered, timeout=linger)
            self._closed = True
            self._changed.notify_all()

    def _look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        # Not max/min alone: a request may carry a NaN.
        seconds = min(seconds, _LONGEST_WAIT) if seconds > 0 else 0.0
        self._changed.wait_for(lambda: self._closed or done(), timeout=seconds)

    def _reason_to_refuse(self, join: messages.Join) -> str | None:
        if join.protocol != messages.PROTOCOL:
            return (
                f"the caller speaks control protocol {join.protocol}, this task "
                f"{messages.PROTOCOL}: expected the same tfdist version on every task"
            )
        size = self._cluster.world_size
        if join.world_size != size:
            return f"the caller counts {join.world_size} training tasks, this task counts {size}"
        if join.fingerprint != self._fingerprint:
            return "the caller has other training addresses than this task"
        if not 0 <= join.rank < size:
            return f"the caller says rank {join.rank}, expected a rank in [0, {size})"
        problem = validation.address_problem(join.data_address)
        if problem:
            return (
                f'the caller\'s data address should be "host:port", received '
                f"{validation.show(join.data_address)}: {problem}"
            )
        if join.process in self._superseded.get(join.rank, ()):
            return self._superseded_reason(join)
        return None

    def _superseded_reason(self, join: messages.Join) -> str:
        name = self._cluster.name_of_rank(join.rank)
        return (
            f"another process has since joined as {name} and takes its place; expected one "
            f"process per task: do two run as {name}?"
        )

    def _enter(self, join: messages.Join) -> _Present:
        rank = join.rank
        former = self._process.get(rank)
        if former not in (None, join.process):
            self._superseded.setdefault(
                rank, collections.deque(maxlen=_REMEMBERED_PROCESSES)
            ).append(former)
            self._unanswered.discard(rank)
        self._process[rank] = join.process
        present = self._open[rank] = _Present(join)
        if not self._missing():
            self._complete()
        # Wakes an earlier call of this rank as well: it is not the present one any more.
        self._changed.notify_all()
        return present

    def _missing(self) -> list[int]:
        now = time.monotonic()
        self._open = {rank: p for rank, p in self._open.items() if p.expires > now}
        return [rank for rank in range(self._cluster.world_size) if rank not in self._open]

    def _complete(self) -> None:
        self._generation += 1
        self._finished, self._abandoned_by = set(), None
        self._members = {rank: p.join.attempt for rank, p in self._open.items()}
        self._membership = {
            "status": "complete",
            "meeting": self.id,
            "generation": self._generation,
            "salt": secrets.token_hex(16),
            "addresses": [p.join.data_address for _, p in sorted(self._open.items())],
        }
        self._unanswered = set(self._open)
        self._open = {}

    def _answer_member(self, rank: int) -> dict[str, Any]:
        self._answered(rank)
        return self._membership

    def _answered(self, rank: int) -> None:
        self._unanswered.discard(rank)
        if not self._unanswered:
            self._changed.notify_all()
