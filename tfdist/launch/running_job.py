"""The tasks of a running job: they start, start again, are stopped and closed. Decides nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.config.printing import printable_line
from tfdist.launch import memory
from tfdist.launch.deadlines import Deadlines
from tfdist.launch.event_loop import EventLoop
from tfdist.launch.findings import Findings, FirstFailure
from tfdist.launch.guarded import Guard, guarded
from tfdist.launch.hosts.pool import HostPool
from tfdist.launch.job_state import JobLifecycle, JobState
from tfdist.launch.output import OutputStream
from tfdist.launch.task import Task, TaskSpec


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ends, as far as that is known.

    Attributes:
      code: the launcher's exit code.
      reason: a line for the report, unless a failed task is the reason.
    """

    code: int = 0
    reason: str = ""


class RunningJob:
    """The tasks of a job.

    Args:
      specs: the tasks; the first is rank 0.
      pool: starts each task on its host.
      streams: receive the tasks' stdout and stderr; our own messages go to the second.
      log_dir: the directory of the tasks' logs, or None.
      stop_grace: seconds from SIGTERM to SIGKILL after a failure or at the time limit.
      signal_grace: seconds from a signal to end by oneself to SIGKILL.
      findings: tell which task failed first; None without a directory of dumps.

    Attributes:
      lifecycle: the job's state.
      outcome: how the job ends.
      due: the actions at given times.
      loop: the events.
      tasks: the tasks that run or ended and were not removed, by index.
      first_failure: the failed task whose end was seen first, in a job that has failed.
      survived: the failures after which the job continued, in the order of the time.
    """

    def __init__(
        self,
        specs: Sequence[TaskSpec],
        pool: HostPool,
        *,
        streams: tuple[OutputStream, OutputStream],
        log_dir: Path | None = None,
        stop_grace: float = 10.0,
        signal_grace: float = 30.0,
        findings: Findings | None = None,
    ) -> None:
        self.findings = findings
        self.specs = list(specs)
        self.stop_grace = stop_grace
        self.signal_grace = signal_grace
        self.lifecycle = JobLifecycle()
        self.outcome = Outcome()
        self.due = Deadlines()
        self.loop = EventLoop(streams)
        self.tasks: list[Task] = []
        self.first_failure: Task | None = None
        self.survived: list[str] = []
        self.kills_before = memory.kills()
        self.pool = pool
        self._streams = streams
        self._log_dir = log_dir
        self._ended: list[Task] = []
        self._guard: Guard | None = None
        # The last task of each index that was removed, which the next one replaces.
        self._former: dict[int, Task] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Handles signals and guards the tasks; at last, none of their processes is left."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.loop.signals_handled(self.note_ends, self._resize))
            self._guard = stack.enter_context(guarded())
            stack.callback(self.end_all)
            for connection in self.pool.connections:
                self.loop.watch(connection)
            yield

    @property
    def has_ends(self) -> bool:
        """Whether tasks have ended since the last `take_ends`."""
        return bool(self._ended)

    @property
    def all_ended(self) -> bool:
        """Whether no task runs."""
        return all(task.exit is not None for task in self.tasks)

    @property
    def running(self) -> list[str]:
        """The names of the tasks that run."""
        return [task.spec.name for task in self.tasks if task.exit is None]

    @property
    def exits(self) -> dict[str, int]:
        """The exit codes of the tasks that have ended, as a shell reports them, by their names."""
        tasks = {task.index: task for task in (*self._former.values(), *self.tasks)}
        return {
            task.spec.name: task.end.shell_code
            for _, task in sorted(tasks.items())
            if task.exit is not None
        }

    def task(self, index: int) -> Task:
        """Returns the present task of an index."""
        (task,) = (task for task in self.tasks if task.index == index)
        return task

    def take_ends(self) -> list[Task]:
        """Returns the tasks that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def note_ends(self) -> None:
        """Looks for tasks that have ended. A signal's handler may call it at any time."""
        self._ended.extend(task for task in self.tasks if task.check())

    def start(self, index: int) -> None:
        """Starts a task.

        Raises:
          OSError: it cannot be started.
        """
        task = self._new_task(index, self._former.get(index))
        self._former.pop(index, None)
        # In one step: the handler of SIGCHLD goes through the list.
        self.tasks = sorted([*self.tasks, task], key=lambda task: task.index)
        # It may have ended before it was in the list.
        self.note_ends()

    def _new_task(self, index: int, replaces: Task | None = None) -> Task:
        spec = self.specs[index]
        assert self._guard is not None
        guard = self._guard.pipe
        try:
            task = Task(
                spec,
                index,
                lambda process, sinks: self.pool.start(index, process, sinks, guard),
                self._streams,
                self._log_dir,
                self.pool.cpus(index),
                self.pool.gpus(index),
                replaces,
            )
        except OSError as error:
            raise OSError(error.errno, f"cannot start {spec.title}: {error}") from error
        self.loop.add(task.outputs)
        return task

    def replace(self, task: Task) -> Task:
        """Starts one task again, after its former processes have ended."""
        self._end(task)
        self._report_log(task)
        position = self.tasks.index(task)
        new = self.tasks[position] = self._new_task(task.index, task)
        self.note_ends()
        return new

    def replace_all(self) -> None:
        """Starts all tasks again, after all former processes have ended."""
        self.due.cancel("kill")
        self.end_all()
        for position, task in enumerate(self.tasks):
            self._report_log(task)
            self.tasks[position] = self._new_task(task.index, task)
        self.note_ends()

    def remove(self, task: Task) -> None:
        """Ends what is left of an ended task: its children must not outlive it in the job."""
        self._end(task)
        self._report_log(task)
        self.tasks = [other for other in self.tasks if other is not task]
        self._former[task.index] = task

    def revive_guard(self) -> None:
        """Starts the guard of the tasks again if it has ended."""
        assert self._guard is not None
        processes = [task.process for task in self.tasks if not task.closed]
        if self._guard.revive(found.group for found in processes if found.group is not None):
            left = f"starts left: {self._guard.starts_left}"
            self.say(f"the guard of the tasks had ended; it is started again ({left})")

    def fail(self, task: Task, reason: str = "") -> None:
        """Ends the job because of a failed task that is not started again; tells the reason."""
        self.note_failure(task)
        why = f"; {reason}" if reason else ""
        stopping = f"; stopping {listed(self.running)}" if self.running else ""
        # Another task may be the cause, whose end is not seen yet; the report names it.
        self.say(f"{task.spec.title} has ended: {task.exit}{why}{stopping}")
        self.lifecycle.go(JobState.STOPPING)
        self.stop(signal.SIGTERM, self.stop_grace)

    def note_failure(self, task: Task) -> None:
        """Notes that the job has failed because of a task, unless it has failed before."""
        self.first_failure = self.first_failure or task
        code = self.first_failure.end.shell_code
        self.outcome = dataclasses.replace(self.outcome, code=code)

    def first_failed(self) -> FirstFailure | None:
        """Returns the task that failed first, in a job that has failed and whose tasks have ended.

        Its exit code is the job's.
        """
        if self.first_failure is None:
            return None
        first = self.first_of(self.first_failure)
        self.outcome = dataclasses.replace(self.outcome, code=first.code)
        return first

    def first_of(self, ended: Task) -> FirstFailure:
        """Returns the task that failed first, once all have ended.

        Args:
          ended: the failed task whose end was seen first.
        """
        if self.findings is None:
            return FirstFailure(ended)
        return self.findings.first(ended, self.tasks)

    def linger(self) -> None:
        """Gives the other tasks some time to end by themselves after the training tasks."""
        self.lifecycle.go(JobState.LINGERING)
        self.due.cancel("limit")
        for task in self.tasks:
            if task.exit is None and not task.spec.prepares_data:
                self.give_time(task)

    def give_time(self, task: Task) -> None:
        """Gives one task some time to end by itself."""
        self.say(f"training is done; {task.spec.name} has {task.spec.grace:g} s to end")
        self.due.set(task.spec.name, task.spec.grace, lambda: self.retire(task))

    def retire(self, task: Task) -> None:
        """Ends one task by SIGTERM, and by SIGKILL later."""
        task.signal(signal.SIGTERM)
        kill = functools.partial(task.signal, signal.SIGKILL)
        self.due.set(f"kill {task.spec.name}", self.stop_grace, kill)

    def retire_data_tasks(self) -> None:
        """Ends the data tasks when no task is left that could use them."""
        data_tasks = [task for task in self.tasks if task.spec.prepares_data]
        if all(task.exit is not None or task in data_tasks for task in self.tasks):
            for task in data_tasks:
                if task.exit is None and not task.told_to_stop:
                    self.retire(task)

    def stop(self, number: int, grace: float, alone: bool = False) -> None:
        """Sends a signal to all tasks, and SIGKILL later.

        Args:
          number: the signal.
          grace: seconds until SIGKILL.
          alone: SIGTERM to each task alone, which is to end its step and still needs its children.
        """
        for task in self.tasks:
            if task.exit is None:
                if alone:
                    task.notify()
                else:
                    task.signal(number)
        # A user who has sent a signal learns which tasks did not heed it.
        is_asked = alone or number != signal.SIGTERM
        kill = self._kill_after_notice if is_asked else self.kill
        # The limit holds for a job that starts again, too.
        self.due.cancel_all(keep="limit" if self.lifecycle.is_restarting else "")
        self.due.set("kill", grace, kill)

    def kill(self) -> None:
        """Kills all tasks."""
        self.due.cancel("kill")
        for task in self.tasks:
            if task.exit is None:
                task.signal(signal.SIGKILL)

    def _kill_after_notice(self) -> None:
        self.say(
            f"killing {listed(self.running)}, which did not end within {self.signal_grace:g} s"
        )
        self.kill()

    def end_all(self) -> None:
        """Ends the processes of all tasks and reads their last output."""
        for task in self.tasks:
            self._end(task)

    def _end(self, task: Task) -> None:
        self.loop.remove(task.outputs)
        task.close()

    def report_logs(self) -> None:
        """Says which logs are incomplete."""
        for task in self.tasks:
            self._report_log(task)

    def _report_log(self, task: Task) -> None:
        if task.log is not None and task.log.error is not None:
            self.say(f"{task.spec.name}: its log is incomplete: {task.log.error}")

    def say(self, text: str) -> None:
        """Prints a line of the launcher's own."""
        self._streams[0].live(b"")
        # A reason may be the words of another host, or of a script of the user's.
        self._streams[1].line(f"tfdist run: {printable_line(text)}".encode())

    def quote(self, line: str) -> None:
        """Prints a line of a task's as a part of a message."""
        self._streams[1].line(b"    " + line.encode())

    def _resize(self) -> None:
        for task in self.tasks:
            task.resize()


def listed(names: Sequence[str]) -> str:
    """Returns names with commas."""
    return ", ".join(names) if names else "none"
