"""The record of a job by its launcher: where the last states of its tasks are, and its end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class JobEnd:
    """The end of a job.

    Attributes:
      at: when it ended, in seconds since 1970; `None` if its launcher was killed.
      code: the launcher's exit code; `None` if it was killed.
      exits: the exit codes of the tasks, by their names.
    """

    at: float | None
    code: int | None
    exits: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class JobRecord:
    """The record of a job.

    Attributes:
      tasks: the names of its tasks.
      states: the directory with their last states; `None` if there is none.
      end: returns the job's end; `None` while it runs.
    """

    tasks: Sequence[str] = ()
    states: Path | None = None
    end: Callable[[], JobEnd | None] = lambda: None
