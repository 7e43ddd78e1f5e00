"""A job of a fixed number of workers: a failure ends all tasks, and the job starts again."""

from __future__ import annotations

import logging
from typing import Any

from tfdist.ray.job import RayJob, TaskFailed, failed
from tfdist.ray.request import RayResult
from tfdist.ray.task import Ending

_log = logging.getLogger("tfdist.ray")


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
                ended = self._next_end()
                assert ended is not None
                task, ending, value = ended
                if task in self._servers:
                    continue  # it has seen the workers' end
                values[task.name] = value
                self._is_preempted |= ending is Ending.PREEMPTED
                task.end()
            self._let_servers_end()
            return tuple(values[task.name] for task in self._workers)
