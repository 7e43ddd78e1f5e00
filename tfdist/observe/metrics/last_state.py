"""The last state of a task, which it leaves in a file at its end.

`tfdist dashboard` shows it after the end of the task, which answers no more then. The launcher
names the directory, which belongs to the job.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist import atomic_files
from tfdist.errors import OpLibraryError

_log = logging.getLogger("tfdist.observe.metrics")


def path_of(directory: Path, task: str) -> Path:
    """Returns the path of a task's file: "worker-1.json"."""
    return directory / f"{task.replace(' ', '-')}.json"


def leave(directory: Path, task: str, state: Callable[[], Mapping[str, object]]) -> None:
    """Writes the last state of a task. A failure is logged: the task has done its work.

    Args:
      directory: made with mode 0700 if it does not exist.
      task: its name.
      state: returns the state, as an object for JSON.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        text = json.dumps(state())
        path = str(path_of(directory, task))
        atomic_files.replace(path, lambda new: Path(new).write_text(text))
    except OpLibraryError:
        pass  # the task has told it already, and has no state without the library
    except Exception as error:
        _log.warning("%s: its last state cannot be kept for the dashboard: %s", task, error)
