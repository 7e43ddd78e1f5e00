"""A task's recording: a thread that empties the flight recorder into the task's part.

The ring of events overwrites what is 4,096 events old. The thread reads it every tenth of a second,
and more often after a burst; what was overwritten all the same is counted. Records are copied as
they are, without a Python object for each event. A job that is not recorded has no such thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe.clock import Offset, domain
from tfdist.observe.clock_client import ClockClient
from tfdist.observe.timeline.merge import merge_after_last
from tfdist.observe.timeline.parts import Header, PartWriter

if TYPE_CHECKING:
    from tfdist.ops.trace.events import RingReader, RingRecords

_log = logging.getLogger("tfdist")
_EVENTS = "tfdist.ops.trace.events"
# Seconds between two readings, and after one of `_BURST` events, a quarter of the ring.
_PERIOD, _BURST_PERIOD = 0.1, 0.01
_BURST = 1024
# Seconds between two measurements of the clock, and before the first success.
_CLOCK_PERIOD, _CLOCK_RETRY = 10.0, 0.5
# Seconds in which the threads may end.
_CLOSE_TIMEOUT = 5.0


class Recording:
    """Records one task, from its construction to `close`.

    Args:
      cluster: the job and this process's task.
      settings: of this process.
      timeline: the file that the parts will be merged to.

    Attributes:
      timeline: as above.

    Raises:
      OSError: this task's part cannot be written.
    """

    def __init__(self, cluster: Cluster, settings: Settings, timeline: Path) -> None:
        self.timeline = timeline
        self._name = cluster.task_name
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._reader: RingReader | None = None
        # The first event that was not read; earlier events that had not ended; and events that
        # another thread was just writing.
        self._next = 1
        self._pending: list[int] = []
        self._unseen: set[int] = set()
        # Of the clock, not written yet. Appending to a list, and popping, are atomic.
        self._measured: list[Offset] = []
        header = Header(
            task=cluster.task_name,
            rank=cluster.rank,
            # The members of an elastic job come and go.
            tasks=[] if settings.elastic is not None else _tasks_of(cluster),
            pid=os.getpid(),
            host=socket.gethostname(),
            version=__version__,
            domain=domain(),
            steady_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
        )
        self._part = PartWriter(timeline, header)
        try:
            if self._open_ring():
                # Earlier events are history.
                self._next = sys.modules[_EVENTS].last() + 1
        except BaseException:
            self._part.close(whole=False)
            raise
        # Parameter servers listen for the whole job; without any, a task that trains.
        self._clock = ClockClient(
            cluster,
            settings.secret,
            [*cluster.ps, *cluster.training_addresses],
            tls=settings.tls,
        )
        self._writing = threading.Thread(target=self._write, name="tfdist-timeline", daemon=True)
        self._measuring = threading.Thread(target=self._measure, name="tfdist-clock", daemon=True)
        self._writing.start()
        self._measuring.start()

    def close(self) -> None:
        """Writes what has happened until now, and ends the part.

        Raises:
          OSError: it could not be written.
        """
        self._closing.set()
        self._clock.close()
        self._measuring.join(_CLOSE_TIMEOUT)
        self._writing.join(_CLOSE_TIMEOUT)
        if self._writing.is_alive():
            raise TimeoutError(f"{self._part.path} was not written within {_CLOSE_TIMEOUT:g} s")
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        period = _PERIOD
        try:
            while not self._closing.wait(period):
                period = _BURST_PERIOD if self._write_news() >= _BURST else _PERIOD
            self._write_news()
            self._note_lost(len(self._unseen))
            self._part.close()
        except OSError as error:
            self._failure = error
            _log.warning(
                "%s: cannot write %s: %s; its timeline ends here",
                self._name,
                self._part.path,
                error,
            )
            with contextlib.suppress(OSError):
                self._part.close(whole=False)

    def _write_news(self) -> int:
        """Writes what has happened since the last time; returns the number of new events."""
        while self._measured:
            self._part.clock(self._measured.pop(0))
        if self._reader is None and not self._open_ring():
            return 0
        assert self._reader is not None
        news = self._ended_records(self._reader) + self._unseen_records(self._reader)
        found = self._reader.read(self._next)
        if found.lost:
            oldest = max(self._next, found.next - self._reader.ring_events)
            self._note_lost(oldest - self._next)
            self._unseen |= set(range(oldest, found.next)).difference(found.sequences.tolist())
        self._next = found.next
        self._pending += found.sequences[~found.has_ended].tolist()
        news.append(found.records.tobytes())
        if any(news):
            self._part.records(b"".join(news))
        return len(found.records)

    def _note_lost(self, count: int) -> None:
        if count:
            self._part.lost(count)

    def _open_ring(self) -> bool:
        """Whether the ring can be read; opens it."""
        # To import TensorFlow here would take seconds, and there are no events before.
        events = sys.modules.get(_EVENTS)
        if events is None or not events.is_loaded():
            return False
        self._reader = events.RingReader()
        self._part.layout(self._reader.layout)
        return True

    def _ended_records(self, reader: RingReader) -> list[bytes]:
        """Returns the events that were written before their ends, and have ended since."""
        ended, pending = [], []
        for sequence in self._pending:
            found = self._read_again(reader, sequence)
            if found is not None and found.has_ended[0]:
                ended.append(found.records.tobytes())
            elif not self._is_overwritten(reader, sequence):  # else it is shown without an end
                pending.append(sequence)
        self._pending = pending
        return ended

    def _unseen_records(self, reader: RingReader) -> list[bytes]:
        """Returns the events that another thread was writing when they were to be read."""
        written, unseen, lost = [], set(), 0
        for sequence in sorted(self._unseen):
            found = self._read_again(reader, sequence)
            if found is not None:
                written.append(found.records.tobytes())
                self._pending += found.sequences[~found.has_ended].tolist()
            elif self._is_overwritten(reader, sequence):
                lost += 1
            else:
                unseen.add(sequence)
        self._unseen = unseen
        self._note_lost(lost)
        return written

    def _read_again(self, reader: RingReader, sequence: int) -> RingRecords | None:
        """Reads one event; `None` if it is being written now, or was overwritten."""
        found = reader.read(sequence, 1)
        # Else it is the next readable event.
        is_it = len(found.records) and found.sequences[0] == sequence
        return found if is_it else None

    def _is_overwritten(self, reader: RingReader, sequence: int) -> bool:
        return sequence + reader.ring_events < self._next

    def _measure(self) -> None:
        with contextlib.closing(self._clock):
            self._measure_until_closing()

    def _measure_until_closing(self) -> None:
        wait = 0.0
        while not self._closing.wait(wait):
            offset = self._clock.measure(lambda: not self._closing.is_set())
            if offset is not None:
                self._measured.append(offset)
                if offset.reference == domain():
                    return  # the same clock, for as long as both tasks live
                wait = _CLOCK_PERIOD
            elif wait < _CLOCK_PERIOD:
                wait = _CLOCK_RETRY


def _tasks_of(cluster: Cluster) -> list[str]:
    """Returns the names of the tasks of a job that have an address."""
    tasks = [
        dataclasses.replace(cluster, task_type=role, task_index=index).task_name
        for role, addresses in cluster.as_dict().items()
        for index in range(len(addresses))
    ]
    return tasks or [cluster.task_name]


class TaskTimeline:
    """The timeline of this process's task, which is recorded or not.

    Args:
      cluster: the job and this process's task.
      settings: of this process.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._recording: Recording | None = None

    def start(self, timeline: Path) -> None:
        """Begins to record.

        Args:
          timeline: the file that the parts will be merged to.

        Raises:
          OSError: this task's part cannot be written.
          ValueError: this task is recorded already.
        """
        with self._lock:
            if self._recording is not None:
                raise ValueError(
                    f"{self._cluster.task_name} is recorded already, for {self._recording.timeline}"
                )
            self._recording = Recording(self._cluster, self._settings, timeline)

    def stop(self) -> Path:
        """Ends the recording; returns the file that the parts will be merged to.

        Raises:
          OSError: the part could not be written.
          ValueError: this task is not recorded.
        """
        with self._lock:
            recording, self._recording = self._recording, None
        if recording is None:
            raise ValueError(f"{self._cluster.task_name} is not recorded")
        recording.close()
        return recording.timeline

    def close(self) -> None:
        """Ends a recording, and merges the parts if this was the last task of the job.

        May be called again, and in a forked child; without a recording it does nothing.
        """
        if self._recording is None or os.getpid() != self._pid:
            return
        try:
            merge_after_last(self.stop())
        except (OSError, ValueError) as error:
            _log.warning("%s: the timeline: %s", self._cluster.task_name, error)


def start(cluster: Cluster, settings: Settings) -> TaskTimeline:
    """Returns the timeline of this process's task, recorded if `TFDIST_TIMELINE` is set.

    A file that cannot be written is logged.
    """
    timeline = TaskTimeline(cluster, settings)
    if settings.timeline is not None:
        try:
            timeline.start(Path(settings.timeline).absolute())
        except OSError as error:
            _log.warning(
                "%s: TFDIST_TIMELINE: cannot write beside %s: %s; this task is not recorded",
                cluster.task_name,
                settings.timeline,
                error,
            )
    return timeline
