"""What a task tells, and what a job does between two looks at it: plain records.

`tfdist.metrics.state` writes what `State` reads. It came from another process, so that every field
is checked.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that a task did or does; times are seconds before the sample, `None`: not yet.

    Attributes:
      kind: "collective", "request" (to a parameter server) or "span".
      operation: such as "all_reduce", or "pull".
      name: of the tensor, or of the span.
      detail: shapes, or what the span is about.
      bytes: of the tensors; 0 for a span.
      failed: whether it has failed.
      submitted: when this task began it.
      started: when its first byte moved.
      ended: when it ended.
    """

    kind: str
    operation: str
    name: str
    detail: str
    bytes: int
    failed: bool
    submitted: float
    started: float | None
    ended: float | None


@dataclasses.dataclass(frozen=True)
class State:
    """What a task has told about itself.

    Attributes:
      task: its name, such as "worker 1".
      role: its task type, such as "worker".
      host: its machine.
      pid: its process.
      script: the file name of its program.
      memory: resident bytes of the process.
      metrics: by name and labels, without the label `task`: the numbers of docs/metrics.md.
      traffic: bytes of tensors sent to and received from each other task, by its name.
      loss: number of steps that have a loss, and the loss; `None` if it is not finite.
      events: what was under way in the last seconds.
    """

    task: str
    role: str
    host: str
    pid: int
    script: str
    memory: int
    metrics: Mapping[tuple[str, ...], float]
    traffic: Mapping[str, tuple[int, int]]
    loss: Sequence[tuple[int, float | None]]
    events: Sequence[Event]

    @classmethod
    def from_json(cls, fields: Any) -> State:
        """Returns the state that a task's answer holds.

        Raises:
          ValueError: it is not what a task of this release tells.
        """
        try:
            if fields["format"] != FORMAT:
                raise ValueError(f"expected format {FORMAT}, received {fields['format']!r:.100}")
            return cls(
                task=_text(fields["task"]),
                role=_text(fields["role"]),
                host=_text(fields["host"]),
                pid=int(fields["pid"]),
                script=_text(fields["script"]),
                memory=int(fields["memory"]),
                metrics={
                    (_text(name), *map(_text, labels)): _number(value)
                    for name, labels, value in fields["metrics"]
                },
                traffic={
                    _text(name): (int(sent), int(received))
                    for name, (sent, received) in fields["traffic"].items()
                },
                loss=[
                    (int(step), None if value is None else _number(value))
                    for step, value in fields["loss"]
                ],
                events=[_event(event) for event in fields["events"]],
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}"[:200]) from None

    def value(self, name: str, *labels: str) -> float | None:
        """Returns a metric's number; `None` if this task has none."""
        return self.metrics.get((name, *labels))

    def labelled(self, name: str) -> dict[tuple[str, ...], float]:
        """Returns the numbers of a metric by their labels."""
        return {key[1:]: value for key, value in self.metrics.items() if key[0] == name}


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of one task to one request.

    Attributes:
      name: the task's name, or its address if the job's file does not tell the name.
      address: where it was asked, "host:port".
      at: when the answer came, in seconds of the asking process's steady clock.
      state: what it told; `None` if there is none.
      problem: why there is none, as a sentence.
    """

    name: str
    address: str
    at: float
    state: State | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class TaskActivity:
    """What one task did between two looks; rates are averages over that time, `None`: unknown.

    Attributes:
      name: its name.
      address: where it was asked.
      problem: why nothing is known of it; else empty.
      role: its task type.
      host: its machine.
      pid: its process.
      memory: resident bytes.
      restarts: how often it was started again.
      steps: number of its training steps; `None` if it does not train.
      step_rate: steps per second.
      row_rate: rows of batches per second.
      communication: share of the time in which a collective, a pull or a lookup was pending.
      waits: share of the time in which it waited for a task, by that task's name.
      sent, received: bytes of tensors per second, all tasks together.
      traffic: bytes per second to and from each task, by its name.
    """

    name: str
    address: str
    problem: str = ""
    role: str = ""
    host: str = ""
    pid: int | None = None
    memory: int | None = None
    restarts: int = 0
    steps: int | None = None
    step_rate: float | None = None
    row_rate: float | None = None
    communication: float | None = None
    waits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sent: float | None = None
    received: float | None = None
    traffic: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Queue:
    """The data tasks of a queue in the current epoch; see docs/data.md."""

    name: str
    to_do: int
    pending: int
    done: int
    parked: int
    record_rate: float | None


@dataclasses.dataclass(frozen=True)
class JobActivity:
    """What a job did between two looks.

    Attributes:
      seconds: between the looks; 0 if there was one only.
      tasks: its tasks, in the order of the job's file.
      queues: its queues of data tasks.
      waited_for: share of their time for which the others waited for a task, by its name, as a sum
        over the others: 1.5 are one and a half tasks that do nothing.
    """

    seconds: float
    tasks: Sequence[TaskActivity]
    queues: Sequence[Queue]
    waited_for: Mapping[str, float]

    @property
    def straggler(self) -> str | None:
        """The task that the others wait for most, if that is 10 % of a task's time or more."""
        if not self.waited_for:
            return None
        name = max(self.waited_for, key=lambda name: self.waited_for[name])
        return name if self.waited_for[name] >= 0.1 else None


def activity(before: Sequence[Answer], after: Sequence[Answer]) -> JobActivity:
    """Returns what a job did between two looks.

    Args:
      before: the earlier answers; `after` again if there are none.
      after: the later ones, of the same tasks.
    """
    tasks = [_of_task(then, now) for then, now in zip(before, after, strict=True)]
    waited_for: dict[str, float] = {}
    for task in tasks:
        for name, share in task.waits.items():
            waited_for[name] = waited_for.get(name, 0.0) + share
    seconds = max((now.at - then.at for then, now in zip(before, after, strict=True)), default=0.0)
    return JobActivity(
        seconds,
        tasks,
        [queue for then, now in zip(before, after, strict=True) for queue in _queues(then, now)],
        waited_for,
    )


def _of_task(before: Answer, after: Answer) -> TaskActivity:
    state = after.state
    if state is None:
        return TaskActivity(after.name, after.address, after.problem or "did not answer")
    between = _Between(before, after)
    sent = sum(state.labelled("tfdist_bytes_sent").values())
    communicates = bool(state.labelled("tfdist_communication_seconds"))
    has_traffic = communicates or bool(sent)
    steps = state.value("tfdist_steps")
    return TaskActivity(
        name=state.task,
        address=after.address,
        role=state.role,
        host=state.host,
        pid=state.pid,
        memory=state.memory,
        restarts=int(state.value("tfdist_restarts") or 0),
        steps=None if steps is None else int(steps),
        step_rate=between.rate("tfdist_steps"),
        row_rate=between.rate("tfdist_samples"),
        # Collectives and requests to servers may be pending at the same time.
        communication=_at_most_1(between.rate("tfdist_communication_seconds"))
        if communicates
        else None,
        waits={
            name: share
            for (name,) in state.labelled("tfdist_wait_seconds")
            if (share := _at_most_1(between.rate("tfdist_wait_seconds", name))) is not None
        },
        sent=between.rate("tfdist_bytes_sent") if has_traffic else None,
        received=between.rate("tfdist_bytes_received") if has_traffic else None,
        traffic=between.traffic(),
    )


class _Between:
    """Rates between two answers of one task; a task that was started again has none yet."""

    def __init__(self, before: Answer, after: Answer) -> None:
        assert after.state is not None
        self._after = after.state
        then = before.state
        same = then is not None and then.pid == after.state.pid and then.host == after.state.host
        self._before = then if same else None
        self._seconds = after.at - before.at

    def rate(self, name: str, *labels: str) -> float | None:
        """Returns how much a counter has grown per second, over all labels that begin so."""
        if self._before is None or self._seconds <= 0:
            return None
        key = (name, *labels)
        after = [v for k, v in self._after.metrics.items() if k[: len(key)] == key]
        before = [v for k, v in self._before.metrics.items() if k[: len(key)] == key]
        if not after:
            return None
        return max(0.0, sum(after) - sum(before)) / self._seconds

    def traffic(self) -> dict[str, tuple[float, float]]:
        """Returns the bytes per second to and from each task."""
        if self._before is None or self._seconds <= 0:
            return {}
        found = {}
        for name, (sent, received) in self._after.traffic.items():
            former = self._before.traffic.get(name, (0, 0))
            found[name] = (
                max(0, sent - former[0]) / self._seconds,
                max(0, received - former[1]) / self._seconds,
            )
        return found


def _queues(before: Answer, after: Answer) -> Iterable[Queue]:
    if after.state is None:
        return
    tasks = after.state.labelled("tfdist_tasks")
    between = _Between(before, after)
    for name in sorted({name for name, _ in tasks}):
        counts = {state: int(count) for (queue, state), count in tasks.items() if queue == name}
        yield Queue(
            name,
            to_do=counts.get("to do", 0),
            pending=counts.get("pending", 0),
            done=counts.get("done", 0),
            parked=counts.get("parked", 0),
            record_rate=between.rate("tfdist_records", name),
        )


def _event(fields: Any) -> Event:
    return Event(
        kind=_text(fields["kind"]),
        operation=_text(fields["operation"]),
        name=_text(fields["name"]),
        detail=_text(fields["detail"]),
        bytes=int(fields["bytes"]),
        failed=bool(fields["failed"]),
        submitted=_number(fields["submitted"]),
        started=_age(fields["started"]),
        ended=_age(fields["ended"]),
    )


def _age(value: Any) -> float | None:
    return None if value is None else _number(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, received {value!r:.100}")
    return value


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, received {number}")
    return number


def _at_most_1(share: float | None) -> float | None:
    return None if share is None else min(1.0, share)
