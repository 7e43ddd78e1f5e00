"""The rounds at the end of epochs (epoch_rounds.py), behind a parameter server's control plane."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tfdist.control import wire
from tfdist.control.meeting import Caller
from tfdist.ps import metric_states
from tfdist.ps.epoch_rounds import END, TRAINING, Answer, EpochRounds, Key
from tfdist.ps.metric_states import StateError

# Of a request's `data`, in characters; with all else it stays below wire.LARGEST_REQUEST.
PART = 48_000
_MOST_PARTS = 256
_LONGEST_WAIT = 30.0
# How often a waiting call looks at who waits in a step, and at the time (s).
_LOOK = 0.1


class EpochService:
    """Takes what workers post, and holds their calls until a round has ended.

    Args:
      workers: how many the job has.
      timeout: seconds for which a worker waits for the others.
      waits_for: whether a worker's step waits for another worker's.
    """

    def __init__(self, workers: int, timeout: float, waits_for: Callable[[int, int], bool]) -> None:
        self._workers = workers
        self._rounds = EpochRounds(workers, timeout, waits_for, time.monotonic())
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
            self._changed.notify_all()

    def answer(self, request: wire.Epoch, caller: Caller) -> dict[str, Any]:
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
            return self._await(key, request, caller)

    def _problem(self, request: wire.Epoch) -> str:
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

    def _take(self, key: Key, request: wire.Epoch) -> dict[str, Any] | None:
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
        self._changed.notify_all()
        return None if over is None else _told(over)

    def _await(self, key: Key, request: wire.Epoch, caller: Caller) -> dict[str, Any]:
        deadline = time.monotonic() + min(request.wait, _LONGEST_WAIT)
        while True:
            now = time.monotonic()
            if not self._rounds.has(key, request.rank, request.process):
                return {"status": "missing"}
            answer = self._rounds.answer(key, request.rank, now)
            if answer is not None:
                self._changed.notify_all()
                return _told(answer)
            if caller.gone or now >= deadline:
                return {"status": "waiting"}
            self._changed.wait(min(_LOOK, deadline - now))


def _told(answer: Answer) -> dict[str, Any]:
    return {
        "status": "over",
        "content": None if answer.state is None else answer.state.encoded(),
        "ranks": list(answer.ranks),
        "missing": {str(rank): why for rank, why in answer.missing.items()},
        "stop": answer.stop,
    }
