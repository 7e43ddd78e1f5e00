"""Commands of tfdist that an example starts, as they would run on several machines."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 120.0  # the longest wait


def wait_until(is_true: Callable[[], bool]) -> bool:
    """Waits for a condition, `SECONDS` at most; returns whether it is true."""
    end = time.monotonic() + SECONDS
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def free_addresses(count: int) -> list[str]:
    """Returns addresses of this machine that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


class Command:
    """A running command of tfdist; use `Commands.start`.

    Attributes:
      process: its process.
    """

    def __init__(self, words: list[str], log: Path) -> None:
        self._name, self._log = f"tfdist {' '.join(words)}", log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tfdist", *words], stdout=output, stderr=subprocess.STDOUT
            )

    def wait_for(self, what: str, is_true: Callable[[], bool]) -> None:
        """Waits for a condition that this command brings about.

        Raises:
          SystemExit: it has ended before, or the wait was too long; with its output.
        """
        wait_until(lambda: is_true() or self.process.poll() is not None)
        if not is_true():
            self._fail(f"expected {what}")

    def wait_for_text(self, pattern: str) -> str:
        """Waits until the command has printed a text; returns the first group of the pattern."""
        self.wait_for(f"the text {pattern!r}", lambda: bool(re.search(pattern, self._printed())))
        return re.search(pattern, self._printed())[1]

    def finish(self) -> None:
        """Waits until the command has ended with success.

        Raises:
          SystemExit: it has failed, or the wait was too long; with its output.
        """
        wait_until(lambda: self.process.poll() is not None)
        if self.process.returncode != 0:
            self._fail("expected the code 0")

    def end(self) -> None:
        """Tells the command to end, if it still runs, and waits for that."""
        self.process.terminate()
        self.process.wait(SECONDS)

    def _printed(self) -> str:
        return self._log.read_text()

    def _fail(self, expected: str) -> None:
        code = self.process.poll()
        state = f"waited {SECONDS:.0f} s" if code is None else f"it ended with {code}"
        sys.exit(f"{self._name}\n{expected}; {state}; it printed:\n{self._printed()}")


class Commands(contextlib.ExitStack):
    """Starts commands of tfdist; on exit it ends each that still runs, the last one first.

    Args:
      folder: their output goes to `folder/NAME.log`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def start(self, name: str, *words: object) -> Command:
        """Starts `tfdist WORDS`."""
        command = Command([str(word) for word in words], self._folder / f"{name}.log")
        self.callback(command.end)
        return command
