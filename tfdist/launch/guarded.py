"""The launcher's side of the guard, which ends the tasks if the launcher is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator

from tfdist.launch import guard

_TIMEOUT = 10.0
# How often an ended process is started again.
_MAX_STARTS = 3


class Guard:
    """The running guard, see guard.py; started again if it is killed itself.

    Attributes:
      pipe: takes the lines of guard.py. Writing neither blocks nor fails if the guard is slow or
        dead.
      starts_left: how often it can be started again.
    """

    def __init__(self) -> None:
        # Kept open: without a reader, a write would kill a task before its exec.
        self._readable, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        self.starts_left = _MAX_STARTS
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=self._readable,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def revive(self, groups: Iterable[int]) -> bool:
        """Starts the guard again if it has ended; returns whether it has.

        Args:
          groups: the process groups that end with the launcher.
        """
        if not self.starts_left or self._process.poll() is None:
            return False
        self.starts_left -= 1
        try:
            self._process = self._start()
        except OSError:  # too many processes; the job's next event is another chance
            return False
        for group in groups:
            with contextlib.suppress(BlockingIOError):
                os.write(self.pipe, guard.STARTED % group)
        return True

    def close(self) -> None:
        """Ends the guard, and with it what is left of the tasks."""
        os.close(self.pipe)
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._readable)


@contextlib.contextmanager
def guarded() -> Iterator[Guard]:
    """Runs the guard; yields it."""
    running = Guard()
    try:
        yield running
    finally:
        running.close()
