"""The progress of a job: lines of the terminal, and the numbers of `tfdist tasks` and metrics."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator

from tfdist.control.encoding import JsonObject
from tfdist.errors import Preempted
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.job_description import JobDescription

_PERIOD = 5.0  # seconds between two lines
_RATE_PERIOD = 60.0  # seconds over which the rate is measured


class PredictionProgress:
    """Counts the records of a job that are done, by all workers.

    Args:
      folder: the job's.
      job: its description.
      is_shown: whether this worker prints.
      clock: returns the time, in seconds.
    """

    def __init__(
        self,
        folder: OutputFolder,
        job: JobDescription,
        is_shown: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._job = folder, job
        self._sizes = job.data.plan(0).sizes
        self._is_shown, self._clock = is_shown, clock
        self._history: deque[tuple[float, int]] = deque()
        self._last = float("-inf")

    def show(self, *, now: bool = False) -> None:
        """Prints a line, unless the last one is of the last seconds.

        Args:
          now: whether to print anyway.
        """
        if self._is_shown and (self._clock() - self._last >= _PERIOD or now):
            self._last = self._clock()
            print(f"tfdist predict: {_line(self.numbers())}", flush=True)

    @contextlib.contextmanager
    def told_when_stopped(self) -> Iterator[None]:
        """Says what a `with` block leaves that Ctrl-C or SIGTERM ends."""
        try:
            yield
        except KeyboardInterrupt:
            self._tell_stop("interrupted")
            raise
        except Preempted:
            self._tell_stop("told to end by SIGTERM")
            raise

    def _tell_stop(self, reason: str) -> None:
        if self._is_shown:
            print(
                f"tfdist predict: {reason}: {len(self._folder.finished())} of {self._job.parts} "
                f"parts are committed in {self._folder.path}; the same command continues with the "
                "others",
                flush=True,
            )

    def numbers(self) -> JsonObject:
        """Returns the numbers of a queue of data tasks, as `tfdist tasks` shows them."""
        done, owners = self._folder.finished(), self._folder.claimed()
        records = sum(self._sizes[part] for part in done)
        left = sum(self._sizes) - records
        rate = self._rate(records)
        pending = owners.keys() - done
        return {
            "name": "predict",
            "epoch": 0,
            "epochs": 1,
            "tasks": self._job.parts,
            "done": len(done),
            "todo": self._job.parts - len(done | pending),
            "records": records,
            "left": left,
            "rate": rate,
            "time_left": left / rate if rate else None,
            "pending": [self._pending(part, owners[part]) for part in sorted(pending)],
            "parked": [],
        }

    def _pending(self, part: int, owner: str) -> JsonObject:
        """Describes a part that is being computed."""
        now = time.time()
        return {
            "task": self._job.data.name(part),
            "epoch": 0,
            "owner": self._folder.name_of_worker(owner),
            "seconds": max(0.0, now - _changed(self._folder.claim(part), now)),
            "silent": max(0.0, now - _changed(self._folder.workers / owner, now)),
        }

    def _rate(self, records: int) -> float:
        now = self._clock()
        self._history.append((now, records))
        while now - self._history[0][0] > _RATE_PERIOD and len(self._history) > 2:
            self._history.popleft()
        since, before = self._history[0]
        return (records - before) / (now - since) if now > since else 0.0


def _line(numbers: JsonObject) -> str:
    text = f"{numbers['done']} of {numbers['tasks']} parts, {numbers['records']} records"
    if numbers["time_left"] is None:
        return text
    minutes, seconds = divmod(int(numbers["time_left"]), 60)
    return f"{text}, {numbers['rate']:.0f} records/s, {minutes} min {seconds} s left"


def _changed(path: os.PathLike[str], default: float) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # it has just ended
        return default
