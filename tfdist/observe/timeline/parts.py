"""The parts of a timeline: while a job is recorded, each task writes a file of its own.

The parts of `job.json` are in the directory `job.json.parts`, so that what a killed task has
written is there. A part has one JSON object in each line:

    {"part": 1, "task": "worker 1", ...}        first: who writes
    {"layout": [["sequence", "Q"], ...]}        the fields of the records that follow
    {"records": "eJztm8..."}                    events, as `ops/trace/events.py` has them, packed
    {"clock": {"reference": ..., ...}}          the offset of its clock, each time it is measured
    {"lost": 12}                                events that the ring has lost before they were read
    {"closed": true}                            last, unless the process was killed

An event that had not ended is written again when it has; the later record counts. The writer holds
a lock on its part, so that others know that it lives. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tfdist.config.local_sockets import opened
from tfdist.observe.clock import Offset
from tfdist.observe.dumps import slug

if TYPE_CHECKING:
    from tfdist.ops.trace.events import RingEvent

FORMAT = 1
_SUFFIX = ".part"
# The process that will merge holds a lock on the first, and each process that merges on the second.
_MERGER, _MERGING = ".merger", ".merging"
_MAX_RECORDS = 1 << 28  # bytes in one line
_LEVEL = 1  # of compression: the fastest, to about a tenth


@dataclasses.dataclass(frozen=True)
class Header:
    """The writer of a part.

    Attributes:
      task: its name, such as "worker 1".
      rank: its rank when it began; `None` if it does not train.
      tasks: the names of all tasks of the job that have an address.
      pid: its process.
      host: its machine.
      version: of tfdist.
      domain: names its steady clock, see `observe.clock.domain`.
      steady_ns: when the recording began, of that clock.
      wall_ns: the same instant, in ns since 1970.
    """

    task: str
    rank: int | None
    tasks: list[str]
    pid: int
    host: str
    version: str
    domain: str
    steady_ns: int
    wall_ns: int


class PartWriter:
    """Writes one part; `close` ends it. One thread at a time may use it.

    Args:
      timeline: the file that the parts will be merged to.
      header: the writer.

    Raises:
      OSError: the file, or the directory, cannot be made.
    """

    def __init__(self, timeline: Path, header: Header) -> None:
        folder = make_directory(timeline)
        name = f"{slug(header.task)}.{header.wall_ns}.{secrets.token_hex(4)}{_SUFFIX}"
        self.path = folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = open(os.open(self.path, flags, 0o600), "wb", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._line({"part": FORMAT, **dataclasses.asdict(header)})
        except BaseException:
            self._file.close()
            raise

    def layout(self, fields: Sequence[tuple[str, str]]) -> None:
        """Says which fields the records have, each with its format as in Python's `struct`."""
        self._line({"layout": list(fields)})

    def records(self, content: bytes) -> None:
        """Appends the records of events."""
        packed = base64.b64encode(zlib.compress(content, _LEVEL)).decode()
        self._line({"records": packed})

    def clock(self, offset: Offset) -> None:
        """Appends the offset of this task's clock."""
        self._line({"clock": dataclasses.asdict(offset)})

    def lost(self, count: int) -> None:
        """Says that events are missing."""
        self._line({"lost": count})

    def close(self, *, whole: bool = True) -> None:
        """Ends the part; may be called again.

        Args:
          whole: whether everything until now is in it.
        """
        if self._file.closed:
            return
        try:
            if whole:
                self._line({"closed": True})
        finally:
            # A forked child may have the file open, too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()

    def _line(self, fields: Mapping[str, object]) -> None:
        line = json.dumps(fields).encode() + b"\n"
        while line:
            line = line[self._file.write(line) :]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part that was read.

    Attributes:
      header: the task that has written it.
      events: the fields of each record by name, in the order of their submission.
      offsets: of its clock, in the order of the time.
      lost: the number of events that are missing.
      is_closed: whether the recording was ended; else its process was killed, or continues.
      torn: bytes at the end that are no whole line.
    """

    header: Header
    events: list[RingEvent]
    offsets: list[Offset]
    lost: int
    is_closed: bool
    torn: int


def read_part(path: Path) -> Part:
    """Reads a part; the last line of a killed task may be torn.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no part; names its contents.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        *lines, rest = file.read().split(b"\n")
    events: dict[int, dict[str, Any]] = {}
    offsets = []
    lost, is_closed = 0, False
    record, names = struct.Struct("="), []
    try:
        first = json.loads(lines[0]) if lines else {}
        if not isinstance(first, dict) or first.pop("part", None) != FORMAT:
            raise ValueError(f"no format {FORMAT}")
        header = Header(**first)
        for line in lines[1:]:
            fields = json.loads(line)
            if "layout" in fields:
                record = struct.Struct("=" + "".join(form for _, form in fields["layout"]))
                names = [name for name, form in fields["layout"] if not form.endswith("x")]
            elif "records" in fields:
                content = _inflated(base64.b64decode(fields["records"]))
                for values in record.iter_unpack(content):
                    event = dict(zip(names, values, strict=True))
                    events[event["sequence"]] = event
            elif "clock" in fields:
                offsets.append(Offset(**fields["clock"]))
            lost += fields.get("lost", 0)
            is_closed = is_closed or fields.get("closed", False)
        ordered = [_texts(events[sequence]) for sequence in sorted(events)]
    except (
        *(ValueError, TypeError, KeyError, AttributeError),
        *(RecursionError, struct.error, zlib.error),
    ) as error:
        raise ValueError(
            f"{path}: expected a part of a timeline, format {FORMAT}, received: {error}"
        ) from None
    return Part(header, ordered, offsets, lost, is_closed, len(rest))


def _inflated(content: bytes) -> bytes:
    """Returns what was compressed: never more than a ring of events can have."""
    inflater = zlib.decompressobj()
    found = inflater.decompress(content, _MAX_RECORDS)
    if inflater.unconsumed_tail or not inflater.eof:
        raise ValueError(f"records that are cut, or of more than {_MAX_RECORDS} bytes")
    return found


def _texts(event: dict[str, Any]) -> RingEvent:
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = value.rstrip(b"\0").decode(errors="replace")
    return cast("RingEvent", event)


def directory_of(timeline: Path) -> Path:
    """Returns the directory of a timeline's parts."""
    return timeline.with_name(f"{timeline.name}.parts")


def make_directory(timeline: Path) -> Path:
    """Makes the directory of the parts, with mode 0700; returns it.

    Raises:
      OSError: it cannot be made, another user has made it, or the timeline's own path is a
        directory.
    """
    if timeline.is_dir():
        raise IsADirectoryError(f"expected a file for the timeline, but {timeline} is a directory")
    folder = directory_of(timeline)
    folder.mkdir(mode=0o700, exist_ok=True)
    with opened(folder) as descriptor:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
    return folder


def paths(timeline: Path) -> list[Path]:
    """Returns the parts of a timeline; none without a directory of them."""
    return sorted(directory_of(timeline).glob(f"*{_SUFFIX}"))


def living(timeline: Path) -> list[Path]:
    """Returns the parts whose tasks still record."""
    return [path for path in paths(timeline) if _is_locked(path)]


def remove(timeline: Path) -> None:
    """Removes the parts and their directory."""
    shutil.rmtree(directory_of(timeline), ignore_errors=True)


def remove_empty(timeline: Path) -> None:
    """Removes the directory if no task has written a part."""
    with contextlib.suppress(OSError):
        directory_of(timeline).rmdir()


@contextlib.contextmanager
def claimed(timeline: Path) -> Iterator[None]:
    """Says that this process will merge the parts: tasks that end leave it to this process.

    Raises:
      OSError: the directory of the parts cannot be made.
    """
    with _locked(make_directory(timeline) / _MERGER):
        yield


def is_claimed(timeline: Path) -> bool:
    """Whether another process will merge the parts."""
    return _is_locked(directory_of(timeline) / _MERGER)


@contextlib.contextmanager
def merging(timeline: Path) -> Iterator[None]:
    """Lets one process merge at a time.

    Raises:
      OSError: there is no directory of parts.
    """
    with _locked(directory_of(timeline) / _MERGING):
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared: others may look at the same time.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
