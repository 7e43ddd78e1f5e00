"""The straggler report: a log line with the tasks this task waited for, the seconds, and the cause.

    worker 0: waited 41.2 s for worker 2 (31 % of the last 133 s, since step 1200), most in
    all_reduce 'dense/kernel'

It comes every `TFDIST_STRAGGLER_PERIOD` seconds, at the end of `fit`, and at the end of the
program; each report begins where the last one ended. Short waits are not reported: see
`MIN_SECONDS` and `MIN_SHARE`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("tfdist")
# A task that was waited for is reported if it cost this many seconds, and this share of the time.
MIN_SECONDS = 1.0
MIN_SHARE = 0.1


class PeerWaits(Protocol):
    """The record of this task's waiting for others; a `Communicator` is one."""

    def waits(self) -> dict[str, float]:
        """Returns the seconds of waiting since its start, by the name of the awaited task."""

    def take_longest_wait(self, name: str) -> str:
        """Returns the operation of the longest wait for `name` since the last call, if any."""


class StragglerReport:
    """Reports whom this task waits for, until `close`.

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
        self._sources: list[PeerWaits] = []
        self._before: dict[str, float] = {}
        self._since, self._step = time.monotonic(), steps()
        self._closed = threading.Event()
        if period:
            threading.Thread(target=self._run, name="tfdist-stragglers", daemon=True).start()

    def follow(self, source: PeerWaits) -> None:
        """Adds a source, from its present state on."""
        with self._lock:
            self._sources.append(source)
            self._before |= source.waits()

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
        now, before, since = time.monotonic(), self._before, self._since
        after: dict[str, float] = {}
        causes: dict[str, str] = {}
        for source in self._sources:
            waits = source.waits()
            after |= waits
            causes |= {name: source.take_longest_wait(name) for name in waits}
        step, self._step = self._step, self._steps()
        self._before, self._since = after, now
        elapsed = now - since
        late = [
            (after[name] - before.get(name, 0.0), name)
            for name in after
            if after[name] - before.get(name, 0.0) >= max(MIN_SECONDS, MIN_SHARE * elapsed)
        ]
        return describe(
            [(seconds, name, causes[name]) for seconds, name in sorted(late, reverse=True)],
            elapsed,
            step,
        )


def describe(waits: list[tuple[float, str, str]], elapsed: float, step: int | None) -> str:
    """Returns the text of a report; empty without waits.

    Args:
      waits: seconds, the task it waited for, and the operation (may be empty); the longest first.
      elapsed: seconds since the last report.
      step: the number of steps at the last report; `None` if they are not counted.
    """
    parts = []
    for index, (seconds, name, cause) in enumerate(waits):
        of_time = f"{100 * seconds / elapsed:.0f} %"
        if not index:
            of_time += f" of the last {elapsed:.0f} s"
            of_time += f", since step {step}" if step is not None else ""
        most = f", most in {cause}" if cause else ""
        parts.append(f"{'' if index else 'waited '}{seconds:.1f} s for {name} ({of_time}){most}")
    return "; ".join(parts)
