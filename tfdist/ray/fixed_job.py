"""A job of a fixed number of workers: a failure ends all tasks, and the job starts again."""

from __future__ import annotations

import logging
import time
from typing import Any

import ray

from tfdist.ray.job import RayJob, TaskFailed, failed
from tfdist.ray.request import RayResult
from tfdist.ray.task import Ending

_log = logging.getLogger("tfdist.ray")
# Seconds in which Ray reports the death of a process. The others notice it sooner, and fail.
_DEATH_IS_REPORTED = 3.0


class FixedRayJob(RayJob):
    """Runs attempts until one succeeds; each has a new placement group and new processes."""

    # Whether a worker of this attempt has ended by a preemption notice.
    _is_preempted = False

    def run(self) -> RayResult:
        restarts = preemptions = 0
        while True:
            self._is_preempted = False
            try:
                values = self._attempt()
            except TaskFailed as error:
                # What the preempted machine takes with it is no failure.
                if not self._is_preempted:
                    if restarts == self._request.max_failures:
                        raise failed(error, "no restarts left") from error.__cause__
                    restarts += 1
                    left = self._request.max_failures - restarts
                    _log.warning("%s; starting all again (restarts left: %d)", error, left)
                    continue
                _log.warning("%s, after a preemption notice", error)
            if not self._is_preempted:
                return RayResult(values, restarts, preemptions, self._request.checkpoint_dir)
            preemptions += 1
            _log.warning("preempted: all workers have ended their step; starting all again")

    def _attempt(self) -> tuple[Any, ...]:
        """Runs all tasks once; returns the workers' values.

        Raises:
          TaskFailed: a task has failed.
        """
        with self._started():
            values: dict[str, Any] = {}
            while len(values) < len(self._workers):
                try:
                    ended = self._next_end()
                except TaskFailed as error:
                    raise self._cause_of(error) from error.__cause__
                assert ended is not None
                task, ending, value = ended
                if task in self._servers:
                    continue  # it has seen the workers' end
                values[task.name] = value
                self._is_preempted |= ending is Ending.PREEMPTED
                task.end()
            self._let_servers_end()
            return tuple(values[task.name] for task in self._workers)

    def _cause_of(self, failure: TaskFailed) -> TaskFailed:
        """Returns the death of a process that `failure` may come from, or `failure` itself."""
        if isinstance(failure.ray_error, ray.exceptions.RayActorError):
            return failure
        deadline = time.monotonic() + _DEATH_IS_REPORTED
        while self._running and (left := deadline - time.monotonic()) > 0:
            try:
                ended = self._next_end(left)
            except TaskFailed as other:
                if isinstance(other.ray_error, ray.exceptions.RayActorError):
                    return other
            else:
                self._is_preempted |= ended is not None and ended[1] is Ending.PREEMPTED
        return failure
