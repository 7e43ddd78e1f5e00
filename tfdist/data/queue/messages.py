"""The requests of workers to the master of the job's data tasks."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class TaskOpenRequest:
    """A worker, `process`, wants to share a queue of data tasks; see `master`.

    `digest` identifies what it expects of the queue. `description` is a `Description`'s text, or
    `None` if the master has not asked for it.
    """

    fingerprint: str
    process: str
    rank: int
    queue: str
    digest: str
    description: str | None
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskBeginRequest:
    """A worker begins an epoch of a queue, after `ended`, or its `fit`, counted from 1."""

    fingerprint: str
    process: str
    rank: int
    queue: str
    ended: int
    fit: int
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskLeaseRequest:
    """A worker asks for a task of an epoch; with `waits` it waits for the others at the end."""

    fingerprint: str
    process: str
    rank: int
    queue: str
    epoch: int
    waits: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class HeldLease:
    """A lease that a worker has, and how many of its task's records are trained."""

    id: int
    trained: int


@dataclasses.dataclass(frozen=True)
class TaskReportRequest:
    """A worker is alive, and has trained records of the leases that it has, `held`.

    It gives back the leases `released`; with `failed`, because it dies. It also gives back the
    leases `refused`, because a server has refused their push.
    """

    fingerprint: str
    process: str
    rank: int
    queue: str
    held: list[HeldLease]
    released: list[int]
    refused: list[int]
    failed: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskEndRequest:
    """A worker asks whether all tasks of the last epoch, `epoch`, are done.

    With `idle` it trains nothing more of its records. With `waits` it also waits for the others'
    tasks.
    """

    fingerprint: str
    process: str
    rank: int
    queue: str
    epoch: int
    idle: bool
    waits: bool
    wait: float


@dataclasses.dataclass(frozen=True)
class TaskStateRequest:
    """A worker asks for the state of all queues; or rank 0 sets it to `state`."""

    fingerprint: str
    process: str
    rank: int
    state: str | None
    wait: float


# The requests of members of the job.
TaskRequest = (
    TaskOpenRequest
    | TaskBeginRequest
    | TaskLeaseRequest
    | TaskReportRequest
    | TaskEndRequest
    | TaskStateRequest
)


@dataclasses.dataclass(frozen=True)
class TaskStatusRequest:
    """A request for the numbers that `tfdist tasks` shows."""

    wait: float


TASKS = Service("Tasks", 1, "the task that deals out the job's data tasks")
TASK_OPEN = TASKS.method(TaskOpenRequest, is_long=True)
TASK_BEGIN = TASKS.method(TaskBeginRequest)
TASK_LEASE = TASKS.method(TaskLeaseRequest)
TASK_REPORT = TASKS.method(TaskReportRequest)
TASK_END = TASKS.method(TaskEndRequest)
TASK_STATE = TASKS.method(TaskStateRequest, is_long=True)
TASK_STATUS = TASKS.method(TaskStatusRequest)
