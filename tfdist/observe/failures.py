"""The failure of a task, as the task itself sees it: `<task>.failure` in the directory of dumps.

A task that fails may end long after others that fail because of it: it tells them, and waits until
they have left the job. The order in which processes end is therefore no sign of the cause. Each
task notes the time and the reason when it fails, and the launcher compares the notes. Nothing here
imports TensorFlow: the launcher reads the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tfdist import reasons
from tfdist.errors import RendezvousTimeoutError
from tfdist.observe import dumps
from tfdist.tracebacks import followed

_SUFFIX = ".failure"
_FORMAT = 1
_MAX_BYTES = 64 * 1024
# The errors of a collective or a request whose peer has failed; the op library raises no others.
_OF_PEERS = (
    *("UnavailableError", "DeadlineExceededError", "CancelledError"),
    *("InvalidArgumentError", "InternalError"),
)


_TOLD = ": ended by rank "  # in the message of ops/core/collectives/collective_table.cc


@dataclasses.dataclass(frozen=True)
class FailureNote:
    """The note of one failure.

    Attributes:
      task: the task's name, such as "worker 1".
      restarts: how often the task had been started again before.
      at: when it failed, in seconds since 1970.
      kind: the class of the exception; "SystemExit" if the program asked for an exit code.
      text: the reason in the exception's text, one line.
      code: the exit code with which the process is going to end.
      by_peer: whether it failed because another task had.
    """

    task: str
    restarts: int
    at: float
    kind: str
    text: str
    code: int
    by_peer: bool

    @property
    def reason(self) -> str:
        """The reason in one line: "ValueError: a bad row"."""
        if self.kind == "SystemExit":
            return f"exit code {self.code}"
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def was_told(self) -> bool:
        """Whether another rank has ended its communicator, and told it why."""
        return self.by_peer and _TOLD in self.text

    def write(self, directory: Path) -> None:
        """Writes the note in the place of an earlier one of the task.

        Raises:
          OSError: it cannot be written.
        """
        text = json.dumps({"format": _FORMAT, **dataclasses.asdict(self)})
        dumps.put(directory / f"{dumps.slug(self.task)}{_SUFFIX}", text)


def note_of(error: BaseException, task: str, restarts: int) -> FailureNote:
    """Returns the note of an exception, which is the same each time that the exception is seen."""
    kind, text = reasons.kind_and_text(error)
    return FailureNote(
        task=task,
        restarts=restarts,
        at=vars(error).setdefault("tfdist_failed_at", time.time()),
        kind=kind,
        text=text,
        code=130 if isinstance(error, KeyboardInterrupt) else 1,
        by_peer=is_by_peer(error),
    )


def note_of_exit(code: int, task: str, restarts: int) -> FailureNote:
    """Returns the note of a program that asks for an exit code, without an exception before."""
    return FailureNote(task, restarts, time.time(), "SystemExit", str(code), code, by_peer=False)


def is_by_peer(error: BaseException) -> bool:
    """Whether another task's failure has led to an exception, maybe by a former exception.

    A file system can be unavailable, too. So the last collective or request must have failed.
    """
    return any(
        isinstance(each, RendezvousTimeoutError)
        or (type(each).__name__ in _OF_PEERS and _last_event_failed())
        for each in followed(error)
    )


def _last_event_failed() -> bool:
    # Without the module there are no events.
    events = sys.modules.get("tfdist.ops.trace.events")
    if events is None or not events.is_loaded():
        return False
    ended = [event for event in events.read().events if event["ended"] and event["kind"] != "span"]
    return bool(ended) and max(ended, key=lambda event: event["ended"])["state"] == "failed"


def read_all(directory: Path, since: float) -> list[FailureNote]:
    """Returns the notes in a directory; leaves out a file that no task has written.

    Args:
      directory: of the dumps; it need not exist.
      since: the time from which on the files count, in seconds since 1970.
    """
    found = [_read(path, since) for path in sorted(directory.glob(f"*{_SUFFIX}"))]
    return [note for note in found if note is not None]


def read(directory: Path, task: str, since: float) -> FailureNote | None:
    """Returns the note of one task, see `read_all`; None if there is none."""
    return _read(directory / f"{dumps.slug(task)}{_SUFFIX}", since)


def from_fields(fields: Mapping[str, object]) -> FailureNote:
    """Returns the note with the fields of `dataclasses.asdict`.

    Raises:
      TypeError, ValueError: one is missing, unknown or of another type.
    """
    return _checked(FailureNote(**fields))  # type: ignore[arg-type]  # checked afterwards


def _read(path: Path, since: float) -> FailureNote | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        fields = json.loads(dumps.text_of(path, _MAX_BYTES))
        if fields.pop("format") == _FORMAT and path.lstat().st_mtime >= since:
            return from_fields(fields)
    return None


def _checked(note: FailureNote) -> FailureNote:
    for names, kind in (
        (("task", "kind", "text"), str),
        (("restarts", "code"), int),
        (("at",), float),
        (("by_peer",), bool),
    ):
        for name in names:
            if type(getattr(note, name)) is not kind:
                raise ValueError(f"{name}: expected {kind.__name__}, received {note!r:.200}")
    return note
