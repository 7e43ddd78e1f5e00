"""One process of a launched job on this machine: its group, its pipes or terminal, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tfdist.launch import gpus
from tfdist.launch import guard as launch_guard
from tfdist.launch.output import Sink, TaskOutput
from tfdist.observe.failures import FailureNote

PR_SET_PDEATHSIG = 1
_GROUP_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True)
class Exit:
    """The end of a process.

    Attributes:
      code: the exit code, or minus the signal's number.
      at: the time, by `time.monotonic`.
      lost: why the process cannot be asked any more; empty if its own end was seen.
      peak: the most bytes of memory that it had; 0 if that is not known.
      note: the task's own note of its failure, if another host has sent one.
      about_kill: a sentence about its memory there, if SIGKILL has ended it on another host.
    """

    code: int
    at: float
    lost: str = ""
    peak: int = 0
    note: FailureNote | None = None
    about_kill: str = ""

    @property
    def shell_code(self) -> int:
        """The code a shell would report: 128 + the signal's number for a signal."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.lost:
            return self.lost
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
    """A process to start.

    Attributes:
      variables: its environment, beyond what all processes of the job have.
      terminal: rows and columns of the terminal that it writes to; None means pipes.
      cpus: the CPUs that it may use; None means its parent's CPUs.
      gpus: the GPUs that it may use, as places in the list of its host; None means all of them.
      name: the task's name, as in its note of a failure.
    """

    variables: Mapping[str, str]
    terminal: tuple[int, int] | None = None
    cpus: Sequence[int] | None = None
    gpus: Sequence[int] | None = None
    name: str = ""


class TaskProcess(Protocol):
    """A process of a job, on this machine or another one."""

    @property
    def group(self) -> int | None:
        """Its process group on this machine; None if it runs elsewhere."""

    @property
    def outputs(self) -> Sequence[TaskOutput]:
        """The sources of its output; nothing if it arrives by a connection of its host."""

    def find_exit(self) -> Exit | None:
        """Returns how it has ended; None while it runs."""

    def signal(self, number: int) -> None:
        """Sends a signal to it and its children, and continues stopped ones."""

    def notify(self) -> None:
        """Sends SIGTERM to it alone: its children, such as readers of its input, continue."""

    def resize(self, rows: int, columns: int) -> None:
        """Gives its terminal another size."""

    def close(self) -> Exit:
        """Kills it and its children, reads its last output and reaps it. Call it once."""


class LocalProcess:
    """A process in its own process group.

    Only `close` reaps it: until then the kernel cannot reuse the ids of the process and its group,
    so signals never reach another program.

    Args:
      command: the program and its arguments.
      environment: the variables that all processes of the job have.
      spec: the task's own properties.
      sinks: receive its stdout and its stderr; a single one receives both, through a terminal.
      guard: the pipe to the launcher's guard.

    Raises:
      OSError: it cannot be started, or its host has too few GPUs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        spec: ProcessSpec,
        sinks: Sequence[Sink],
        guard: int,
    ) -> None:
        variables = {**environment, **gpus.variables(environment, spec.gpus), **spec.variables}
        self._guard = guard
        self._has_terminal = spec.terminal is not None
        sources, theirs = self._open_pipes(spec.terminal, len(sinks))
        try:
            self._process = self._start(command, variables, theirs, spec)
        except BaseException:
            for source in sources:
                os.close(source)
            raise
        finally:
            for descriptor in set(theirs):
                os.close(descriptor)
        self.pid = self._process.pid
        self.group: int | None = self.pid
        self.outputs: Sequence[TaskOutput] = [
            TaskOutput(source, sink) for source, sink in zip(sources, sinks, strict=True)
        ]

    def _open_pipes(
        self, terminal: tuple[int, int] | None, streams: int
    ) -> tuple[list[int], tuple[int, int]]:
        """Returns our ends of the process's stdout and stderr, and the process's two ends."""
        if terminal is not None:
            master, slave = pty.openpty()
            settings = termios.tcgetattr(slave)
            # Line ends pass unchanged, as through a pipe.
            settings[1] &= ~termios.OPOST
            termios.tcsetattr(slave, termios.TCSANOW, settings)
            self._master = master
            self.resize(*terminal)
            if streams == 1:
                return [master], (slave, slave)
            ours, theirs = os.pipe()
            return [master, ours], (slave, theirs)
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        return [out, err], (their_out, their_err)

    def _start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ends: tuple[int, int],
        spec: ProcessSpec,
    ) -> subprocess.Popen[bytes]:
        launcher = os.getpid()
        prctl = ctypes.CDLL(None).prctl

        def before_exec() -> None:
            with contextlib.suppress(OSError):
                os.write(self._guard, launch_guard.STARTED % os.getpid())
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)
            if spec.cpus is not None:
                os.sched_setaffinity(0, spec.cpus)

        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=ends[0],
            stderr=ends[1],
            env=environment,
            start_new_session=True,
            # Safe: the launcher has one thread.
            preexec_fn=before_exec,
        )

    def resize(self, rows: int, columns: int) -> None:
        """Gives its terminal another size."""
        if self._has_terminal:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def find_exit(self) -> Exit | None:
        """Returns how it has ended, without reaping it; None while it runs."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            ended = os.waitid(os.P_PID, self.pid, flags)
        except ChildProcessError:
            return None  # `close` has just reaped it
        if ended is None:
            return None
        by_itself = ended.si_code == os.CLD_EXITED
        return Exit(ended.si_status if by_itself else -ended.si_status, time.monotonic())

    def signal(self, number: int) -> None:
        """Sends a signal to it and its children, and continues stopped ones."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)

    def notify(self) -> None:
        """Sends SIGTERM to it alone: its children, such as readers of its input, continue."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGTERM)
            os.killpg(self.pid, signal.SIGCONT)

    def close(self) -> Exit:
        """Kills it and its children, reads its last output and reaps it. Call it once."""
        self.signal(signal.SIGKILL)
        # Before a replacement starts, their ports must be free, and they must have left the job.
        _wait_for_group(self.pid, _GROUP_TIMEOUT)
        for output in self.outputs:
            output.drain()
        _, status, used = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        end = Exit(self._process.returncode, time.monotonic(), peak=1024 * used.ru_maxrss)
        with contextlib.suppress(OSError):
            os.write(self._guard, launch_guard.ENDED % self.pid)
        return end


def _wait_for_group(group: int, timeout: float) -> None:
    """Waits until all processes of a killed group have ended, reaped or not."""
    deadline = time.monotonic() + timeout
    for pid in _members(group):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue  # the process has ended, or the kernel has no pidfds
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(1000 * max(0.0, deadline - time.monotonic()))
        finally:
            os.close(descriptor)


def _members(group: int) -> list[int]:
    """Returns the processes of a group that have not ended and that /proc shows."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text("latin-1").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(of) == group and state not in "ZX":
            members.append(int(path.parent.name))
    return members
