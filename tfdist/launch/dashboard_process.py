"""`tfdist dashboard` beside a launched job, and the address of its page.

It is a process of its own: the launcher has one thread, so that it may start tasks at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tfdist.launch.process import PR_SET_PDEATHSIG

_TIMEOUT = 10.0
# A job that was told to end has a user, or a scheduler, that wants its terminal back.
_TOLD_TO_END = {128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


class DashboardProcess:
    """The process that serves the page."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def ended_at_last(cls) -> Iterator[DashboardProcess]:
        """Makes one, which is ended at the end of a `with` block."""
        page = cls()
        try:
            yield page
        finally:
            page._end()

    def start(self, job_file: Path) -> None:
        """Starts it, and prints the address of its page before any output of the tasks.

        Args:
          job_file: of the job.

        Raises:
          OSError: it cannot be started.
        """
        launcher = os.getpid()
        prctl = ctypes.CDLL(None).prctl

        def before_exec() -> None:
            # It ends with the launcher, however that ends.
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != launcher:
                os._exit(1)

        self._process = subprocess.Popen(
            [sys.executable, "-m", "tfdist", "dashboard", "--job", str(job_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the job.
            start_new_session=True,
            # Safe: the launcher has one thread.
            preexec_fn=before_exec,
        )
        assert self._process.stdout is not None
        ready = select.poll()
        ready.register(self._process.stdout, select.POLLIN)
        # Without an address it has printed the reason.
        told = self._process.stdout.readline() if ready.poll(1000 * _TIMEOUT) else b""
        print(told.decode() or "tfdist run: the job has no dashboard\n", end="", file=sys.stderr)

    def stay(self, code: int) -> None:
        """Waits for Ctrl-C after the end of the job, if a user looks at it in a terminal.

        Args:
          code: the exit code of the job.
        """
        process = self._process
        if process is None or process.poll() is not None or code in _TOLD_TO_END:
            return
        if not sys.stderr.isatty():
            return
        print(
            f"tfdist run: the job is over (exit code {code}); the dashboard shows its last state "
            "until Ctrl-C",
            file=sys.stderr,
        )
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
