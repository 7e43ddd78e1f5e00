"""One task of a job: the actor on a node, and the driver's handle of it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tfdist import reasons
from tfdist.config import settings
from tfdist.errors import Preempted, RayJobError
from tfdist.launch import ports
from tfdist.ray.draining import watch_for_drain
from tfdist.ray.request import actor_options

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class Ending(enum.Enum):
    """How a task has ended, unless it failed."""

    RETURNED = enum.auto()
    PREEMPTED = enum.auto()


@dataclasses.dataclass(frozen=True)
class TaskLocation:
    """Where a task runs.

    Attributes:
      address: "host:port" for `TF_CONFIG`.
      node: id of its node, hexadecimal.
      pid: of its process.
    """

    address: str
    node: str
    pid: int

    def __str__(self) -> str:
        return f"pid {self.pid} on node {self.node[:8]}, {self.address}"


class TaskActor:
    """The process of a task."""

    def place(self) -> TaskLocation:
        """Returns where this process runs, with a port that is free now."""
        node = ray.get_runtime_context().get_node_id()
        host = ray.util.get_node_ip_address()
        host = f"[{host}]" if ":" in host else host
        (port,) = ports.free_ports(1)
        return TaskLocation(f"{host}:{port}", node, os.getpid())

    def train(
        self,
        variables: Mapping[str, str],
        function: Callable,
        arguments: tuple,
    ) -> tuple[Ending, object]:
        """Calls the function as a task of the job; returns how it ended, and its value."""
        settings.set_variables(variables)
        # Ray's handler ends the process, and would be called before the training's own.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with watch_for_drain(ray.get_runtime_context().get_node_id()):
            try:
                value = function(*arguments)
            except SystemExit as end:
                if end.code == Preempted.EXIT_CODE:
                    return Ending.PREEMPTED, None
                if end.code not in (None, 0):
                    raise RuntimeError(f"the training called sys.exit({end.code!r})") from end
                value = None
        from tfdist.job import process

        # As at the end of a program: tells the others that this is no failure.
        process.current.disconnect()
        return Ending.RETURNED, value


def serve() -> None:
    """The function of a parameter server; it ends with `SystemExit` when the workers have ended."""
    # It imports TensorFlow.
    from tfdist.startup import init

    init()


class TaskHandle:
    """The driver's handle of a task's actor.

    Args:
      name: such as "worker 1".
      resources: the actor's resources.
      variables: environment variables of its process.
      group: the placement group, or None.
      bundle: the index of its bundle in the group.
    """

    def __init__(
        self,
        name: str,
        resources: Mapping[str, float],
        variables: Mapping[str, str],
        group: PlacementGroup | None = None,
        bundle: int = -1,
    ) -> None:
        options = actor_options(resources)
        if group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, bundle)
        if variables:
            options["runtime_env"] = {"env_vars": dict(variables)}
        self.name = name
        # Set with the task's start.
        self.found: TaskLocation | None = None
        self.started_at = 0.0
        # Ray's types describe actors in part.
        actor: Any = ray.remote(TaskActor).options(max_restarts=0, **options).remote()
        self._actor = actor
        self.placed = self._actor.place.remote()

    def __str__(self) -> str:
        return f"{self.name} ({self.found or 'not placed'})"

    @property
    def address(self) -> str:
        """Its "host:port", once `locate` has returned."""
        assert self.found is not None
        return self.found.address

    def locate(self, timeout: float) -> TaskLocation:
        """Waits until the actor runs.

        Raises:
          RayJobError: it does not run in time, or has died.
        """
        try:
            self.found = ray.get(self.placed, timeout=timeout)
        except ray.exceptions.RayError as error:
            raise RayJobError(
                f"{self.name}: its process did not start: {first_line(error)}"
            ) from error
        return self.found

    def train(self, *arguments: object) -> ray.ObjectRef:
        """Starts the training; returns the reference of its end."""
        self.started_at = time.monotonic()
        return self._actor.train.remote(*arguments)

    def end(self) -> None:
        """Lets the process end by itself, as a program does after its last line."""
        with contextlib.suppress(ray.exceptions.RayError):
            self._actor.__ray_terminate__.remote()

    def kill(self) -> None:
        """Ends the process at once."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


def first_line(error: BaseException) -> str:
    """Returns an error of Ray's as one line: the cause of a task's error, if it has one."""
    cause = getattr(error, "cause", None) or error
    return reasons.one_line(cause)
