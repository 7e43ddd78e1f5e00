"""The decisions of a launched job: which tasks start, and the consequence of a task's end.

A policy is pure: it gets events, keeps counts, and starts and ends no process. `Supervisor` carries
its decisions out, and Ray's jobs do so with actors. `FixedPolicy` is for a fixed number of tasks,
`ElasticPolicy` for workers that come and go.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Protocol


@dataclasses.dataclass(frozen=True)
class TaskRole:
    """The purpose of a task.

    Attributes:
      trains: the job is done when all tasks that train are.
      serves: it is a parameter server.
      prepares_data: it is a data task, which the training tasks alone need.
    """

    trains: bool = False
    serves: bool = False
    prepares_data: bool = False


@dataclasses.dataclass(frozen=True)
class TaskEnd:
    """The end of a task.

    Attributes:
      index: the task's index; a worker's index in an elastic job is its slot.
      code: its exit code, or minus the number of the signal that ended it.
      started_at: the monotonic time of its start.
      at: the time of its end.
      told_to_stop: the supervisor has sent it a signal.
      alone: no training task has followed it, after AWAIT_NOTICE.
    """

    index: int
    code: int
    started_at: float = 0.0
    at: float = 0.0
    told_to_stop: bool = False
    alone: bool = False

    @property
    def life(self) -> float:
        """The seconds from its start to its end."""
        return self.at - self.started_at


class Verdict(enum.Enum):
    """The consequence of the end of a task."""

    NOTHING = enum.auto()
    # The task starts again at once; the others continue.
    REPLACE = enum.auto()
    # The task starts again after some time; the others continue.
    RESTART = enum.auto()
    # As RESTART, on another host.
    MOVE = enum.auto()
    RESTART_ALL = enum.auto()
    LEAVE_OUT = enum.auto()
    # The job has failed; the other tasks are stopped.
    FAIL = enum.auto()
    # The job has failed, but the other workers are finishing by themselves.
    FAIL_AT_END = enum.auto()
    # The worker was started into a running job, which has finished: no failure.
    TOO_LATE = enum.auto()
    # Another program told a training task to end; the others end by themselves.
    NOTICED = enum.auto()
    # Another program told the task to end, and maybe the training tasks, too. If none follows, the
    # policy is asked again, with `TaskEnd.alone`.
    AWAIT_NOTICE = enum.auto()
    # The worker has left as planned.
    LEFT = enum.auto()
    # As LEFT, but it starts again at once.
    RETURN = enum.auto()
    FINISHED = enum.auto()


@dataclasses.dataclass(frozen=True)
class EndDecision:
    """The consequence of the end of a task, and its reason.

    Attributes:
      verdict: the consequence.
      wait: seconds until the restart, if there is one.
      reason: why there is no restart, for a message.
      cancelled: the slots that do not start again because of it.
    """

    verdict: Verdict
    wait: float = 0.0
    reason: str = ""
    cancelled: tuple[int, ...] = ()


class JobPolicy(Protocol):
    """The questions of `Supervisor`."""

    @property
    def restarts_left(self) -> int:
        """The number of further failures that lead to a restart."""

    @property
    def is_done(self) -> bool:
        """Whether no training task runs or will start, in a job that continues after their ends."""

    @property
    def awaits_start(self) -> bool:
        """Whether a task will start again without being asked."""

    def begin(self) -> list[int]:
        """Returns the tasks that the job begins with, or begins again with; they run from now."""

    def decide(
        self, ends: Sequence[TaskEnd], is_interrupted: bool
    ) -> Iterator[tuple[TaskEnd, EndDecision]]:
        """Decides on the ends of some tasks, one by one.

        Args:
          ends: in the order in which they were seen.
          is_interrupted: the launcher has received a signal, which may have reached the tasks, too.

        Yields:
          Each end with its decision, in the order in which they matter. The caller carries out one
          decision before it asks for the next.
        """

    def cause(self, title: str, exit: str, life: float, survived: Sequence[str]) -> str:
        """Returns the reason of the job's failure in one line.

        Args:
          title: the task that failed first.
          exit: how it ended, in words.
          life: seconds from its start to its end.
          survived: the failures after which the job continued.
        """


def decide_alone(policy: JobPolicy, end: TaskEnd) -> EndDecision:
    """Decides on the end of one task, in a job that has received no signal."""
    ((_, decision),) = policy.decide([end], False)
    return decision
