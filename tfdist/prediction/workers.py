"""The workers of a job: each has a file that it touches while it lives.

A worker counts as dead if its file is older than a lease, by the clock of the file system. On the
same machine a death is seen at once: a worker holds a lock on its file, which the kernel ends with
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from pathlib import Path

from tfdist.atomic_files import machine_id

_TOUCHES = 4  # in a lease
_SURELY_DEAD = 20.0  # leases without a touch
_STARTING = "starting."  # before the name of a file that is not locked yet


def new_id() -> str:
    """Returns an id for this process."""
    return f"{machine_id()}-{os.getpid()}-{secrets.token_hex(4)}"


class LivingWorker:
    """This process among the workers of a job. Use it in a `with` block.

    Args:
      id: from `new_id`.
      folder: of the workers' files.
      name: for messages, such as "worker 1".
      lease: seconds after which a silent worker counts as dead.
    """

    def __init__(self, id: str, folder: Path, name: str, lease: float) -> None:
        self.id = id
        self._folder, self._name, self._lease = folder, name, lease
        self._path = folder / self.id
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="tfdist-predict", daemon=True)

    def __enter__(self) -> LivingWorker:
        # Others who saw it without its lock would take this worker for dead.
        new = self._folder / f"{_STARTING}{self.id}"
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(self._descriptor, self._name.encode())
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(new, self._path)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def lives(self, other: str, leases: float = 1.0) -> bool:
        """Whether another worker lives, by its id.

        Args:
          other: the id.
          leases: for how many leases it may be silent.
        """
        path = self._folder / other
        try:
            if other == self.id:
                return True
            if other.partition("-")[0] == machine_id() and _can_lock(path):
                return False
            os.utime(self._descriptor)
            now = os.fstat(self._descriptor).st_mtime
            return now - os.stat(path).st_mtime < leases * self._lease
        except FileNotFoundError:
            return False

    def may_come_back(self, other: str) -> bool:
        """Whether another worker lives, or was stopped and may continue."""
        return self.lives(other, _SURELY_DEAD)

    def remove_dead(self) -> None:
        """Removes the files of dead workers."""
        for other in os.listdir(self._folder):
            if not self.may_come_back(other):
                (self._folder / other).unlink(missing_ok=True)

    def _touch(self) -> None:
        while not self._ended.wait(self._lease / _TOUCHES):
            with contextlib.suppress(OSError):  # the folder may be away for a moment
                os.utime(self._descriptor)


def _can_lock(path: Path) -> bool:
    """Whether a worker of this machine has ended."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
