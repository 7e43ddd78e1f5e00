"""The parts of a timeline as one file: Chrome's trace format, its "JSON Object Format".

Google's document "Trace Event Format" describes it; chrome://tracing, Perfetto and Speedscope read
it. A task of the job is a process of the trace, and a track is a thread. `otherData` has facts for
the reader: the reference clock, the bound of each task's error, and what is missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tfdist._version import __version__
from tfdist.observe.timeline import alignment, parts
from tfdist.observe.timeline.alignment import Alignment
from tfdist.observe.timeline.parts import Part
from tfdist.observe.timeline.slices import TRACKS, Slice, on_tracks, slices_of, wait_for_late_ranks

# Between the numbers of two kinds of tracks: more slices never overlap.
_KIND = 10_000


@dataclasses.dataclass(frozen=True)
class Merged:
    """The contents of a timeline.

    Attributes:
      timeline: the file.
      tasks: the number of parts in it.
      events: the number of collectives, requests, steps and other spans.
      notes: the missing parts, as sentences.
    """

    timeline: Path
    tasks: int
    events: int
    notes: list[str]

    def __str__(self) -> str:
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        return "; ".join([f"{self.timeline}: {tasks}, {self.events} events", *self.notes])


def merge(timeline: Path) -> Merged:
    """Merges the parts of a timeline, and removes them unless a task still records.

    Args:
      timeline: the file, in the place of which the new one is written.

    Raises:
      OSError: a file cannot be read or written; `FileNotFoundError` if there are no parts.
      ValueError: there is no part that can be read.
    """
    with parts.merging(timeline):
        return _merge(timeline, *_read_all(timeline))


def merge_after_last(timeline: Path) -> Merged | None:
    """Merges the parts if no task records any more, and no other process will merge them.

    Returns:
      As `merge`; `None` if this was not the last task of the job.

    Raises:
      OSError, ValueError: as for `merge`.
    """
    if parts.is_claimed(timeline):
        return None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(parts.merging(timeline))
        except FileNotFoundError:
            return None  # another task was the last one, and has merged them
        if not parts.paths(timeline) or parts.living(timeline):
            return None
        found, notes = _read_all(timeline)
        expected = {task for part in found for task in part.header.tasks}
        if expected - {part.header.task for part in found}:
            return None  # that task has not begun to record yet
        return _merge(timeline, found, notes)


def _read_all(timeline: Path) -> tuple[list[Part], list[str]]:
    """Returns the parts, in the order of the timeline, and what cannot be read."""
    found, notes = [], []
    for path in parts.paths(timeline):
        try:
            found.append(parts.read_part(path))
        except ValueError as error:
            notes.append(str(error))
    return sorted(found, key=_order), notes


def _order(part: Part) -> tuple[bool, int, str, int]:
    header = part.header
    rank = -1 if header.rank is None else header.rank
    return header.rank is None, rank, header.task, header.wall_ns


def _merge(timeline: Path, found: list[Part], notes: list[str]) -> Merged:
    if not found:
        reason = "; ".join(notes) or "there are none"
        raise ValueError(f"{parts.directory_of(timeline)}: expected parts of a timeline: {reason}")
    living = [path.name.partition(".")[0] for path in parts.living(timeline)]
    if living:
        notes = [*notes, f"{', '.join(living)} still recorded when this was written"]
    notes += [note for part in found for note in _missing(part)]
    with _replaced(timeline) as file:
        for piece in _file(found, notes):
            file.write(piece)
    if not living:
        parts.remove(timeline)
    return Merged(timeline, len(found), sum(len(part.events) for part in found), notes)


def _missing(part: Part) -> Iterator[str]:
    """Yields what the timeline of a task lacks, as sentences."""
    if part.lost:
        yield (
            f"{part.header.task}: {part.lost} events are missing, which came faster than they "
            "could be written"
        )
    if not part.is_closed:
        torn = ", and its last line is torn" if part.torn else ""
        yield f"{part.header.task} has not ended its recording{torn}; it was killed, or continues"


def _file(found: Sequence[Part], notes: Sequence[str]) -> Iterator[str]:
    """Yields the text of the file, event by event."""
    clocks = alignment.align(found)
    tasks = [
        # From 1: Perfetto takes process 0 for the kernel's.
        _Task(1 + index, part, clocks.alignments[index], _name(index, found))
        for index, part in enumerate(found)
    ]
    slices = wait_for_late_ranks({task.name: task.slices for task in tasks})
    begin = min(task.begin for task in tasks)
    began = datetime.datetime.fromtimestamp((begin + clocks.wall_ns) / 1e9, datetime.timezone.utc)
    about = {
        "program": f"tfdist {__version__}",
        "began": began.isoformat(),
        "reference clock": clocks.reference,
        "notes": notes,
        "tasks": [task.about for task in tasks],
    }
    yield f'{{"displayTimeUnit": "ms",\n"otherData": {json.dumps(about)},\n"traceEvents": [\n'
    separator = ""
    for task in tasks:
        for event in task.trace_events(slices[task.name], begin):
            yield separator + json.dumps(event)
            separator = ",\n"
    yield "\n]}\n"


def _name(index: int, found: Sequence[Part]) -> str:
    """Returns the name of a part's process in the timeline."""
    task = found[index].header.task
    earlier = sum(part.header.task == task for part in found[:index])
    return f"{task}, process {earlier + 1}" if earlier else task


class _Task:
    """One part as a process of the trace.

    Args:
      process: its number in the trace.
      part: the events that the task has written.
      clock: of the part.
      name: the name that a viewer shows.

    Attributes:
      name: as above.
      slices: in the order of their beginning.
      begin: its first instant, in ns of the reference's clock.
    """

    def __init__(self, process: int, part: Part, clock: Alignment, name: str) -> None:
        self._process = process
        self._part = part
        self._clock = clock
        self.name = name
        times = [event[at] for event in part.events for at in ("submitted", "started", "ended")]
        until = max([part.header.steady_ns, *times])
        self.slices = slices_of(part.events, clock.convert, until)
        first = clock.convert(part.header.steady_ns)
        self.begin = min([first, *(one.begin for one in self.slices)])

    @property
    def about(self) -> dict[str, object]:
        """The facts about it for a reader."""
        header, clock = self._part.header, self._clock
        return {
            "process": self._process,
            "task": header.task,
            "rank": header.rank,
            "host": header.host,
            "pid": header.pid,
            "version": header.version,
            "clock": {
                "method": clock.method,
                "error_us": None if clock.error is None else clock.error / 1000,
                "measurements": len(self._part.offsets),
                "offset_us": [offset / 1000 for offset in clock.offsets],
            },
            "events": len(self._part.events),
            "unfinished": sum(not event["ended"] for event in self._part.events),
            "lost": self._part.lost,
            "closed": self._part.is_closed,
        }

    def trace_events(self, slices: Sequence[Slice], zero: int) -> Iterator[dict[str, object]]:
        """Yields its events in Chrome's format.

        Args:
          slices: the slices of this task, which may wait for others'.
          zero: the beginning of the timeline; times are us from there.
        """
        header = self._part.header
        yield self._metadata("process_name", 0, name=self.name)
        yield self._metadata("process_sort_index", 0, sort_index=self._process)
        yield self._metadata("process_labels", 0, labels=f"{header.host}, pid {header.pid}")
        threads: dict[tuple[str, int], int] = {}
        kinds = list(TRACKS)
        for track, index, one in on_tracks(slices):
            if (track, index) not in threads:
                if track not in kinds:
                    kinds.append(track)
                thread = _KIND * (1 + kinds.index(track)) + index
                threads[track, index] = thread
                name = f"{track} {index + 1}" if index else track
                yield self._metadata("thread_name", thread, name=name)
                yield self._metadata("thread_sort_index", thread, sort_index=thread)
            for inner in (one, *one.parts):
                yield self._complete_event(threads[track, index], inner, zero)

    def _metadata(self, what: str, thread: int, **arguments: object) -> dict[str, object]:
        return {"ph": "M", "pid": self._process, "tid": thread, "name": what, "args": arguments}

    def _complete_event(self, thread: int, one: Slice, zero: int) -> dict[str, object]:
        return {
            "ph": "X",
            "pid": self._process,
            "tid": thread,
            "ts": (one.begin - zero) / 1000,
            "dur": (one.end - one.begin) / 1000,
            "name": one.name,
            "cat": one.category,
            "args": one.arguments,
        }


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Opens a new file of mode 0600, which takes the place of another one at the end.

    Raises:
      OSError: it cannot be written.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(new, flags, 0o600), "w") as file:
            yield file
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
