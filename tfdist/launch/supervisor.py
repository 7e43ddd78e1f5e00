"""The supervisor of a launched job: one loop over output, ended processes, signals and deadlines.

`JobState` has the states of a job and a drawing of their transitions.

There is one thread. Every event wakes the same `poll`. `ElasticSupervisor` has the same loop, and
other rules for ended tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tfdist.config.printing import printable_line, without_colours
from tfdist.errors import Preempted
from tfdist.launch.deadlines import Deadlines
from tfdist.launch.guarded import Guard, guarded
from tfdist.launch.hosts.connection import HostConnection
from tfdist.launch.hosts.pool import HostPool
from tfdist.launch.job_state import JobLifecycle, JobState
from tfdist.launch.output import OutputStream, TaskOutput
from tfdist.launch.task import Task, TaskSpec

__all__ = ["Supervisor", "TaskSpec"]

TIMEOUT_CODE = 124
# Seconds in which a training task may follow a parameter server that was told to end.
_NOTICE_WAIT = 5.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ends, as far as that is known.

    Attributes:
      code: the launcher's exit code.
      reason: a line for the report, unless a failed task is the reason.
    """

    code: int = 0
    reason: str = ""


class Supervisor:
    """Starts the tasks of a job, and watches them until all have ended.

    Args:
      specs: the tasks; the first is rank 0.
      pool: starts each task on its host.
      streams: receive the tasks' stdout and stderr; our own messages go to the second.
      log_dir: the directory of the tasks' logs, or None.
      timeout: seconds the job may take, restarts included, or None.
      restarts: the number of failures that lead to a restart: of the failed task if it can be
        replaced alone, else of the whole job.
      stop_grace: seconds from SIGTERM to SIGKILL after a failure or at the time limit.
      signal_grace: seconds from a forwarded signal to SIGKILL.
    """

    def __init__(
        self,
        specs: Sequence[TaskSpec],
        pool: HostPool,
        *,
        streams: tuple[OutputStream, OutputStream],
        log_dir: Path | None = None,
        timeout: float | None = None,
        restarts: int = 0,
        stop_grace: float = 10.0,
        signal_grace: float = 30.0,
    ) -> None:
        self._specs = list(specs)
        self._pool = pool
        self._streams = streams
        self._log_dir = log_dir
        self._timeout = timeout
        self._restarts = restarts
        self._restarts_left = restarts
        self._has_servers = any(spec.serves for spec in specs)
        self._stop_grace = stop_grace
        self._signal_grace = signal_grace
        self._tasks: list[Task] = []
        self._first_failure: Task | None = None
        self._job = JobLifecycle()
        self._outcome = Outcome()
        self._ended: list[Task] = []
        self._signals: list[int] = []
        self._due = Deadlines()
        self._connections: list[HostConnection] = []
        self._reading: list[TaskOutput | HostConnection] = []
        self._guard: Guard | None = None
        # Further descriptors to read from, each with what handles its input.
        self._readers: dict[int, Callable[[], None]] = {}

    def run(self) -> int:
        """Runs the job to its end, when none of its processes is left; returns the exit code."""
        with contextlib.ExitStack() as stack:
            wake = stack.enter_context(self._signals_handled())
            self._guard = stack.enter_context(guarded())
            stack.callback(self._end_all)
            for connection in self._pool.connections:
                self._watch(connection)
            if self._timeout is not None:
                self._due.set("limit", self._timeout, self._time_is_up)
            self._start()
            while self._ended or not self._all_ended():
                while not self._all_ended():
                    self._step(wake)
                self._decide()
                if self._job.is_restarting:
                    self._start_again()
            self._end_all()
            self._job.go(JobState.ENDED)
            self._report()
            self._flush(wake)
        return self._outcome.code

    def _watch(self, connection: HostConnection) -> None:
        """Reads and writes a host's connection from now on."""
        self._connections.append(connection)
        self._reading.extend([connection, connection.words])

    def _all_ended(self) -> bool:
        return all(task.exit is not None for task in self._tasks)

    def _start(self) -> None:
        for index in range(len(self._specs)):
            self._tasks.append(self._new_task(index))
        # Some may have ended before they were in the list.
        self._note_ends()

    def _new_task(self, index: int, replaces: Task | None = None) -> Task:
        spec = self._specs[index]
        assert self._guard is not None
        guard = self._guard.pipe
        try:
            task = Task(
                spec,
                index,
                lambda process, sinks: self._pool.start(index, process, sinks, guard),
                self._streams,
                self._log_dir,
                self._pool.cpus(index),
                replaces,
            )
        except OSError as error:
            raise OSError(error.errno, f"cannot start {spec.title}: {error}") from error
        self._reading.extend(task.outputs)
        return task

    def _start_again(self) -> None:
        """Starts all tasks again, after all former processes have ended."""
        self._job.go(JobState.RUNNING)
        self._due.cancel("kill")
        self._end_all()
        for index, task in enumerate(self._tasks):
            self._report_log(task)
            self._tasks[index] = self._new_task(task.index, task)
        self._note_ends()

    def _replace(self, task: Task) -> Task:
        """Starts one task again, after its former processes have ended."""
        self._end(task)
        self._report_log(task)
        index = self._tasks.index(task)
        new = self._tasks[index] = self._new_task(task.index, task)
        self._note_ends()
        return new

    def _step(self, wake: int) -> None:
        """Waits for the next event or deadline and handles it."""
        beats = [found.next_beat for found in self._connections if not found.is_lost]
        next_due = [] if self._due.next is None else [self._due.next]
        soonest = min([*next_due, *beats], default=None)
        # A host may have told an end while something else was waited for.
        self._note_ends()
        if not self._ended:
            self._wait(wake, soonest)
        for connection in self._connections:
            connection.beat()
        self._note_ends()
        # Before the deadlines: a job that has just ended is not at its time limit.
        self._decide()
        self._due.act()

    def _wait(self, wake: int, until: float | None) -> None:
        """Sleeps until it can read or write something, or until a time, and does so."""
        ready = select.poll()
        ready.register(wake, select.POLLIN)
        # A task whose stream is full must wait, so that memory does not grow.
        reading = {out.source: out for out in self._reading if not out.full}
        to_hosts = (found.out for found in self._connections if not found.is_lost)
        writing = {out.descriptor: out for out in (*self._streams, *to_hosts) if out.pending}
        for descriptor in (*reading, *self._readers):
            ready.register(descriptor, select.POLLIN)
        for descriptor in writing:
            ready.register(descriptor, select.POLLOUT)
        left = None if until is None else max(0.0, until - time.monotonic())
        # Rounded up, so that it does not end just before the time.
        for descriptor, _ in ready.poll(None if left is None else math.ceil(left * 1000)):
            if descriptor == wake:
                os.read(wake, 4096)
            elif descriptor in writing:
                writing[descriptor].flush_some()
            elif descriptor in self._readers:
                self._readers[descriptor]()
            elif descriptor in reading and not reading[descriptor].read_some():
                self._reading.remove(reading[descriptor])

    def _decide(self) -> None:
        """Handles the ended tasks and the signals since the last call."""
        self._revive_guard()
        ended, self._ended = self._ended, []
        for task in self._in_order(ended):
            if not self._job.is_stopping:
                self._task_ended(task)
        while self._signals:
            self._interrupted(self._signals.pop(0))
        if self._job.state is JobState.RUNNING and self._is_trained():
            self._linger()
        if self._job.is_lingering:
            self._retire_data_tasks()

    def _revive_guard(self) -> None:
        assert self._guard is not None
        processes = [task.process for task in self._tasks if not task.closed]
        if self._guard.revive(found.group for found in processes if found.group is not None):
            left = f"starts left: {self._guard.starts_left}"
            self._say(f"the guard of the tasks had ended; it is started again ({left})")

    def _in_order(self, ended: list[Task]) -> list[Task]:
        """Returns the tasks that have ended since the last time, the likely cause first."""
        # Of several tasks, one that a signal ended is more likely to be the cause than one with an
        # exit code: peers of a dead task notice its death and exit by themselves.
        return sorted(ended, key=lambda task: task.end.code >= 0)

    def _task_ended(self, task: Task) -> None:
        """Handles the end of one task, while the job is not being stopped."""
        if task.end.code == 0 or task.told_to_stop:
            return
        if task.end.code != Preempted.EXIT_CODE:
            self._failed(task)
        elif task.spec.trains:
            self._preempted(task)
        else:
            self._wait_for_notice(task)

    def _failed(self, task: Task) -> None:
        # A signal to the launcher may have reached the tasks, too. When training is done, a server
        # or data task is not needed any more.
        useful = not ((task.spec.serves or task.spec.prepares_data) and self._is_trained())
        if self._restarts_left and useful and not self._signals:
            self._restarts_left -= 1
            if self._has_servers or not task.spec.trains:
                self._restart(task)
            else:
                self._restart_all(task)
            return
        none_left = self._restarts and not self._restarts_left
        self._fail(task, "; no restarts left" if none_left else "")

    def _fail(self, task: Task, reason: str) -> None:
        """Ends the job because of a failed task that is not started again; tells the reason."""
        self._first_failure = self._first_failure or task
        self._outcome = dataclasses.replace(self._outcome, code=self._first_failure.end.shell_code)
        stopping = f"; stopping {_listed(self._running())}" if self._running() else ""
        self._say(f"{task.spec.title} failed: {task.exit}{reason}{stopping}")
        self._job.go(JobState.STOPPING)
        self._stop(signal.SIGTERM, self._stop_grace)

    def _wait_for_notice(self, task: Task) -> None:
        """Waits whether the training tasks were told to end, as a server was that has ended."""
        self._due.set(f"notice {task.spec.name}", _NOTICE_WAIT, lambda: self._failed(task))

    def _preempted(self, task: Task) -> None:
        """Ends the job, whose task was told to end by another program; that is no failure.

        The tasks that train tell each other. A second SIGTERM would end them while they save.
        """
        reason = f"stopped by SIGTERM to {task.spec.title}"
        self._outcome = Outcome(Preempted.EXIT_CODE, reason)
        running = self._running()
        wait = f"; waiting {self._signal_grace:g} s for {_listed(running)} to end, too"
        self._say(f"{task.spec.title} was told to end: {task.exit}{wait if running else ''}")
        self._job.go(JobState.NOTICED)
        for other in self._tasks:
            if other.exit is None and not (other.spec.trains or other.spec.serves):
                other.notify()
        self._due.cancel_all()
        stop = functools.partial(self._stop, signal.SIGTERM, self._stop_grace)
        self._due.set("stop", self._signal_grace, stop)

    def _is_trained(self) -> bool:
        """Whether all training tasks have ended with exit code 0."""
        training = [task for task in self._tasks if task.spec.trains]
        return all(task.exit is not None and task.exit.code == 0 for task in training)

    def _restart(self, task: Task) -> None:
        left = f"restarts left: {self._restarts_left}"
        self._say(f"{task.spec.title} failed: {task.exit}; starting it again ({left})")
        new = self._replace(task)
        if self._job.is_lingering:
            self._give_time(new)

    def _restart_all(self, task: Task) -> None:
        running = self._running()
        first = f"stopping {_listed(running)}, then " if running else ""
        left = f"restarts left: {self._restarts_left}"
        self._say(f"{task.spec.title} failed: {task.exit}; {first}starting all again ({left})")
        self._job.go(JobState.RESTARTING)
        self._stop(signal.SIGTERM, self._stop_grace)

    def _running(self) -> list[str]:
        return [task.spec.name for task in self._tasks if task.exit is None]

    def _time_is_up(self) -> None:
        running = _listed(self._running())
        reason = f"stopped at the limit of {self._timeout:g} s; still running then: {running}"
        self._outcome = Outcome(TIMEOUT_CODE, reason)
        self._job.go(JobState.STOPPING)
        self._stop(signal.SIGTERM, self._stop_grace)

    def _interrupted(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._job.state is JobState.NOTICED:
            self._job.go(JobState.STOPPING)
            self._say(f"{name}: the tasks are ending already; once more kills them")
            return
        if self._job.state is JobState.STOPPING:
            self._say(f"{name}: killing all tasks")
            self._kill()
            return
        self._outcome = Outcome(128 + number, f"stopped by {name}")
        self._job.go(JobState.STOPPING)
        self._say(
            f"{name}: passed on to all tasks, which have {self._signal_grace:g} s to end; once "
            "more kills them"
        )
        self._stop(number, self._signal_grace, alone=number == signal.SIGTERM)

    def _linger(self) -> None:
        """Gives the other tasks some time to end by themselves after the training tasks."""
        self._job.go(JobState.LINGERING)
        self._due.cancel("limit")
        for task in self._tasks:
            if task.exit is None and not task.spec.prepares_data:
                self._give_time(task)

    def _retire_data_tasks(self) -> None:
        """Ends the data tasks when no task is left that could use them."""
        data_tasks = [task for task in self._tasks if task.spec.prepares_data]
        if all(task.exit is not None or task in data_tasks for task in self._tasks):
            for task in data_tasks:
                if task.exit is None and not task.told_to_stop:
                    self._retire(task)

    def _give_time(self, task: Task) -> None:
        self._say(f"training is done; {task.spec.name} has {task.spec.grace:g} s to end")
        self._due.set(task.spec.name, task.spec.grace, lambda: self._retire(task))

    def _retire(self, task: Task) -> None:
        task.signal(signal.SIGTERM)
        kill = functools.partial(task.signal, signal.SIGKILL)
        self._due.set(f"kill {task.spec.name}", self._stop_grace, kill)

    def _stop(self, number: int, grace: float, alone: bool = False) -> None:
        """Sends a signal to all tasks, and SIGKILL later.

        Args:
          number: the signal.
          grace: seconds until SIGKILL.
          alone: SIGTERM to each task alone, which is to end its step and still needs its children.
        """
        for task in self._tasks:
            if task.exit is None:
                if alone:
                    task.notify()
                else:
                    task.signal(number)
        kill = self._kill_after_notice if alone else self._kill
        # The limit holds for a job that starts again, too.
        self._due.cancel_all(keep="limit" if self._job.is_restarting else "")
        self._due.set("kill", grace, kill)

    def _kill(self) -> None:
        self._due.cancel("kill")
        for task in self._tasks:
            if task.exit is None:
                task.signal(signal.SIGKILL)

    def _kill_after_notice(self) -> None:
        self._say(
            f"killing {_listed(self._running())}, which did not end within {self._signal_grace:g} s"
        )
        self._kill()

    def _end_all(self) -> None:
        for task in self._tasks:
            self._end(task)

    def _end(self, task: Task) -> None:
        """Ends the processes of a task and reads its last output."""
        self._reading = [output for output in self._reading if output not in task.outputs]
        task.close()

    def _report(self) -> None:
        """Prints the launcher's last lines: the reason for the job's end."""
        for task in self._tasks:
            self._report_log(task)
        failed = self._first_failure
        if failed is not None:
            self._say(self._cause(failed, failed.end.at - failed.started_at))
            if failed.log is not None:
                self._say(f"its whole output: {failed.log.path}")
            self._say("its last lines:" if failed.tail else "it printed nothing")
            for line in failed.tail:
                self._streams[1].line(b"    " + without_colours(line).encode())
        if self._outcome.reason:
            self._say(self._outcome.reason)

    def _cause(self, failed: Task, life: float) -> str:
        """The reason of the job's failure in one line; `life` is the task's, in seconds."""
        return f"{failed.spec.title} failed first: {failed.exit}, after {life:.1f} s"

    def _report_log(self, task: Task) -> None:
        if task.log is not None and task.log.error is not None:
            self._say(f"{task.spec.name}: its log is incomplete: {task.log.error}")

    def _flush(self, wake: int) -> None:
        """Writes the rest of the output; waits for a slow reader until a signal comes."""
        while any(stream.pending for stream in self._streams) and not self._signals:
            self._wait(wake, None)

    def _say(self, text: str) -> None:
        self._streams[0].live(b"")
        # A reason may be the words of another host, or of a script of the user's.
        self._streams[1].line(f"tfdist run: {printable_line(text)}".encode())

    def _note_ends(self) -> None:
        self._ended.extend(task for task in self._tasks if task.check())

    @contextlib.contextmanager
    def _signals_handled(self) -> Iterator[int]:
        """Handles signals while the job runs; yields a descriptor that each makes readable."""

        def note(number: int, frame: object) -> None:
            if number == signal.SIGCHLD:
                # At once, not in the next round of the loop: the order of the ends matters.
                self._note_ends()
            elif number == signal.SIGWINCH:
                for task in self._tasks:
                    task.resize()
            else:
                self._signals.append(number)

        readable, writable = os.pipe()
        for descriptor in (readable, writable):
            os.set_blocking(descriptor, False)
        wakeup = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        before = {}
        for number in (signal.SIGCHLD, signal.SIGWINCH, *_STOP_SIGNALS):
            # nohup and background jobs ignore some signals on purpose.
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, note)
        try:
            yield readable
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            os.close(readable)
            os.close(writable)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
