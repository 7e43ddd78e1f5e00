"""The rounds at the end of epochs, behind a parameter server's control plane; see `rounds`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tfdist.control.held_calls import ClientContext
from tfdist.ps.epochs.messages import EpochRequest
from tfdist.ps.epochs.metric_states import MetricStates, StateError
from tfdist.ps.epochs.rounds import FIT_END, TRAINING, EpochRounds, Key, RoundResult

_MAX_WAIT = 30.0
# Seconds between two queries of the step waits: a multiple of a query's duration, within bounds.
_MIN_PAUSE, _MAX_PAUSE = 0.1, 1.0
_PAUSE_PER_QUERY = 4
# Seconds between two checks of a waiting call's connection.
_CHECK_CLIENT = 1.0


class EpochService:
    """Takes the workers' posts, and holds their calls until a round has ended.

    Args:
      workers: the number of workers.
      timeout: seconds for which a worker waits for the others.
      waits: returns, for each worker, the set of workers for which its step waits; bit r stands for
        rank r. While calls wait, one thread calls it repeatedly.
    """

    def __init__(self, workers: int, timeout: float, waits: Callable[[], Sequence[int]]) -> None:
        self._workers = workers
        self._rounds = EpochRounds(workers, timeout, time.monotonic())
        self._waits = waits
        self._waiting_calls = 0
        self._querying: threading.Thread | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._attached: set[int] = set()

    def attach(self, rank: int, process: str) -> None:
        """Records which process is about to connect as a worker."""
        with self._changed:
            self._attached.add(rank)
            self._rounds.attach(rank, process)

    def record(self, kind: str, rank: int) -> None:
        """Records that a worker "came", "left" or was "lost"."""
        with self._changed:
            self._rounds.record(kind, rank)
            self._rounds.settle(time.monotonic())
            self._changed.notify_all()  # also if a new job has dropped the rounds

    def close(self) -> None:
        """Stops the queries; calls in progress wait at most until their own deadlines."""
        self._closed.set()

    def answer(self, request: EpochRequest, context: ClientContext) -> dict[str, object]:
        """Answers a worker's request."""
        problem = self._problem(request)
        if problem:
            return {"status": "refused", "reason": problem}
        key = Key(request.fit, request.epoch, request.phase)
        with self._changed:
            if request.rank not in self._attached:  # this server was started again
                return {"status": "missing"}
            if request.state is not None:
                early = self._take(key, request, request.state)
                if early is not None:
                    return early
            elif not self._rounds.has(key, request.rank, request.process):
                return {"status": "missing"}
            return self._await(key, request, context)

    def _problem(self, request: EpochRequest) -> str:
        if not 0 <= request.rank < self._workers:
            return f"there is no rank {request.rank} among {self._workers}"
        if request.fit < 1 or request.epoch < 0 or not TRAINING <= request.phase <= FIT_END:
            return (
                f"there is no round of fit {request.fit}, epoch {request.epoch} and phase "
                f"{request.phase}"
            )
        return ""

    def _take(
        self, key: Key, request: EpochRequest, state: MetricStates
    ) -> dict[str, object] | None:
        """Takes a state; returns the answer unless it depends on the other workers."""
        try:
            state.check()
            over = self._rounds.post(
                key, request.rank, request.process, state, request.stop, time.monotonic()
            )
        except StateError as error:
            return {"status": "differs", "reason": str(error)}
        self._settle()
        return None if over is None else _encoded(over)

    def _await(self, key: Key, request: EpochRequest, context: ClientContext) -> dict[str, object]:
        deadline = time.monotonic() + min(request.wait, _MAX_WAIT)
        self._waiting_calls += 1
        try:
            while True:
                if not self._rounds.has(key, request.rank, request.process):
                    return {"status": "missing"}
                answer = self._rounds.answer(key, request.rank)
                if answer is not None:
                    return _encoded(answer)
                left = deadline - time.monotonic()
                if context.disconnected or left <= 0:
                    return {"status": "waiting"}
                if self._querying is None and not self._closed.is_set():
                    self._querying = threading.Thread(
                        target=self._query_waits, name="tfdist-ps-epochs", daemon=True
                    )
                    self._querying.start()
                self._changed.wait(min(_CHECK_CLIENT, left))
        finally:
            self._waiting_calls -= 1

    def _settle(self) -> None:
        if self._rounds.settle(time.monotonic()):
            self._changed.notify_all()

    def _query_waits(self) -> None:
        """Queries the step waits for as long as any call waits for a round."""
        try:
            while not self._closed.is_set():
                began = time.monotonic()
                waits = self._waits()  # without the lock: it may call other servers
                took = time.monotonic() - began
                with self._changed:
                    self._rounds.update_waits(waits, began)
                    self._settle()
                    if self._waiting_calls == 0:
                        self._querying = None
                        return
                self._closed.wait(min(max(_MIN_PAUSE, _PAUSE_PER_QUERY * took), _MAX_PAUSE))
        except BaseException:
            with self._changed:
                self._querying = None  # the next waiting call starts a new thread
            raise


def _encoded(answer: RoundResult) -> dict[str, object]:
    return {
        "status": "over",
        "content": None if answer.state is None else answer.state.content,
        "ranks": list(answer.ranks),
        "missing": {str(rank): reason for rank, reason in answer.missing.items()},
        "stop": answer.stop,
    }
