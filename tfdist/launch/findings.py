"""The findings about a failed job: which task failed first, and the words of its flight recorder.

Tasks end in another order than they fail, see `tfdist.observe.failures`. A task's own note of its
failure counts more than the time at which its process ended, and a task that failed because of a
peer is never the cause as long as there is another candidate. If all failed because of a peer, as
when two wait for each other in different collectives, a task that found it out counts more than a
task that was told.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tfdist.launch.task import Task
from tfdist.observe import dumps, failures
from tfdist.observe.dumps import slug
from tfdist.observe.explain import explain
from tfdist.observe.failures import FailureNote

# Of the explanation of the dumps, in a report.
_MAX_SENTENCES = 2


@dataclasses.dataclass(frozen=True)
class FirstFailure:
    """The task that failed first.

    Attributes:
      task: the task.
      note: its own note; None if it has written none.
    """

    task: Task
    note: FailureNote | None = None

    @property
    def code(self) -> int:
        """The exit code of the task, or its own if the launcher ended it meanwhile."""
        if self.note is not None and self.task.told_at is not None:
            return self.note.code
        return self.task.end.shell_code

    @property
    def reason(self) -> str:
        """How it failed, in words."""
        end = str(self.task.end)
        if self.note is None:
            return end
        if self.task.told_at is not None:
            return self.note.reason
        return end if self.note.kind == "SystemExit" else f"{self.note.reason} ({end})"


class Findings:
    """Reads the flight recorder's files of the tasks of one job.

    Args:
      directory: where the tasks write them.
      since: the start of the job, in seconds since 1970; older files are of another job.
    """

    def __init__(self, directory: Path, since: float) -> None:
        self._directory = directory
        self._since = since

    def first(self, ended: Task, tasks: Iterable[Task]) -> FirstFailure:
        """Returns the task that failed first.

        Args:
          ended: the failed task whose end was seen first.
          tasks: all tasks of the job.
        """
        found = {(note.task, note.restarts): note for note in self._notes()}
        candidates = []
        for task in [ended, *(other for other in tasks if other is not ended)]:
            note = found.get((task.spec.name, task.restarts)) or _note_from_host(task)
            if note is not None and note.at <= _wall_time(task.told_at):
                candidates.append(
                    ((note.by_peer, note.was_told, note.at), FirstFailure(task, note))
                )
            elif task is ended or _was_killed(task):
                own = (False, False, _wall_time(task.end.at))
                candidates.append((own, FirstFailure(task)))
        return min(candidates, key=lambda candidate: candidate[0])[1]

    def sentences(self, first: FirstFailure) -> list[str]:
        """Returns the first sentences of `tfdist debug explain`, on the first failure if it can."""
        try:
            found = dumps.read_all(self._directory, self._since)
            crashes = dumps.read_crashes(self._directory, self._since)
            return _sentences(found, crashes, first)
        except (OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # The directory may be of the user's choice, with files of anybody.
            return []

    def _notes(self) -> Sequence[FailureNote]:
        return failures.read_all(self._directory, self._since)


def _sentences(
    found: Sequence[dumps.Dump], crashes: Mapping[str, str], first: FirstFailure
) -> list[str]:
    name = first.task.spec.name
    written = {slug(dump.task) for dump in found} | set(crashes)
    sentences: list[str] = []
    for finding in sorted(explain(found, crashes), key=lambda finding: name not in finding.tasks):
        # The launcher knows better how a task without a dump has ended.
        if finding.kind == "dead" and not any(slug(task) in written for task in finding.tasks):
            continue
        if finding.kind == "nothing" or len(sentences) == _MAX_SENTENCES:
            break
        if finding.place and finding.tasks == (name,) and first.note is not None:
            # Its exception is told already.
            sentences.append(f"it was {finding.place}")
        else:
            sentences.append(finding.text)
        if finding.kind == "dead":
            # The others wait for it, which says nothing more.
            break
    return sentences


def _note_from_host(task: Task) -> FailureNote | None:
    """Returns the note that a task's agent has sent: its file is on another host."""
    note = None if task.closing is None else task.closing.note
    is_own = note is not None and (note.task, note.restarts) == (task.spec.name, task.restarts)
    return note if is_own else None


def _was_killed(task: Task) -> bool:
    return task.exit is not None and task.exit.code < 0 and task.told_at is None


def _wall_time(monotonic: float | None) -> float:
    """Returns a time of `time.monotonic` in seconds since 1970; None is never."""
    if monotonic is None:
        return float("inf")
    return time.time() - (time.monotonic() - monotonic)
