"""The straggler report: a log line with the task that the others wait for.

    worker 0: worker 2 is late: others waited up to 41.2 s for it (31 % of the last 133 s, since
    step 1200), most in all_reduce 'gradients of the step'; it waited 0.4 s

The leader of a job writes it, every `TFDIST_STRAGGLER_PERIOD` seconds, at the end of `fit`, and at
the end of the program; each report begins where the last one ended. It asks all tasks for their
waits. A task is late if another one has waited for it much longer than it has waited itself:

    worker 0 waits 12 s for worker 1, which waits 11 s for worker 0    both share a busy machine
    worker 0 waits 12 s for worker 1, which waits 0.2 s                worker 1 is late

The time in which a task begins or saves (`pauses`) counts as its own waiting. Little is not
reported: see `MIN_SECONDS` and `MIN_SHARE`. The chief of a job with parameter servers reports how
long it waited for them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tfdist.observe.waits import PeerWaits, TaskWaits

_log = logging.getLogger("tfdist")
# Waiting is reported if it cost this many seconds, and this share of the time.
MIN_SECONDS = 1.0
MIN_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class AwaitedTask:
    """The waiting for a task since the last report.

    Attributes:
      seconds: its duration.
      operation: the operation that waited longest; may be empty.
      own: the seconds that the task waited itself.
    """

    seconds: float
    operation: str
    own: float = 0.0


class Source(Protocol):
    """Knows the waiting of this job's tasks."""

    def since_last(self) -> dict[str, AwaitedTask]:
        """Returns the waiting for each task, by its name, since the last call."""

    def describe(self, name: str, wait: AwaitedTask, of_time: str) -> str:
        """Returns the text of one wait."""


class LateTasks:
    """The tasks of a group for which others wait, and which do not wait themselves.

    Args:
      ask: returns the waits of each task, by its name; None if they are not known, or not this
        task's to report.
    """

    def __init__(self, ask: Callable[[], Mapping[str, TaskWaits] | None]) -> None:
        self._ask = ask
        self._before: Mapping[str, TaskWaits] = {}

    def since_last(self) -> dict[str, AwaitedTask]:
        """Returns the waiting for each task that has waited less itself."""
        after = self._ask()
        if after is None:
            return {}
        before, self._before = self._before, after
        grown = {name: _growth(task, before.get(name)) for name, task in after.items()}
        own = {name: max(task.seconds.values(), default=0.0) for name, task in grown.items()}
        found = {}
        for name in grown:
            seconds, waiting = max(
                (task.seconds.get(name, 0.0), other) for other, task in grown.items()
            )
            excess = seconds - own[name] - grown[name].paused
            if excess > 0:
                operation = after[waiting].causes.get(name, "")
                found[name] = AwaitedTask(excess, operation, own[name])
        return found

    def describe(self, name: str, wait: AwaitedTask, of_time: str) -> str:
        """Returns the text of one wait."""
        most = f", most in {wait.operation}" if wait.operation else ""
        others = f"others waited up to {wait.seconds + wait.own:.1f} s for it ({of_time}){most}"
        return f"{name} is late: {others}; it waited {wait.own:.1f} s"


def _growth(after: TaskWaits, before: TaskWaits | None) -> TaskWaits:
    """Returns the waits since a former answer; of a task that has started again, all of them."""
    if before is None or any(
        after.seconds.get(name, 0.0) < value for name, value in before.seconds.items()
    ):
        return after
    seconds = {name: value - before.seconds.get(name, 0.0) for name, value in after.seconds.items()}
    return TaskWaits(seconds, after.causes, after.paused - before.paused)


class ServerWaits:
    """The waiting of this task for the parameter servers.

    Args:
      source: counts it, from its present state on.
    """

    def __init__(self, source: PeerWaits) -> None:
        self._source = source
        self._before = source.waits()

    def since_last(self) -> dict[str, AwaitedTask]:
        """Returns the waiting for the servers."""
        before, self._before = self._before, self._source.waits()
        return {
            name: AwaitedTask(seconds - before.get(name, 0.0), self._source.take_longest_wait(name))
            for name, seconds in self._before.items()
        }

    def describe(self, name: str, wait: AwaitedTask, of_time: str) -> str:
        """Returns the text of one wait."""
        most = f", most in {wait.operation}" if wait.operation else ""
        return f"waited {wait.seconds:.1f} s for {name} ({of_time}){most}"


class StragglerReport:
    """Reports the waiting of this job's tasks, until `close`.

    Args:
      task_name: this task's name.
      period: seconds between two reports; 0 reports when asked alone.
      steps: returns the number of steps so far; `None` if they are not counted.
    """

    def __init__(self, task_name: str, period: float, steps: Callable[[], int | None]) -> None:
        self._task_name = task_name
        self._period = period
        self._steps = steps
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._since, self._step = time.monotonic(), steps()
        self._closed = threading.Event()
        if period:
            threading.Thread(target=self._run, name="tfdist-stragglers", daemon=True).start()

    def follow(self, source: Source) -> None:
        """Adds a source."""
        with self._lock:
            self._sources.append(source)

    def report(self) -> None:
        """Reports the waiting since the last report, if there was much; not in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            line = self._line()
        if line:
            _log.warning("%s: %s", self._task_name, line)

    def close(self) -> None:
        """Reports for the last time; may be called again."""
        if not self._closed.is_set():
            self._closed.set()
            self.report()

    def _run(self) -> None:
        while not self._closed.wait(self._period):
            try:
                self.report()
            except Exception:  # a report must not end the later ones
                _log.exception("%s: the straggler report failed", self._task_name)

    def _line(self) -> str:
        """Returns the report; empty if there was little waiting."""
        now, since = time.monotonic(), self._since
        step, self._step, self._since = self._step, self._steps(), now
        elapsed = now - since
        late = [
            (wait, name, source)
            for source in self._sources
            for name, wait in source.since_last().items()
            if wait.seconds >= max(MIN_SECONDS, MIN_SHARE * elapsed)
        ]
        late.sort(key=lambda found: found[0].seconds, reverse=True)
        parts = []
        for index, (wait, name, source) in enumerate(late):
            of_time = f"{100 * (wait.seconds + wait.own) / elapsed:.0f} %"
            if not index:
                of_time += f" of the last {elapsed:.0f} s"
                of_time += f", since step {step}" if step is not None else ""
            parts.append(source.describe(name, wait, of_time))
        return "; ".join(parts)
