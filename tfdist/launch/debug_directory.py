"""The directory for the dumps of one host's tasks when something fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tfdist.launch.private_directory import private_directory, remove


class DebugDirectory:
    """The directory, for as long as its job runs.

    Args:
      path: its path.

    Attributes:
      is_needed: whether the dumps in it are kept for the user; not of a job that has ended well,
        maybe after failures that it has survived.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_needed = True


@contextlib.contextmanager
def debug_directory(program: str, host: str = "") -> Iterator[DebugDirectory]:
    """Makes a directory of mode 0700 for the tasks' dumps when something fails.

    At the end it is removed if no task has written anything, or the job does not need it; else its
    path is printed.

    Args:
      program: the program that prints it.
      host: the name of this machine, if the reader is at another one.
    """
    with private_directory("tfdist-debug-", _remove_without_dumps) as path:
        directory = DebugDirectory(path)
        yield directory
        if not directory.is_needed:
            remove(path)
    if path.exists():
        where = f" on {host}" if host else ""
        print(
            f"{program}: the tasks' last operations{where}: 'tfdist debug explain {path}'",
            file=sys.stderr,
        )


def _remove_without_dumps(directory: Path) -> None:
    """Removes what killed tasks have left, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.suffix == ".sock" or path.name.startswith(".") or not path.stat().st_size:
                path.unlink()
        directory.rmdir()
