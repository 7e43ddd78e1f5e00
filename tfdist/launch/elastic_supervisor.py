"""The supervisor of an elastic job: workers fail, are restarted, leave and join one by one.

`ElasticPolicy` decides, and this class carries it out: it starts and ends processes, keeps the
timers of the back-off, prints a line for each change, and answers `tfdist scale`. The loop, the
signals, the time limit and the report are those of `Supervisor`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.errors import Preempted
from tfdist.launch.elastic_policy import (
    ElasticPolicy,
    FailureDecision,
    ScaleError,
    SlotState,
    Verdict,
)
from tfdist.launch.hosts import discovery
from tfdist.launch.hosts.connection import HostConnection
from tfdist.launch.hosts.cooldown import Cooldown
from tfdist.launch.hosts.elastic_hosts import ElasticHosts, NoRoomYetError
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.hosts.pool import HostPool
from tfdist.launch.job_state import JobState
from tfdist.launch.output import OutputStream
from tfdist.launch.scale_channel import ScaleRequest, ScaleServer
from tfdist.launch.supervisor import Outcome, Supervisor
from tfdist.launch.task import Task, TaskSpec

# The failures that the report lists.
_MAX_SURVIVED = 10


class ElasticSupervisor(Supervisor):
    """Starts the workers of an elastic job, and watches them until none is left.

    Args:
      specs: the workers, by slot; the policy says which of them run. Then the parameter servers,
        which run as long as there are workers.
      pool: starts each of them on its host.
      policy: decides which workers run.
      listener: the socket at which `tfdist scale` is answered, see `scale_listener`.
      connect: begins to connect to a host that the script names; None if it needs none.
      cooldown: when a host on which workers fail is left out.
      discovery_script: names the job's hosts while it runs, or None.
      streams: receive the workers' stdout and stderr; our own messages go to the second.
      log_dir: the directory of the workers' logs, or None.
      timeout: seconds the job may take, restarts included, or None.
      stop_grace: seconds from SIGTERM to SIGKILL after a failure or at the time limit.
      signal_grace: seconds from a forwarded signal, or from the request to leave, to SIGKILL.
    """

    def __init__(
        self,
        specs: Sequence[TaskSpec],
        pool: HostPool,
        *,
        policy: ElasticPolicy,
        listener: socket.socket,
        connect: Callable[[Host], HostConnection | None],
        cooldown: Cooldown,
        discovery_script: Path | None = None,
        streams: tuple[OutputStream, OutputStream],
        log_dir: Path | None = None,
        timeout: float | None = None,
        stop_grace: float = 10.0,
        signal_grace: float = 30.0,
    ) -> None:
        super().__init__(
            specs,
            pool,
            streams=streams,
            log_dir=log_dir,
            timeout=timeout,
            stop_grace=stop_grace,
            signal_grace=signal_grace,
        )
        self._policy = policy
        self._listener = listener
        self._hosts = ElasticHosts(pool, specs, lambda host: self._watched(connect(host)), cooldown)
        self._discovery_script = discovery_script
        self._requests: list[ScaleRequest] = []
        # The last task of each slot that has ended, which the next one replaces.
        self._former: dict[int, Task] = {}
        # What the job went on after, in the order of the time.
        self._survived: list[str] = []

    def run(self) -> int:
        """Runs the job to its end, when none of its processes is left; returns the exit code."""
        with contextlib.ExitStack() as stack:
            server = ScaleServer(self._readers, self._take_request, self._listener)
            stack.callback(server.close)
            if self._discovery_script is not None:
                script = discovery.Discovery(
                    self._discovery_script, self._readers, self._take_hosts, self._say
                )
                stack.callback(script.close)
                self._ask_for_hosts(script)
            stack.callback(self._refuse_requests)
            return super().run()

    def _watched(self, connection: HostConnection | None) -> HostConnection | None:
        if connection is not None:
            self._watch(connection)
        return connection

    def _ask_for_hosts(self, script: discovery.Discovery) -> None:
        script.ask()
        self._due.set("hosts", discovery.INTERVAL, lambda: self._ask_for_hosts(script))

    def _take_hosts(self, hosts: Sequence[Host]) -> None:
        """Lets the workers of hosts that are gone leave; connects to new hosts."""
        if self._job.is_stopping or self._policy.finished:
            return
        running = [task.index for task in self._tasks if self._is_running(task)]
        changes = self._hosts.update(hosts, running)
        for line in changes.lines:
            self._say(line)
        for slot in self._policy.release(changes.leave):
            self._say(f"{self._specs[slot].name}: told to leave its host (SIGTERM)")
            self._ask_to_leave(slot)
        if changes.lines:
            self._fill_hosts()

    def _is_running(self, task: Task) -> bool:
        return task.spec.trains and self._policy.state(task.index) is SlotState.RUNNING

    def _fill_hosts(self) -> None:
        """Starts workers in the free slots of the hosts, as many as the job may have."""
        workers = self._policy.workers
        running = [task.index for task in self._tasks if self._is_running(task)]
        count = min(workers.maximum, self._hosts.capacity(running))
        if count > self._count() and count >= workers.minimum:
            self._scale(count)

    def _take_request(self, request: ScaleRequest) -> None:
        if self._job.has_ended:
            request.refuse("the job has ended")
        else:
            self._requests.append(request)

    def _report(self) -> None:
        self._refuse_requests()
        super()._report()

    def _start(self) -> None:
        for slot in self._policy.begin():
            self._start_slot(slot)
        for index, spec in enumerate(self._specs):
            if spec.serves:
                self._start_slot(index)

    def _all_ended(self) -> bool:
        return super()._all_ended() and (self._job.is_stopping or not self._policy.waiting)

    def _is_trained(self) -> bool:
        return self._policy.finished and self._policy.has_ended

    def _decide(self) -> None:
        super()._decide()
        come = self._hosts.take_connected()
        for line in come:
            self._say(line)
        if come and not self._job.is_stopping and not self._policy.finished:
            self._fill_hosts()
        for slot in self._policy.latecomers:
            self._give_latecomer_time(slot)
        # The servers do not know whether lost workers will come back.
        if self._job.state is JobState.RUNNING and self._policy.has_ended:
            self._linger()
        # After the ended tasks: a request is about the workers that there are.
        while self._requests and not self._job.is_stopping and not self._all_ended():
            request = self._requests.pop(0)
            if not request.is_awaited:
                self._say(f"scale: {request.workers} workers: not done, since the asker has gone")
                request.refuse("the asker has gone")
                continue
            try:
                request.done(self._scale(request.workers))
            except ScaleError as error:
                request.refuse(str(error))
        if self._job.is_stopping:
            self._refuse_requests()

    def _in_order(self, ended: list[Task]) -> list[Task]:
        """Returns the workers that have ended since the last time, the earliest first."""
        # No worker fails because of another. What matters is whether one has finished before.
        return sorted(ended, key=lambda task: task.end.at)

    def _task_ended(self, task: Task) -> None:
        """Handles the end of one task, while the job is not being stopped."""
        slot, code = task.index, task.end.code
        if task.spec.serves:
            self._server_ended(task)
            return
        told = self._policy.state(slot) in (SlotState.LEAVING, SlotState.RETURNING)
        if told or code == Preempted.EXIT_CODE:
            self._left(task)
        elif code == 0:
            self._finished(task)
        # A signal to the launcher may have reached the workers, too; it decides what follows.
        elif not self._signals:
            if task.spec.host and self._leave_out_host(task):
                return
            decision = self._policy.failed(slot, task.end.at - task.started_at)
            self._worker_failed(task, decision)

    def _leave_out_host(self, task: Task) -> bool:
        """Leaves out the host of a failed worker if workers fail there again and again.

        Returns:
          Whether it is left out; if so, the worker is to start elsewhere, or later.
        """
        slot = task.index
        if not self._hosts.is_failing(slot, task.started_at, task.end.at):
            return False
        wait = self._policy.move(slot, self._hosts.on_host_of(slot))
        if wait is None:
            return False
        # First, so that its last output precedes the message.
        self._remove(task)
        name, seconds, reason = self._hosts.leave_out(slot)
        self._survived.append(f"{task.spec.title} ({task.exit})")
        self._say(
            f"{task.spec.title} failed: {task.exit}; starting it again on another host, or when "
            f"its host is tried again (restarts left: {self._policy.restarts_left})"
        )
        self._say(f"host {name} takes no worker for {seconds:g} s: {reason}")
        self._due.set(f"start {task.spec.name}", wait, lambda: self._restart_slot(slot))
        self._due.set(f"try host {name}", seconds, lambda: self._try_host(name, seconds))
        return True

    def _try_host(self, name: str, seconds: float) -> None:
        """Starts the workers that have waited for a host whose cool-down is over."""
        if self._job.is_stopping or self._policy.finished:
            return
        self._say(f"host {name} is tried again after {seconds:g} s")
        for slot in self._policy.held:
            self._due.cancel(f"start {self._specs[slot].name}")
            self._restart_slot(slot)
        if self._discovery_script is not None:
            self._fill_hosts()

    def _server_ended(self, task: Task) -> None:
        """Starts a parameter server again at once, since the workers wait for it."""
        if task.end.code == 0 or task.told_to_stop or self._policy.has_ended or self._signals:
            return
        if not self._policy.take_restart():
            self._fail(task, "; no restarts left")
            return
        self._survived.append(f"{task.spec.title} ({task.exit})")
        left = f"restarts left: {self._policy.restarts_left}"
        self._say(f"{task.spec.title} failed: {task.exit}; starting it again ({left})")
        self._replace(task)

    def _worker_failed(self, task: Task, decision: FailureDecision) -> None:
        if decision.verdict is Verdict.FAIL:
            self._fail(task, f"; {decision.reason}")
            return
        # First, so that its last output precedes the message.
        self._remove(task)
        what = f"{task.spec.title} failed: {task.exit}"
        if decision.verdict is Verdict.TOO_LATE:
            self._say(f"{task.spec.name} came too late: {task.exit}; {decision.reason}")
        elif decision.verdict is Verdict.FAIL_AT_END:
            self._first_failure = self._first_failure or task
            code = self._first_failure.end.shell_code
            self._outcome = dataclasses.replace(self._outcome, code=code)
            self._say(f"{what}; {decision.reason}, so the others end by themselves")
        else:
            self._survived.append(f"{task.spec.title} ({task.exit})")
            self._start_later_or_never(task.index, what, decision)

    def _start_later_or_never(self, slot: int, what: str, decision: FailureDecision) -> None:
        """Carries out a decision after which the job goes on; `what` happened."""
        if decision.verdict is Verdict.LEAVE_OUT:
            self._say(f"{what}; {decision.reason}; left out, workers now: {self._count()}")
            return
        left = f"restarts left: {self._policy.restarts_left}"
        self._say(f"{what}; starting it again in {decision.wait:g} s ({left})")
        name = self._specs[slot].name
        self._due.set(f"start {name}", decision.wait, lambda: self._restart_slot(slot))

    def _left(self, task: Task) -> None:
        name = task.spec.name
        self._due.cancel(f"kill {name}")
        self._remove(task)
        if self._policy.left(task.index):
            self._say(f"{name} has left: {task.exit}; starting it again, as 'tfdist scale' asked")
            self._try_to_start_slot(task.index)
            return
        self._say(f"{name} has left: {task.exit}; workers now: {self._count()}")
        if self._policy.has_ended and not self._policy.finished:
            self._outcome = Outcome(Preempted.EXIT_CODE, "all workers have left")

    def _finished(self, task: Task) -> None:
        for slot in self._policy.end(task.index):
            name = self._specs[slot].name
            self._due.cancel(f"start {name}")
            self._say(f"{task.spec.name} has finished; {name} is not started again")

    def _restart_slot(self, slot: int) -> None:
        if not self._job.is_stopping:
            self._policy.restarted(slot)
            self._try_to_start_slot(slot)

    def _try_to_start_slot(self, slot: int) -> bool:
        """Starts a worker of a running job; returns False if that fails, which is a failure of it.

        Raises:
          OSError: it fails, and the job with it.
        """
        try:
            self._start_slot(slot)
        except NoRoomYetError as error:
            self._policy.hold(slot)
            self._say(f"{self._specs[slot].name} waits for a host: {error.strerror}")
            return False
        except OSError as error:
            decision = self._policy.failed(slot, life=0.0)
            if decision.verdict is Verdict.FAIL:
                raise
            self._start_later_or_never(slot, str(error), decision)
            return False
        return True

    def _start_slot(self, slot: int) -> None:
        if self._specs[slot].host:
            occupied = [task.index for task in self._tasks if task.exit is None]
            try:
                self._specs[slot] = self._hosts.place(slot, occupied, self._reserved())
            except NoRoomYetError:
                raise
            except OSError as error:
                name = self._specs[slot].name
                raise OSError(error.errno, f"cannot start {name}: {error}") from error
        task = self._new_task(slot, self._former.get(slot))
        self._former.pop(slot, None)
        # In one step: the handler of SIGCHLD goes through the list.
        self._tasks = sorted([*self._tasks, task], key=lambda task: task.index)
        # It may have ended before it was in the list.
        self._note_ends()

    def _reserved(self) -> list[int]:
        """Returns the slots that are about to start again, each on its own host if it can."""
        ended = (task for task in self._tasks if task.exit is not None)
        return [
            *self._policy.backing_off,
            *(task.index for task in filter(self._is_running, ended)),
        ]

    def _remove(self, task: Task) -> None:
        """Ends what is left of an ended worker: its children must not outlive it in the job."""
        self._end(task)
        self._report_log(task)
        self._tasks = [other for other in self._tasks if other is not task]
        self._former[task.index] = task

    def _scale(self, count: int) -> list[str]:
        """Changes the number of workers; returns what was done, as lines.

        Raises:
          ScaleError: the number is outside the job's range, or the job is ending.
        """
        before = self._count()
        changes = self._policy.scale(count)
        lines = []
        for slot in changes.start:
            started = self._try_to_start_slot(slot)
            lines.append(f"{self._specs[slot].name}: {'started' if started else 'did not start'}")
        for slot in changes.start_later:
            lines.append(f"{self._specs[slot].name}: leaves first, then starts")
        for slot in changes.leave:
            self._ask_to_leave(slot)
            lines.append(f"{self._specs[slot].name}: told to leave (SIGTERM)")
        for slot in changes.cancel:
            name = self._specs[slot].name
            self._due.cancel(f"start {name}")
            lines.append(f"{name}: is not started again")
        start = self._policy.workers.start
        if count < start:
            # The workers agree on START, on which batch sizes depend, and cannot change it.
            lines.append(
                f"START is {start}: a job that has not begun yet, or begins again after all its "
                f"workers have died, waits for {start} workers"
            )
        lines = [f"workers: {before} before, {self._count()} now", *lines]
        for line in lines:
            self._say(f"scale: {line}")
        return lines

    def _ask_to_leave(self, slot: int) -> None:
        (task,) = (task for task in self._tasks if task.index == slot)
        # To the process alone: it ends its step, and still needs its children.
        task.notify()

        def kill() -> None:
            if task.exit is not None:
                return
            self._say(
                f"killing {task.spec.name}, which did not leave within {self._signal_grace:g} s"
            )
            task.signal(signal.SIGKILL)

        self._due.set(f"kill {task.spec.name}", self._signal_grace, kill)

    def _give_latecomer_time(self, slot: int) -> None:
        """Ends a worker some time after the others have finished, if it does not end by itself."""
        (task,) = (task for task in self._tasks if task.index == slot)
        name = f"end {task.spec.name}"
        if self._job.is_stopping or task.exit is not None or task.told_to_stop or name in self._due:
            return
        self._due.set(name, self._signal_grace, lambda: self._retire(task))

    def _cause(self, failed: Task, life: float) -> str:
        """The reason of the job's failure, after which it did not go on, and what it survived."""
        cause = (
            f"the job failed because of {failed.spec.title}: {failed.exit}, {life:.1f} s after its "
            "start"
        )
        if not self._survived:
            return cause
        last = self._survived[-_MAX_SURVIVED:]
        earlier = len(self._survived) - len(last)
        listed = ", ".join([f"{earlier} others"] * bool(earlier) + last)
        return f"{cause}; it had survived the failures of {listed}"

    def _count(self) -> int:
        """The number of workers that run or will be started again."""
        return len(self._policy.working)

    def _refuse_requests(self) -> None:
        while self._requests:
            self._requests.pop(0).refuse("the job is ending")
