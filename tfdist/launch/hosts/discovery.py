"""The hosts of an elastic job as a script of the user's names them, again and again.

The script prints "HOST:SLOTS" lines, as Horovod's does. A script that fails changes nothing: the
hosts stay as they are, and the script is asked again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from tfdist.errors import ClusterConfigError
from tfdist.launch.hosts.host_list import Host, parse_host_lines

# Seconds from one answer to the next question, and for an answer.
INTERVAL = 5.0
_TIMEOUT = 60.0
_MAX_ANSWER = 1024 * 1024


def ask(script: Path) -> tuple[Host, ...]:
    """Returns the hosts that the script names now.

    Raises:
      ClusterConfigError: it fails, or names none.
    """
    try:
        found = subprocess.run(
            [str(script.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterConfigError(f"--host-discovery-script: {script}: {error}") from error
    return _hosts(script, found.stdout, found.returncode)


class Discovery:
    """Asks the script without waiting for it.

    Args:
      script: the script.
      readers: descriptors to poll, each with the handler of its input.
      found: takes the hosts of each answer.
      failed: takes the reason of each failure that differs from the last one.
    """

    def __init__(
        self,
        script: Path,
        readers: MutableMapping[int, Callable[[], None]],
        found: Callable[[Sequence[Host]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._script = script
        self._readers = readers
        self._found = found
        self._failed = failed
        self._process: subprocess.Popen[bytes] | None = None
        self._answer = b""
        self._began = 0.0
        self._problem = ""

    def ask(self) -> None:
        """Starts the script, unless it still runs; ends it if it runs for too long."""
        if self._process is not None:
            if time.monotonic() > self._began + _TIMEOUT:
                self.close()
                self._fail(f"{self._script} did not end within {_TIMEOUT:g} s")
            return
        self._answer = b""
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [str(self._script.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._fail(f"{self._script}: {error.strerror}")
            return
        assert self._process.stdout is not None
        self._readers[self._process.stdout.fileno()] = self._read

    def close(self) -> None:
        """Ends the script."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdout is not None
            self._readers.pop(process.stdout.fileno(), None)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), _MAX_ANSWER)
        self._answer += data
        if data and len(self._answer) <= _MAX_ANSWER:
            return
        process = self._process
        try:
            # It has closed its output, and is about to end.
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass
        self.close()
        try:
            hosts = _hosts(self._script, self._answer, process.returncode)
        except ClusterConfigError as error:
            self._fail(str(error))
            return
        self._problem = ""
        self._found(hosts)

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._failed(problem)


def _hosts(script: Path, answer: bytes, code: int) -> tuple[Host, ...]:
    if code:
        raise ClusterConfigError(f"--host-discovery-script: {script} failed: exit code {code}")
    return parse_host_lines(answer.decode("utf-8", "replace"), str(script))
