"""Directories that a launcher makes for its job, and removes at its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tfdist.config.local_sockets import opened


def remove(directory: Path) -> None:
    """Removes a directory with all its files."""
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def private_directory(prefix: str, clear: Callable[[Path], None] = remove) -> Iterator[Path]:
    """Makes a directory of mode 0700 for the duration of a job.

    A lock on it tells that this process lives: the next launcher clears the directories of killed
    launchers.

    Args:
      prefix: begins its name, which no other kind of directory has.
      clear: removes it at the end, or what is not needed of it.

    Yields:
      Its path.

    Raises:
      OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), opened(other) as descriptor:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(other)
    # Another launcher must not find it before it is locked.
    folder = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
    try:
        with opened(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            folder = folder.rename(folder.with_name(folder.name[1:]))
            yield folder
    finally:
        clear(folder)
