"""Where workers of a job meet at the end of an epoch: to add up metrics, and to stop together.

Each of them posts a state (metric_states.py) under the round's key, which is the number of its
`fit`, the epoch and the phase. A round ends when every worker that is expected has posted. Then all
that have posted get the same answer: the states put together, and whether a worker wants to stop.

    rank 0  posts (1, 4, TRAINING) ......waits...... answer: ranks 0, 1
    rank 1  ................ posts (1, 4, TRAINING)  answer: ranks 0, 1
    rank 2  is an epoch behind: not expected; what it posts later is put together with the others'
            states, for its own answer

Expected is a worker that is connected and was in the round before; in the first epoch of a `fit`,
every one that is connected, and while the server is young those that have not come yet: if it was
started again, all connect again. A worker that waits in a step for one that has posted here is not
waited for: its epoch is longer than the other's, and in a synchronous job or with bounded staleness
neither could go on. No worker waits longer than `timeout` seconds.

Pure bookkeeping: no threads, no network; times are arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdist.ps import metric_states
from tfdist.ps.metric_states import State, StateError

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
      missing: by rank, why the state of a worker is not among them that was there before.
      stop: whether a worker wants all to stop training.
    """

    state: State | None
    ranks: tuple[int, ...] = ()
    missing: dict[int, str] = dataclasses.field(default_factory=dict)
    stop: bool = False


@dataclasses.dataclass
class _Round:
    posts: dict[int, State] = dataclasses.field(default_factory=dict)
    since: dict[int, float] = dataclasses.field(default_factory=dict)
    answers: dict[int, Answer] = dataclasses.field(default_factory=dict)

    def bytes(self) -> int:
        return sum(len(state.content) for state in self.posts.values())


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
      waits_for: whether a worker's step waits for another worker's.
      now: the time, in seconds.
    """

    def __init__(
        self, workers: int, timeout: float, waits_for: Callable[[int, int], bool], now: float
    ) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._timeout = timeout
        self._grown_up = now + _YOUTH
        self._waits_for = waits_for
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

    def post(
        self, key: Key, rank: int, process: str, state: State, stop: bool, now: float
    ) -> Answer | None:
        """Takes a worker's state; what it has posted in this round before is replaced.

        Returns:
          The answer, if the round is over already and forgotten.

        Raises:
          StateError: the state does not fit those that others have posted.
        """
        worker = self._workers[rank]
        if worker.process != process:
            self._begin(worker, process)
        if stop:
            self._stopped.add(key.fit)
        if self._forgotten is not None and key <= self._forgotten:
            return Answer(None, stop=key.fit in self._stopped)
        first = next(iter(self._rounds[key].posts.items()), None) if key in self._rounds else None
        if first is not None and first[1].fields != state.fields:
            raise StateError(
                f"expected the same metrics on all workers, as rank {first[0]} has "
                f"{first[1].description()[:200]}, received {state.description()[:200]} from rank "
                f"{rank}"
            )
        there = self._rounds.setdefault(key, _Round())
        there.posts[rank] = state
        there.since[rank] = now
        there.answers.pop(rank, None)
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

    def answer(self, key: Key, rank: int, now: float) -> Answer | None:
        """Returns a worker's answer; `None` while it has to wait.

        Args:
          key: of a round in which it has posted.
          rank: the worker's.
          now: the time, in seconds.
        """
        there = self._rounds[key]
        if rank not in there.answers:
            waiting = [r for r in there.posts if r not in there.answers]
            late = now >= min(there.since[r] for r in waiting) + self._timeout
            expected = self._expected(key, there, now)
            if expected and not late:
                return None
            self._end(key, there, waiting, late)
        return dataclasses.replace(there.answers[rank], stop=key.fit in self._stopped)

    def _expected(self, key: Key, there: _Round, now: float) -> list[int]:
        """The workers that are waited for."""
        return [
            rank
            for rank in range(len(self._workers))
            if rank not in there.posts
            and self._is_expected(key, rank, now)
            and not self._is_held_up(rank, there)
        ]

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
        return any(self._waits_for(rank, poster) for poster in there.posts)

    def _end(self, key: Key, there: _Round, waiting: list[int], late: bool) -> None:
        ranks = tuple(sorted(there.posts))
        state = metric_states.merge([there.posts[rank] for rank in ranks])
        # Who never came is not missed, nor who has no such round.
        missing = {
            rank: self._why_missing(rank, there, late)
            for rank, worker in enumerate(self._workers)
            if rank not in there.posts
            and (worker.at is not None or worker.here)
            and (worker.at is None or worker.at < key)
        }
        for rank in waiting:
            there.answers[rank] = Answer(state, ranks, missing)

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
            if any(rank not in there.answers for rank in there.posts):
                return  # somebody waits there
            del self._rounds[oldest]
            self._forgotten = oldest
