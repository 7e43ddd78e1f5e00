"""The flight recorder's files: one JSON object for each task, `<task>.json` in a directory.

Nothing here imports TensorFlow: commands read the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from tfdist.ops.collectives.communicator import CommunicatorEntry
    from tfdist.ops.trace.events import RecordedEvent

FORMAT = 1
_SUFFIX = ".json"
_CRASH_SUFFIX = ".crash.txt"
# Of a file that is read: a recorder writes about 2 MB.
_MAX_BYTES = 64 * 1024 * 1024


class StackFrame(TypedDict):
    """A frame of a Python stack."""

    file: str
    line: int
    function: str
    code: str


class ThreadEntry(TypedDict):
    """A thread of a dump."""

    name: str
    main: bool
    stack: list[StackFrame]


@dataclasses.dataclass(frozen=True)
class Dump:
    """The dump that one task has written.

    Attributes:
      task: its name, such as "worker 1".
      rank: its rank when it wrote; `None` if it does not train.
      training: the names of the tasks that train, by rank; an elastic job may have fewer.
      servers: the names of the parameter servers.
      elastic: whether the job is elastic.
      pid: its process.
      host: its machine.
      versions: of tfdist, TensorFlow, Keras and Python, by name.
      wall_time: when it wrote, in seconds since 1970.
      steady_ns: the same instant of the clock of the events, in ns.
      reasons: why it wrote, this time last.
      has_finished: whether its program has come to its end without a failure.
      exception: type and text of the exception that ended its program, or `None`.
      communicators: its communicators, each with "rank", "size", and as sentences or `None` its
        "failure" and what it is "waiting" for.
      events: of the ring, see `tfdist.ops.trace.events.Reading`.
      lost: the number of earlier events of the process.
      threads: its Python threads: "name", "main" (whether it is the main one), and "stack", the
        outermost frame first, each with "file", "line", "function" and "code".
    """

    task: str
    rank: int | None
    training: list[str]
    servers: list[str]
    elastic: bool
    pid: int
    host: str
    versions: dict[str, str]
    wall_time: float
    steady_ns: int
    reasons: list[str]
    has_finished: bool
    exception: str | None
    communicators: list[CommunicatorEntry]
    events: list[RecordedEvent]
    lost: int
    threads: list[ThreadEntry]

    @property
    def pending(self) -> list[RecordedEvent]:
        """The events that have not ended."""
        return [event for event in self.events if event["state"] in ("submitted", "started")]

    def write(self, directory: Path) -> Path:
        """Writes the file in the place of an earlier one, see `put`; returns its path.

        Raises:
          OSError: it cannot be written.
        """
        path = path_of(directory, self.task)
        pending = [event["sequence"] for event in self.pending]
        # `dumps`, since `dump` encodes in Python, which takes several times as long.
        put(path, json.dumps({"format": FORMAT, **vars(self), "pending": pending}))
        return path


def put(path: Path, text: str) -> None:
    """Writes a file of mode 0600 in the place of an earlier one.

    No link is followed: the file is new, and then takes its name.

    Raises:
      OSError: it cannot be written.
    """
    # Its own name, since two threads may write.
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(new, flags, 0o600), "w") as file:
            file.write(text)
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def path_of(directory: Path, task: str) -> Path:
    """Returns the path of a task's file."""
    return directory / f"{slug(task)}{_SUFFIX}"


def crash_path_of(directory: Path, task: str) -> Path:
    """Returns the path of the stacks that a fatal signal leaves."""
    return directory / f"{slug(task)}{_CRASH_SUFFIX}"


def slug(task: str) -> str:
    """Returns a task's name in file names: "worker-1"."""
    return task.replace(" ", "-")


def read_all(directory: Path, since: float = 0.0) -> list[Dump]:
    """Returns the files of a directory, sorted by rank, then by name.

    Args:
      directory: of the dumps.
      since: leaves out files that were not changed since then, in seconds since 1970.

    Raises:
      OSError: the directory or a file cannot be read.
      ValueError: a file is none of the flight recorder; names it.
    """
    paths = sorted(path for path in directory.iterdir() if path.suffix == _SUFFIX)
    found = [
        _read(path)
        for path in paths
        if not path.name.startswith(".") and path.lstat().st_mtime >= since
    ]
    return sorted(found, key=lambda dump: (dump.rank is None, dump.rank or 0, dump.task))


def read_crashes(directory: Path, since: float = 0.0) -> dict[str, str]:
    """Returns what fatal signals have left: Python's stacks then, by task's file name.

    Args:
      directory, since: as for `read_all`.

    Raises:
      OSError: a file cannot be read.
    """
    found = {}
    for path in sorted(directory.glob(f"*{_CRASH_SUFFIX}")):
        if path.lstat().st_mtime >= since and (text := text_of(path).strip()):
            found[path.name.removesuffix(_CRASH_SUFFIX)] = text
    return found


def _read(path: Path) -> Dump:
    try:
        fields = json.loads(text_of(path))
        form = fields.pop("format")
        fields.pop("pending")
        if form != FORMAT:
            raise ValueError(f"format {form}")
        return Dump(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path}: expected a file of the flight recorder, format {FORMAT}, received: {error}"
        ) from None


def text_of(path: Path, limit: int = _MAX_BYTES) -> str:
    """Returns the text of a regular file.

    Args:
      path: the file; a link is not followed.
      limit: bytes that it has at most.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no regular file, or too long.
    """
    # Without O_NONBLOCK, opening a pipe would block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            raise ValueError(f"{path}: expected a regular file of at most {limit} bytes")
        return file.read(limit).decode(errors="replace")
