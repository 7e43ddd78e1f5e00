"""Rank 0's state: which ranks have joined, are missing, or have finished. Without networking.

A *set* of joined ranks is open until it holds every rank. A complete set starts the next
*generation*: all its members receive the same number, a new salt for the data key and the data
addresses of all ranks, and the next set opens. Calls wait inside `join` and `exit`, each at most as
long as its request says.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import secrets
import threading
import time

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.control import callers
from tfdist.control.held_calls import ClientContext, HeldCalls
from tfdist.job import messages

# A rank that receives "waiting" calls again at once; without a call for this long (s) it is gone.
_LEASE = 10.0
_REMEMBERED_PROCESSES = 64
_MAX_ID = 64  # characters


@dataclasses.dataclass(eq=False)
class _JoinedRank:
    """A rank in the open set."""

    join: messages.JoinRequest
    context: ClientContext
    expires: float = math.inf  # monotonic; infinite while a call of this rank waits


class Rendezvous:
    """The rendezvous and the exit barriers of a cluster's ranks.

    Args:
      cluster: the cluster as rank 0 knows it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.id = secrets.token_hex(8)
        self._cluster = cluster
        self._fingerprint = callers.fingerprint(cluster.training_addresses)
        self._calls = HeldCalls()
        self._all_answered = threading.Condition(self._calls.lock)
        self._closed = False
        self._open: dict[int, _JoinedRank] = {}
        self._process: dict[int, str] = {}
        self._superseded: dict[int, collections.deque[str]] = {}
        self._generation = 0
        self._members: dict[int, str] = {}  # rank -> attempt, of the latest generation
        self._result: dict[str, object] = {}
        self._finished: set[int] = set()
        self._abandoned_by: int | None = None
        self._unanswered: set[int] = set()

    def join(self, join: messages.JoinRequest, context: ClientContext) -> dict[str, object]:
        """Adds a rank to the open set and waits for the others.

        Args:
          join: the request.
          context: if the connection breaks, the rank leaves the open set.

        Returns:
          {"status": "complete", "rendezvous", "generation", "salt", "addresses"},
          {"status": "waiting", "missing": [ranks]}, {"status": "refused", "reason"} or
          {"status": "closed"}.
        """
        with self._calls.lock:
            reason = self._reason_to_refuse(join)
            if reason:
                return {"status": "refused", "reason": reason}
            if self._members.get(join.rank) == join.attempt:
                return self._answer_member(join.rank)
            joined = self._enter(join, context)
            self._calls.hold(
                context,
                join.wait,
                lambda: self._closed or self._open.get(join.rank) is not joined,
            )
            if self._members.get(join.rank) == join.attempt:
                return self._answer_member(join.rank)
            if self._closed:
                return {"status": "closed"}
            if self._process[join.rank] != join.process:
                return {"status": "refused", "reason": self._superseded_reason(join)}
            missing = self._missing()
            if self._open.get(join.rank) is joined:
                if join.final or context.disconnected:
                    del self._open[join.rank]
                else:
                    joined.expires = time.monotonic() + _LEASE
            return {"status": "waiting", "missing": missing}

    def exit(self, request: messages.ExitRequest, context: ClientContext) -> dict[str, object]:
        """Records that a rank has finished and waits for the others.

        Returns:
          {"status": "complete"}, {"status": "waiting", "missing": [ranks]}, {"status": "abandoned",
          "by": rank}, {"status": "unknown"} (another generation or rendezvous) or
          {"status": "closed"}.
        """
        with self._calls.lock:
            if (request.rendezvous, request.generation) != (self.id, self._generation):
                return {"status": "unknown"}
            if not 0 <= request.rank < self._cluster.world_size:
                return {"status": "refused", "reason": f"there is no rank {request.rank}"}
            if request.abandon:
                self._abandoned_by = request.rank
                self._calls.wake_all()
            else:
                self._finished.add(request.rank)
                if len(self._finished) == self._cluster.world_size:
                    self._unanswered = set(self._finished)
                    self._calls.wake_all()
            generation = request.generation

            def decided() -> bool:
                return (
                    self._closed
                    or len(self._finished) == self._cluster.world_size
                    or self._abandoned_by is not None
                    or self._generation != generation
                )

            self._calls.hold(context, request.wait, decided)
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
          linger: seconds to wait first until every rank has the result of a completed rendezvous
            or exit barrier; otherwise the last one would find rank 0 gone.
        """
        with self._calls.lock:
            self._all_answered.wait_for(lambda: not self._unanswered, timeout=linger)
            self._closed = True
            self._calls.wake_all()

    def _reason_to_refuse(self, join: messages.JoinRequest) -> str | None:
        size = self._cluster.world_size
        if join.world_size != size:
            return f"the caller counts {join.world_size} training tasks, this task counts {size}"
        reason = callers.reason_to_refuse(join, self._fingerprint, size)
        if reason:
            return reason
        problem = validation.address_problem(join.data_address)
        if problem:
            return (
                f'the caller\'s data address should be "host:port", received '
                f"{validation.show(join.data_address)}: {problem}"
            )
        if max(len(join.process), len(join.attempt)) > _MAX_ID:
            return (
                f"expected the ids of a process and an attempt to have at most {_MAX_ID} characters"
            )
        if join.process in self._superseded.get(join.rank, ()):
            return self._superseded_reason(join)
        return None

    def _superseded_reason(self, join: messages.JoinRequest) -> str:
        name = self._cluster.name_of_rank(join.rank)
        return (
            f"another process has since joined as {name} and takes its place; expected one "
            f"process per task: do two run as {name}?"
        )

    def _enter(self, join: messages.JoinRequest, context: ClientContext) -> _JoinedRank:
        rank = join.rank
        former = self._process.get(rank)
        if former not in (None, join.process):
            self._superseded.setdefault(
                rank, collections.deque(maxlen=_REMEMBERED_PROCESSES)
            ).append(former)
            self._answered(rank)
        self._process[rank] = join.process
        superseded = self._open.get(rank)
        joined = self._open[rank] = _JoinedRank(join, context)
        if superseded is not None:
            self._calls.wake(superseded.context)
        if not self._missing():
            self._complete()
        return joined

    def _missing(self) -> list[int]:
        now = time.monotonic()
        self._open = {rank: p for rank, p in self._open.items() if p.expires > now}
        return [rank for rank in range(self._cluster.world_size) if rank not in self._open]

    def _complete(self) -> None:
        self._generation += 1
        self._finished, self._abandoned_by = set(), None
        self._members = {rank: p.join.attempt for rank, p in self._open.items()}
        self._result = {
            "status": "complete",
            "rendezvous": self.id,
            "generation": self._generation,
            "salt": secrets.token_hex(16),
            "addresses": [p.join.data_address for _, p in sorted(self._open.items())],
        }
        self._unanswered = set(self._open)
        self._open = {}
        self._calls.wake_all()

    def _answer_member(self, rank: int) -> dict[str, object]:
        self._answered(rank)
        return self._result

    def _answered(self, rank: int) -> None:
        self._unanswered.discard(rank)
        if not self._unanswered:
            self._all_answered.notify_all()
