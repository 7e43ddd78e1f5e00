"""One task of a launched job: its process, its end and its output."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.launch.banners import Banners
from tfdist.launch.output import (
    LogFile,
    OutputStream,
    Sink,
    TaskLines,
    TaskOutput,
    terminal_size,
)
from tfdist.launch.policies.decisions import TaskRole
from tfdist.launch.process import Exit, ProcessSpec, TaskProcess
from tfdist.launch.tail import Tail

# Starts a process whose stdout and stderr the sinks receive.
Start = Callable[[ProcessSpec, Sequence[Sink]], TaskProcess]


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
      host: the host it runs on, if the job has several.
    """

    name: str
    trains: bool
    serves: bool
    tf_config: str
    grace: float
    prepares_data: bool = False
    host: str = ""

    @property
    def role(self) -> TaskRole:
        """Its purpose, as a policy needs it."""
        return TaskRole(self.trains, self.serves, self.prepares_data)

    @property
    def title(self) -> str:
        """Its name, and its host in a job of several: "worker 1 on node2"."""
        return f"{self.name} on {self.host}" if self.host else self.name


class Task:
    """A running task.

    Args:
      spec: the task.
      index: its index among the tasks; 0 is rank 0.
      start: starts its process.
      streams: receive its stdout and its stderr.
      log_dir: the directory of its log, or None.
      cpus: the CPUs it may use; None means its parent's CPUs.
      gpus: the GPUs it may use, as places in the list of its host; None means all of them.
      replaces: the ended task that this one replaces.

    Attributes:
      restarts: how often the task was started again before.
      told_at: the monotonic time of the first signal that was sent to it while it ran, or None.
      closed: none of its processes is left, and its id is free for others.
      closing: its end as `close` has found it, with its memory and a note from its host.

    Raises:
      OSError: the log cannot be written or the process cannot be started.
    """

    def __init__(
        self,
        spec: TaskSpec,
        index: int,
        start: Start,
        streams: tuple[OutputStream, OutputStream],
        log_dir: Path | None,
        cpus: Sequence[int] | None = None,
        gpus: Sequence[int] | None = None,
        replaces: Task | None = None,
    ) -> None:
        self.spec = spec
        self.index = index
        self.restarts: int = 0 if replaces is None else replaces.restarts + 1
        self.started_at = time.monotonic()
        # None or one exit, see `check`.
        self._exits: dict[str, Exit] = {}
        self.told_to_stop = False
        self.told_at: float | None = None
        self.closed = False
        self.closing: Exit | None = None
        self.tail = Tail()
        path = log_dir / f"{spec.name.replace(' ', '-')}.log" if log_dir is not None else None
        self.log = LogFile(path, append=replaces is not None) if path is not None else None
        if self.log is not None and replaces is not None:
            self.log.write(f"tfdist run: {spec.name}: {replaces.exit}; restarted\n".encode())
        # Programs draw progress bars only on terminals: rank 0 gets one if we have one.
        self._terminal = index == 0 and streams[0].is_terminal
        shown = streams[:1] if self._terminal and streams[0] is streams[1] else streams
        self.process = start(
            ProcessSpec(
                variables={"TF_CONFIG": spec.tf_config, "TFDIST_RESTARTS": str(self.restarts)},
                terminal=terminal_size(spec.name) if self._terminal else None,
                cpus=cpus,
                gpus=gpus,
                name=spec.name,
            ),
            [
                TaskLines(
                    spec.name,
                    index,
                    stream,
                    self.tail,
                    self.log,
                    self._terminal,
                    Banners() if index else None,
                )
                for stream in shown
            ],
        )

    @property
    def outputs(self) -> Sequence[TaskOutput]:
        """The sources of its output."""
        return self.process.outputs

    @property
    def exit(self) -> Exit | None:
        """How the task ended; None while it runs."""
        return self._exits.get("exit")

    @property
    def end(self) -> Exit:
        """How the task ended; only once it has."""
        assert self.exit is not None
        return self.exit

    def _note_told(self) -> None:
        self.told_to_stop = True
        if self.told_at is None and self.exit is None:
            self.told_at = time.monotonic()

    def resize(self) -> None:
        """Gives the task's terminal, if it has one, the size of ours."""
        if self._terminal:
            self.process.resize(*terminal_size(self.spec.name))

    def check(self) -> bool:
        """Records the process's end without reaping it; returns True the first time."""
        if self.exit is not None:
            return False
        found = self.process.find_exit()
        return found is not None and self._record(found)

    def _record(self, found: Exit) -> bool:
        """Keeps the first exit; returns whether this is it."""
        # In one step: the handler of SIGCHLD also checks the tasks, and may interrupt `check`.
        return self._exits.setdefault("exit", found) is found

    def signal(self, number: int) -> None:
        """Sends a signal to the task and its children, and continues stopped ones."""
        self._note_told()
        self.process.signal(number)

    def notify(self) -> None:
        """Sends SIGTERM to the task alone: its children, such as readers of its input, continue."""
        self._note_told()
        self.process.notify()

    def close(self) -> None:
        """Kills the task's remaining processes, reads its last output and reaps it, once."""
        if self.closed:
            return
        self.closed = True
        self.signal(signal.SIGKILL)
        self.closing = self.process.close()
        self._record(self.closing)
        if self.log is not None:
            self.log.close()
