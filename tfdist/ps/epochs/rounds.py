"""Where workers of a job meet at the end of an epoch: to add up metrics, and to stop together.

Each of them posts a state (metric_states.py) under the round's key, which is the number of its
`fit`, the epoch and the phase. A round ends when every worker that is expected has posted. Then all
that have posted get the same answer: the states put together, and whether a worker wants to stop.
Only states of the same variables can be put together: a worker with other ones than the rest gets
its own, and all are told so.

    rank 0  posts (1, 4, TRAINING) ......waits...... answer: ranks 0, 1
    rank 1  ................ posts (1, 4, TRAINING)  answer: ranks 0, 1
    rank 2  is an epoch behind: not expected; what it posts later is put together with the others'
            states, for its own answer

Expected is a worker that is connected and was in the round before; in the first epoch of a `fit`,
every one that is connected, and while the server is young those that have not come yet: if it was
started again, all connect again. A worker that waits in a step for one that has posted here is not
waited for: its epoch is longer than the other's, and in a synchronous job or with bounded staleness
neither could go on. No worker waits longer than `timeout` seconds.

Pure bookkeeping: no threads, no network; times and who waits in a step are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.ps.epochs import metric_states
from tfdist.ps.epochs.metric_states import State

TRAINING, VALIDATION, END = range(3)
# Of those that have ended the latest are kept, for workers that come late: as many, and as large.
_MOST_ROUNDS = 24
_MOST_BYTES = 64 * 2**20
# Seconds in which all workers can be expected to connect.
_YOUTH = 5.0


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """Which round: the number of the `fit`, counted from 1; the epoch from 0; and the phase."""

    fit: int
    epoch: int
    phase: int


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a round has come to.

    Args:
      state: of all workers in `ranks`; `None` if the round is over and forgotten.
      ranks: whose states were put together.
      missing: by rank, why the state of a worker is not among them that was there before, or has
        other metrics.
      stop: whether a worker wants all to stop training.
    """

    state: State | None
    ranks: tuple[int, ...] = ()
    missing: dict[int, str] = dataclasses.field(default_factory=dict)
    stop: bool = False


@dataclasses.dataclass
class _Post:
    state: State
    process: str
    since: float
    answer: Answer | None = None


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
    attached: str = ""  # the process that has said last that it is this worker
    at: Key | None = None  # the last round it has posted in
    here: bool = False
    came: bool = False  # at any time
    gone: str = "is not there"


class EpochRounds:
    """The rounds of one job.

    Args:
      workers: how many the job has.
      timeout: seconds for which a worker waits for the others.
      now: the time, in seconds.
    """

    def __init__(self, workers: int, timeout: float, now: float) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._timeout = timeout
        self._grown_up = now + _YOUTH
        self._waits: Sequence[int] = [0] * workers
        self._looked = now
        self._rounds: dict[Key, _Round] = {}
        self._forgotten: Key | None = None
        self._stopped: set[int] = set()

    def attach(self, rank: int, process: str) -> None:
        """Takes in which process is about to connect as a worker."""
        self._workers[rank].attached = process

    def note(self, kind: str, rank: int) -> None:
        """Takes in that a worker "came", "left" or was "lost".

        If it is the first to come of processes that have all been started again, a job begins anew,
        and nothing of the one before counts.
        """
        if not 0 <= rank < len(self._workers):
            return
        worker = self._workers[rank]
        if kind == "came" and worker.process != worker.attached:
            self._begin(worker, worker.attached)
            if not any(other.here for other in self._workers if other is not worker):
                self._rounds.clear()
                self._stopped.clear()
                self._forgotten = None
        worker.here = kind == "came"
        worker.came = True
        worker.gone = "has left the job" if kind == "left" else "is dead, or its connection broke"

    def look(self, waits: Sequence[int], began: float) -> None:
        """Takes in whose steps wait for whose.

        Args:
          waits: for each worker the set of those for which its step waits: bit r is rank r's.
          began: when this was asked, in seconds. A step that then waited for a worker which has
            posted since may go on by what that worker has done in between.
        """
        self._waits, self._looked = waits, began

    def post(
        self, key: Key, rank: int, process: str, state: State, stop: bool, now: float
    ) -> Answer | None:
        """Takes a worker's state; what it has posted in this round before is replaced.

        Returns:
          The answer, if the round is over already and forgotten.
        """
        worker = self._workers[rank]
        if worker.process != process:
            self._begin(worker, process)
        if stop:
            self._stopped.add(key.fit)
        if self._forgotten is not None and key <= self._forgotten:
            return Answer(None, stop=key.fit in self._stopped)
        self._rounds.setdefault(key, _Round()).posts[rank] = _Post(state, process, now)
        worker.at = key if worker.at is None else max(worker.at, key)
        self._forget()
        return None

    @staticmethod
    def _begin(worker: _Worker, process: str) -> None:
        """A new process begins with its first epoch, whatever the one before has come to."""
        worker.process, worker.at = process, None

    def has(self, key: Key, rank: int, process: str) -> bool:
        """Whether this process has posted in a round."""
        there = self._rounds.get(key)
        return there is not None and rank in there.posts and self._workers[rank].process == process

    def settle(self, now: float) -> bool:
        """Ends the rounds in which nobody is waited for any more.

        Returns:
          Whether there was one.
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

    def answer(self, key: Key, rank: int) -> Answer | None:
        """Returns the answer to what a worker has posted; `None` until the round has ended."""
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
        may_come = worker.here or (not worker.came and now < self._grown_up)
        if not may_come or (worker.at is not None and worker.at > key):
            return False
        before = self._before(key)
        if before is None:
            return True
        return worker.at is not None and worker.at >= before

    def _before(self, key: Key) -> Key | None:
        """The round in which a worker was that is not behind; `None` in the first epoch."""
        if key.phase != TRAINING:
            return Key(key.fit, key.epoch, TRAINING)
        known = [k.epoch for k in self._rounds if k.fit == key.fit and k.epoch < key.epoch]
        return Key(key.fit, max(known), END) if known else None

    def _is_held_up(self, rank: int, there: _Round) -> bool:
        return any(
            self._waits[rank] >> poster & 1 and post.since <= self._looked
            for poster, post in there.posts.items()
        )

    def _end(self, key: Key, there: _Round, waiting: list[int], late: bool) -> None:
        # Who never came is not missed, nor who has no such round.
        missing = {
            rank: self._why_missing(rank, there, late)
            for rank, worker in enumerate(self._workers)
            if rank not in there.posts
            and (worker.at is not None or worker.here)
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
            answer = Answer(state, tuple(alike), missing | others)
            for rank in alike.keys() & set(waiting):
                alike[rank].answer = answer

    def _why_missing(self, rank: int, there: _Round, late: bool) -> str:
        worker = self._workers[rank]
        if not worker.here:
            return worker.gone
        if self._is_held_up(rank, there):
            return "has steps left, which wait for the other workers"
        if late:
            return f"did not come to it within {self._timeout:g} s"
        return "is at an earlier epoch"

    def _forget(self) -> None:
        while len(self._rounds) > 1 and (
            len(self._rounds) > _MOST_ROUNDS
            or sum(there.bytes() for there in self._rounds.values()) > _MOST_BYTES
        ):
            oldest = min(self._rounds)
            there = self._rounds[oldest]
            if any(self._is_waiting(rank, there.posts[rank]) for rank in there.unanswered()):
                return
            del self._rounds[oldest]
            self._forgotten = oldest

    def _is_waiting(self, rank: int, post: _Post) -> bool:
        """Whether the process that has posted is still there, to be answered."""
        worker = self._workers[rank]
        return worker.here and worker.process == post.process
