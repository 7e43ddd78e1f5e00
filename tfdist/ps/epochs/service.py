"""The rounds at the end of epochs (epoch_rounds.py), behind a parameter server's control plane."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.control import messages
from tfdist.control.rendezvous import ClientContext
from tfdist.ps.epochs import metric_states
from tfdist.ps.epochs.metric_states import StateError
from tfdist.ps.epochs.rounds import END, TRAINING, Answer, EpochRounds, Key

# Of a request's `data`, in characters; with all else it stays below wire.MAX_REQUEST_BYTES.
PART = 48_000
_MOST_PARTS = 256
_LONGEST_WAIT = 30.0
# How often a look is taken at who waits in a step, and at the time (s): the pause after a look is a
# multiple of what that took, within bounds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_PAUSE_PER_LOOK = 4
# Seconds between two checks of a waiting call's connection.
_CHECK_CLIENT = 1.0


class EpochService:
    """Takes what workers post, and holds their calls until a round has ended.

    Args:
      workers: how many the job has.
      timeout: seconds for which a worker waits for the others.
      waits: gives, for each worker, the set of those for which its step waits: bit r is rank r's.
        While any call waits it is asked again and again, by one thread for all of them.
    """

    def __init__(self, workers: int, timeout: float, waits: Callable[[], Sequence[int]]) -> None:
        self._workers = workers
        self._rounds = EpochRounds(workers, timeout, time.monotonic())
        self._waits = waits
        self._waiting_calls = 0
        self._looker: threading.Thread | None = None
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._attached: set[int] = set()
        self._parts: dict[int, list[str]] = {}

    def attach(self, rank: int, process: str) -> None:
        """Takes in which process is about to connect as a worker."""
        with self._changed:
            self._attached.add(rank)
            self._rounds.attach(rank, process)

    def note(self, kind: str, rank: int) -> None:
        """Takes in that a worker "came", "left" or was "lost"."""
        with self._changed:
            self._rounds.note(kind, rank)
            self._rounds.settle(time.monotonic())
            self._changed.notify_all()  # also if the rounds of a job before are gone

    def close(self) -> None:
        """Looks no more; calls under way wait at most until their own deadlines."""
        self._closed.set()

    def answer(self, request: messages.Epoch, context: ClientContext) -> dict[str, Any]:
        """Answers a worker's request."""
        problem = self._problem(request)
        if problem:
            return {"status": "refused", "reason": problem}
        key = Key(request.fit, request.epoch, request.phase)
        with self._changed:
            if request.rank not in self._attached:  # this server was started again
                return {"status": "missing"}
            if request.parts:
                early = self._take(key, request)
                if early is not None:
                    return early
            elif not self._rounds.has(key, request.rank, request.process):
                return {"status": "missing"}
            return self._await(key, request, context)

    def _problem(self, request: messages.Epoch) -> str:
        if not 0 <= request.rank < self._workers:
            return f"there is no rank {request.rank} among {self._workers}"
        if request.fit < 1 or request.epoch < 0 or not TRAINING <= request.phase <= END:
            return (
                f"there is no round of fit {request.fit}, epoch {request.epoch} and phase "
                f"{request.phase}"
            )
        fits = 0 <= request.parts <= _MOST_PARTS and len(request.data) <= PART
        if not fits or (request.parts and not 0 <= request.part < request.parts):
            return (
                f"expected one of at most {_MOST_PARTS} parts of {PART} characters, received part "
                f"{request.part} of {request.parts} with {len(request.data)}"
            )
        return ""

    def _take(self, key: Key, request: messages.Epoch) -> dict[str, Any] | None:
        """Takes a part; returns the answer if it does not wait for the other workers."""
        parts = self._parts.setdefault(request.rank, [])
        if request.part == 0:
            parts.clear()
        if len(parts) != request.part:
            return {"status": "missing"}
        parts.append(request.data)
        if len(parts) < request.parts:
            return {"status": "received"}
        description, _, encoded = "".join(self._parts.pop(request.rank)).partition("\n")
        try:
            state = metric_states.parse(description, encoded)
            over = self._rounds.post(
                key, request.rank, request.process, state, request.stop, time.monotonic()
            )
        except StateError as error:
            return {"status": "differs", "reason": str(error)}
        self._settle()
        return None if over is None else _told(over)

    def _await(self, key: Key, request: messages.Epoch, context: ClientContext) -> dict[str, Any]:
        deadline = time.monotonic() + min(request.wait, _LONGEST_WAIT)
        self._waiting_calls += 1
        try:
            while True:
                if not self._rounds.has(key, request.rank, request.process):
                    return {"status": "missing"}
                answer = self._rounds.answer(key, request.rank)
                if answer is not None:
                    return _told(answer)
                left = deadline - time.monotonic()
                if context.disconnected or left <= 0:
                    return {"status": "waiting"}
                if self._looker is None and not self._closed.is_set():
                    self._looker = threading.Thread(
                        target=self._look, name="tfdist-ps-epochs", daemon=True
                    )
                    self._looker.start()
                self._changed.wait(min(_CHECK_CLIENT, left))
        finally:
            self._waiting_calls -= 1

    def _settle(self) -> None:
        if self._rounds.settle(time.monotonic()):
            self._changed.notify_all()

    def _look(self) -> None:
        """Looks at who waits in a step for as long as any call waits for a round."""
        try:
            while not self._closed.is_set():
                began = time.monotonic()
                waits = self._waits()  # without the lock: it may ask other servers
                took = time.monotonic() - began
                with self._changed:
                    self._rounds.look(waits, began)
                    self._settle()
                    if self._waiting_calls == 0:
                        self._looker = None
                        return
                self._closed.wait(min(max(_SHORTEST_PAUSE, _PAUSE_PER_LOOK * took), _LONGEST_PAUSE))
        except BaseException:
            with self._changed:
                self._looker = None  # the next waiting call begins again
            raise


def _told(answer: Answer) -> dict[str, Any]:
    return {
        "status": "over",
        "content": None if answer.state is None else answer.state.encoded(),
        "ranks": list(answer.ranks),
        "missing": {str(rank): why for rank, why in answer.missing.items()},
        "stop": answer.stop,
    }
