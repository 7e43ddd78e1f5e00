"""A job of a fixed number of workers: a failure ends all tasks, and the job starts again."""

from __future__ import annotations

import logging
import time

import ray

from tfdist.launch.policies.decisions import TaskRole, Verdict, decide_alone
from tfdist.launch.policies.fixed import FixedPolicy
from tfdist.ray.job import RayJob, TaskFailed, failed
from tfdist.ray.request import RayResult
from tfdist.ray.task import Ending

_log = logging.getLogger("tfdist.ray")
# Seconds in which Ray reports the death of a process. The others notice it sooner, and fail.
_DEATH_IS_REPORTED = 3.0


class FixedRayJob(RayJob):
    """Runs attempts until one succeeds; each has a new placement group and new processes.

    `FixedPolicy` decides, as for `tfdist run`. A new process has a new address, which the others do
    not know, so no task starts again alone.
    """

    def run(self) -> RayResult:
        request = self._request
        servers = [TaskRole(serves=True)] * request.num_ps
        roles = [TaskRole(trains=True)] * request.num_workers + servers
        self._policy = FixedPolicy(roles, request.max_failures, replaces=False)
        preemptions = 0
        while True:
            values, is_preempted = self._attempt()
            if is_preempted:
                preemptions += 1
                _log.warning("preempted: all workers have ended their step; starting all again")
            elif values is not None:
                restarts = request.max_failures - self._policy.restarts_left
                return RayResult(values, restarts, preemptions, request.checkpoint_dir)

    def _attempt(self) -> tuple[tuple | None, bool]:
        """Runs all tasks once.

        Returns:
          The workers' values, None if a task has failed; and whether a worker has ended by a
          preemption notice.

        Raises:
          RayJobError: a task has failed, and no restarts are left.
        """
        with self._started():
            self._policy.begin()
            values: dict[str, object] = {}
            is_preempted = False
            while len(values) < len(self._workers):
                try:
                    ended = self._next_end()
                except TaskFailed as error:
                    failure, came_later = self._cause_of(error)
                    is_preempted |= came_later
                    self._failed(failure, is_preempted)
                    return None, is_preempted
                assert ended is not None
                task, ending, value = ended
                if task in self._servers:
                    continue  # it has seen the workers' end
                values[task.name] = value
                decision = decide_alone(self._policy, self._end_of(task, ending))
                is_preempted |= decision.verdict is Verdict.NOTICED
                task.end()
            self._let_servers_end()
            return tuple(values[task.name] for task in self._workers), is_preempted

    def _failed(self, failure: TaskFailed, is_preempted: bool) -> None:
        # The end of tasks on a preempted machine is no failure.
        if is_preempted:
            _log.warning("%s, after a preemption notice", failure)
            return
        decision = decide_alone(self._policy, self._end_of(failure.task))
        if decision.verdict is Verdict.FAIL:
            raise failed(failure, "no restarts left") from failure.__cause__
        assert decision.verdict is Verdict.RESTART_ALL
        left = self._policy.restarts_left
        _log.warning("%s; starting all again (restarts left: %d)", failure, left)

    def _cause_of(self, failure: TaskFailed) -> tuple[TaskFailed, bool]:
        """Looks for the death of a process that `failure` may come from.

        Returns:
          That death, or `failure` itself; and whether a worker was preempted meanwhile.
        """
        is_preempted = False
        if isinstance(failure.ray_error, ray.exceptions.RayActorError):
            return failure, is_preempted
        deadline = time.monotonic() + _DEATH_IS_REPORTED
        while self._running and (left := deadline - time.monotonic()) > 0:
            try:
                ended = self._next_end(left)
            except TaskFailed as other:
                if isinstance(other.ray_error, ray.exceptions.RayActorError):
                    return other, is_preempted
            else:
                is_preempted |= ended is not None and ended[1] is Ending.PREEMPTED
        return failure, is_preempted
