"""The last states of tasks that answer no more: from the files that they leave, or as last seen."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.observe.live.records import ReportedState, TaskAnswer
from tfdist.observe.metrics.last_state import path_of

_MAX_BYTES = 8 * 1024 * 1024  # of a file


class LastStates:
    """Completes the answers of tasks that have ended.

    A task that ends by itself leaves its last state in a file. A task that was killed leaves none:
    its last answer takes its place.

    Args:
      directory: of the files; `None` without one.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._seen: dict[str, TaskAnswer] = {}

    def complete(self, answers: Sequence[TaskAnswer]) -> list[TaskAnswer]:
        """Returns answers, of which those without a state have the task's last one, if any."""
        return [self._completed(answer) for answer in answers]

    def _completed(self, answer: TaskAnswer) -> TaskAnswer:
        if answer.state is not None:
            self._seen[answer.name] = answer
            return answer
        found = _later(self._read(answer.name), self._seen.get(answer.name))
        if found is None:
            return answer
        return TaskAnswer(answer.name, answer.address, found.at, found.state, answer.problem)

    def _read(self, name: str) -> TaskAnswer | None:
        """Returns the state in a task's file; `None` if there is none."""
        if self._directory is None:
            return None
        try:
            path = path_of(self._directory, name)
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_BYTES:
                    return None
                state = ReportedState.from_json(json.loads(file.read(_MAX_BYTES)))
        except (OSError, ValueError, RecursionError):
            return None
        if state.task != name:
            return None
        at = time.monotonic() - (time.time() - about.st_mtime)
        return TaskAnswer(name, "", at, state)


def _later(left: TaskAnswer | None, seen: TaskAnswer | None) -> TaskAnswer | None:
    """Returns the state that a task has left, or its last answer if that is of a later start.

    A task that is started again finds the file of its former process.
    """
    if left is None or seen is None:
        return left or seen
    return seen if _restarts(seen) > _restarts(left) else left


def _restarts(answer: TaskAnswer) -> float:
    assert answer.state is not None
    return answer.state.value("tfdist_restarts") or 0.0
