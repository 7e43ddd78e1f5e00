"""The rounds at the end of an epoch, in which workers sum their metrics and agree to stop.

The last epoch has one more, `FIT_END`, in which workers wait for the others' callbacks at the end
of `fit`.

Each worker posts a state (`metric_states`) under the round's key: the number of its `fit`, the
epoch and the phase. A round ends when all expected workers have posted. All workers that have
posted get the same answer: the merged state, and whether a worker requests a stop. Only states of
the same variables can be merged: a worker with other variables gets its own state, and the answers
say so.

    rank 0  posts (1, 4, TRAINING) ......waits...... answer: ranks 0, 1
    rank 1  ................ posts (1, 4, TRAINING)  answer: ranks 0, 1
    rank 2  is an epoch behind: not expected; when it posts later, its own answer merges its state
            with the others'

A worker is expected if it is connected and was in the previous round. In the first epoch of a `fit`
every connected worker is expected, and, in the server's first seconds, also workers that have not
connected yet: after a restart of the server all workers reconnect. A round does not wait for a
worker whose step waits for a worker that has posted: its epoch is longer than the other's, and in a
synchronous job or with bounded staleness neither could continue. No worker waits longer than
`timeout` seconds.

This module has no threads and no networking; times and step waits are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.ps.epochs import metric_states
from tfdist.ps.epochs.metric_states import MetricStates

TRAINING, VALIDATION, END, FIT_END = range(4)
# Ended rounds are kept for late workers: their maximum number, and the bytes of their states.
_MAX_ROUNDS = 24
_MAX_BYTES = 64 * 2**20
# Seconds after the server's start in which all workers are expected to connect.
_CONNECT_PERIOD = 5.0


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """The key of a round: the number of the `fit`, from 1; the epoch, from 0; and the phase."""

    fit: int
    epoch: int
    phase: int


@dataclasses.dataclass(frozen=True)
class RoundResult:
    """The result of a round.

    Args:
      state: the merged state of the workers in `ranks`; `None` if the round is over and forgotten.
      ranks: the workers whose states were merged.
      missing: by rank, the reason why the state of a known worker was not merged.
      stop: whether a worker requests that all stop training.
    """

    state: MetricStates | None
    ranks: tuple[int, ...] = ()
    missing: dict[int, str] = dataclasses.field(default_factory=dict)
    stop: bool = False


@dataclasses.dataclass
class _Post:
    state: MetricStates
    process: str
    since: float
    answer: RoundResult | None = None


@dataclasses.dataclass
class _Round:
    posts: dict[int, _Post] = dataclasses.field(default_factory=dict)

    def bytes(self) -> int:
        return sum(len(post.state.content) for post in self.posts.values())

    def unanswered(self) -> list[int]:
        return [rank for rank, post in self.posts.items() if post.answer is None]


@dataclasses.dataclass
class _Worker:
    process: str = ""
    attached: str = ""  # the last process that has claimed to be this worker
    at: Key | None = None  # the last round in which it has posted
    connected: bool = False
    was_connected: bool = False  # at any time
    gone: str = "is not there"


class EpochRounds:
    """The rounds of one job.

    Args:
      workers: the number of workers.
      timeout: seconds for which a worker waits for the others.
      now: the time, in seconds.
    """

    def __init__(self, workers: int, timeout: float, now: float) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._timeout = timeout
        self._all_connected_by = now + _CONNECT_PERIOD
        self._waits: Sequence[int] = [0] * workers
        self._waits_at = now
        self._rounds: dict[Key, _Round] = {}
        self._forgotten: Key | None = None
        self._stopped: set[int] = set()

    def attach(self, rank: int, process: str) -> None:
        """Records which process is about to connect as a worker."""
        self._workers[rank].attached = process

    def record(self, kind: str, rank: int) -> None:
        """Records that a worker "came", "left" or was "lost".

        A new process that comes while no other worker is connected begins a new job: all rounds are
        dropped.
        """
        if not 0 <= rank < len(self._workers):
            return
        worker = self._workers[rank]
        if kind == "came" and worker.process != worker.attached:
            self._begin(worker, worker.attached)
            if not any(other.connected for other in self._workers if other is not worker):
                self._rounds.clear()
                self._stopped.clear()
                self._forgotten = None
        worker.connected = kind == "came"
        worker.was_connected = True
        worker.gone = "has left the job" if kind == "left" else "is dead, or its connection broke"

    def update_waits(self, waits: Sequence[int], began: float) -> None:
        """Records which workers' steps wait for which others'.

        Args:
          waits: for each worker the set of workers for which its step waits; bit r stands for rank
            r.
          began: the time of the query, in seconds. Waits for a worker that has posted since are
            ignored: before its post, that worker may have ended them.
        """
        self._waits, self._waits_at = waits, began

    def post(
        self, key: Key, rank: int, process: str, state: MetricStates, stop: bool, now: float
    ) -> RoundResult | None:
        """Takes a worker's state, which replaces its earlier post in this round.

        Returns:
          The answer, if the round is already over and forgotten.
        """
        worker = self._workers[rank]
        if worker.process != process:
            self._begin(worker, process)
        if stop:
            self._stopped.add(key.fit)
        if self._forgotten is not None and key <= self._forgotten:
            return RoundResult(None, stop=key.fit in self._stopped)
        self._rounds.setdefault(key, _Round()).posts[rank] = _Post(state, process, now)
        worker.at = key if worker.at is None else max(worker.at, key)
        self._forget()
        return None

    @staticmethod
    def _begin(worker: _Worker, process: str) -> None:
        """Resets a worker that is now another process, which starts with its first epoch."""
        worker.process, worker.at = process, None

    def has(self, key: Key, rank: int, process: str) -> bool:
        """Whether this process has posted in a round."""
        there = self._rounds.get(key)
        return there is not None and rank in there.posts and self._workers[rank].process == process

    def settle(self, now: float) -> bool:
        """Ends the rounds that wait for no worker any more.

        Returns:
          Whether it has ended one.
        """
        has_ended = False
        for key, there in self._rounds.items():
            waiting = there.unanswered()
            if not waiting:
                continue
            late = now >= min(there.posts[rank].since for rank in waiting) + self._timeout
            if late or not self._is_anyone_expected(key, there, now):
                self._end(key, there, waiting, late)
                has_ended = True
        return has_ended

    def answer(self, key: Key, rank: int) -> RoundResult | None:
        """Returns the answer to a worker's post; `None` until the round has ended."""
        answer = self._rounds[key].posts[rank].answer
        return answer and dataclasses.replace(answer, stop=key.fit in self._stopped)

    def _is_anyone_expected(self, key: Key, there: _Round, now: float) -> bool:
        return any(
            rank not in there.posts
            and self._is_expected(key, rank, now)
            and not self._is_held_up(rank, there)
            for rank in range(len(self._workers))
        )

    def _is_expected(self, key: Key, rank: int, now: float) -> bool:
        worker = self._workers[rank]
        may_come = worker.connected or (not worker.was_connected and now < self._all_connected_by)
        if not may_come or (worker.at is not None and worker.at > key):
            return False
        before = self._before(key)
        if before is None:
            return True
        return worker.at is not None and worker.at >= before

    def _before(self, key: Key) -> Key | None:
        """Returns the previous round, in which every worker on time was; `None` for the first."""
        if key.phase != TRAINING:
            return Key(key.fit, key.epoch, TRAINING)
        known = [k.epoch for k in self._rounds if k.fit == key.fit and k.epoch < key.epoch]
        return Key(key.fit, max(known), END) if known else None

    def _is_held_up(self, rank: int, there: _Round) -> bool:
        return any(
            self._waits[rank] >> poster & 1 and post.since <= self._waits_at
            for poster, post in there.posts.items()
        )

    def _end(self, key: Key, there: _Round, waiting: list[int], late: bool) -> None:
        # Workers that never came, or that are past this round, are not missing.
        missing = {
            rank: self._missing_reason(rank, there, late)
            for rank, worker in enumerate(self._workers)
            if rank not in there.posts
            and (worker.at is not None or worker.connected or self._is_held_up(rank, there))
            and (worker.at is None or worker.at < key)
        }
        for fields in {there.posts[rank].state.fields for rank in waiting}:
            alike = {r: p for r, p in sorted(there.posts.items()) if p.state.fields == fields}
            state = metric_states.merge([post.state for post in alike.values()])
            others = {
                rank: f"has other metrics: expected {state.description()[:200]}, received "
                f"{post.state.description()[:200]}"
                for rank, post in there.posts.items()
                if rank not in alike
            }
            answer = RoundResult(state, tuple(alike), missing | others)
            for rank in alike.keys() & set(waiting):
                alike[rank].answer = answer

    def _missing_reason(self, rank: int, there: _Round, late: bool) -> str:
        worker = self._workers[rank]
        # That a worker has connected may be recorded later than its first steps.
        if not worker.connected and (worker.was_connected or not self._is_held_up(rank, there)):
            return worker.gone
        if self._is_held_up(rank, there):
            return "has steps left, which wait for the other workers"
        if late:
            return f"did not come to it within {self._timeout:g} s"
        return "is at an earlier epoch"

    def _forget(self) -> None:
        while len(self._rounds) > 1 and (
            len(self._rounds) > _MAX_ROUNDS
            or sum(there.bytes() for there in self._rounds.values()) > _MAX_BYTES
        ):
            oldest = min(self._rounds)
            there = self._rounds[oldest]
            if any(self._is_waiting(rank, there.posts[rank]) for rank in there.unanswered()):
                return
            del self._rounds[oldest]
            self._forgotten = oldest

    def _is_waiting(self, rank: int, post: _Post) -> bool:
        """Whether the process that has posted is still connected."""
        worker = self._workers[rank]
        return worker.connected and worker.process == post.process
