"""One process of a launched job: its start, its end and its output."""

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
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.launch import guard as launch_guard
from tfdist.launch.output import TAIL_LINES, LogFile, OutputStream, TaskOutput, terminal_size

_PR_SET_PDEATHSIG = 1
_GROUP_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task to start.

    Attributes:
      name: its name in messages: "chief", "worker 1", "ps 0".
      trains: the job is done when all tasks that train are.
      serves: it is a parameter server, which makes the training tasks replaceable one by one.
      prepares_data: it is a data task, which the training tasks alone need.
      tf_config: its TF_CONFIG.
      grace: seconds in which it may end by itself after the training tasks.
    """

    name: str
    trains: bool
    serves: bool
    tf_config: str
    grace: float
    prepares_data: bool = False


@dataclasses.dataclass(frozen=True)
class Exit:
    """The end of a task: the exit code, or minus the signal's number, and the time."""

    code: int
    at: float

    @property
    def shell_code(self) -> int:
        """The code a shell would report: 128 + the signal's number for a signal."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"


class Task:
    """A running task in its own process group.

    Only `close` reaps its process: until then the kernel cannot reuse the ids of the process and
    its group, so signals never reach another program.

    Args:
      spec: the task.
      index: its index among the tasks; 0 is rank 0.
      command: the program and its arguments.
      environment: the variables it inherits, without TF_CONFIG and TFDIST_RESTARTS.
      streams: receive its stdout and its stderr.
      log_dir: the directory of its log, or None.
      guard: the pipe to the launcher's guard.
      replaces: the ended task that this one replaces.

    Attributes:
      closed: none of its processes is left, and its id is free for others.

    Raises:
      OSError: the log cannot be written or the process cannot be started.
    """

    def __init__(
        self,
        spec: TaskSpec,
        index: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[OutputStream, OutputStream],
        log_dir: Path | None,
        guard: int,
        replaces: Task | None = None,
    ) -> None:
        self.spec = spec
        self.index = index
        self._restarts: int = 0 if replaces is None else replaces._restarts + 1
        self.started_at = time.monotonic()
        # None or one exit, see `check`.
        self._exits: dict[str, Exit] = {}
        self.told_to_stop = False
        self.closed = False
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        path = log_dir / f"{spec.name.replace(' ', '-')}.log" if log_dir is not None else None
        self.log = LogFile(path, append=replaces is not None) if path is not None else None
        if self.log is not None and replaces is not None:
            self.log.write(f"tfdist run: {spec.name}: {replaces.exit}; restarted\n".encode())
        # Programs draw progress bars only on terminals: rank 0 gets one if we have one.
        self._terminal = index == 0 and streams[0].is_terminal
        sources, theirs = self._open_pipes(streams)
        try:
            self.process = self._start(command, environment, theirs, guard)
        except BaseException:
            for source in sources:
                os.close(source)
            raise
        finally:
            for descriptor in set(theirs):
                os.close(descriptor)
        self.outputs = [
            TaskOutput(spec.name, index, source, stream, self.tail, self.log, self._terminal)
            for source, stream in zip(sources, streams, strict=False)
        ]

    def _open_pipes(
        self, streams: tuple[OutputStream, OutputStream]
    ) -> tuple[list[int], tuple[int, int]]:
        """Returns our ends of the task's stdout and stderr, and the task's two ends."""
        if self._terminal:
            master, slave = pty.openpty()
            settings = termios.tcgetattr(slave)
            # Line ends pass unchanged, as through a pipe.
            settings[1] &= ~termios.OPOST
            termios.tcsetattr(slave, termios.TCSANOW, settings)
            self._master = master
            self.resize()
            if streams[0] is streams[1]:
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
        guard: int,
    ) -> subprocess.Popen[bytes]:
        launcher = os.getpid()
        prctl = ctypes.CDLL(None).prctl

        def before_exec() -> None:
            with contextlib.suppress(OSError):
                os.write(guard, launch_guard.STARTED % os.getpid())
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=ends[0],
            stderr=ends[1],
            env={
                **environment,
                "TF_CONFIG": self.spec.tf_config,
                "TFDIST_RESTARTS": str(self._restarts),
            },
            start_new_session=True,
            # Safe: the launcher has one thread.
            preexec_fn=before_exec,
        )

    @property
    def exit(self) -> Exit | None:
        """How the task ended; None while it runs."""
        return self._exits.get("exit")

    @property
    def end(self) -> Exit:
        """How the task ended; only once it has."""
        assert self.exit is not None
        return self.exit

    def resize(self) -> None:
        """Gives the task's terminal, if it has one, the size of ours."""
        if self._terminal:
            size = struct.pack("HHHH", *terminal_size(self.spec.name), 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def check(self) -> bool:
        """Records the process's end without reaping it; returns True the first time."""
        if self.exit is not None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            ended = os.waitid(os.P_PID, self.process.pid, flags)
        except ChildProcessError:
            return False  # `close` has just reaped it
        if ended is None:
            return False
        by_itself = ended.si_code == os.CLD_EXITED
        code = ended.si_status if by_itself else -ended.si_status
        return self._record(Exit(code, time.monotonic()))

    def _record(self, found: Exit) -> bool:
        """Keeps the first exit; returns whether this is it."""
        # In one step: the handler of SIGCHLD checks the tasks, too, and may interrupt `check`.
        return self._exits.setdefault("exit", found) is found

    def signal(self, number: int) -> None:
        """Sends a signal to the task and its children, and continues stopped ones."""
        self.told_to_stop = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
            os.killpg(self.process.pid, signal.SIGCONT)

    def notify(self) -> None:
        """Sends SIGTERM to the task alone: its children, such as readers of its input, go on."""
        self.told_to_stop = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.process.pid, signal.SIGTERM)
            os.killpg(self.process.pid, signal.SIGCONT)

    def close(self, guard: int) -> None:
        """Kills the task's remaining processes, reads its last output and reaps it, once."""
        if self.closed:
            return
        self.closed = True
        self.signal(signal.SIGKILL)
        # Before a replacement starts, their ports must be free, and they must have left the job.
        _wait_for_group(self.process.pid, _GROUP_TIMEOUT)
        for output in self.outputs:
            output.drain()
        self._record(Exit(self.process.wait(), time.monotonic()))
        with contextlib.suppress(OSError):
            os.write(guard, launch_guard.ENDED % self.process.pid)
        if self.log is not None:
            self.log.close()


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
