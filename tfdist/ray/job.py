"""The common part of fixed and elastic jobs: their tasks, and the start of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import ray

from tfdist.config import settings
from tfdist.errors import Preempted, RayJobError
from tfdist.launch.policies.decisions import TaskEnd
from tfdist.ray.placement import placed
from tfdist.ray.request import RayRequest, RayResult
from tfdist.ray.task import Ending, TaskHandle, first_line, serve

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

# Seconds that parameter servers have to end by themselves after the training.
_SERVERS_END = 5.0


class TaskFailed(Exception):
    """A task has failed; its cause is Ray's error.

    Args:
      task: that failed.
      error: Ray's error.
    """

    def __init__(self, task: TaskHandle, error: ray.exceptions.RayError) -> None:
        super().__init__(f"{task} failed: {first_line(error)}")
        self.task, self.ray_error = task, error
        self.__cause__ = error


class RayJob:
    """The driver's side of a job. Subclasses watch its tasks.

    Args:
      request: the job.
      function: the function that each worker calls.
      arguments: of the function.
    """

    def __init__(self, request: RayRequest, function: Callable, arguments: tuple) -> None:
        self._request = request
        self._secret = settings.secret_variables()
        self._function = function
        self._arguments = arguments
        # References of the ends of all tasks that have been started and have not ended.
        self._running: dict[ray.ObjectRef, TaskHandle] = {}
        self._workers: list[TaskHandle] = []
        self._servers: list[TaskHandle] = []

    def run(self) -> RayResult:
        """Runs the job to its end.

        Raises:
          RayJobError: it has failed.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def _started(self) -> Iterator[PlacementGroup]:
        """Starts all tasks in a new placement group, which it yields; ends them at last."""
        request = self._request
        with placed(request) as group:
            try:
                for index in range(request.num_workers + request.num_ps):
                    self._make(index, group)
                # In a moment, since their bundles are reserved; a process imports Python packages.
                deadline = time.monotonic() + request.placement_timeout
                for task in (*self._workers, *self._servers):
                    task.locate(max(0.0, deadline - time.monotonic()))
                for index in range(request.num_workers + request.num_ps):
                    self._train(index)
                yield group
            finally:
                for task in (*self._workers, *self._servers):
                    task.kill()
                self._running, self._workers, self._servers = {}, [], []

    def _make(self, index: int, group: PlacementGroup) -> None:
        request = self._request
        serves = index >= request.num_workers
        name = f"ps {index - request.num_workers}" if serves else f"worker {index}"
        resources = request.ps_resources if serves else request.resources
        task = TaskHandle(name, resources, request.variables, group, index)
        (self._servers if serves else self._workers).append(task)

    def _train(self, index: int) -> None:
        """Starts the training of a worker that has been placed, or the serving of a server."""
        tasks = [*self._workers, *self._servers]
        task = tasks[index]
        serves = index >= len(self._workers)
        variables = self._request.task_variables(
            [other.address for other in self._workers],
            [other.address for other in self._servers],
            index,
            self._secret,
        )
        function, arguments = (serve, ()) if serves else (self._function, self._arguments)
        self._running[task.train(variables, function, arguments)] = task

    def _next_end(self, timeout: float | None = None) -> tuple[TaskHandle, Ending, object] | None:
        """Waits for the end of a task; returns it, how it has ended, and its value.

        Args:
          timeout: seconds, after which None is returned; None waits for the end of a training.

        Raises:
          TaskFailed: it has failed.
        """
        if not self._running:  # all of an elastic job's workers wait for their restart
            time.sleep(timeout or 0.0)
            return None
        ready, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout)
        if not ready:
            return None
        task = self._running.pop(ready[0])
        try:
            ending, value = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            raise TaskFailed(task, error) from error
        return task, ending, value

    def _end_of(self, task: TaskHandle, ending: Ending | None = None) -> TaskEnd:
        """Returns the end of a task as a policy takes it; `ending` is None if it failed.

        Ray tells no exit codes.
        """
        codes = {Ending.RETURNED: 0, Ending.PREEMPTED: Preempted.EXIT_CODE, None: 1}
        index = [*self._workers, *self._servers].index(task)
        return TaskEnd(index, codes[ending], task.started_at, time.monotonic())

    def _let_servers_end(self) -> None:
        """Waits until the parameter servers have saved and ended, for some seconds."""
        if self._running:
            ray.wait(list(self._running), num_returns=len(self._running), timeout=_SERVERS_END)


def failed(error: TaskFailed, why: str) -> RayJobError:
    """Returns the error of a job that a task's failure has ended."""
    found = RayJobError(f"{error}; {why}")
    found.__cause__ = error.__cause__
    return found
