"""One worker's part in the agreement on the last step; `stop_board` explains it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tfdist.control.client import UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.waiting import Wait
from tfdist.errors import TfdistError
from tfdist.preemption.messages import StopRequest

_log = logging.getLogger("tfdist.control")
AGREEMENT_TIMEOUT = 10.0
# Seconds for which the hub may hold a question.
_LONG_POLL = 20.0
# The same for a proposal: meanwhile another worker may die.
_WATCHFUL_POLL = 0.5
_LONGEST_PAUSE = 5.0

Call = Callable[[StopRequest], JsonObject]


class StopWatch:
    """Waits in a thread for the last step, and proposes one.

    Args:
      who: this task's name, for messages.
      rank: this worker's.
      fingerprint: the job's.
      call: sends a request to the hub and returns the answer; used by several threads. Raises
        UnreachableError or TfdistError.
      timeout: seconds for which a worker waits, at the end of a step, until all know the last one.
      has_failed: returns whether another worker is known to be dead; no task waits for it.

    Attributes:
      steps: the steps of this worker so far, the same on all workers.
      last_step: the step after which all workers stop; `None` until there is one.
      told: the rank that was told to end, if it is known.
    """

    def __init__(
        self,
        who: str,
        rank: int,
        fingerprint: str,
        call: Call,
        timeout: float = AGREEMENT_TIMEOUT,
        has_failed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._who = who
        self._rank = rank
        self._fingerprint = fingerprint
        self._call = call
        self._timeout = timeout
        self._has_failed = has_failed
        self._learned_at: int | None = None
        self._closed = threading.Event()
        self.steps = 0
        self.last_step: int | None = None
        self.told: int | None = None
        threading.Thread(target=self._watch, name="tfdist-stop-watch", daemon=True).start()

    def close(self) -> None:
        """Stops asking; may be called again."""
        self._closed.set()

    def ends_after_step(self, noticed: bool, steps_ahead: int | None) -> bool:
        """Counts a step that has just ended; returns whether this worker stops after it.

        Args:
          noticed: whether it was told to end.
          steps_ahead: how many more steps than this worker another one can have ended when this one
            ends a step; `None` if the workers do not wait for each other, and each stops by itself.
        """
        self.steps = step = self.steps + 1
        if noticed and self.last_step is None:
            self._propose(1 if steps_ahead is None else step + 1 + steps_ahead, steps_ahead is None)
        if steps_ahead is None:
            return noticed or self.last_step is not None
        if self.last_step is None:
            return False
        if step >= self.last_step:
            return True
        # A worker that was started again alone has counted fewer steps than the others.
        if self._learned_at is None:
            self._learned_at = step
        return step - self._learned_at > steps_ahead + 1

    def _propose(self, last_step: int, at_once: bool) -> None:
        """Proposes the last step of all workers; returns when all have stored the first proposal.

        Args:
          last_step: the first step that no worker can have ended, 1 or more.
          at_once: do not wait for the other workers.
        """
        timeout = 0.0 if at_once else self._timeout
        wait = Wait(timeout, self._closed, poll=_WATCHFUL_POLL)
        missing: list[int] = []
        while not wait.is_closed:
            is_last, stored = wait.is_over, self.last_step or 0
            answer = self._try(last_step=last_step, stored=stored, noticed=True, wait=wait.poll())
            is_known = answer is not None and answer["status"] == "stop"
            if answer is not None and is_known:
                self._store(answer)
                missing = answer["missing"]
                if stored and not missing:
                    return
            if is_last or self._has_failed():
                break
            if not is_known:
                wait.pause()
        if self.last_step is None:
            _log.warning(
                "%s: SIGTERM: the other workers could not be told within %g s; trying again at the "
                "end of the next step",
                self._who,
                timeout,
            )
        elif missing and not at_once:
            _log.warning(
                "%s: SIGTERM: stopping after step %d, which ranks %s did not confirm within %g s",
                self._who,
                self.last_step,
                ", ".join(map(str, missing)),
                timeout,
            )

    def _watch(self) -> None:
        wait = Wait(closed=self._closed, poll=_LONG_POLL, longest_pause=_LONGEST_PAUSE)
        while not wait.is_closed:
            stored = self.last_step or 0
            try:
                # A stored step is confirmed at once.
                answer = self._call(self._request(stored=stored, wait=0 if stored else _LONG_POLL))
            except UnreachableError:
                wait.pause()
                continue
            except TfdistError as error:
                if not wait.is_closed:
                    _log.warning("%s: will not learn when the job is to stop: %s", self._who, error)
                return
            wait.heard()
            if answer["status"] == "stop":
                if stored:
                    return
                self._store(answer)
            elif answer["status"] == "closed":
                wait.pause()

    def _try(self, **fields: Any) -> JsonObject | None:
        try:
            return self._call(self._request(**fields))
        except (UnreachableError, TfdistError) as error:
            _log.warning("%s: %s", self._who, error)
            return None

    def _request(
        self, last_step: int = 0, stored: int = 0, noticed: bool = False, wait: float = 0.0
    ) -> StopRequest:
        return StopRequest(
            fingerprint=self._fingerprint,
            rank=self._rank,
            last_step=last_step,
            stored=stored,
            noticed=noticed,
            wait=wait,
        )

    def _store(self, answer: JsonObject) -> None:
        self.told = int(answer["told"]) if answer["told"] >= 0 else None
        self.last_step = int(answer["last_step"])
