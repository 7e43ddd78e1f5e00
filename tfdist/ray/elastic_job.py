"""An elastic job: a lost worker is replaced while the others continue, and room is used.

A slot of `ElasticPolicy` is a worker's index. A new process has a new address, so its `TF_CONFIG`
names the present addresses of the others, and the job's members learn its own from itself. A
process of a slot of the start runs in the slot's bundle; Ray moves the bundle when its node is
lost. Processes beyond the start are actors without a bundle, which wait in Ray's queue until the
cluster has room; one waits at a time.
"""

from __future__ import annotations

import logging
import time

import ray

from tfdist.errors import RayJobError
from tfdist.launch.policies.decisions import EndDecision, Verdict, decide_alone
from tfdist.launch.policies.elastic import ElasticPolicy, SlotState
from tfdist.ray.job import RayJob, TaskFailed, failed
from tfdist.ray.request import RayResult
from tfdist.ray.task import TaskHandle

_log = logging.getLogger("tfdist.ray")
_CHECK = 0.5


class ServerFailed(TaskFailed):
    """A parameter server has failed: the workers cannot find it at another address."""


class ElasticRayJob(RayJob):
    """Runs the workers until none is left. A lost parameter server starts the whole job again."""

    def run(self) -> RayResult:
        assert self._request.workers is not None
        restarts, preemptions = self._request.max_failures, 0
        while True:
            self._policy = ElasticPolicy(self._request.workers, restarts)
            self._preemptions = preemptions
            try:
                values = self._attempt()
            except ServerFailed as error:
                if not self._policy.take_restart():
                    raise failed(error, "no restarts left") from error.__cause__
                restarts, preemptions = self._policy.restarts_left, self._preemptions
                _log.warning("%s; starting all again (restarts left: %d)", error, restarts)
                continue
            if values is None:
                restarts, preemptions = self._policy.restarts_left, self._preemptions
                _log.warning("preempted: all workers have ended their step; starting all again")
                continue
            used = self._request.max_failures - self._policy.restarts_left
            return RayResult(values, used, self._preemptions, self._request.checkpoint_dir)

    def _attempt(self) -> tuple | None:
        """Runs the workers until none is left; returns the values, None if all were preempted.

        Raises:
          ServerFailed: a parameter server has failed.
          RayJobError: too few workers are left.
        """
        self._values: dict[int, object] = {}
        # When to start the process of a slot again, and processes that wait for a node.
        self._due: dict[int, float] = {}
        self._pending: dict[int, TaskHandle] = {}
        self._newcomer: TaskHandle | None = None
        self._first_at_end: TaskFailed | None = None
        with self._started() as group:
            self._group = group
            try:
                self._policy.begin()
                while not self._policy.is_done:
                    self._handle_end()
                    self._start_again()
                    self._grow()
            finally:
                self._drop_newcomers()
            if self._first_at_end is not None:
                raise failed(self._first_at_end, "another worker had finished before")
            if not self._policy.finished:
                return None
            self._let_servers_end()
            return tuple(self._values[slot] for slot in sorted(self._values))

    def _handle_end(self) -> None:
        try:
            ended = self._next_end(_CHECK)
        except TaskFailed as error:
            self._task_failed(error)
            return
        if ended is None:
            return
        task, ending, value = ended
        if task in self._servers:
            return
        task.end()
        end = self._end_of(task, ending)
        decision = decide_alone(self._policy, end)
        if decision.verdict is Verdict.FINISHED:
            self._values[end.index] = value
            for other in decision.cancelled:
                self._due.pop(other, None)
            self._drop_newcomers()
            return
        assert decision.verdict is Verdict.LEFT
        self._preemptions += 1
        _log.warning("%s has left after a preemption notice", task)

    def _task_failed(self, error: TaskFailed) -> None:
        task = error.task
        if task in self._servers:
            raise ServerFailed(task, error.ray_error)
        task.kill()
        end = self._end_of(task)
        self._carry_out(end.index, error, decide_alone(self._policy, end))

    def _carry_out(self, slot: int, error: TaskFailed, decision: EndDecision) -> None:
        if decision.verdict is Verdict.FAIL:
            raise failed(error, decision.reason) from error.__cause__
        if decision.verdict is Verdict.RESTART:
            left = self._policy.restarts_left
            message = "%s; starting it again in %g s (restarts left: %d)"
            _log.warning(message, error, decision.wait, left)
            self._due[slot] = time.monotonic() + decision.wait
            return
        if decision.verdict is Verdict.FAIL_AT_END:
            self._first_at_end = self._first_at_end or error
        _log.warning("%s; %s; left out", error, decision.reason)

    def _start_again(self) -> None:
        """Starts processes whose back-off is over, and trains with all that have a node now."""
        for slot, at in list(self._due.items()):
            if time.monotonic() >= at:
                del self._due[slot]
                self._pending[slot] = self._new(slot, in_bundle=slot < self._request.num_workers)
        for slot, task in list(self._pending.items()):
            if not self._is_placed(task):
                continue
            del self._pending[slot]
            self._policy.restarted(slot)
            try:
                task.locate(timeout=0)
            except RayJobError as error:
                assert isinstance(error.__cause__, ray.exceptions.RayError)
                decision = self._policy.failed(slot, life=0.0)
                self._carry_out(slot, TaskFailed(task, error.__cause__), decision)
                continue
            self._train_newcomer(slot, task)

    def _grow(self) -> None:
        """Lets one more process wait for room, or makes it a worker if it has found some."""
        policy = self._policy
        if policy.finished or len(policy.working) >= policy.workers.maximum:
            return
        free = [s for s in range(policy.workers.maximum) if policy.state(s) is SlotState.FREE]
        if not free:
            return
        if self._newcomer is None:
            self._newcomer = self._new(free[0], in_bundle=False)
        if self._is_placed(self._newcomer):
            task, self._newcomer = self._newcomer, None
            try:
                task.locate(timeout=0)
            except RayJobError as error:
                _log.warning("%s", error)  # its node was lost meanwhile; the next one waits
                return
            (slot,) = policy.scale(len(policy.working) + 1).start
            task.name = f"worker {slot}"
            _log.warning("%s joins: the cluster has room", task)
            self._train_newcomer(slot, task)

    def _new(self, slot: int, in_bundle: bool) -> TaskHandle:
        place = (self._group, slot) if in_bundle else ()
        request = self._request
        return TaskHandle(f"worker {slot}", request.resources, request.variables, *place)

    def _is_placed(self, task: TaskHandle) -> bool:
        return bool(ray.wait([task.placed], timeout=0)[0])

    def _train_newcomer(self, slot: int, task: TaskHandle) -> None:
        if slot < len(self._workers):
            self._workers[slot] = task
        else:
            assert slot == len(self._workers)
            self._workers.append(task)
        self._train(slot)

    def _drop_newcomers(self) -> None:
        for task in (*self._pending.values(), self._newcomer):
            if task is not None:
                task.kill()
        self._pending, self._newcomer = {}, None
