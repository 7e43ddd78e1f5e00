"""The reports of a task, and a job's activity between two looks at it: plain records.

`tfdist.observe.metrics.state` writes what `ReportedState` reads. It came from another process, so
that every field is checked: no answer of one task may keep the others' from being shown.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tfdist.observe.metrics.fit_progress import FitProgress

FORMAT = 2
EVENTS_SECONDS = 10.0  # that the timeline covers at most
# Beyond these an answer is none of a task's: sums and quotients of its numbers stay finite, and it
# takes little time to add them up and to draw them.
_MAX_NUMBER = 10**18
_MAX_STEPS = 2**52  # up to here a page counts exactly
_MAX_VALUE = 1e300  # of a curve
_MAX_METRICS = 20_000
_MAX_LABELS = 8
_MAX_PEERS = 10_000
_MAX_CURVES = 100
_MAX_POINTS = 1000
_MAX_EVENTS = 1000
# Characters of a text that are kept.
_MAX_TEXT = 1000


@dataclasses.dataclass(frozen=True)
class TaskEvent:
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


# A curve: the number of a step, and the value; `None` if it is not finite.
Points = Sequence[tuple[int, float | None]]


@dataclasses.dataclass(frozen=True)
class ReportedState:
    """The report of a task about itself.

    Attributes:
      task: its name, such as "worker 1".
      role: its task type, such as "worker".
      host: its machine.
      pid: its process.
      script: the file name of its program.
      memory: resident bytes of the process.
      cpu: seconds of processors that the process has used.
      metrics: by name and labels, without the label `task`: the numbers of docs/operate/metrics.md.
      traffic: bytes of tensors sent to and received from each other task, by its name.
      fit: where its newest `fit` stands; `None` without one.
      curves: the numbers that `fit` has logged, by their names.
      events: the operations of the last seconds.
      since: how many seconds they cover.
    """

    task: str
    role: str
    host: str
    pid: int
    script: str
    memory: int
    cpu: float
    metrics: Mapping[tuple[str, ...], float]
    traffic: Mapping[str, tuple[int, int]]
    fit: FitProgress | None
    curves: Mapping[str, Points]
    events: Sequence[TaskEvent]
    since: float

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ReportedState:
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
                pid=_whole(fields["pid"]),
                script=_text(fields["script"]),
                memory=_whole(fields["memory"]),
                cpu=_number(fields["cpu"]),
                metrics={
                    (_text(name), *map(_text, _some(labels, _MAX_LABELS))): _number(value)
                    for name, labels, value in _some(fields["metrics"], _MAX_METRICS)
                },
                traffic={
                    _text(name): (_whole(sent), _whole(received))
                    for name, (sent, received) in _some(fields["traffic"].items(), _MAX_PEERS)
                },
                fit=None if fields["fit"] is None else _fit(fields["fit"]),
                curves={
                    _text(name): [
                        (_whole(step, _MAX_STEPS), _value(value))
                        for step, value in _some(points, _MAX_POINTS)
                    ]
                    for name, points in _some(fields["curves"].items(), _MAX_CURVES)
                },
                events=[_event(event) for event in _some(fields["events"], _MAX_EVENTS)],
                since=_age(fields["since"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{type(error).__name__}: {error}"[:200]) from None

    def value(self, name: str, *labels: str) -> float | None:
        """Returns a metric's number; `None` if this task has none."""
        return self.metrics.get((name, *labels))

    def labelled(self, name: str) -> dict[tuple[str, ...], float]:
        """Returns the numbers of a metric by their labels."""
        return {key[1:]: value for key, value in self.metrics.items() if key[0] == name}

    def totals(self) -> dict[tuple[str, ...], float]:
        """Returns the sum of all metrics whose name and first labels equal the key."""
        found: dict[tuple[str, ...], float] = {}
        for key, value in self.metrics.items():
            for length in range(1, len(key) + 1):
                found[key[:length]] = found.get(key[:length], 0.0) + value
        return found


@dataclasses.dataclass(frozen=True)
class TaskAnswer:
    """The answer of one task to one request.

    Attributes:
      name: the task's name, or its address if the job's file does not tell the name.
      address: where it was asked, "host:port".
      at: when the answer came, in seconds of the asking process's steady clock.
      state: its report; `None` if there is none.
      problem: why there is none, or none newer than this one, as a sentence.
    """

    name: str
    address: str
    at: float
    state: ReportedState | None = None
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class TaskActivity:
    """One task's activity between two looks; rates are averages over that time, `None`: unknown.

    Attributes:
      name: its name.
      address: where it was asked.
      problem: why it does not answer; else empty. The rest is its last state then, if any is known.
      role: its task type.
      host: its machine.
      pid: its process.
      memory: resident bytes.
      cpu: processors that it has used, as a mean: 1.5 are one and a half.
      restarts: how often it was started again.
      fit: where its newest `fit` stands; `None` without one.
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
    cpu: float | None = None
    restarts: int = 0
    fit: FitProgress | None = None
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
    """The data tasks of a queue in the current epoch; see docs/guides/data.md."""

    name: str
    to_do: int
    pending: int
    done: int
    parked: int
    record_rate: float | None


@dataclasses.dataclass(frozen=True)
class JobActivity:
    """The activity of a job between two looks.

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
        """The task that the others wait for most, if that is 10 % of a task's time or more.

        Its own waiting does not count: tasks that share a busy machine wait for each other.
        """
        own = {task.name: max(task.waits.values(), default=0.0) for task in self.tasks}
        excess = {name: share - own.get(name, 0.0) for name, share in self.waited_for.items()}
        name = max(excess, key=lambda name: excess[name], default=None)
        return name if name is not None and excess[name] >= 0.1 else None


class Trains(Protocol):
    """Something about a task that may train."""

    @property
    def role(self) -> str:
        """Its task type."""

    @property
    def fit(self) -> FitProgress | None:
        """Where its newest `fit` stands."""


_Trains = TypeVar("_Trains", bound=Trains)


def first_that_trains(tasks: Sequence[_Trains]) -> _Trains | None:
    """Returns the task whose `fit` stands for the job's; `None` if no task has begun one.

    The numbers of all workers are the same except their rows: the chief's are shown, or the first
    worker's.
    """
    fits = [task for task in tasks if task.fit is not None]
    return next((task for task in fits if task.role == "chief"), fits[0] if fits else None)


def activity(before: Sequence[TaskAnswer], after: Sequence[TaskAnswer]) -> JobActivity:
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


def _of_task(before: TaskAnswer, after: TaskAnswer) -> TaskActivity:
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
        problem=after.problem,
        role=state.role,
        host=state.host,
        pid=state.pid,
        memory=state.memory,
        cpu=between.cpu(),
        restarts=int(state.value("tfdist_restarts") or 0),
        fit=state.fit,
        steps=None if steps is None else int(steps),
        step_rate=between.rate("tfdist_steps"),
        row_rate=between.rate("tfdist_samples"),
        # Collectives and requests to servers may be pending at the same time.
        communication=_at_most_1(between.rate("tfdist_communication_seconds"))
        if communicates
        else None,
        waits={
            name: share
            for name in _first_labels(state, "tfdist_wait_seconds")
            if (share := _at_most_1(between.rate("tfdist_wait_seconds", name))) is not None
        },
        sent=between.rate("tfdist_bytes_sent") if has_traffic else None,
        received=between.rate("tfdist_bytes_received") if has_traffic else None,
        traffic=between.traffic(),
    )


class _Between:
    """Rates between two answers of one task; a task that was started again has none yet."""

    def __init__(self, before: TaskAnswer, after: TaskAnswer) -> None:
        assert after.state is not None
        self._after = after.state
        then = before.state
        same = then is not None and then.pid == after.state.pid and then.host == after.state.host
        self._before = then if same else None
        self._seconds = after.at - before.at
        self._totals = after.state.totals()
        self._totals_before = {} if self._before is None else self._before.totals()

    def rate(self, name: str, *labels: str) -> float | None:
        """Returns how much a counter has grown per second, over all labels that begin so."""
        if self._before is None or self._seconds <= 0:
            return None
        total = self._totals.get((name, *labels))
        if total is None:
            return None
        return max(0.0, total - self._totals_before.get((name, *labels), 0.0)) / self._seconds

    def cpu(self) -> float | None:
        """Returns how many processors the task has used."""
        if self._before is None or self._seconds <= 0:
            return None
        return max(0.0, self._after.cpu - self._before.cpu) / self._seconds

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


def _queues(before: TaskAnswer, after: TaskAnswer) -> Iterable[Queue]:
    if after.state is None:
        return
    names = sorted(_first_labels(after.state, "tfdist_tasks"))
    if not names:
        return
    between = _Between(before, after)
    tasks = after.state.labelled("tfdist_tasks")
    for name in names:
        to_do, pending, done, parked = (
            int(tasks.get((name, kind), 0)) for kind in ("to do", "pending", "done", "parked")
        )
        rate = between.rate("tfdist_records", name)
        yield Queue(name, to_do, pending, done, parked, record_rate=rate)


def _first_labels(state: ReportedState, name: str) -> set[str]:
    return {labels[0] for labels in state.labelled(name) if labels}


def _event(fields: dict[str, Any]) -> TaskEvent:
    return TaskEvent(
        kind=_text(fields["kind"]),
        operation=_text(fields["operation"]),
        name=_text(fields["name"]),
        detail=_text(fields["detail"]),
        bytes=_whole(fields["bytes"]),
        failed=bool(fields["failed"]),
        submitted=_age(fields["submitted"]),
        started=None if fields["started"] is None else _age(fields["started"]),
        ended=None if fields["ended"] is None else _age(fields["ended"]),
    )


def _fit(fields: dict[str, Any]) -> FitProgress:
    batches, remaining = fields["batches"], fields["remaining"]
    return FitProgress(
        epoch=_whole(fields["epoch"], _MAX_STEPS),
        epochs=_whole(fields["epochs"], _MAX_STEPS),
        batch=_whole(fields["batch"], _MAX_STEPS),
        batches=None if batches is None else _whole(batches, _MAX_STEPS),
        done=_number(fields["done"], 1),
        remaining=None if remaining is None else _age(remaining),
        has_ended=bool(fields["has_ended"]),
    )


def _age(value: Any) -> float:
    # Nothing happens after the answer.
    return max(0.0, _number(value))


def _value(value: Any) -> float | None:
    if value is None:
        return None
    # A training that diverges has any loss: beyond the limit it counts as infinite.
    number = _number(value, sys.float_info.max)
    return number if abs(number) <= _MAX_VALUE else None


def _some(values: Any, limit: int) -> Any:
    if len(values) > limit:
        raise ValueError(f"expected at most {limit} values, received {len(values)}")
    return values


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, received {value!r:.100}")
    return value[:_MAX_TEXT]


def _number(value: object, limit: float = _MAX_NUMBER) -> float:
    if not isinstance(value, int | float) or not abs(value) <= limit:
        raise ValueError(f"expected a number up to {limit:g}, received {value!r:.100}")
    return float(value)


def _whole(value: object, limit: int = _MAX_NUMBER) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number, received {value!r:.100}")
    _number(value, limit)
    return value


def _at_most_1(share: float | None) -> float | None:
    return None if share is None else min(1.0, share)
